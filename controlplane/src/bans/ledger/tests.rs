//! The ledger beside a naive twin.

use proptest::prelude::*;
use weir_shared::ban::RequestNote;
use weir_shared::event::Offence;
use weir_shared::verdict::LimitKind;

use super::broken::LATE_MS;
use super::*;

impl Ledger {
    /// Bans as a limit does that nobody is spared by: the netblock.
    pub(crate) fn ban_by_limit(&mut self, exceeded: &LimitExceeded, now_ms: u64) -> BanOutcome {
        let netblock = Netblock::of(exceeded.client, self.settings.prefixes);
        self.ban_for(exceeded, netblock, now_ms)
    }
}

const HOUR: u64 = 3_600_000;
const NOW: u64 = 1_795_276_800_000;

fn rules(max_bans: usize, observe: bool) -> LedgerSettings {
    LedgerSettings {
        policy: Policy::default(),
        prefixes: PrefixLengths::default(),
        max_bans,
        observe,
    }
}

fn ledger(max_bans: usize) -> Ledger {
    Ledger::new(rules(max_bans, false), Vec::new(), NOW).unwrap()
}

fn client(text: &str) -> Client {
    text.parse().unwrap()
}

fn broken(client: Client, limit: LimitKind, at_ms: u64) -> LimitExceeded {
    LimitExceeded {
        client,
        offence: Offence::Limit {
            kind: limit,
            value: 1000,
            percent: 100,
        },
        at_ms,
        request: Some(RequestNote::default()),
        fleet: None,
    }
}

fn order(netblock: &str, duration: Option<u64>) -> AdminBan {
    AdminBan {
        netblock: netblock.parse().unwrap(),
        client: None,
        duration: duration.map(Duration::from_millis),
        reason: "said so".to_owned(),
        force: false,
    }
}

/// Breaks at `at_ms` and gives the ban that was made.
fn banned(ledger: &mut Ledger, text: &str, at_ms: u64) -> Arc<Ban> {
    let broken = broken(client(text), LimitKind::Minute, at_ms);
    match ledger.ban_by_limit(&broken, at_ms) {
        BanOutcome::Banned(key) => Arc::clone(ledger.ban(key).unwrap()),
        other => panic!("{other:?}"),
    }
}

/// A merge in which the edit stands.
fn put(ban: Ban) -> Change<BansFile> {
    let after = Arc::new(ban);
    Change::Put {
        before: None,
        after,
    }
}

fn hours(ban: &Ban) -> Option<u64> {
    (ban.ban_expires != Expiry::Permanent).then(|| ban.length_ms() / HOUR)
}

/// BAN-1: the lengths are 1h, 3h, 9h, 27h, 81h, permanent; bans of the netblock count, not those of
/// the client.
#[test]
fn bans_of_a_netblock_escalate_to_permanent() {
    let mut ledger = ledger(10);
    let (mut now, mut lengths) = (NOW, Vec::new());
    for turn in 0..6 {
        let ban = banned(&mut ledger, &format!("203.0.113.{turn}"), now);
        lengths.push(hours(&ban));
        now = ban.ban_expires.end_ms().saturating_add(24 * HOUR);
    }
    assert_eq!(
        lengths,
        [Some(1), Some(3), Some(9), Some(27), Some(81), None]
    );
    assert_eq!(hours(&banned(&mut ledger, "198.51.100.1", NOW)), Some(1));
}

/// BAN-1: more than a day after the end of the last ban, a ban has the first length again.
#[test]
fn after_the_window_the_first_length_again() {
    let mut ledger = ledger(10);
    banned(&mut ledger, "203.0.113.7", NOW);
    let late = banned(&mut ledger, "203.0.113.7", NOW + 25 * HOUR + 1);
    assert_eq!(hours(&late), Some(1));
}

