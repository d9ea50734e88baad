//! The control plane's interface to the client table.

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
    /// How many more of its requests passed than were refused, up to a bound.
    pub lead: u64,
}

/// A copy of one client of the table.
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
    /// Requests that passed.
    pub passed: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// Request windows.
    pub requests: PerSpan<Window>,
    /// Byte windows.
    pub bytes: PerSpan<Window>,
    /// Counts of rules; most clients have none.
    pub rules: Vec<RuleCount>,
    /// The part of `requests` and `bytes` that pages of other sites caused, if there is any. Boxed,
    /// because most clients have none, and 20,000 rows take memory.
    pub other_sites: Option<Box<OtherSites>>,
    /// The first request that passed, if that was not the very first one (SHARE-4).
    pub first_passed: Option<Time>,
}

/// The part of a client's windows that pages of other sites caused: no ban follows from it
/// (RULE-8).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OtherSites {
    /// Requests.
    pub requests: PerSpan<Window>,
    /// Bytes of their bodies and answers.
    pub bytes: PerSpan<Window>,
}

/// The most windows of rules of one client: four of each limit and each jail.
pub const MAX_RULE_COUNTS: usize = 4 * 2 * MAX_LIMITS;

/// A client's count in one window of one rule (RULE-2, RULE-4).
#[derive(Clone, PartialEq, Debug)]
pub struct RuleCount {
    /// A limit or a jail; it need not be in force.
    pub rule: Arc<Rule>,
    /// Which of its windows.
    pub span: RuleSpan,
    /// What was counted.
    pub window: Window,
    /// The part of it that pages of other sites caused (RULE-8).
    pub other_sites: Window,
    /// The part that the fleet has; none if nothing of it was shared.
    pub in_fleet: Option<Box<InFleet>>,
}

impl RuleCount {
    /// Resets the count. Returns whether the fleet still has a part of it.
    pub fn begin_again(&mut self) -> bool {
        self.window = Window::default();
        self.other_sites = Window::default();
        self.in_fleet
            .as_deref_mut()
            .map(InFleet::begin_again)
            .is_some()
    }
}

/// The use of the counts that clients share (SHARE-8).
#[derive(Clone, Debug, Default)]
pub struct SharedCountsUse {
    /// Counts dropped for others since the start.
    pub evicted: u64,
    /// The limits with counts; a limit whose `per` was edited appears once for each `per`.
    pub rules: Vec<SharedUse>,
}

impl SharedCountsUse {
    /// Counts of these limits that are kept.
    pub fn counts(&self) -> u64 {
        self.rules.iter().map(|of| of.counts).sum()
    }
}

/// The use of a shared limit's counts.
#[derive(Clone, Debug)]
pub struct SharedUse {
    /// The limit.
    pub rule: Arc<Rule>,
    /// [`SharedKey::per`] of these counts.
    pub per: &'static str,
    /// The estimate of its fullest key divided by the limit: 1 is full.
    pub ratio: f64,
    /// Its keys.
    pub keys: u64,
    /// Its counts: a key has two if a known client needed the second one (SHARE-4).
    pub counts: u64,
}

/// One window of a count that clients share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SharedWindow {
    /// Which of its windows.
    pub span: RuleSpan,
    /// The last limit of this window.
    pub limit: u64,
    /// What was counted.
    pub window: Window,
    /// The part of it that pages of other sites caused (RULE-8).
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

/// A shared limit that refuses, for the first time in a minute (SHARE-8).
#[derive(Clone, Debug)]
pub struct SharedRefusal {
    /// The limit.
    pub rule: Arc<Rule>,
    /// Which of its counts.
    pub key: SharedKey,
    /// The window that is full.
    pub quota: Quota,
    /// The estimate of its count.
    pub estimate: u64,
    /// About how many clients sent requests recently.
    pub clients: u64,
    /// When, milliseconds since 1970.
    pub at_ms: u64,
}

/// The control plane's operations on the table. Every call holds a shard's lock for the time of one
/// entry only.
pub trait ClientTable: Send + Sync {
    /// Zeroes the client's windows, and those of its netblock in limits by netblock if the ban
    /// covers all of that. Requests that are decided under a snapshot older than `generation` start
    /// over, so none is charged to the reset counters without having seen the ban (LIMIT-6). The
    /// ban started at `began_ms`: in a fleet, earlier counts are void (FLEET-9).
    fn reset(&self, client: Client, banned: Netblock, generation: u64, began_ms: u64);

    /// The number of clients seen since `wall_ms`, in milliseconds since 1970.
    fn seen_since(&self, wall_ms: u64) -> u64;

    /// Notes that no ban could be made: the next exceeded limit of this client is reported again
    /// (LIMIT-6).
    fn release(&self, client: Client);

    /// One client.
    fn row(&self, client: Client) -> Option<ClientRow>;

    /// Every client, least recently seen first. Locks one shard at a time.
    fn rows(&self) -> Vec<ClientRow>;

    /// Frees counts that have expired. Locks one shard at a time.
    fn forget_idle(&self, now: Now);

    /// Inserts or replaces a client, within the bound.
    fn put(&self, row: ClientRow);

    /// Removes a client.
    fn forget(&self, client: Client);

    /// Sets the lookup's answer of a client that is still in the table. The client is looked up
    /// again from `until_ns` on, in nanoseconds of the monotonic clock.
    fn answer(&self, client: Client, lookup: Arc<Lookup>, until_ns: u64);

    /// Notes that no answer came: the client is looked up again from `again_ns` on, and no request
    /// waits until then (LOOKUP-3).
    fn ask_again(&self, client: Client, again_ns: u64);

    /// Sets the names of an address at its client, if that is still in the table (CRAWL-3).
    fn names(&self, address: IpAddr, answer: NamesAnswer);

    /// Removes a client's lookup; its next request asks again.
    fn forget_lookup(&self, client: Client);

    /// The use of shared counts. Holds their lock for a pass over all keys.
    fn shared_use(&self, now_ms: u64) -> SharedCountsUse;

    /// Shared limits that began to refuse since the last call; cheap if there are none.
    fn take_shared_refusals(&self) -> Vec<SharedRefusal>;

    /// Makes limits by a field's value count by this hash, starting again from 0.
    fn tell_values_by(&self, hash: ValueHash);

    /// The shared counts, by last use, the oldest first.
    fn shared_rows(&self) -> Vec<SharedRow>;

    /// Inserts or replaces a shared count.
    fn put_shared(&self, row: SharedRow);

    /// Sets after which time a client counts as known and is remembered when it is dropped for lack
    /// of room; none if no limit asks for known clients (SHARE-4).
    fn remember_after(&self, after: Option<Duration>);

    /// The clients that are remembered as known, by last sight, the oldest first. Locks one shard
    /// at a time.
    fn known_rows(&self) -> Vec<KnownRow>;

    /// Inserts or replaces a known client.
    fn put_known(&self, row: KnownRow);

    /// The number of known clients.
    fn known_len(&self) -> u64;

    /// The estimate of requests of all clients of the netblock in the window of `span`, at
    /// `now_ms`.
    fn netblock_requests(&self, netblock: Netblock, span: Span, now_ms: u64) -> u64;
}
