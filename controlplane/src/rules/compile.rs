//! Makes the rules that the data plane reads of rules.json and its lists, at a moment: what has
//! ended by then has no effect, and when the next entry ends is told (RULE).

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::{Method, StatusCode};
use weir_shared::netblock::Netblock;
use weir_shared::rules::{
    Case, Jail, Limit, MAX_NETBLOCKS, Matcher, NetList, Quota, Rule, RuleKind, RuleSet, Trap, Traps,
};
use weir_shared::settings::OnLimit;
use weir_shared::units::Time;
use weir_shared::window::RuleSpan;

use super::document::{self, Member, Quotas, Reader, RulesFile, Which};
use super::kept::KeptLists;
use super::list_file::{self, FILE, ListText, list_path};
use crate::state::fault::Fault;

/// Names that stay known over edits, so that counts and hits go on.
type Known = HashMap<(RuleKind, String), Arc<Rule>>;

/// Reads and compiles; keeps which rule is which over edits.
pub(super) struct Compiler {
    reader: Reader,
    path: PathBuf,
    known: Known,
    /// Lists as they were last read whole, by name.
    good: HashMap<String, Arc<ListText>>,
    /// The same on disk (RULE-10).
    kept: KeptLists,
}

/// The files as they were read together.
#[derive(Default)]
pub(super) struct Read {
    file: RulesFile,
    lists: HashMap<String, Arc<ListText>>,
    /// Lists that cannot be used.
    bad: Vec<BadList>,
}

/// A list that cannot be used as it is (RULE-10).
pub(super) struct BadList {
    /// As rules.json names it.
    name: String,
    pub(super) path: PathBuf,
    /// The whole sentence, with what holds in its place.
    pub(super) error: String,
}

/// What was read, compiled for a moment.
pub(super) struct Compiled {
    pub(super) read: Read,
    pub(super) rules: Arc<RuleSet>,
    /// When the next entry ends, milliseconds since 1970.
    pub(super) ends_ms: Option<u64>,
    /// When the last of those that have ended did: before that moment one of them holds again.
    pub(super) ended_ms: Option<u64>,
}

impl Compiler {
    pub(super) fn new(path: &Path, state_dir: &Path) -> Self {
        Self {
            reader: Reader::new(),
            path: path.to_owned(),
            known: Known::new(),
            good: HashMap::new(),
            kept: KeptLists::new(state_dir),
        }
    }

    /// Reads rules.json itself; where it is not there, nothing holds.
    pub(super) fn read(&self, bytes: Option<&[u8]>) -> Result<RulesFile, Fault> {
        bytes.map_or_else(|| Ok(RulesFile::default()), |bytes| self.reader.read(bytes))
    }

    /// The paths of the lists that it names.
    pub(super) fn list_paths(&self, file: &RulesFile) -> Vec<PathBuf> {
        let members = file.allow.iter().chain(&file.deny);
        let names = members.filter_map(|member| member.file.as_deref());
        names.map(|name| list_path(&self.path, name)).collect()
    }

    /// Reads the lists that rules.json names. One that cannot be used is told, and its last good
    /// content stands in for it (RULE-10).
    pub(super) fn read_lists(&self, bytes: &[u8], file: RulesFile) -> Result<Read, Fault> {
        let mut read = Read {
            file,
            ..Read::default()
        };
        let mut room = MAX_NETBLOCKS;
        let both = [("allow", &read.file.allow), ("deny", &read.file.deny)];
        for (list, members) in both {
            for (index, _) in own(members) {
                room = room.checked_sub(1).ok_or_else(|| {
                    let message = format!("expected at most {MAX_NETBLOCKS} netblocks");
                    document::at(bytes, &format!("/{list}/{index}"), &message)
                })?;
            }
        }
        for (_, members) in both {
            for name in members.iter().filter_map(|member| member.file.as_ref()) {
                let path = list_path(&self.path, name);
                let text = match list(&path, room) {
                    Ok(text) => Arc::new(text),
                    Err(error) => {
                        let held = self.last_good(name, &path).filter(|text| text.fits(room));
                        let what_holds = match &held {
                            Some(text) => {
                                format!("its last good {} netblocks stay", text.netblocks.len())
                            }
                            None => "nothing of it is in force".to_owned(),
                        };
                        read.bad.push(BadList {
                            name: name.clone(),
                            error: format!("the list {} {error}: {what_holds}", path.display()),
                            path,
                        });
                        held.unwrap_or_default()
                    }
                };
                room = room.saturating_sub(text.netblocks.len());
                read.lists.insert(name.clone(), text);
            }
        }
        Ok(read)
    }

