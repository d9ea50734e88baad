//! The client table's face toward the control plane.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::client::Client;
use crate::clock::Now;
use crate::fleet::{InFleet, ValueHash};
use crate::lookup::Lookup;
use crate::netblock::Netblock;
use crate::proof::NamesAnswer;
use crate::rules::{MAX_LIMITS, Quota, Rule, SharedKey};
use crate::units::Time;
use crate::window::{PerSpan, RuleSpan, Span, Window};

/// The most clients that are kept (LIMIT-7). Not a setting.
pub const MAX_CLIENTS: usize = 20_000;

/// The most clients that are remembered as known (SHARE-4). Not a setting.
pub const MAX_KNOWN: usize = 200_000;

/// A client that is remembered as known (SHARE-4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KnownRow {
    /// Who.
    pub client: Client,
    /// Its first request that passed, to the minute.
    pub since: Time,
    /// How many more of its requests passed than were refused, as far as that is remembered.
    pub lead: u64,
}

/// One client as it stands in the table, copied out.
#[derive(Clone, PartialEq, Debug)]
pub struct ClientRow {
    /// Who.
    pub client: Client,
    /// First request.
    pub first_seen: Time,
    /// Latest request.
    pub last_seen: Time,
    /// The lookup's answer, once it arrived.
    pub lookup: Option<Arc<Lookup>>,
    /// Requests that were passed on.
    pub passed: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// Request windows.
    pub requests: PerSpan<Window>,
    /// Byte windows.
    pub bytes: PerSpan<Window>,
    /// What rules have counted; most clients have none.
    pub rules: Vec<RuleCount>,
    /// What of `requests` and `bytes` other sites asked for, where that is anything. Boxed: of most
    /// clients nothing is, and 20,000 rows are memory.
    pub other_sites: Option<Box<OtherSites>>,
    /// The first request that passed, where that was not the first of all (SHARE-4).
    pub first_passed: Option<Time>,
}

/// What pages of other sites made the browser of a client ask for, of what the windows of the
/// client have counted: no ban follows from it (RULE-8).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OtherSites {
    /// Requests.
    pub requests: PerSpan<Window>,
    /// Bytes of their bodies and answers.
    pub bytes: PerSpan<Window>,
}

/// The most windows of rules that are kept of one client: four of each limit and each jail.
pub const MAX_RULE_COUNTS: usize = 4 * 2 * MAX_LIMITS;

/// What one window of one rule has counted of a client (RULE-2, RULE-4).
#[derive(Clone, PartialEq, Debug)]
pub struct RuleCount {
    /// A limit or a jail; it need not be in force.
    pub rule: Arc<Rule>,
    /// Which of its windows.
    pub span: RuleSpan,
    /// What was counted.
    pub window: Window,
    /// What of it other sites asked for (RULE-8).
    pub other_sites: Window,
    /// What of it the fleet knows; none where nothing was shared of it.
    pub in_fleet: Option<Box<InFleet>>,
}

impl RuleCount {
    /// Nothing is counted any more; whether the fleet knows something of it all the same.
    pub fn begin_again(&mut self) -> bool {
        self.window = Window::default();
        self.other_sites = Window::default();
        self.in_fleet
            .as_deref_mut()
            .map(InFleet::begin_again)
            .is_some()
    }
}

/// What the counts stand at that clients share (SHARE-8).
#[derive(Clone, Debug, Default)]
pub struct SharedCountsUse {
    /// Counts that gave way to others, since the start.
    pub evicted: u64,
    /// The limits that have counts; one whose `per` was edited once for each of them.
    pub rules: Vec<SharedUse>,
}

impl SharedCountsUse {
    /// Counts of these limits that are kept.
    pub fn counts(&self) -> u64 {
        self.rules.iter().map(|of| of.counts).sum()
    }
}

/// How full the counts of a shared limit are.
#[derive(Clone, Debug)]
pub struct SharedUse {
    /// The limit.
    pub rule: Arc<Rule>,
    /// [`SharedKey::per`] of these counts.
    pub per: &'static str,
    /// The estimate of its fullest key, by the limit: 1 is full.
    pub ratio: f64,
    /// Its keys.
    pub keys: u64,
    /// Its counts: a key has two where a known client needed the second (SHARE-4).
    pub counts: u64,
}