/// BAN-2: a lifted ban does not count for the next length; a ban by hand that ran out does.
#[test]
fn only_bans_that_ran_out_feed_escalation() {
    let mut ledger = ledger(10);
    banned(&mut ledger, "203.0.113.7", NOW);
    assert_eq!(ledger.lift(client("203.0.113.9"), NOW + 1).len(), 1);
    assert_eq!(hours(&banned(&mut ledger, "203.0.113.7", NOW + 2)), Some(1));

    ledger
        .add(order("198.51.100.0/24", Some(2 * HOUR)), NOW)
        .unwrap();
    let after = banned(&mut ledger, "198.51.100.1", NOW + 2 * HOUR);
    assert_eq!(hours(&after), Some(6));
}

/// BAN-2: while a ban is active, the same netblock gets no further automatic ban; BAN-3: it gets a
/// ban by hand all the same.
#[test]
fn an_active_ban_stops_automatic_ones_only() {
    let mut ledger = ledger(10);
    banned(&mut ledger, "203.0.113.7", NOW);
    let again = broken(client("203.0.113.8"), LimitKind::Hour, NOW + HOUR - 1);
    assert_eq!(
        ledger.ban_by_limit(&again, NOW + HOUR - 1),
        BanOutcome::Already("203.0.113.0/24".parse().unwrap())
    );
    // Two of one origin do not begin in the same millisecond.
    for start in [NOW, NOW + 1] {
        let admin = ledger
            .add(order("203.0.113.0/24", Some(HOUR)), NOW)
            .unwrap();
        assert_eq!(
            (admin.ban_started, admin.length_ms()),
            (Some(Time(start)), HOUR)
        );
    }
    assert_eq!(ledger.active(NOW), 3);
}

/// BAN-4: cause and reason name the limit that was exceeded.
#[test]
fn the_reason_names_the_limit() {
    let mut ledger = ledger(10);
    let bytes = LimitExceeded {
        offence: Offence::Limit {
            kind: LimitKind::HourBytes,
            value: 10_737_418_240,
            percent: 100,
        },
        ..broken(client("2001:db8::1"), LimitKind::HourBytes, NOW)
    };
    ledger.ban_by_limit(&bytes, NOW);
    banned(&mut ledger, "203.0.113.7", NOW);
    let told: Vec<_> = ledger
        .all()
        .iter()
        .map(|ban| (ban.netblock.to_string(), ban.cause, ban.reason.clone()))
        .collect();
    assert_eq!(
        told,
        [
            (
                "203.0.113.0/24".to_owned(),
                Cause::RateLimit,
                "more than 1000 requests per minute".to_owned()
            ),
            (
                "2001:db8::/56".to_owned(),
                Cause::ByteLimit,
                "more than 10737418240 bytes per hour".to_owned()
            ),
        ]
    );
}

/// LIMIT-8, BAN-1: a ban begins when the limit was exceeded, as the client was told, but not at an
/// impossible time.
#[test]
fn a_ban_begins_at_the_break_unless_the_clock_moved() {
    let mut ledger = ledger(10);
    for (text, at_ms, begins) in [
        ("203.0.113.7", NOW - LATE_MS, NOW - LATE_MS),
        ("198.51.100.7", NOW - LATE_MS - 1, NOW),
        ("192.0.2.7", NOW + 1, NOW),
    ] {
        let broken = broken(client(text), LimitKind::Day, at_ms);
        let BanOutcome::Banned(key) = ledger.ban_by_limit(&broken, NOW) else {
            panic!("{text}")
        };
        assert_eq!(key.ban_started, Time(begins), "{text}");
    }
}