    fn last_good(&self, name: &str, path: &Path) -> Option<Arc<ListText>> {
        let held = self.good.get(name).map(Arc::clone);
        held.or_else(|| {
            let netblocks = self.kept.read(path)?;
            Some(Arc::new(ListText {
                netblocks,
                ..ListText::default()
            }))
        })
    }

    /// Keeps the lists that were read whole for a start that cannot read them (RULE-10).
    pub(super) fn keep(&self, read: &Read) -> io::Result<()> {
        let is_bad = |name: &String| read.bad.iter().any(|bad| bad.name == *name);
        let fresh = read.lists.iter().filter(|(name, _)| !is_bad(name));
        let fresh = fresh.map(|(name, text)| (list_path(&self.path, name), &*text.netblocks));
        let named: HashSet<PathBuf> = self.list_paths(&read.file).into_iter().collect();
        self.kept.keep(fresh, &named)
    }

    /// The rules that hold at a moment.
    pub(super) fn compile(&mut self, read: Read, now_ms: u64) -> Compiled {
        let mut made = Making {
            known: &self.known,
            kept: Known::new(),
            now_ms,
            ends_ms: None,
            ended_ms: None,
        };
        let file = &read.file;
        let allow = made.list(RuleKind::Allow, &file.allow, &read.lists);
        let deny = made.list(RuleKind::Deny, &file.deny, &read.lists);
        let mut traps = Traps::default();
        for trap in &file.traps {
            if made.holds(trap.until) {
                let rule = made.rule(RuleKind::Trap, &trap.name);
                let scope = trap.ban;
                traps.add_with_case(Trap { rule, scope }, case(trap.exact_case), &trap.paths);
            }
        }
        let limits = made.limits(file);
        let jails = made.jails(file);
        let Making {
            kept,
            ends_ms,
            ended_ms,
            ..
        } = made;
        self.known = kept;
        self.good.clone_from(&read.lists);
        self.good.retain(|_, text| !text.netblocks.is_empty());
        Compiled {
            rules: Arc::new(RuleSet::new(allow, deny, traps, limits, jails)),
            read,
            ends_ms,
            ended_ms,
        }
    }
}

/// One compilation.
struct Making<'a> {
    known: &'a Known,
    kept: Known,
    now_ms: u64,
    ends_ms: Option<u64>,
    ended_ms: Option<u64>,
}

impl Making<'_> {
    /// The limits that hold.
    fn limits(&mut self, file: &RulesFile) -> Vec<Limit> {
        let mut limits = Vec::new();
        for limit in &file.limits {
            if self.holds(limit.until) {
                limits.push(Limit {
                    rule: self.rule(RuleKind::Limit, &limit.name),
                    matcher: matcher(&limit.which),
                    quotas: quotas(&limit.quotas),
                    on_limit: match limit.on_limit {
                        document::OnLimit::Ban => OnLimit::Ban,
                        document::OnLimit::Refuse => OnLimit::Refuse,
                    },
                });
            }
        }
        limits
    }

    /// The jails that hold.
    fn jails(&mut self, file: &RulesFile) -> Vec<Jail> {
        let mut jails = Vec::new();
        for jail in &file.jails {
            let status = |status: &u16| StatusCode::from_u16(*status).ok();
            if self.holds(jail.until) {
                jails.push(Jail {
                    rule: self.rule(RuleKind::Jail, &jail.name),
                    matcher: matcher(&jail.which),
                    statuses: jail.statuses.iter().filter_map(status).collect(),
                    quotas: quotas(&jail.quotas),
                    scope: jail.ban,
                });
            }
        }
        jails
    }

    /// Whether an entry has not ended; if it will, its end is one to wake at; if it has, a clock
    /// that is set back may bring it back.
    fn holds(&mut self, until: Option<Time>) -> bool {
        let Some(Time(until)) = until else {
            return true;
        };
        let holds = until > self.now_ms;
        if holds {
            self.ends_ms = Some(self.ends_ms.map_or(until, |end| end.min(until)));
        } else {
            self.ended_ms = self.ended_ms.max(Some(until));
        }
        holds
    }

    /// The rule of this name: the one that was there before, if it was.
    fn rule(&mut self, kind: RuleKind, name: &str) -> Arc<Rule> {
        let key = (kind, name.to_owned());
        if let Some(rule) = self.kept.get(&key).or_else(|| self.known.get(&key)) {
            let rule = Arc::clone(rule);
            self.kept.insert(key, Arc::clone(&rule));
            return rule;
        }
        let rule = Arc::new(Rule::new(kind, name.to_owned()));
        self.kept.insert(key, Arc::clone(&rule));
        rule
    }

    fn list(
        &mut self,
        kind: RuleKind,
        members: &[Member],
        lists: &HashMap<String, Arc<ListText>>,
    ) -> NetList {
        let mut all: Vec<(Netblock, Arc<Rule>)> = Vec::new();
        for member in members {
            if !self.holds(member.until) {
                continue;
            }
            if let Some(netblock) = member.netblock {
                all.push((netblock, self.rule(kind, FILE)));
            }
            if let Some((name, text)) = member
                .file
                .as_ref()
                .and_then(|name| lists.get_key_value(name))
            {
                let rule = self.rule(kind, name);
                all.extend(
                    text.netblocks
                        .iter()
                        .map(|netblock| (*netblock, Arc::clone(&rule))),
                );
            }
        }
        NetList::new(all)
    }
}

