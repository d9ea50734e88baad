//! The paths of all rules as one tree of segments (RULE-2, RULE-3, RULE-4, RULE-7). A request's
//! path is followed down the tree as far as its segments exist, which for nearly every path is one
//! look at its first letter.
//!
//! A path with only one reading is at one node of the tree at a time. For any other path, all nodes
//! are kept at which some reading may be. After a `..` these are all nodes reached so far, because
//! readings differ in which segments it removes: rules that restrict may match too much, never too
//! little.

use std::collections::HashMap;

use ahash::RandomState;

use super::spelling::{self, Case, Reading, Segment};

/// The most nodes of the tree at which the readings of one path may be.
const MAX_NODES: usize = 32;
/// The most steps in the tree for one path. Only a path full of `..` needs more than a few dozen.
const MAX_LOOKS: usize = 1024;

/// The rules that a path matches: the number of a trap, and a bit for each limit, jail and denial.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Marks {
    pub(super) trap: Option<u32>,
    pub(super) limits: u16,
    pub(super) jails: u16,
    pub(super) denials: u64,
}

impl Marks {
    /// The marks of a path that needs too many steps: every rule matches it.
    const EVERYTHING: Self = Self {
        trap: Some(0),
        limits: u16::MAX,
        jails: u16::MAX,
        denials: u64::MAX,
    };

    const NONE: Self = Self {
        trap: None,
        limits: 0,
        jails: 0,
        denials: 0,
    };

    /// Of a limit: one of 16.
    pub(super) const fn limit(number: usize) -> Self {
        Self {
            limits: 1 << number,
            ..Self::NONE
        }
    }

    /// Of a jail: one of 16.
    pub(super) const fn jail(number: usize) -> Self {
        Self {
            jails: 1 << number,
            ..Self::NONE
        }
    }

    /// Of a denial: one of 64.
    pub(super) const fn denial(number: usize) -> Self {
        Self {
            denials: 1 << number,
            ..Self::NONE
        }
    }

    /// Adds others. The first trap stays.
    pub(super) const fn add(&mut self, other: Self) {
        if self.trap.is_none() {
            self.trap = other.trap;
        }
        self.limits |= other.limits;
        self.jails |= other.jails;
        self.denials |= other.denials;
    }
}

/// Every path of every rule.
#[derive(Clone, Debug, Default)]
pub(super) struct Paths {
    folded: Tree,
    exact_case: Tree,
}

/// Which paths a rule means by one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reach {
    /// It and everything below.
    Below,
    /// It alone.
    Itself,
}

impl Paths {
    /// Adds a path with what it marks.
    pub(super) fn add(&mut self, path: &str, case: Case, reach: Reach, marks: Marks) {
        let tree = match case {
            Case::Folded => &mut self.folded,
            Case::Exact => &mut self.exact_case,
        };
        tree.add(&spelling::of_rule(path, case), reach, marks);
    }

    /// The rules that a request's path matches, as written by the client.
    pub(super) fn find(&self, path: &str) -> Marks {
        let is_empty = self.folded.nodes.is_empty() && self.exact_case.nodes.is_empty();
        if is_empty || !path.starts_with('/') {
            return Marks::default();
        }
        if !spelling::is_plain(path) {
            return self.find_loosely(path);
        }
        let mut found = self.folded.find_plain(path);
        if !self.exact_case.nodes.is_empty() {
            found.add(self.exact_case.find_plain(path));
        }
        found
    }

    #[inline(never)]
    pub(super) fn find_loosely(&self, path: &str) -> Marks {
        let mut found = Walk::over(&self.folded, Case::Folded, path);
        found.add(Walk::over(&self.exact_case, Case::Exact, path));
        found
    }
}

/// One tree, its root first.
#[derive(Clone, Debug, Default)]
struct Tree {
    nodes: Vec<Node>,
    /// The first letters of the root's children: a bit each.
    letters: [u64; 4],
}

#[derive(Clone, Debug, Default)]
struct Node {
    /// The children by segment; keyed, so that no client can aim at one bucket.
    children: Option<HashMap<Box<[u8]>, u32, RandomState>>,
    /// What this path and everything below is marked with.
    below: Marks,
    /// What this path alone is marked with.
    itself: Marks,
}

impl Node {
    fn child(&self, segment: &[u8]) -> Option<u32> {
        self.children.as_ref()?.get(segment).copied()
    }
}