/// BAN-5: ended and lifted bans of any origin are dropped first, oldest end first; then the
/// automatic ban that ends soonest; never active bans by hand or permanent ones.
#[test]
fn the_ledger_drops_in_the_order_of_the_rule() {
    let mut ledger = ledger(5);
    let keep = |text: &str| text.parse::<Netblock>().unwrap();
    ledger.add(order("10.0.0.0/24", None), NOW).unwrap();
    ledger
        .add(order("10.1.0.0/24", Some(9 * HOUR)), NOW)
        .unwrap();
    ledger.add(order("10.2.0.0/24", Some(2)), NOW).unwrap();
    banned(&mut ledger, "10.3.0.1", NOW);
    banned(&mut ledger, "10.4.0.1", NOW);
    ledger.lift(client("10.4.0.1"), NOW + 1);
    let now = NOW + 10;
    let mut dropped = Vec::new();
    for turn in 0..4 {
        banned(&mut ledger, &format!("10.5.{turn}.1"), now + turn);
        dropped.extend(ledger.take_drops().iter().map(|ban| ban.netblock));
    }
    // Lifted at 1 ms, ended at 2 ms, then by the soonest end.
    assert_eq!(
        dropped,
        [
            keep("10.4.0.0/24"),
            keep("10.2.0.0/24"),
            keep("10.3.0.0/24"),
            keep("10.5.0.0/24")
        ]
    );
    assert_eq!(ledger.dropped(), 4);
    for net in ["10.6.0.0/24", "10.7.0.0/24", "10.8.0.0/24"] {
        ledger.add(order(net, None), now + 9).unwrap();
    }
    assert!(!ledger.can_ban(now + 9));
    assert_eq!(ledger.add(order("10.9.0.0/24", None), now + 9), Err(Full));
    let more = broken(client("10.9.0.1"), LimitKind::Minute, now + 9);
    assert_eq!(ledger.ban_by_limit(&more, now + 9), BanOutcome::Full);
    assert_eq!(ledger.all().len(), 5);
    assert!(ledger.can_ban(NOW + 9 * HOUR));
}

/// BAN-9: a full ledger of permanent bans drops the oldest automatic one, for an automatic ban and
/// for one by hand; permanent bans by hand are never dropped.
#[test]
fn automatic_permanent_bans_go_last() {
    let of = |netblock: &str, started: u64, cause: &str| {
        let text = format!(
            r#"{{"netblock":"{netblock}","ban_started":"{}","ban_expires":"permanent","cause":"{cause}"}}"#,
            Time(NOW - started)
        );
        Arc::new(serde_json::from_str::<Ban>(&text).unwrap())
    };
    let held = vec![
        of("10.0.0.0/24", 9 * HOUR, "admin"),
        of("10.1.0.0/24", 9 * HOUR, "edit"),
        of("10.2.0.0/24", 2 * HOUR, "trap"),
        of("10.3.0.0/24", 3 * HOUR, "rate_limit"),
    ];
    let mut ledger = Ledger::new(rules(5, false), held, NOW).unwrap();
    banned(&mut ledger, "10.4.0.1", NOW);
    let mut dropped = Vec::new();
    for number in 5..8 {
        assert!(ledger.can_ban(NOW));
        let netblock = format!("10.{number}.0.0/24");
        ledger.add(order(&netblock, None), NOW).unwrap();
        dropped.extend(
            ledger
                .take_drops()
                .iter()
                .map(|ban| ban.netblock.to_string()),
        );
    }
    assert_eq!(dropped, ["10.4.0.0/24", "10.3.0.0/24", "10.2.0.0/24"]);
    assert!(!ledger.can_ban(NOW));
    assert_eq!(ledger.add(order("10.9.0.0/24", None), NOW), Err(Full));
}

/// CHECK-3: in enforce mode an observed ban neither refuses, nor stands in the way of a ban, nor
/// escalates.
#[test]
fn observed_bans_count_in_observe_mode_only() {
    for observe in [true, false] {
        let mut watching = Ledger::new(rules(10, true), Vec::new(), NOW).unwrap();
        let made = Ban::clone(&banned(&mut watching, "203.0.113.7", NOW));
        assert!(made.observed);
        let mut ledger =
            Ledger::new(rules(10, observe), vec![Arc::new(made.clone())], NOW).unwrap();
        let index = ledger.take_index().unwrap();
        let seen = index.active_until(client("203.0.113.9"), NOW);
        assert_eq!(seen, observe.then_some(NOW + HOUR));
        let by_admin = watching.add(order("10.0.0.0/8", None), NOW).unwrap();
        assert!(by_admin.observed);
        let again = broken(client("203.0.113.7"), LimitKind::Minute, NOW + 5);
        let outcome = ledger.ban_by_limit(&again, NOW + 5);
        assert_eq!(matches!(outcome, BanOutcome::Already(_)), observe);
        let mut later = Ledger::new(rules(10, observe), vec![Arc::new(made)], NOW).unwrap();
        let next = banned(&mut later, "203.0.113.7", NOW + HOUR);
        assert_eq!(hours(&next), Some(if observe { 3 } else { 1 }));
    }
}

