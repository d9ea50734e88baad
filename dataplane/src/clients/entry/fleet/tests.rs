use proptest::prelude::*;
use weir_shared::event::Offence;
use weir_shared::rules::RuleSet;
use weir_shared::settings::LookupSettings;
use weir_shared::verdict::{LimitKind, Limits};

use super::*;
use crate::clients::terms::LookupRules;

const NOW: Now = Now {
    wall_ms: 1_795_276_800_000,
    mono_ns: 5_000_000_000,
};
const CLIENT: Client = Client::V4(7);

fn limits(minute: u64) -> Limits {
    Limits {
        requests: [Some(minute), None, None].into(),
        bytes: [None; 3].into(),
    }
}

/// What the engine answers to everything that is due: that others have counted so many.
fn learn(
    entry: &mut Entry,
    terms: &LookupRules,
    on_limit: OnLimit,
    (others, instances): (u64, u64),
) -> Option<Learned> {
    let rules = RuleSet::default();
    let judging = Judging {
        terms,
        on_limit,
        rules: &rules,
    };
    let reports = entry.reports(CLIENT, judging, &reporting(instances, false), NOW);
    let [report] = reports.as_slice() else {
        panic!("{} reports", reports.len());
    };
    let mut windows = report.windows.clone();
    for window in windows.iter_mut().take(3) {
        window.current += others;
    }
    let sum = Sum {
        epoch_ms: report.epoch_ms,
        known: false,
        windows,
    };
    entry.learn((report, true), (&sum, true), judging, NOW)
}

const fn reporting(instances: u64, is_last: bool) -> Reporting {
    Reporting {
        instances,
        is_last,
        ask_after_ns: 100_000_000,
    }
}

fn counted(count: u64, terms: &LookupRules) -> Entry {
    let mut entry = Entry::new(0, NOW.wall_ms);
    for _ in 0..count {
        entry.charge_request(&terms.plain_limits, NOW.wall_ms, false);
    }
    entry
}

fn urgency(entry: &mut Entry, terms: &LookupRules, reporting: Reporting) -> Option<u64> {
    let rules = RuleSet::default();
    let judging = Judging {
        terms,
        on_limit: OnLimit::Ban,
        rules: &rules,
    };
    let reports = entry.reports(CLIENT, judging, &reporting, NOW);
    reports.first().map(|report| report.urgency)
}

/// FLEET-7: an instance holds back a tenth of what is left, by the number of instances; what is
/// half of its share of the rest is urgent; at a stop nothing is held back.
#[test]
fn a_tenth_of_what_is_left_is_held_back() {
    let terms = LookupRules::new(limits(1000), &LookupSettings::default());
    for (count, instances, is_due, is_urgent) in [
        // (1000 - 47) / 20 is 47.
        (47, 2, false, false),
        (48, 2, true, false),
        (9, 10, false, false),
        (10, 10, true, false),
        // (1000 - 200) / 4 is 200.
        (199, 2, true, false),
        (200, 2, true, true),
        (1000, 2, true, true),
    ] {
        let mut entry = counted(count, &terms);
        let urgency = urgency(&mut entry, &terms, reporting(instances, false));
        let found = (
            urgency.is_some(),
            urgency >= Some(weir_shared::fleet::URGENT),
        );
        assert_eq!(found, (is_due, is_urgent), "{count} of {instances}");
    }
    let mut entry = counted(1, &terms);
    assert_eq!(urgency(&mut entry, &terms, reporting(2, true)), Some(1));
    let mut entry = counted(0, &terms);
    assert_eq!(urgency(&mut entry, &terms, reporting(2, true)), None);
}

/// FLEET-8: whoever learns that a limit is broken has a ban made, once, and says who has counted
/// how much; where limits only refuse the next request is refused.
#[test]
fn what_is_learned_breaks_a_limit() {
    let terms = LookupRules::new(limits(100), &LookupSettings::default());
    let mut entry = counted(40, &terms);
    assert_eq!(learn(&mut entry, &terms, OnLimit::Ban, (60, 3)), None);
    entry.charge_request(&terms.plain_limits, NOW.wall_ms, true);
    // What another site asked for bans nobody, and is not told (RULE-8).
    assert_eq!(urgency(&mut entry, &terms, reporting(3, false)), None);
    let mut entry = counted(40, &terms);
    let learned = learn(&mut entry, &terms, OnLimit::Ban, (61, 3)).unwrap();
    let Offence::Limit { kind, value, .. } = learned.offence else {
        panic!("{learned:?}");
    };
    assert_eq!((kind, value), (LimitKind::Minute, 100));
    assert_eq!((learned.note.here, learned.note.others), (40, 61));
    assert!(!entry.is_first_offence(), "it was told");
    let mut entry = counted(40, &terms);
    assert_eq!(learn(&mut entry, &terms, OnLimit::Refuse, (61, 3)), None);
    assert_eq!(entry.counts(NOW.wall_ms).requests.minute, 101);
}