impl Tree {
    fn add(&mut self, segments: &[Box<[u8]>], reach: Reach, marks: Marks) {
        if self.nodes.is_empty() {
            self.nodes.push(Node::default());
        }
        if let Some(letter) = segments.first().and_then(|first| first.first()) {
            let (word, bit) = place(*letter);
            if let Some(word) = self.letters.get_mut(word) {
                *word |= bit;
            }
        }
        let mut at = 0;
        for segment in segments {
            // Far below 2^32: rules.json bounds paths and their lengths.
            let new = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX);
            let Some(node) = self.node_mut(at) else {
                return;
            };
            let children = node.children.get_or_insert_default();
            at = *children.entry(segment.clone()).or_insert(new);
            if at == new {
                self.nodes.push(Node::default());
            }
        }
        if let Some(node) = self.node_mut(at) {
            match reach {
                Reach::Below => node.below.add(marks),
                Reach::Itself => node.itself.add(marks),
            }
        }
    }

    fn node(&self, at: u32) -> Option<&Node> {
        self.nodes.get(usize::try_from(at).ok()?)
    }

    fn node_mut(&mut self, at: u32) -> Option<&mut Node> {
        self.nodes.get_mut(usize::try_from(at).ok()?)
    }

    /// The rules that a path with only one reading matches.
    fn find_plain(&self, path: &str) -> Marks {
        let Some(mut node) = self.nodes.first() else {
            return Marks::default();
        };
        let mut found = node.below;
        let rest = path.as_bytes().get(1..).unwrap_or_default();
        if rest.first().is_some_and(|letter| !self.begins(*letter)) {
            return found;
        }
        for segment in rest.split(|byte| *byte == b'/') {
            // The last, behind a slash at the end.
            if segment.is_empty() {
                continue;
            }
            match node.child(segment).and_then(|child| self.node(child)) {
                Some(child) => node = child,
                None => return found,
            }
            found.add(node.below);
        }
        found.add(node.itself);
        found
    }

    /// Whether a path of a rule begins with this letter behind its slash.
    fn begins(&self, letter: u8) -> bool {
        let (word, bit) = place(letter);
        self.letters.get(word).is_some_and(|word| word & bit != 0)
    }
}

/// The word of a letter's bit, and the bit.
const fn place(letter: u8) -> (usize, u64) {
    ((letter >> 6) as usize, 1 << (letter & 63))
}

/// A path that can be read in several ways, on its way down the tree.
struct Walk<'a> {
    tree: &'a Tree,
    case: Case,
    /// Where some reading is now.
    now: Nodes,
    /// Where some reading was.
    seen: Nodes,
    looks: usize,
    found: Marks,
}

/// The walk needs too many steps.
struct TooMuch;

impl Walk<'_> {
    /// What a path matches.
    fn over(tree: &Tree, case: Case, path: &str) -> Marks {
        let Some(root) = tree.nodes.first() else {
            return Marks::default();
        };
        let mut walk = Walk {
            tree,
            case,
            now: Nodes::ROOT,
            seen: Nodes::ROOT,
            looks: 0,
            found: root.below,
        };
        let mut walked = Ok(());
        spelling::each_segment(path, |segment| {
            if walked.is_ok() {
                walked = walk.segment(segment);
            }
        });
        if walked.is_err() {
            return Marks::EVERYTHING;
        }
        walk.end();
        walk.found
    }

    fn segment(&mut self, segment: &Segment) -> Result<(), TooMuch> {
        let mut next = if segment.may_be_skipped {
            self.now
        } else {
            Nodes::default()
        };
        for reading in segment.readings() {
            match reading {
                Reading::Nothing => next.add_all(&self.now)?,
                Reading::Parent => next.add_all(&self.seen)?,
                Reading::Name(name) => self.step(name, &mut next)?,
            }
        }
        self.now = next;
        if segment.may_end() {
            self.end();
        }
        Ok(())
    }

    /// Goes down to every child of this name.
    fn step(&mut self, name: &[u8], next: &mut Nodes) -> Result<(), TooMuch> {
        if self.now.is_empty() {
            return Ok(());
        }
        let name = spelling::folded(name, self.case);
        for at in self.now.iter() {
            self.looks += 1;
            if self.looks > MAX_LOOKS {
                return Err(TooMuch);
            }
            let child = self.tree.node(at).and_then(|node| node.child(&name));
            if let Some((child, node)) = child.and_then(|at| Some((at, self.tree.node(at)?))) {
                self.found.add(node.below);
                next.add(child)?;
                self.seen.add(child)?;
            }
        }
        Ok(())
    }

    /// The path ends where it is now.
    fn end(&mut self) {
        for node in self.now.iter().filter_map(|at| self.tree.node(at)) {
            self.found.add(node.itself);
        }
    }
}

/// Some nodes of a tree, each once.
#[derive(Clone, Copy, Default)]
struct Nodes {
    all: [u32; MAX_NODES],
    len: usize,
}

impl Nodes {
    const ROOT: Self = Self {
        all: [0; MAX_NODES],
        len: 1,
    };

    const fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn iter(self) -> impl Iterator<Item = u32> {
        self.all.into_iter().take(self.len)
    }

    fn add(&mut self, node: u32) -> Result<(), TooMuch> {
        if self.iter().any(|held| held == node) {
            return Ok(());
        }
        let place = self.all.get_mut(self.len).ok_or(TooMuch)?;
        *place = node;
        self.len += 1;
        Ok(())
    }

    fn add_all(&mut self, others: &Self) -> Result<(), TooMuch> {
        others.iter().try_for_each(|node| self.add(node))
    }
}