/// RELOAD-2, BAN-5: a smaller bound drops the bans that end first, and no active ban by hand, even
/// if these exceed the bound; changed prefix lengths apply to the next ban.
#[test]
fn other_rules_drop_what_no_longer_fits() {
    let mut ledger = ledger(10);
    for net in ["10.0.0.0/24", "10.1.0.0/24", "10.2.0.0/24"] {
        ledger.add(order(net, None), NOW).unwrap();
    }
    banned(&mut ledger, "192.0.2.1", NOW);
    banned(&mut ledger, "198.51.100.1", NOW + 1);
    let dropped = |ledger: &mut Ledger| -> Vec<String> {
        let bans = ledger.take_drops();
        bans.iter().map(|ban| ban.netblock.to_string()).collect()
    };
    ledger.take_settings(rules(5, false), NOW + 2);
    assert_eq!(ledger.dropped(), 0);
    ledger.take_settings(rules(4, false), NOW + 2);
    assert_eq!(ledger.dropped(), 1);
    assert_eq!(dropped(&mut ledger), ["192.0.2.0/24"]);
    ledger.take_settings(rules(2, false), NOW + 2);
    assert_eq!(dropped(&mut ledger), ["198.51.100.0/24"]);
    ledger.take_settings(rules(2, false), NOW + 2);
    assert_eq!((ledger.all().len(), ledger.dropped()), (3, 2));
    let more = broken(client("203.0.113.7"), LimitKind::Minute, NOW + 3);
    assert_eq!(ledger.ban_by_limit(&more, NOW + 3), BanOutcome::Full);
    let single = PrefixLengths { v4: 32, v6: 64 };
    let wider = LedgerSettings {
        prefixes: single,
        ..rules(10, false)
    };
    ledger.take_settings(wider, NOW + 3);
    let made = banned(&mut ledger, "203.0.113.7", NOW + 4);
    assert_eq!(made.netblock.to_string(), "203.0.113.7/32");
}

/// RELOAD-2, CHECK-3: after a change to enforce mode observed bans refuse nobody, after the change
/// back they count again; both changes are published.
#[test]
fn another_mode_is_published() {
    let mut ledger = Ledger::new(rules(10, true), Vec::new(), NOW).unwrap();
    let refused = |ledger: &mut Ledger| {
        let index = ledger.take_index().expect("a new index");
        index.active_until(client("203.0.113.9"), NOW).is_some()
    };
    banned(&mut ledger, "203.0.113.7", NOW);
    assert!(refused(&mut ledger));
    for observe in [false, true] {
        ledger.take_settings(rules(10, observe), NOW);
        assert_eq!(refused(&mut ledger), observe);
    }
}

/// BAN-5: a start neither drops a ban by hand nor ignores the bound.
#[test]
fn a_start_with_too_many_bans_keeps_the_bound_or_stops() {
    let mut full = ledger(10);
    for turn in 0..3 {
        full.add(order(&format!("10.{turn}.0.0/24"), None), NOW)
            .unwrap();
    }
    banned(&mut full, "192.0.2.1", NOW);
    let bans = || full.all();
    let ledger = Ledger::new(rules(3, false), bans(), NOW).unwrap();
    assert_eq!((ledger.all().len(), ledger.dropped()), (3, 1));
    assert_eq!(Ledger::new(rules(2, false), bans(), NOW).err(), Some(3));
}

