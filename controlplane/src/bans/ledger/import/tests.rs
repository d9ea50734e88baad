use proptest::prelude::*;
use serde_json::json;
use weir_shared::netblock::PrefixLengths;
use weir_shared::units::Time;

use super::super::{LedgerSettings, Policy};
use super::*;

const NOW: u64 = 1_795_276_800_000;

fn ledger(max_bans: usize, bans: Vec<Arc<Ban>>) -> Ledger {
    let rules = LedgerSettings {
        policy: Policy::default(),
        prefixes: PrefixLengths::default(),
        max_bans,
        observe: false,
    };
    Ledger::new(rules, bans, NOW).unwrap()
}

/// A ban as bans.json has it; it ended `ended` seconds ago, or lasts so long.
fn ban(netblock: &str, started: u64, lasts: i64, cause: &str) -> Arc<Ban> {
    let end = i64::try_from(NOW).unwrap() + lasts * 1000;
    let text = json!({
        "netblock": netblock,
        "ban_started": Time(NOW - started),
        "ban_expires": Time(u64::try_from(end).unwrap()),
        "cause": cause,
        "reason": "r",
        "ticket": 7,
    });
    Arc::new(serde_json::from_value(text).unwrap())
}

fn held(ledger: &Ledger) -> Vec<Arc<Ban>> {
    ledger.after(None).map(|(_, ban)| Arc::clone(ban)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// CONTROL-9: a ledger that imported the bans of another holds the same bans, also after a
    /// repeated import; an import that does not fit changes nothing.
    #[test]
    fn an_import_is_the_same_ledger(
        bans in prop::collection::vec((0..6_u8, 0..4_u64, -50..50_i64, 0..3_usize, any::<bool>()), 0..12),
        others in prop::collection::vec((0..9_u8, 0..4_u64, -50..50_i64, 0..3_usize), 0..8),
        most in 1..16_usize,
    ) {
        let cause = |number: usize| ["admin", "trap", "rate_limit"][number];
        let made: Vec<_> = bans
            .iter()
            .map(|(net, started, lasts, number, observed)| {
                let mut ban = Ban::clone(&ban(&format!("10.0.{net}.0/24"), *started, *lasts, cause(*number)));
                ban.observed = *observed;
                Arc::new(ban)
            })
            .collect();
        let from = ledger(100, made);
        let exported = held(&from);
        let mut into = ledger(100, Vec::new());
        for _ in 0..2 {
            into.import(Batch::Bans(exported.clone()), NOW).unwrap();
            prop_assert_eq!(held(&into), exported.clone());
        }
        let others = others
            .iter()
            .map(|(net, started, lasts, number)| ban(&format!("10.0.{net}.0/24"), *started, *lasts, cause(*number)))
            .take(most)
            .collect();
        let Ok(mut small) = Ledger::new(LedgerSettings { max_bans: most, ..into.settings }, others, NOW) else {
            return Ok(());
        };
        let before = (held(&small), small.made(), small.dropped());
        match small.import(Batch::Bans(exported.clone()), NOW) {
            Ok(imported) => {
                prop_assert_eq!(imported.imported, exported.len());
                prop_assert!(held(&small).len() <= most);
                prop_assert_eq!(
                    before.0.len() + imported.new,
                    held(&small).len() + usize::try_from(imported.dropped).unwrap()
                );
            }
            Err(Full) => {
                prop_assert_eq!((held(&small), small.made(), small.dropped()), before);
                prop_assert!(small.take_drops().is_empty());
            }
        }
    }
}

/// Gives entries their starts by trying one millisecond after the other.
fn naive_starts(bans: &[Arc<Ban>], held: &[Arc<Ban>], now_ms: u64) -> Vec<u64> {
    let said = |ban: &Ban| {
        let mut ban = Ban::clone(ban);
        (ban.ban_started, ban.lifted, ban.notes) = (None, None, None);
        ban.origin = Some(ban.origin());
        ban
    };
    let holds = |key: BanKey| held.iter().find(|ban| BanKey::of(ban) == key);
    let mut taken = Vec::new();
    let mut starts = vec![None; bans.len()];
    for (ban, start) in bans.iter().zip(&mut starts) {
        if ban.ban_started.is_some() && !taken.contains(&BanKey::of(ban)) {
            *start = ban.ban_started;
            taken.push(BanKey::of(ban));
        }
    }
    for has_start in [true, false] {
        for (ban, start) in bans.iter().zip(&mut starts) {
            if start.is_some() || ban.ban_started.is_some() != has_start {
                continue;
            }
            let alike = held.iter().map(|held| (BanKey::of(held), held));
            let alike = alike.filter(|(key, held)| said(held) == said(ban) && !taken.contains(key));
            let mut key = BanKey::of(ban);
            if !has_start {
                key.ban_started = Time(now_ms);
                if let Some((like, _)) = alike.min_by_key(|(key, _)| key.ban_started) {
                    key = like;
                }
            }
            let is_free = |key: BanKey| match holds(key) {
                Some(held) => said(held) == said(ban),
                None => true,
            };
            while taken.contains(&key) || !is_free(key) {
                key.ban_started.0 += 1;
            }
            *start = Some(key.ban_started);
            taken.push(key);
        }
    }
    starts.into_iter().map(|start| start.unwrap().0).collect()
}

/// A document by hand: few netblocks, causes and starts, some of them left out.
fn by_hand() -> impl Strategy<Value = Vec<Arc<Ban>>> {
    let entry = (0..2_u8, prop::option::of(0..6_u64), 0..2_i64, 0..3_usize);
    let made = |(net, started, lasts, number): (u8, Option<u64>, i64, usize)| {
        let cause = ["admin", "trap", "edit"][number];
        let netblock = format!("10.0.{net}.0/24");
        let mut ban = Ban::clone(&ban(&netblock, started.unwrap_or(0), 50 + lasts, cause));
        ban.ban_started = ban.ban_started.filter(|_| started.is_some());
        Arc::new(ban)
    };
    prop::collection::vec(entry.prop_map(made), 0..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    /// CONTROL-9: after any imports, each entry of a document written by hand gets the place that a
    /// naive search finds, and none replaces another. The same document again changes nothing, also
    /// later and after all its bans were lifted.
    #[test]
    fn a_second_import_changes_nothing(
        before in by_hand(),
        document in by_hand(),
        later in 0..9_u64,
        lifts in any::<bool>(),
    ) {
        let mut into = ledger(100, Vec::new());
        into.import(Batch::Bans(before), NOW).unwrap();
        let stood = held(&into);
        let expected = naive_starts(&document, &stood, NOW);
        let imported = into.import(Batch::Bans(document.clone()), NOW).unwrap();
        prop_assert_eq!(stood.len() + imported.new, held(&into).len());
        for (ban, start) in document.iter().zip(expected) {
            let mut ban = Ban::clone(ban);
            ban.ban_started = Some(Time(start));
            prop_assert!(held(&into).iter().any(|held| **held == ban));
        }
        let once = held(&into);
        if lifts {
            for net in 0..2 {
                into.lift_netblock(format!("10.0.{net}.0/24").parse().unwrap(), NOW + later);
            }
        }
        let again = into.import(Batch::Bans(document.clone()), NOW + later).unwrap();
        prop_assert_eq!((again.imported, again.new), (document.len(), 0));
        if !lifts {
            prop_assert_eq!(held(&into), once);
        }
    }
}

/// ALIVE-7, CONTROL-9: many entries of one netblock and one start, or without a start, are imported
/// twice, fast enough for the control loop, which does nothing else meanwhile.
#[test]
fn many_entries_of_one_start_are_taken_in() {
    const MANY: usize = 60_000;
    let dated = ban("203.0.113.0/24", 5000, 9000, "edit");
    let mut bare = Ban::clone(&dated);
    bare.ban_started = None;
    for entry in [dated, Arc::new(bare)] {
        let mut into = ledger(2 * MANY, Vec::new());
        for (later, new) in [(0, MANY), (1, 0)] {
            let imported = into.import(Batch::Bans(vec![Arc::clone(&entry); MANY]), NOW + later);
            assert_eq!(imported.unwrap().new, new);
        }
        assert_eq!(into.after(None).count(), MANY);
    }
}

/// CONTROL-9: an entry replaces the one of the same netblock and start, even a lifted one; entries
/// without a start, and equal entries, are all imported.
#[test]
fn entries_find_their_places() {
    let stands = ban("203.0.113.0/24", 5000, 100, "jail");
    let mut lifted = Ban::clone(&stands);
    lifted.lifted = Some(Time(NOW));
    let mut into = ledger(10, vec![Arc::new(lifted)]);
    let mut bare = Ban::clone(&stands);
    bare.ban_started = None;
    let bare = Arc::new(bare);
    let batch = vec![
        Arc::clone(&stands),
        Arc::clone(&stands),
        Arc::clone(&bare),
        bare,
    ];
    let imported = into.import(Batch::Bans(batch), NOW).unwrap();
    assert_eq!(
        (imported.imported, imported.new, imported.dropped),
        (4, 3, 0)
    );
    let starts: Vec<_> = held(&into)
        .iter()
        .map(|ban| ban.ban_started.unwrap().0)
        .collect();
    assert_eq!(starts, [NOW - 5000, NOW - 4999, NOW, NOW + 1]);
    assert!(held(&into).iter().all(|ban| ban.lifted.is_none()));
}

/// CONTROL-9: the export of one instance of a fleet changes nothing at another that holds these
/// bans under the first one's name, in either direction and however often. Two bans of one netblock
/// and start in the document stay two.
#[test]
fn an_export_of_another_instance_is_known_again() {
    let of = |origin: &str, netblock: &str| {
        let mut ban = Ban::clone(&ban(netblock, 50, 3600, "admin"));
        ban.origin = Some(origin.parse().unwrap());
        Arc::new(ban)
    };
    let named = |origins: [&str; 4]| -> Vec<Arc<Ban>> {
        let blocks = ["10.0.0.0/24", "10.0.1.0/24", "10.0.2.0/24", "10.0.2.0/24"];
        let bans = origins.into_iter().zip(blocks);
        bans.map(|(origin, netblock)| of(origin, netblock))
            .collect()
    };
    let at_one = named(["admin", "admin@edge-2", "admin", "admin@edge-3"]);
    let at_other = named(["admin@edge-1", "admin", "admin@edge-1", "admin@edge-3"]);
    for (from, to) in [(&at_one, &at_other), (&at_other, &at_one)] {
        let mut into = ledger(100, to.clone());
        let before = held(&into);
        for _ in 0..2 {
            let imported = into.import(Batch::Bans(from.clone()), NOW).unwrap();
            assert_eq!((imported.imported, imported.new), (4, 0));
            assert_eq!(held(&into), before);
        }
    }
}
