//! Compiles rules.json and its lists into the rules for the data plane, for a given time: entries
//! that have ended have no effect, and the end of the next entry is returned (RULE).

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use weir_shared::netblock::{NetSet, Netblock};
use weir_shared::rules::{
    Crawler, CrawlerCounts, Feed, MAX_LITERALS, MAX_NETBLOCKS, Parts, RuleKind, RuleSet, Trap,
    Traps,
};
use weir_shared::settings::{LookupSource, Settings};

use super::agent_file;
use super::choosing::AgentFiles;
use super::document::{self, Member, Reader, RulesFile};
use super::entry::List;
use super::fed::{self, Fed, Held};
use super::kept::KeptLists;
use super::list_file::{self, LISTS, beside, list_path};
use super::list_text::{for_all, list};
use super::listed::SharedLists;
use super::making::{Counted, Known, Making, case};
use crate::feeds::kept::Offered;
use crate::feeds::wanted::{Use, Wanted};
use crate::netblock_list::ListText;
use crate::state::fault::Fault;

mod listing;

/// Reads and compiles; keeps the identity of rules over edits.
pub(super) struct Compiler {
    reader: Reader,
    path: PathBuf,
    known: Known,
    counted: Counted,
    /// The last complete content of lists, by name.
    good: HashMap<String, Arc<ListText>>,
    /// The last complete content of files of literals.
    good_agents: AgentFiles,
    /// The copies of these on disk (RULE-10).
    kept: KeptLists,
    /// The lists that this process has written there. Unchanged ones are not written again, because
    /// that takes as long as a rebuild.
    on_disk: HashMap<String, Arc<ListText>>,
    /// The versions of feeds in force (FEED-4).
    fed: Fed,
    /// Whether clients are looked up (MATCH-5).
    lookups: bool,
    /// The last complete content of lists.json (FLEET-18).
    listed: Arc<SharedLists>,
    /// The path of lists.json.
    lists_path: PathBuf,
    /// Whether `weir allow` and `weir deny` write it.
    shares_lists: bool,
    /// `WAF_TRUSTED_PROXIES`, which entries of other instances must not deny here (ALIVE-5).
    trusted: NetSet,
    /// Feeds whose autonomous systems and countries have no effect, and were reported (FEED-7).
    told_idle: HashSet<String>,
}

/// The files, as they were read together.
#[derive(Default)]
pub(super) struct Read {
    file: RulesFile,
    lists: HashMap<String, Arc<ListText>>,
    agents: AgentFiles,
    /// The feeds, in the order of the file.
    feeds: Vec<Held>,
    /// lists.json.
    listed: Arc<SharedLists>,
    /// The digest of rules.json, by which instances of a fleet compare theirs.
    digest: u64,
    /// Lists that cannot be used.
    bad: Vec<BadList>,
}

/// A list that cannot be used as it is (RULE-10).
pub(super) struct BadList {
    /// Its name in rules.json.
    name: String,
    pub(super) path: PathBuf,
    /// The whole sentence, which also says what is in force instead.
    pub(super) error: String,
}

/// The files, compiled for a given time.
pub(super) struct Compiled {
    pub(super) read: Read,
    pub(super) rules: Arc<RuleSet>,
    /// When the next entry ends, in milliseconds since 1970.
    pub(super) ends_ms: Option<u64>,
    /// The latest end of the entries that have ended: if the clock is set back before it, one of
    /// them is in force again.
    pub(super) ended_ms: Option<u64>,
    /// The time it was compiled for.
    now_ms: u64,
}

impl Compiler {
    pub(super) fn new(path: &Path, state_dir: &Path) -> Self {
        Self {
            reader: Reader::new(),
            path: path.to_owned(),
            known: Known::new(),
            counted: Counted::new(),
            good: HashMap::new(),
            good_agents: AgentFiles::new(),
            kept: KeptLists::new(state_dir),
            on_disk: HashMap::new(),
            fed: Fed::new(state_dir, NetSet::default()),
            lookups: true,
            listed: Arc::default(),
            lists_path: state_dir.join(LISTS),
            shares_lists: false,
            trusted: NetSet::default(),
            told_idle: HashSet::new(),
        }
    }