/// STATE-3: added entries are in force, entries marked lifted end, removed entries are forgotten.
#[test]
fn an_edit_adds_lifts_changes_and_removes() {
    let mut ledger = ledger(10);
    let first = Ban::clone(&banned(&mut ledger, "10.0.0.1", NOW));
    let second = Ban::clone(&banned(&mut ledger, "10.1.0.1", NOW));
    let third = Ban::clone(&banned(&mut ledger, "10.2.0.1", NOW));
    let lifted = Ban {
        lifted: Some(Time(NOW + 1)),
        ..first
    };
    let longer = Ban {
        ban_expires: Expiry::Permanent,
        ..second
    };
    let added: Ban =
        serde_json::from_str(r#"{"netblock":"10.3.0.0/16","ban_expires":"permanent"}"#).unwrap();
    let removed = keyed(Arc::new(third), NOW).0;
    let refused = ledger.edit(
        &[
            put(lifted),
            put(longer),
            put(added),
            Change::Remove(removed),
        ],
        NOW + 2,
    );
    assert_eq!((refused, ledger.all().len()), (0, 3));
    let index = ledger.take_index().unwrap();
    let until = |text: &str| index.active_until(client(text), NOW + 2);
    assert_eq!(until("10.0.0.1"), None);
    assert_eq!(until("10.1.0.1"), Some(u64::MAX));
    assert_eq!(until("10.2.0.1"), None);
    assert_eq!(until("10.3.9.9"), Some(u64::MAX));
    // Taken out: it feeds no escalation.
    assert_eq!(
        hours(&banned(&mut ledger, "10.2.0.1", NOW + 2 * HOUR)),
        Some(1)
    );
}

/// As many bans, of as many netblocks, and the edit that lifts them all.
fn edit_of_all(bans: u32, netblocks: u32) -> (Ledger, Vec<Change<BansFile>>) {
    let ban = |number: u32| Ban {
        netblock: Netblock::masked(
            std::net::Ipv4Addr::from(0x0a00_0000 | (number % netblocks) << 8).into(),
            24,
        ),
        client: None,
        ban_started: Some(Time(NOW + u64::from(number))),
        ban_expires: Expiry::Permanent,
        cause: Cause::Edit,
        origin: None,
        reason: "more than 1000 requests per minute".to_owned(),
        lifted: None,
        observed: false,
        notes: None,
        unknown: Unknown::default(),
    };
    let before: Vec<_> = (0..bans).map(|number| Arc::new(ban(number))).collect();
    let ledger = Ledger::new(rules(200_000, false), before.clone(), NOW).unwrap();
    let lift = |before: Arc<Ban>| {
        let mut after = Arc::clone(&before);
        Arc::make_mut(&mut after).lifted = Some(Time(NOW + 1));
        let before = Some(before);
        Change::Put { before, after }
    };
    (ledger, before.into_iter().map(lift).collect())
}

/// BAN-8: the work of a start, an edit, a lift and a recovery grows linearly with the bans, even if
/// all are of one netblock. How long an edit takes is measured by the benchmark `overhead --only
/// edits`.
#[test]
fn the_work_of_many_bans_is_linear() {
    for netblocks in [1, 1000] {
        let (mut ledger, edit) = edit_of_all(1000, netblocks);
        let looks = |ledger: &mut Ledger| std::mem::take(&mut ledger.looks);
        assert_eq!(looks(&mut ledger), 1000, "the start");
        assert_eq!(ledger.edit(&edit, NOW + 1), 0);
        assert_eq!(looks(&mut ledger), 1000, "the edit");
        assert!(ledger.all().iter().all(|ban| ban.lifted.is_some()));
        assert_eq!(ledger.active(NOW + 1), 0);
        ledger.rebuild();
        assert_eq!(looks(&mut ledger), 1000, "the recovery");
    }
    let (mut ledger, _) = edit_of_all(1000, 1);
    ledger.looks = 0;
    assert_eq!(ledger.lift(client("10.0.0.7"), NOW + 1).len(), 1000);
    assert_eq!(ledger.looks, 1000, "the lift");
}

/// An entry of an edit: netblock, start, length, lifted after, automatic, observed.
type Entry = (usize, u64, Option<u64>, Option<u64>, bool, bool);

/// What a random run does.
#[derive(Clone, Debug)]
enum Op {
    Break(usize, LimitKind),
    Admin(usize, Option<u64>),
    Lift(usize),
    Clock(i64),
    Put(Vec<Entry>),
    Remove(Vec<usize>),
    Rebuild,
}

fn clients() -> Vec<Client> {
    [
        "10.0.0.1",
        "10.0.0.2",
        "10.0.1.1",
        "10.0.2.1",
        "10.1.0.1",
        "2001:db8::1",
        "2001:db8:0:1::1",
    ]
    .map(client)
    .to_vec()
}

fn netblocks() -> Vec<Netblock> {
    [
        "10.0.0.0/24",
        "10.0.1.0/24",
        "10.0.2.0/24",
        "10.1.0.0/24",
        "10.0.0.0/16",
        "10.0.0.1/32",
        "2001:db8::/56",
        "2001:db8::/64",
    ]
    .map(|text| text.parse().unwrap())
    .to_vec()
}

/// The rules of section 5 over a plain list, with no thought for speed.
struct Twin {
    settings: LedgerSettings,
    bans: Vec<Ban>,
    made: [u64; Cause::ALL.len()],
    dropped: u64,
}

impl Twin {
    fn counting(&self) -> impl Iterator<Item = &Ban> {
        let all = self.settings.observe;
        self.bans
            .iter()
            .filter(move |ban| ban.lifted.is_none() && (all || !ban.observed))
    }

    fn last(&self, netblock: Netblock) -> Option<(u64, u64)> {
        self.counting()
            .filter(|ban| ban.netblock == netblock)
            .map(|ban| (ban.ban_expires.end_ms(), ban.length_ms()))
            .max()
    }

    fn next_to_go(&self, now: u64) -> Option<usize> {
        #[expect(clippy::type_complexity, reason = "a rank, and where it stands")]
        let mut best: Option<((u8, u64, Netblock, Time, BanOrigin), usize)> = None;
        for (position, ban) in self.bans.iter().enumerate() {
            let end = ban.ban_expires.end_ms();
            let (class, end) = match (ban.lifted, ban.ban_expires) {
                (Some(lifted), _) => (0, end.min(lifted.0)),
                (None, Expiry::At(_)) if end <= now => (0, end),
                (None, Expiry::At(_))
                    if matches!(ban.cause, Cause::RateLimit | Cause::ByteLimit) =>
                {
                    (1, end)
                }
                (None, Expiry::Permanent)
                    if matches!(ban.cause, Cause::RateLimit | Cause::ByteLimit) =>
                {
                    (2, ban.ban_started.unwrap().0)
                }
                _ => continue,
            };
            let started = ban.ban_started.unwrap();
            let rank = (class, end, ban.netblock, started, ban.origin());
            if best.as_ref().is_none_or(|(least, _)| rank < *least) {
                best = Some((rank, position));
            }
        }
        best.map(|(_, position)| position)
    }

    fn room(&mut self, now: u64) -> bool {
        while self.bans.len() >= self.settings.max_bans {
            let Some(position) = self.next_to_go(now) else {
                return false;
            };
            self.bans.remove(position);
            self.dropped += 1;
        }
        true
    }

    fn start(&self, netblock: Netblock, now: u64, by: DecidedBy) -> u64 {
        let taken = |ms: u64| {
            let key = BanKey::new(netblock, ms, BanOrigin::here(by));
            self.bans.iter().any(|ban| BanKey::of(ban) == key)
        };
        (now..).find(|ms| !taken(*ms)).unwrap()
    }

    fn ban_for(&mut self, broken: &LimitExceeded, now: u64) -> &'static str {
        let netblock = Netblock::of(broken.client, self.settings.prefixes);
        let last = self.last(netblock);
        if last.is_some_and(|(end, _)| end > now) {
            return "already";
        }
        if !self.room(now) {
            return "full";
        }
        let start = self.start(netblock, now, DecidedBy::Service);
        let length = match last {
            Some((end, length)) if start - end <= 24 * HOUR => length.saturating_mul(3),
            _ => HOUR,
        };
        let Offence::Limit { kind, value, .. } = broken.offence else {
            panic!("the twin knows the six limits")
        };
        let bytes = kind.counts_bytes();
        self.made[usize::from(bytes)] += 1;
        self.bans.push(Ban {
            netblock,
            client: Some(broken.client),
            ban_started: Some(Time(start)),
            ban_expires: if length > 7 * 24 * HOUR {
                Expiry::Permanent
            } else {
                Expiry::At(Time(start + length))
            },
            cause: if bytes {
                Cause::ByteLimit
            } else {
                Cause::RateLimit
            },
            origin: Some(BanOrigin::here(DecidedBy::Service)),
            reason: format!(
                "more than {value} {} per {}",
                if bytes { "bytes" } else { "requests" },
                kind.span().name()
            ),
            lifted: None,
            observed: self.settings.observe,
            notes: None,
            unknown: Unknown::default(),
        });
        "banned"
    }
}