/// FLEET-9: what was under way when a ban reset the client is void, and so is what was counted
/// before a ban that others have heard of first.
#[test]
fn a_ban_voids_what_was_counted_before() {
    let terms = LookupRules::new(limits(100), &LookupSettings::default());
    let rules = RuleSet::default();
    let judging = Judging {
        terms: &terms,
        on_limit: OnLimit::Ban,
        rules: &rules,
    };
    let mut entry = counted(90, &terms);
    let reports = entry.reports(CLIENT, judging, &reporting(2, false), NOW);
    let sum = |epoch_ms| Sum {
        epoch_ms,
        known: false,
        windows: reports[0].windows.clone(),
    };
    entry.reset(1, Some(NOW.wall_ms));
    entry.learn((&reports[0], true), (&sum(0), true), judging, NOW);
    assert_eq!(entry.counts(NOW.wall_ms).requests.minute, 0);
    // Seen before that ban: void. Since then: all of it is to be sent.
    for (first_seen_ms, left) in [(NOW.wall_ms - 1, 0), (NOW.wall_ms, 90)] {
        let mut entry = counted(90, &terms);
        entry.first_seen_ms = first_seen_ms;
        let told = (&reports[0], true);
        entry.learn(told, (&sum(NOW.wall_ms), true), judging, NOW);
        assert_eq!(entry.counts(NOW.wall_ms).requests.minute, left);
        let again = entry.reports(CLIENT, judging, &reporting(2, true), NOW);
        let sent = again.first().map_or(0, |report| report.windows[0].current);
        assert_eq!(sent, left);
        assert!(again.iter().all(|report| report.epoch_ms == NOW.wall_ms));
    }
}

/// FLEET-27, FLEET-30: without what others counted, and in a file, a client has its own count.
#[test]
fn its_own_count_can_be_told_apart() {
    let terms = LookupRules::new(limits(100), &LookupSettings::default());
    let mut entry = counted(40, &terms);
    learn(&mut entry, &terms, OnLimit::Ban, (30, 2));
    let [requests, _] = entry.own_windows();
    assert_eq!(requests.minute.current, 40);
    assert_eq!(entry.counted_elsewhere(NOW).unwrap().requests.minute, 30);
    entry.forgets_others();
    assert_eq!(entry.counts(NOW.wall_ms).requests.minute, 40);
    // What a restart gives back counts as sent.
    let mut entry = counted(40, &terms);
    entry.is_sent();
    let reports = urgency(&mut entry, &terms, reporting(2, false));
    assert_eq!(reports, Some(1), "it is asked about at once");
    // The engine has them.
    learn(&mut entry, &terms, OnLimit::Ban, (40, 2));
    assert_eq!(entry.counts(NOW.wall_ms).requests.minute, 40);
    assert_eq!(urgency(&mut entry, &terms, reporting(2, true)), None);
}

/// What happens to a client.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// It asks so often here.
    Asks(u64),
    /// It asks so often at others, which have told the engine.
    AsksElsewhere(u64),
    /// The engine is asked.
    Learns,
    /// A ban begins so much later than the last one: at once, where one is observed again.
    Banned(u64),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        (1..60_u64).prop_map(Act::Asks),
        (1..60_u64).prop_map(Act::AsksElsewhere),
        Just(Act::Learns),
        (0..2_u64).prop_map(Act::Banned),
    ];
    prop::collection::vec(act, 1..30)
}

proptest! {
    /// FLEET-6: whatever bans begin a client anew, twice at one moment too, it never takes for the
    /// others' what it has counted itself.
    #[test]
    fn others_have_never_counted_more_than_they_did(acts in acts()) {
        let terms = LookupRules::new(limits(1000), &LookupSettings::default());
        let rules = RuleSet::default();
        let judging = Judging {
            terms: &terms,
            on_limit: OnLimit::Ban,
            rules: &rules,
        };
        let mut entry = counted(0, &terms);
        let (mut epoch_ms, mut sum, mut others) = (NOW.wall_ms, 0, 0);
        entry.reset(0, Some(epoch_ms));
        for act in acts {
            match act {
                Act::Asks(count) => {
                    for _ in 0..count {
                        entry.charge_request(&terms.plain_limits, NOW.wall_ms, false);
                    }
                }
                Act::AsksElsewhere(count) => {
                    sum += count;
                    others += count;
                }
                Act::Learns => {
                    let reports = entry.reports(CLIENT, judging, &reporting(1, true), NOW);
                    for report in reports {
                        if report.epoch_ms > epoch_ms {
                            (epoch_ms, sum, others) = (report.epoch_ms, 0, 0);
                        }
                        sum += report.windows[0].current;
                        let mut windows = report.windows.clone();
                        for window in windows.iter_mut().take(3) {
                            window.current = sum;
                        }
                        let told = Sum { epoch_ms, known: false, windows };
                        entry.learn((&report, true), (&told, true), judging, NOW);
                    }
                }
                Act::Banned(later_ms) => {
                    if later_ms > 0 {
                        (epoch_ms, sum, others) = (epoch_ms + later_ms, 0, 0);
                    }
                    entry.reset(0, Some(epoch_ms));
                }
            }
            let elsewhere = entry.counted_elsewhere(NOW);
            let elsewhere = elsewhere.map_or(0, |elsewhere| elsewhere.requests.minute);
            prop_assert!(elsewhere <= others, "{} of {}", elsewhere, others);
        }
    }
}
