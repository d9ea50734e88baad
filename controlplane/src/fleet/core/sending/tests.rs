use std::sync::Arc;

use weir_shared::ban::Ban;

use super::*;
use crate::bans::document::BanKey;
use crate::bans::ledger::changes::{Happened, LedgerChange};
use crate::fleet::engine::{Cursor, Welcome};
use crate::fleet::stamp::Origin;

const NOW: u64 = 1_795_276_800_000;

fn welcome(last: u64) -> Welcome {
    Welcome {
        generation: 1,
        hello: 1,
        last,
        last_by: (last > 0).then_some(1),
        at_cursor: None,
        is_whole: true,
        time_ms: NOW,
    }
}

/// An instance that is in step with a fleet.
fn instance() -> Core {
    let (mut core, _) = Core::new(Origin::new("a", 1).unwrap(), &[]);
    core.welcome(welcome(0));
    core.at_the_end();
    assert!(core.is_in_step());
    core
}

/// That a ban was made.
fn made(number: usize) -> LedgerChange {
    let netblock = format!("10.{}.{}.0/24", number / 256, number % 256);
    let text = format!(
        r#"{{"netblock":"{netblock}","ban_started":"2026-11-21T16:00:00Z","ban_expires":"permanent"}}"#
    );
    let ban: Ban = serde_json::from_str(&text).unwrap();
    LedgerChange {
        key: BanKey::of(&ban),
        happened: Happened::Made,
        ban: Some(Arc::new(ban)),
    }
}

/// Makes a ban; returns the batch that has it.
fn batch(core: &mut Core, number: usize) -> Option<Batch> {
    core.follow(&[made(number)], NOW);
    core.next_batch(|_| true)
}

/// The netblocks of a batch.
fn netblocks(batch: &Batch) -> Vec<String> {
    let events = event::read(&batch.bytes).unwrap();
    let netblock = |event: Result<Event, _>| match event {
        Ok(Event::Entry(entry)) => entry.key().unwrap().netblock.to_string(),
        other => panic!("{other:?}"),
    };
    events.into_iter().map(netblock).collect()
}

/// FLEET-11: batches are sent without waiting for answers, up to a bound; changes made meanwhile go
/// in one batch once there is room.
#[test]
fn batches_do_not_wait_for_answers() {
    let mut core = instance();
    for number in 0..MOST_UNDER_WAY {
        let batch = batch(&mut core, number).unwrap();
        assert_eq!(batch.seq, number as u64 + 1);
        assert_eq!(netblocks(&batch), [format!("10.0.{number}.0/24")]);
    }
    assert!(!core.holds_back());
    assert_eq!(batch(&mut core, 100), None);
    assert_eq!(batch(&mut core, 101), None);
    assert!(core.holds_back());
    core.appended(2, 2);
    assert_eq!(core.acked(), 0, "it is not the oldest one");
    core.appended(1, 1);
    let next = core.next_batch(|_| true).unwrap();
    assert_eq!(next.seq, MOST_UNDER_WAY as u64 + 1);
    assert_eq!(netblocks(&next), ["10.0.100.0/24", "10.0.101.0/24"]);
    for seq in 2..=next.seq {
        assert!(!core.is_in_step());
        core.appended(seq, seq);
    }
    assert!(core.is_in_step());
    assert_eq!((core.acked(), core.counts().sent), (next.seq, 10));
}

/// FLEET-11: on a slow link full batches delay each other, so the bound for them is in bytes under
/// way, not in batches.
#[test]
fn full_batches_wait_for_answers() {
    let mut core = instance();
    let changes: Vec<LedgerChange> = (0..3000).map(made).collect();
    core.follow(&changes, NOW);
    let mut sizes = Vec::new();
    while let Some(batch) = core.next_batch(|_| true) {
        sizes.push(batch.bytes.len());
    }
    assert_eq!(sizes.len(), 2, "{sizes:?}");
    assert!(sizes[0] < MOST_BYTES_UNDER_WAY, "{sizes:?}");
    core.appended(1, 1);
    assert_eq!(core.next_batch(|_| true).map(|batch| batch.seq), Some(3));
    assert_eq!(core.next_batch(|_| true), None);
}

/// FLEET-15: an engine that has lost a batch refuses all batches after it. They are sent again, in
/// order, once nothing is on its way any more that could have their numbers.
#[test]
fn a_lost_batch_is_sent_again_with_those_behind_it() {
    let mut core = instance();
    for number in 0..4 {
        batch(&mut core, number).unwrap();
    }
    core.appended(1, 1);
    let resyncs = core.counts().resyncs;
    core.appended(2, 0);
    for seq in 3..=4 {
        assert_eq!(
            core.next_batch(|_| true),
            None,
            "before the answer to {seq}"
        );
        core.appended(seq, 0);
    }
    assert_eq!(core.counts().resyncs, resyncs + 1);
    let again = core.next_batch(|_| true).unwrap();
    assert_eq!(again.seq, 1);
    assert_eq!(
        netblocks(&again),
        ["10.0.1.0/24", "10.0.2.0/24", "10.0.3.0/24"]
    );
    assert_eq!(core.waiting(), 3);
}

/// FLEET-15: after a fault of the link the engine tells its last batch; only batches after it are
/// sent again.
#[test]
fn a_fault_sends_again_what_was_not_taken() {
    for last in 0..=4 {
        let mut core = instance();
        for number in 0..4 {
            batch(&mut core, number).unwrap();
        }
        core.welcome(welcome(last));
        assert_eq!(core.counts().sent, last);
        let again = core.next_batch(|_| true);
        let expected: Vec<_> = (last..4)
            .map(|number| format!("10.0.{number}.0/24"))
            .collect();
        assert_eq!(again.as_ref().map(netblocks).unwrap_or_default(), expected);
        assert!(again.is_none_or(|batch| batch.seq == last + 1));
    }
    // A master that has another batch of this number, which came over another connection.
    for last in 1..=4 {
        let mut core = instance();
        for number in 0..4 {
            batch(&mut core, number).unwrap();
        }
        core.welcome(Welcome {
            last_by: Some(7),
            ..welcome(last)
        });
        let again = core.next_batch(|_| true).unwrap();
        assert_eq!((again.seq, core.counts().sent), (last + 1, 0));
        assert_eq!(netblocks(&again).len(), 4);
    }
    // The engine cannot have more of it than was sent: somebody else wrote there.
    let mut core = instance();
    batch(&mut core, 0).unwrap();
    core.welcome(welcome(2));
    let again = core.next_batch(|_| true).unwrap();
    assert_eq!((again.seq, core.cursor()), (3, Cursor::default()));
}
