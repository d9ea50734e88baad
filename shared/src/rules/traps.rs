//! Trap paths (RULE-3): a tree of segments. A path walks down it as long as its segments are there,
//! which for nearly every path is one look: the first segment is in no trap.

use std::collections::HashMap;
use std::sync::Arc;

use ahash::RandomState;

use super::rule::Rule;
use crate::path;

/// Every trap path, by its segments.
#[derive(Clone, Debug, Default)]
pub struct Traps {
    /// The root first.
    nodes: Vec<Node>,
    rules: Vec<Arc<Rule>>,
}

#[derive(Clone, Debug, Default)]
struct Node {
    /// By segment; keyed, so that nobody outside can aim at one place.
    children: Option<HashMap<Box<str>, usize, RandomState>>,
    /// The trap that ends here.
    exact: Option<usize>,
    /// The trap of this folder and everything below.
    folder: Option<usize>,
}

impl Traps {
    /// Adds a trap; a path that was there before stays with the trap that had it first.
    pub fn add(&mut self, rule: Arc<Rule>, paths: impl IntoIterator<Item = impl AsRef<str>>) {
        let index = self.rules.len();
        self.rules.push(rule);
        for path in paths {
            let path = path::rule_form(path.as_ref());
            let folder = path.strip_suffix('/');
            let at = self.node(folder.unwrap_or(&path));
            if let Some(node) = self.nodes.get_mut(at) {
                let place = match folder {
                    Some(_) => &mut node.folder,
                    None => &mut node.exact,
                };
                place.get_or_insert(index);
            }
        }
    }

    /// The node of a path, made where it is not there.
    fn node(&mut self, path: &str) -> usize {
        if self.nodes.is_empty() {
            self.nodes.push(Node::default());
        }
        let mut at = 0;
        for segment in path.split('/').skip(1) {
            let next = self.nodes.len();
            let Some(node) = self.nodes.get_mut(at) else {
                break;
            };
            let children = node.children.get_or_insert_default();
            at = *children.entry(segment.into()).or_insert(next);
            if at == next {
                self.nodes.push(Node::default());
            }
        }
        at
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The trap that a path in [`path::rule_form`] falls into.
    pub fn find(&self, path: &str) -> Option<&Arc<Rule>> {
        let segments = path.strip_prefix('/')?.split('/');
        let mut node = self.nodes.first()?;
        let mut found = node.folder.and_then(|folder| self.rules.get(folder));
        for segment in segments {
            let child = node
                .children
                .as_ref()
                .and_then(|children| children.get(segment));
            match child.and_then(|child| self.nodes.get(*child)) {
                Some(child) => node = child,
                None => return found,
            }
            if let Some(folder) = node.folder {
                found = found.or_else(|| self.rules.get(folder));
            }
        }
        found.or_else(|| self.rules.get(node.exact?))
    }

    /// The traps, in the order of the file.
    pub fn rules(&self) -> impl Iterator<Item = &Arc<Rule>> {
        self.rules.iter()
    }
}