    /// A compiler for a service with these settings.
    pub(super) fn of(settings: &Settings, path: &Path) -> Self {
        Self {
            lookups: settings.lookup.source != LookupSource::Off,
            shares_lists: settings.fleet.shares_lists(),
            trusted: settings.identity.trusted_proxies.clone(),
            fed: Fed::new(
                &settings.state.dir,
                settings.identity.trusted_proxies.clone(),
            ),
            ..Self::new(path, &settings.state.dir)
        }
    }

    /// Reads rules.json itself; without a file there are no rules.
    pub(super) fn read(&self, bytes: Option<&[u8]>) -> Result<RulesFile, Fault> {
        let Some(bytes) = bytes else {
            return Ok(RulesFile::default());
        };
        let file = self.reader.read(bytes)?;
        match file.without_lookups() {
            Some((pointer, message)) if !self.lookups => {
                Err(document::at(bytes, &pointer, &message))
            }
            _ => Ok(file),
        }
    }

    /// The paths of the lists that the file names.
    pub(super) fn list_paths(&self, file: &RulesFile) -> Vec<PathBuf> {
        let members = file.allow.iter().chain(&file.deny);
        let names = members.filter_map(|member| member.file.as_deref());
        let names = names.chain(agent_files(file));
        let named = names.map(|name| list_path(&self.path, name));
        named.chain([self.lists_path.clone()]).collect()
    }