/// The members that are a netblock, with their places.
fn own(members: &[Member]) -> impl Iterator<Item = (usize, Netblock)> {
    let members = members.iter().enumerate();
    members.filter_map(|(index, member)| Some((index, member.netblock?)))
}

/// Reads a list that is to have at most so many netblocks. An error is the end of a sentence.
fn list(path: &Path, room: usize) -> Result<ListText, String> {
    let bytes = list_file::bytes(path).map_err(|error| format!("cannot be read ({error})"))?;
    let text = list_file::parse(&bytes);
    if text.netblocks.is_empty() {
        return Err("has no netblock".to_owned());
    }
    if !text.fits(room) {
        let count = text.netblocks.len();
        return Err(format!(
            "has {count} netblocks, and {MAX_NETBLOCKS} are the most of all lists together"
        ));
    }
    Ok(text)
}

impl Compiled {
    /// Lists that cannot be used.
    pub(super) fn bad_lists(&self) -> &[BadList] {
        &self.read.bad
    }

    /// Says what is in force, and what of the lists could not be read.
    pub(super) fn log(&self, path: &Path) {
        let file = &self.read.file;
        let (allow, deny) = (self.rules.allow.len(), self.rules.deny.len());
        let trap_paths: usize = file.traps.iter().map(|trap| trap.paths.len()).sum();
        let (limits, jails) = (file.limits.len(), file.jails.len());
        if allow + deny + trap_paths + limits + jails > 0 {
            tracing::info!(
                file = %path.display(),
                "rules in force: {allow} netblocks allowed, {deny} denied, {limits} limits, {trap_paths} trap paths, {jails} jails"
            );
        }
        for bad in &self.read.bad {
            tracing::error!(file = %bad.path.display(), "{}", bad.error);
        }
        for (name, list) in &self.read.lists {
            if list.skipped > 0 {
                tracing::warn!(
                    file = name,
                    "{} lines are no netblocks and are skipped, the first of them {:?}",
                    list.skipped,
                    list.first_skipped
                );
            }
        }
        let all = [("allow", &file.allow), ("deny", &file.deny)];
        for (list, members) in all {
            let everything = |netblock: &Netblock| netblock.net().prefix_len() == 0;
            let own = members.iter().filter_map(|member| member.netblock);
            let named = members.iter().filter_map(|member| member.file.as_ref());
            let listed = named.filter_map(|name| self.read.lists.get(name));
            let mut listed = listed.flat_map(|text| text.netblocks.iter().copied());
            if let Some(netblock) = own
                .into_iter()
                .find(everything)
                .or_else(|| listed.find(everything))
            {
                tracing::warn!(file = %path.display(), "{list} has {netblock}, which is every client");
            }
        }
    }
}

const fn case(exact: bool) -> Case {
    if exact { Case::Exact } else { Case::Folded }
}

fn matcher(which: &Which) -> Matcher {
    let path = which.path.as_deref().map(|path| (path, which.exact));
    // The schema has seen to it that each is a method.
    let methods = which
        .methods
        .iter()
        .filter_map(|method| Method::from_bytes(method.as_bytes()).ok());
    Matcher::new(path, methods.collect(), which.host.as_deref()).with_case(case(which.exact_case))
}

fn quotas(quotas: &Quotas) -> Vec<Quota> {
    [
        (RuleSpan::Second, quotas.per_second),
        (RuleSpan::Minute, quotas.per_minute),
        (RuleSpan::Hour, quotas.per_hour),
        (RuleSpan::Day, quotas.per_day),
    ]
    .into_iter()
    .filter_map(|(span, limit)| limit.map(|limit| Quota { span, limit }))
    .collect()
}
