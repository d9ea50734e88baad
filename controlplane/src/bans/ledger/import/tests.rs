use proptest::prelude::*;
use serde_json::json;
use weir_shared::netblock::PrefixLengths;
use weir_shared::units::Time;

use super::super::{Policy, Rules};
use super::*;

const NOW: u64 = 1_795_276_800_000;

fn ledger(max_bans: usize, bans: Vec<Arc<Ban>>) -> Ledger {
    let rules = Rules {
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

    /// CONTROL-9: what one ledger holds is what another holds once it took it in, whatever it is
    /// and however often; and an import that does not fit changes nothing.
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
        let Ok(mut small) = Ledger::new(Rules { max_bans: most, ..into.rules }, others, NOW) else {
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

/// CONTROL-9: an entry replaces the one of the same netblock and start, also one that was lifted;
/// entries without a start, and two alike, are all taken.
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