/// What one window of a count has counted that clients share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SharedWindow {
    /// Which of its windows.
    pub span: RuleSpan,
    /// The limit that held last.
    pub limit: u64,
    /// What was counted.
    pub window: Window,
    /// What of it other sites asked for (RULE-8).
    pub other_sites: Window,
}

/// A count that clients share, for a restart (SHARE-8).
#[derive(Clone, PartialEq, Debug)]
pub struct SharedRow {
    /// The limit.
    pub rule: Arc<Rule>,
    /// Which of its counts.
    pub key: SharedKey,
    /// It is the second one, of known clients (SHARE-4).
    pub is_second: bool,
    /// At least one.
    pub windows: Vec<SharedWindow>,
}

/// A shared limit refuses, for the first time in a minute (SHARE-8).
#[derive(Clone, Debug)]
pub struct SharedRefusal {
    /// The limit.
    pub rule: Arc<Rule>,
    /// Which of its counts.
    pub key: SharedKey,
    /// The window that is full.
    pub quota: Quota,
    /// What it has counted.
    pub estimate: u64,
    /// About how many clients asked lately.
    pub clients: u64,
    /// When, milliseconds since 1970.
    pub at_ms: u64,
}

/// What the control plane may do with the table. Every call takes a shard's lock for the time of
/// one entry.
pub trait ClientTable: Send + Sync {
    /// Zeroes the client's windows, and those of its netblock in limits by netblock if the ban
    /// covers all of that. Requests that still decide under a snapshot older than `generation`
    /// start over, so none is charged to the fresh counters without having seen the ban (LIMIT-6).
    /// The ban began at `began_ms`: in a fleet, what was counted before is void (FLEET-9).
    fn reset(&self, client: Client, banned: Netblock, generation: u64, began_ms: u64);

    /// How many clients were seen since then, milliseconds since 1970.
    fn seen_since(&self, wall_ms: u64) -> u64;

    /// No ban could be made: the next break of this client is reported again (LIMIT-6).
    fn release(&self, client: Client);

    /// One client.
    fn row(&self, client: Client) -> Option<ClientRow>;

    /// Every client, least recently seen first. Locks one shard at a time.
    fn rows(&self) -> Vec<ClientRow>;

    /// Gives back the memory of counts that say nothing any more. Locks one shard at a time.
    fn forget_idle(&self, now: Now);

    /// Puts a client in, replacing what is held; the bound holds.
    fn put(&self, row: ClientRow);

    /// Forgets a client.
    fn forget(&self, client: Client);

    /// Attaches a lookup's answer to a client that is still kept; it is asked about again from
    /// `until_ns` on, on the monotonic clock, nanoseconds.
    fn answer(&self, client: Client, lookup: Arc<Lookup>, until_ns: u64);

    /// No answer came: the client is asked about again from `again_ns` on, and no request waits
    /// until then (LOOKUP-3).
    fn ask_again(&self, client: Client, again_ns: u64);

    /// Attaches the names of an address to its client, if that is still kept (CRAWL-3).
    fn names(&self, address: IpAddr, answer: NamesAnswer);

    /// Takes a lookup's answer away from a client; its next request asks again.
    fn forget_lookup(&self, client: Client);

    /// What the counts stand at that clients share. Holds their lock for a pass over all keys.
    fn shared_use(&self, now_ms: u64) -> SharedCountsUse;

    /// Shared limits that began to refuse since this was last asked; cheap where there is none.
    fn take_shared_refusals(&self) -> Vec<SharedRefusal>;

    /// Limits by a field's value count under these numbers from now on, and anew.
    fn tell_values_by(&self, hash: ValueHash);

    /// The counts that clients share, those seen longest ago first.
    fn shared_rows(&self) -> Vec<SharedRow>;

    /// Puts such a count in, in place of what is held.
    fn put_shared(&self, row: SharedRow);

    /// From now on a client that is dropped for want of room is remembered if it is known after
    /// this time; none where no limit asks who is known (SHARE-4).
    fn remember_after(&self, after: Option<Duration>);

    /// The clients that are remembered as known, the one seen longest ago first. Locks one shard at
    /// a time.
    fn known_rows(&self) -> Vec<KnownRow>;

    /// Puts one in, in place of what is held.
    fn put_known(&self, row: KnownRow);

    /// How many are remembered.
    fn known_len(&self) -> u64;

    /// The estimate of requests of all clients of the netblock in the window of `span`, at
    /// `now_ms`.
    fn netblock_requests(&self, netblock: Netblock, span: Span, now_ms: u64) -> u64;
}