fn any_op() -> impl Strategy<Value = Op> {
    let moment = prop_oneof![0u64..20, 0u64..(400 * HOUR)];
    let put = (
        0usize..8,
        0u64..30,
        prop::option::of(moment),
        prop::option::weighted(0.3, 0u64..30),
        any::<bool>(),
        any::<bool>(),
    );
    prop_oneof![
        6 => (0usize..7, prop::sample::select(LimitKind::ALL.to_vec())).prop_map(|(client, limit)| Op::Break(client, limit)),
        3 => (0usize..8, prop::option::weighted(0.7, 1u64..(60 * HOUR))).prop_map(|(net, length)| Op::Admin(net, length)),
        1 => (0usize..7).prop_map(Op::Lift),
        4 => prop_oneof![0i64..5, 0i64..(100 * 3_600_000), (-3_600_000i64..0)].prop_map(Op::Clock),
        1 => prop::collection::vec(put, 0..4).prop_map(Op::Put),
        1 => prop::collection::vec(0usize..12, 0..3).prop_map(Op::Remove),
        1 => Just(Op::Rebuild),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    /// BAN-1, BAN-2, BAN-3, BAN-5, CHECK-3, STATE-3: the ledger and a plain list agree after any
    /// events in any order, even when the clock is set back.
    #[test]
    fn the_ledger_agrees_with_its_naive_twin(max_bans in 1usize..6, observe in any::<bool>(), ops in prop::collection::vec(any_op(), 1..60)) {
        let (clients, netblocks) = (clients(), netblocks());
        let rules = rules(max_bans, observe);
        let mut ledger = Ledger::new(rules, Vec::new(), NOW).unwrap();
        let mut twin = Twin { settings: rules, bans: Vec::new(), made: [0; Cause::ALL.len()], dropped: 0 };
        let mut published = ledger.take_index().unwrap();
        let mut now = NOW;
        for op in ops {
            match op {
                Op::Break(who, limit) => {
                    let broken = broken(clients[who], limit, now);
                    let outcome = match ledger.ban_by_limit(&broken, now) {
                        BanOutcome::Banned(_) => "banned",
                        BanOutcome::Already(_) => "already",
                        BanOutcome::Full => "full",
                        BanOutcome::Spared => "spared, which is not the ledger's to say",
                    };
                    prop_assert_eq!(outcome, twin.ban_for(&broken, now));
                }
                Op::Admin(what, length) => {
                    let netblock = netblocks[what];
                    let made = ledger.add(order(&netblock.to_string(), length), now);
                    let room = twin.room(now);
                    prop_assert_eq!(made.is_ok(), room);
                    if let Ok(made) = made {
                        let start = twin.start(netblock, now, DecidedBy::Admin);
                        let expires = length.map_or(Expiry::Permanent, |length| Expiry::At(Time(start + length)));
                        prop_assert_eq!((made.ban_started, made.ban_expires, made.observed), (Some(Time(start)), expires, observe));
                        twin.made[2] += 1;
                        twin.bans.push(Ban::clone(&made));
                    }
                }
                Op::Lift(who) => {
                    let lifted = ledger.lift(clients[who], now);
                    let mut count = 0;
                    for ban in &mut twin.bans {
                        if ban.is_active(now) && ban.netblock.covers_client(clients[who]) {
                            ban.lifted = Some(Time(now));
                            count += 1;
                        }
                    }
                    prop_assert_eq!(lifted.len(), count);
                }
                Op::Clock(by) => now = now.saturating_add_signed(by),
                Op::Put(entries) => {
                    let put: Vec<Ban> = entries.iter().map(|(net, start, length, lifted, automatic, observed)| {
                        let start = NOW + start;
                        Ban {
                            netblock: netblocks[*net],
                            client: None,
                            ban_started: Some(Time(start)),
                            ban_expires: length.map_or(Expiry::Permanent, |length| Expiry::At(Time(start + length))),
                            cause: if *automatic { Cause::RateLimit } else { Cause::Edit },
                            origin: None,
                            reason: String::new(),
                            lifted: lifted.map(|after| Time(start + after)),
                            observed: *observed,
                            notes: None,
                            unknown: Unknown::default(),
                        }
                    }).collect();
                    let changes: Vec<_> = put.iter().cloned().map(self::put).collect();
                    let refused = ledger.edit(&changes, now);
                    let mut expected = 0;
                    for ban in put {
                        let same = |held: &&mut Ban| BanKey::of(held) == BanKey::of(&ban);
                        if let Some(held) = twin.bans.iter_mut().find(same) {
                            *held = ban;
                        } else if twin.room(now) {
                            twin.made[3] += 1;
                            twin.bans.push(ban);
                        } else {
                            twin.dropped += 1;
                            expected += 1;
                        }
                    }
                    prop_assert_eq!(refused, expected);
                }
                Op::Remove(positions) => {
                    let keys: Vec<BanKey> = positions.iter().filter_map(|position| twin.bans.get(*position)).map(|ban| keyed(Arc::new(ban.clone()), 0).0).collect();
                    let changes: Vec<_> = keys.iter().copied().map(Change::Remove).collect();
                    ledger.edit(&changes, now);
                    twin.bans.retain(|ban| !keys.contains(&keyed(Arc::new(ban.clone()), 0).0));
                }
                Op::Rebuild => ledger.rebuild(),
            }
            let held = oldest_first(ledger.all());
            let held: Vec<Ban> = held.iter().map(|ban| Ban::clone(ban)).collect();
            let mut expected = twin.bans.clone();
            expected.sort_by_key(|ban| (ban.ban_started, BanKey::of(ban)));
            prop_assert_eq!(&held, &expected);
            prop_assert!(held.len() <= max_bans);
            prop_assert_eq!((ledger.made(), ledger.dropped()), (twin.made, twin.dropped));
            prop_assert_eq!(ledger.can_ban(now), twin.bans.len() < max_bans || twin.next_to_go(now).is_some());
            prop_assert_eq!(ledger.active(now), twin.counting().filter(|ban| ban.is_active(now)).count());
            if let Some(index) = ledger.take_index() {
                published = index;
            }
            for client in &clients {
                let until = twin.counting().filter(|ban| ban.is_active(now) && ban.netblock.covers_client(*client)).map(|ban| ban.ban_expires.end_ms()).max();
                prop_assert_eq!(published.active_until(*client, now), until);
            }
            for netblock in &netblocks {
                prop_assert_eq!(published.span(*netblock).map(|span| (span.end_ms, span.length_ms)), twin.last(*netblock));
            }
        }
    }
}