    /// Reads the lists that rules.json names. An unusable one is reported, and its last good
    /// content is used instead (RULE-10).
    pub(super) fn read_lists(&self, bytes: &[u8], file: RulesFile) -> Result<Read, Fault> {
        let mut read = Read {
            file,
            digest: list_file::digest(bytes),
            ..Read::default()
        };
        self.read_listed(&mut read);
        // Feeds in force take part of the room already.
        let fixed = self.fed.count(&read.file.feeds) + read.listed.entries.len();
        let mut room = MAX_NETBLOCKS.saturating_sub(fixed);
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
            let named = members
                .iter()
                .filter_map(|member| Some((member.file.as_ref()?, member.force)));
            for (name, force) in named {
                let path = list_path(&self.path, name);
                let text = match list(&path, room).and_then(|text| for_all(text, force)) {
                    Ok(text) => self.as_before(name, text),
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
        for wanted in &read.file.feeds {
            let held = self.fed.held(wanted).cloned().unwrap_or_else(|| {
                let held = self.fed.read(wanted, room);
                room = room.saturating_sub(held.feed.entries());
                held
            });
            read.feeds.push(held);
        }
        self.read_agents(&mut read);
        Ok(read)
    }

    /// Files that were read a while ago, with the versions of feeds that are in force now.
    pub(super) fn with_feeds(&self, mut read: Read) -> Read {
        for (wanted, place) in read.file.feeds.iter().zip(&mut read.feeds) {
            if let Some(held) = self.fed.held(wanted) {
                *place = held.clone();
            }
        }
        read
    }

    /// Inserts a version of a feed. The error is the end of a sentence: why it cannot be used.
    pub(super) fn put_feed(read: &mut Read, offered: Offered) -> Result<(), String> {
        let members = read.file.allow.iter().chain(&read.file.deny);
        let own = members.filter(|member| member.netblock.is_some()).count();
        let listed: usize = read.lists.values().map(|text| text.netblocks.len()).sum();
        let room = MAX_NETBLOCKS.saturating_sub(own + listed + read.listed.entries.len());
        fed::put(&mut read.feeds, offered, room)
    }

    /// Reads the files of literals. An unusable one is reported, like a list.
    fn read_agents(&self, read: &mut Read) {
        let of_crawlers = read.file.crawlers.iter().map(|one| one.user_agent.len());
        let of_matches = read.file.matches().map(|(_, one)| one.literals());
        let own: usize = of_matches.chain(of_crawlers).sum();
        let mut room = MAX_LITERALS.saturating_sub(own);
        for name in agent_files(&read.file) {
            if read.agents.contains_key(name) {
                continue;
            }
            let path = list_path(&self.path, name);
            let agents = match agent_file::read(&path, room) {
                Ok(agents) => Arc::new(agents),
                Err(error) => {
                    let held = self.good_agents.get(name).map(Arc::clone);
                    let held = held.or_else(|| self.kept.read_agents(&path).map(Arc::new));
                    let held = held.filter(|agents| agents.literals.len() <= room);
                    let what_holds = match &held {
                        Some(agents) => {
                            format!("its last good {} lines stay", agents.literals.len())
                        }
                        None => "nothing of it is in force".to_owned(),
                    };
                    read.bad.push(BadList {
                        name: name.to_owned(),
                        error: format!("the file {} {error}: {what_holds}", path.display()),
                        path,
                    });
                    held.unwrap_or_default()
                }
            };
            room = room.saturating_sub(agents.literals.len());
            read.agents.insert(name.to_owned(), agents);
        }
    }

    /// The list, or the value held already if it is the same.
    fn as_before(&self, name: &str, text: ListText) -> Arc<ListText> {
        let held = self.good.get(name).filter(|held| ***held == text);
        held.map_or_else(|| Arc::new(text), Arc::clone)
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

    /// Keeps copies of complete lists for a start that cannot read them (RULE-10).
    pub(super) fn keep(&mut self, read: &Read) -> io::Result<()> {
        let is_bad = |name: &String| read.bad.iter().any(|bad| bad.name == *name);
        let is_there = |name: &String, text: &Arc<ListText>| {
            let there = self.on_disk.get(name);
            there.is_some_and(|there| Arc::ptr_eq(there, text))
        };
        let fresh = read.lists.iter();
        let fresh = fresh.filter(|(name, text)| !is_bad(name) && !is_there(name, text));
        let of = |name: &String| list_path(&self.path, name);
        let fresh = fresh.map(|(name, text)| (of(name), text.netblocks.iter()));
        self.kept.keep(fresh)?;
        let fresh = read.agents.iter().filter(|(name, _)| !is_bad(name));
        let fresh = fresh.map(|(name, agents)| (of(name), agents.literals.iter()));
        self.kept.keep(fresh)?;
        let named: HashSet<PathBuf> = self.list_paths(&read.file).into_iter().collect();
        self.kept.forget_others(&named);
        self.on_disk.clone_from(&read.lists);
        self.on_disk.retain(|name, _| !is_bad(name));
        Ok(())
    }

    /// Compiles the rules for a given time.
    // long: a flat list of the parts
    pub(super) fn compile(&mut self, read: Read, now_ms: u64) -> Compiled {
        let feeds = fed::feeds(&read.feeds, &read.file.feeds, now_ms);
        let allowed = self.in_force(&read.listed, List::Allow);
        let denied = self.in_force(&read.listed, List::Deny);
        let mut made = Making {
            known: &self.known,
            agents: &read.agents,
            feeds: &feeds,
            kept: Known::new(),
            counted: &self.counted,
            now_ms,
            ends_ms: None,
            ended_ms: None,
        };
        let file = &read.file;
        let allow = (RuleKind::Allow, Use::Allow);
        let allow = made.list(allow, &file.allow, (&read.lists, &allowed), &file.feeds);
        let deny = (RuleKind::Deny, Use::Deny);
        let deny = made.list(deny, &file.deny, (&read.lists, &denied), &file.feeds);
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
        let mut denials = made.denials(file);
        if self.lookups {
            denials.extend(made.places(&file.feeds));
        } else {
            fed::tell_idle(&feeds, &mut self.told_idle);
        }
        let exempt = made.exempt(file);
        for wanted in &file.feeds {
            made.holds(wanted.until);
        }
        let crawlers = made.crawlers(file);
        let Making {
            kept,
            ends_ms,
            ended_ms,
            ..
        } = made;
        self.known = kept;
        self.counted = crawlers.iter().map(counted).collect();
        self.listed = Arc::clone(&read.listed);
        self.good.clone_from(&read.lists);
        self.good.retain(|_, text| !text.netblocks.is_empty());
        self.good_agents.clone_from(&read.agents);
        (self.good_agents).retain(|_, agents| !agents.literals.is_empty());
        self.fed.hold(&read.feeds);
        let parts = Parts {
            allow,
            deny,
            traps,
            limits,
            jails,
            denials,
            exempt,
            feeds,
            crawlers,
        };
        Compiled {
            rules: Arc::new(RuleSet::of(parts)),
            read,
            ends_ms,
            ended_ms,
            now_ms,
        }
    }
}

/// The counts of a crawler, by its name.
fn counted(crawler: &Arc<Crawler>) -> (String, Arc<CrawlerCounts>) {
    (crawler.rule.name.clone(), Arc::clone(&crawler.counts))
}

/// The members that are netblocks, with their positions.
fn own(members: &[Member]) -> impl Iterator<Item = (usize, Netblock)> {
    let members = members.iter().enumerate();
    members.filter_map(|(index, member)| Some((index, member.netblock?)))
}

impl Compiled {
    /// Lists that cannot be used.
    pub(super) fn bad_lists(&self) -> &[BadList] {
        &self.read.bad
    }

    /// The number of netblocks of lists and feeds in force.
    pub(super) fn entries(&self) -> usize {
        let of_feeds = self.read.feeds.iter().map(|held| held.feed.entries());
        self.rules.allow.len() + self.rules.deny.len() + of_feeds.sum::<usize>()
    }

    /// The feeds of the rules.json at this path that have not ended, each with its version in
    /// force.
    pub(super) fn feeds(&self, path: &Path) -> Vec<(Wanted, Arc<Feed>)> {
        let held = self.read.feeds.iter().map(|held| Arc::clone(&held.feed));
        let mut wanted = self.read.file.feeds.clone();
        for crowdsec in wanted.iter_mut().filter_map(|one| one.crowdsec.as_mut()) {
            crowdsec.key_file = beside(path, &crowdsec.key_file);
        }
        let all = wanted.into_iter().zip(held);
        all.filter(|(wanted, _)| !wanted.has_ended(self.now_ms))
            .collect()
    }

    /// Whether a feed may end, or may have ended.
    pub(super) fn has_ends_of_feeds(&self) -> bool {
        let mut feeds = self.read.file.feeds.iter();
        feeds.any(|wanted| wanted.until.is_some())
    }

    /// Logs what is in force, and which lists could not be read.
    pub(super) fn log(&self, path: &Path) {
        let file = &self.read.file;
        let (allow, deny) = (self.rules.allow.len(), self.rules.deny.len());
        let trap_paths: usize = file.traps.iter().map(|trap| trap.paths.len()).sum();
        let (limits, jails) = (file.limits.len(), file.jails.len());
        let (denials, exempt) = (file.denials.len(), file.exempt.len());
        let crawlers = file.crawlers.len();
        if allow + deny + trap_paths + limits + jails + denials + exempt + crawlers > 0 {
            tracing::info!(
                file = %path.display(),
                "rules in force: netblocks allowed {allow}, denied {deny}; limits {limits}, trap paths {trap_paths}, jails {jails}, denials {denials}, exempt entries {exempt}, crawlers {crawlers}"
            );
        }
        for bad in &self.read.bad {
            tracing::error!(file = %bad.path.display(), "{}", bad.error);
        }
        for Held { feed, .. } in &self.read.feeds {
            if feed.taken_ms().is_none() {
                tracing::warn!(
                    feed = feed.name,
                    "the feed {:?} has no copy and is empty until it is fetched",
                    feed.name
                );
            }
        }
        for (name, list) in &self.read.lists {
            if list.skipped > 0 {
                tracing::warn!(
                    file = %list_path(path, name).display(),
                    "lines skipped, as they are no netblocks: {}; the first: {:?}",
                    list.skipped,
                    list.first_skipped
                );
            }
        }
        let all = [("allow", &file.allow), ("deny", &file.deny)];
        for (list, members) in all {
            let everything = |netblock: &Netblock| netblock.net().prefix_len() == 0;
            let mut own = members.iter().filter_map(|member| member.netblock);
            let own = own.find(everything).map(|own| (path.to_owned(), own));
            let mut named = members.iter().filter_map(|member| member.file.as_ref());
            let listed = || {
                named.find_map(|name| {
                    let netblocks = self.read.lists.get(name)?.netblocks.iter();
                    let netblock = netblocks.copied().find(everything)?;
                    Some((list_path(path, name), netblock))
                })
            };
            if let Some((file, netblock)) = own.or_else(listed) {
                tracing::warn!(file = %file.display(), "{list} has {netblock}, which is every client");
            }
        }
    }
}

/// The names of files of literals.
fn agent_files(file: &RulesFile) -> impl Iterator<Item = &str> {
    let matches = file.matches();
    matches.filter_map(|(_, matching)| matching.user_agent_file.as_deref())
}
