//! The loop, turned by hand on a clock that stands still.

use arc_swap::ArcSwap;
use crossbeam_channel::{bounded, never, unbounded};
use weir_shared::ban::Ban;
use weir_shared::client::Client;
use weir_shared::event::Finished;
use weir_shared::lookup::{Lookup, Origin};
use weir_shared::snapshot::Snapshot;
use weir_shared::totals::OriginCounts;
use weir_shared::units::Time;

use super::*;
use crate::admin::requests::{MAX_LISTED_A_TURN, MAX_LISTINGS};
use crate::alert::document::{AlertsEntry, AlertsKey};
use crate::bans::MAX_BATCH;
use crate::faults::PartFault;
use crate::feeds::handle::FeedsHandle;
use crate::files::{JournalStart, KnownFiles, MAX_WAITING, StartState, StateFiles};
use crate::lookup::{LookupFiles, LookupRow};
use crate::rules::LiveRules;
use crate::state::{Change, StateLock};
use crate::testing::{
    NOW, Rig, Touch, body, broken, next_saved, put, put_ban, request, row, settings, settings_with,
};
use crate::watching::FileThread;
use crate::wiring::{Feeds, Wiring};

const HOUR: u64 = 3_600_000;

fn client(text: &str) -> Client {
    text.parse().unwrap()
}

/// LIMIT-6: the ban is published before its client is reset (the table of the tests asserts it at
/// every reset), and one publication serves a whole batch.
#[test]
fn a_batch_of_breaks_is_published_once_and_then_reset() {
    let mut rig = Rig::new(settings());
    let before = rig.snapshots.load().generation;
    for text in ["203.0.113.7", "203.0.113.8", "198.51.100.1"] {
        rig.report(text);
    }
    rig.turn();
    assert_eq!(rig.snapshots.load().generation, before + 1);
    assert_eq!(
        rig.touches(),
        ["203.0.113.8", "203.0.113.7", "198.51.100.1"]
            .map(|text| Touch::Reset(client(text), before + 1))
    );
    assert_eq!(rig.control.bans.ledger().all().len(), 2);
}

/// LIMIT-6, ADMIN-2: several bans by hand of one turn are published together and sent once to the
/// disk; they are answered once they are on disk.
#[test]
fn the_admin_bans_of_a_turn_are_published_once() {
    let mut rig = Rig::new(settings());
    let before = rig.snapshots.load().generation;
    let clients = ["203.0.113.7", "198.51.100.1", "192.0.2.1"];
    let answers = clients.map(|text| {
        let order = format!(r#"{{"client":"{text}","duration":"2h","reason":"r"}}"#);
        rig.hand(request("POST", "/_waf/bans", &order))
    });
    rig.turn();
    assert_eq!(rig.snapshots.load().generation, before + 1);
    assert!(clients.iter().all(|text| rig.banned_until(text).is_some()));
    assert!(answers.iter().all(|answer| answer.is_empty()));
    assert_eq!(rig.control.bans.ledger().gathered.get(), 1);
    rig.disk.tell(true);
    rig.turn();
    let created = answers.map(|answer| answer.try_recv().unwrap().status == 201);
    assert_eq!(created, [true; 3]);
}

/// BAN-2: an exceeded limit of a netblock that is banned already makes no ban and no publication,
/// but its client is reset, so that it does not exceed its limit for ever.
#[test]
fn a_break_of_a_banned_netblock_resets_only() {
    let mut rig = Rig::new(settings());
    rig.exceed_limit("203.0.113.7");
    let generation = rig.snapshots.load().generation;
    rig.touches();
    rig.exceed_limit("203.0.113.99");
    assert_eq!(
        rig.touches(),
        [Touch::Reset(client("203.0.113.99"), generation)]
    );
    assert_eq!(rig.snapshots.load().generation, generation);
}

/// FLEET-27: a limit exceeded by the counts of others, in a netblock that is banned already, uses
/// up none of the bans that such counts may make: its clients are reset, and the next netblock is
/// banned.
#[test]
fn only_bans_that_are_made_count_for_the_breaker() {
    let mut rig = Rig::new(settings());
    let report = |rig: &Rig, address: &str| {
        let note = weir_shared::ban::FleetNote {
            here: 1,
            others: 1000,
            instances: 2,
        };
        let mut broken = crate::testing::broken(address, rig.now_ms());
        broken.fleet = Some(note);
        rig.breaks.send(broken).unwrap();
    };
    for address in 1..=100 {
        report(&rig, &format!("203.0.113.{address}"));
        rig.turn();
    }
    assert_eq!(rig.control.bans.made_by_others(), 1);
    for netblock in 1..=100 {
        report(&rig, &format!("10.0.{netblock}.7"));
        rig.turn();
    }
    assert_eq!(rig.control.bans.made_by_others(), 60);
    assert!(rig.banned_until("10.0.59.7").is_some());
    assert_eq!(rig.banned_until("10.0.60.7"), None);
}

/// LIMIT-6, BAN-5: if no held ban may be dropped, the client is released and `can_ban` is off; it
/// is on again once a ban has ended, without an event, or was lifted.
#[test]
fn can_ban_follows_the_ledger() {
    let mut rig = Rig::new(settings_with(|settings| {
        settings.bans.max = 2;
    }));
    for (net, duration) in [("10.0.0.0/24", "permanent"), ("10.1.0.0/24", "1h")] {
        let text = format!(r#"{{"netblock":"{net}","duration":"{duration}","reason":"r"}}"#);
        assert_eq!(rig.post(&text).status, 201);
    }
    assert!(!rig.snapshots.load().can_ban);
    let generation = rig.snapshots.load().generation;
    rig.exceed_limit("203.0.113.7");
    assert_eq!(rig.touches(), [Touch::Release(client("203.0.113.7"))]);
    assert_eq!(rig.banned_until("203.0.113.7"), None);
    assert_eq!(rig.snapshots.load().generation, generation);

    rig.clock.advance_ms(HOUR);
    rig.turn();
    assert!(rig.snapshots.load().can_ban);
    rig.exceed_limit("203.0.113.7");
    assert!(rig.banned_until("203.0.113.7").is_some());

    let lifted = rig.ask(request("DELETE", "/_waf/bans/10.0.0.1", ""));
    assert_eq!(body(&lifted)["lifted"].as_array().unwrap().len(), 1);
    assert!(rig.snapshots.load().can_ban);
}

/// BAN-4: an automatic ban carries the request, the netblock's requests, the limit, its percent and
/// the lookup.
#[test]
fn a_ban_carries_its_notes() {
    let mut rig = Rig::new(settings());
    let lookup = Lookup {
        country: Some("DE".to_owned()),
        ..Lookup::default()
    };
    rig.table.put(weir_shared::table::ClientRow {
        lookup: Some(Arc::new(lookup)),
        ..row("203.0.113.7")
    });
    rig.exceed_limit("203.0.113.7");
    let listed = rig.get("/_waf/bans");
    assert_eq!(
        body(&listed)["bans"],
        serde_json::json!([{
            "netblock": "203.0.113.0/24", "client": "203.0.113.7",
            "ban_started": "2026-11-21T16:00:00Z", "ban_expires": "2026-11-21T17:00:00Z",
            "cause": "rate_limit", "origin": "service", "reason": "more than 1000 requests per minute", "lifted": null,
            "observed": false,
            "notes": {"request": {"path": "/a"}, "netblock_requests": 1043, "limit": "minute", "limit_value": 1000,
                      "limit_percent": 100, "lookup": {"country": "DE"}}
        }])
    );
}

/// So many bans of netblocks of their own, none of which the tests name.
fn many_bans(count: usize) -> Vec<Ban> {
    let mut rig = Rig::new(settings());
    rig.exceed_limit("203.0.113.7");
    let ban = Ban::clone(&rig.control.bans.ledger().all()[0]);
    let numbered = |number: usize| Ban {
        netblock: format!("10.{}.{}.0/24", number / 256, number % 256)
            .parse()
            .unwrap(),
        ..ban.clone()
    };
    (0..count).map(numbered).collect()
}

/// BAN-8: while a list of many bans is collected, every turn handles exceeded limits first and then
/// only a piece of the list; the loop writes no text of it. The list has every ban that was held
/// all the while, once, oldest first.
#[test]
fn breaks_are_banned_between_the_pieces_of_a_list() {
    let pieces = 4;
    let held = (pieces - 1) * MAX_LISTED_A_TURN + 1;
    let mut rig = Rig::with_bans(
        settings_with(|settings| {
            settings.bans.max = 100_000;
        }),
        many_bans(held),
    )
    .ok()
    .unwrap();
    let answer = rig.hand(request("GET", "/_waf/bans?active=true", ""));
    for piece in 1..=pieces {
        let client = format!("198.51.{piece}.7");
        rig.exceed_limit(&client);
        assert!(rig.banned_until(&client).is_some());
        let listed = rig.control.requests.listings().front();
        let looked = listed.map(|(listing, ..)| listing.found().len());
        assert_eq!(
            looked,
            (piece < pieces).then_some(piece * MAX_LISTED_A_TURN)
        );
    }
    let answer = answer.recv_timeout(Duration::from_secs(20)).unwrap();
    let listed = body(&answer);
    let listed: Vec<(&str, &str)> = listed["bans"]
        .as_array()
        .unwrap()
        .iter()
        .map(|ban| {
            let member = |name: &str| ban[name].as_str().unwrap();
            (member("ban_started"), member("netblock"))
        })
        .collect();
    // Those that were made meanwhile sort behind all others by netblock, and the walk had not come
    // to them.
    assert_eq!(listed.len(), held + pieces);
    let netblocks: std::collections::HashSet<_> = listed.iter().map(|ban| ban.1).collect();
    assert_eq!(netblocks.len(), listed.len());
    assert!(listed.is_sorted_by_key(|ban| ban.0));
}

/// ADMIN: the newest bans are the last of the list, even if all began in one millisecond.
#[test]
fn the_newest_are_the_last_of_the_list() {
    let mut rig = Rig::with_bans(settings_with(|_| {}), many_bans(20))
        .ok()
        .unwrap();
    let mut list = |query: &str| {
        let target = format!("/_waf/bans?active=true{query}");
        let answer = rig.hand(request("GET", &target, ""));
        rig.turn();
        let answer = answer.recv_timeout(Duration::from_secs(20)).unwrap();
        body(&answer)["bans"].as_array().unwrap().clone()
    };
    let all = list("");
    assert_eq!(all.len(), 20);
    assert_eq!(list("&newest=3"), all[17..]);
}

/// ADMIN: the number of lists under way is bounded; one more is answered 503, and the others are
/// answered in full.
#[test]
fn lists_under_way_are_bounded() {
    let settings = settings_with(|settings| {
        settings.bans.max = 100_000;
    });
    let held = 10 * MAX_LISTED_A_TURN;
    let mut rig = Rig::with_bans(settings, many_bans(held)).ok().unwrap();
    let mut answers = Vec::new();
    for _ in 0..25 {
        for _ in 0..MAX_ADMIN_A_TURN {
            answers.push(rig.hand(request("GET", "/_waf/bans?active=false", "")));
        }
        rig.turn();
        assert!(rig.control.requests.listings().len() <= MAX_LISTINGS);
    }
    let wait = Duration::from_secs(20);
    while !rig.control.requests.listings().is_empty() {
        rig.turn();
        // What was gathered is written elsewhere, and only so many wait there.
        let due = answers.len() - rig.control.requests.listings().len();
        let deadline = std::time::Instant::now() + wait;
        while answers.iter().filter(|answer| !answer.is_empty()).count() < due {
            assert!(std::time::Instant::now() < deadline, "they are not written");
            std::thread::yield_now();
        }
    }
    let statuses = answers
        .iter()
        .map(|answer| answer.recv_timeout(wait).unwrap().status);
    let answered = statuses.filter(|status| *status == 200).count();
    // Two were gathered before there were too many.
    assert_eq!(answered, MAX_LISTINGS + 2);
}

/// BAN-7: the end of a ban frees the client without a turn of the loop.
#[test]
fn a_ban_ends_by_the_clock() {
    let mut rig = Rig::new(settings());
    rig.exceed_limit("203.0.113.7");
    assert_eq!(rig.banned_until("203.0.113.200"), Some(NOW + HOUR));
    rig.clock.advance_ms(HOUR);
    assert_eq!(rig.banned_until("203.0.113.200"), None);
}

/// STATE-1: bans.json is sent WAF_STATE_WRITE_DELAY after the first change, and every file at the
/// interval.
#[test]
fn files_are_saved_when_time_asks_for_it() {
    let mut rig = Rig::new(settings());
    rig.exceed_limit("203.0.113.7");
    rig.clock.advance_ms(999);
    rig.exceed_limit("198.51.100.7");
    assert!(rig.disk.is_idle());
    rig.clock.advance_ms(1);
    rig.turn();
    let job = rig.disk.bans.take().unwrap();
    assert_eq!((job.entries.len(), job.revision), (2, 0));
    rig.clock.advance_ms(58_999);
    rig.turn();
    assert!(rig.disk.is_idle());
    rig.table.put(row("203.0.113.7"));
    rig.clock.advance_ms(1);
    rig.turn();
    assert_eq!(rig.disk.bans.take().unwrap().entries.len(), 2);
    assert_eq!(rig.disk.clients.take().unwrap().entries.len(), 1);
}

/// STATE-2: a ban by hand is in force at once, and answered once it is on disk; if the disk fails
/// or takes too long, the answer says so.
#[test]
fn an_admin_ban_waits_for_the_disk_before_it_is_answered() {
    for (outcome, persisted) in [
        (Some(true), None),
        (Some(false), Some(false)),
        (None, Some(false)),
    ] {
        let mut rig = Rig::new(settings());
        let text = r#"{"client":"203.0.113.7","duration":"2h","reason":"r"}"#;
        let answer = rig.hand(request("POST", "/_waf/bans", text));
        rig.turn();
        assert_eq!(rig.banned_until("203.0.113.9"), Some(NOW + 2 * HOUR));
        let mut job = rig.disk.bans.take().unwrap();
        assert_eq!(job.entries.len(), 1);
        rig.clock.advance_ms(4_999);
        rig.turn();
        assert!(answer.try_recv().is_err());
        match outcome {
            Some(outcome) => job.saved.remove(0).tell(outcome),
            None => rig.clock.advance_ms(1),
        }
        rig.turn();
        let answer = answer.try_recv().unwrap();
        assert_eq!(answer.status, 201);
        let told = body(&answer)
            .get("persisted")
            .and_then(serde_json::Value::as_bool);
        assert_eq!(told, persisted, "{outcome:?}");
    }
}

/// STATE-2, STATE-7: while the disk hangs, a bounded number of answers waits, and the others do not
/// wait.
#[test]
fn a_hanging_disk_holds_a_bounded_number_of_answers() {
    let mut rig = Rig::new(settings());
    let mut answers = Vec::new();
    for turn in 0..MAX_WAITING + 5 {
        let text = format!(
            r#"{{"netblock":"10.{}.{}.0/24","duration":"2h","reason":"r"}}"#,
            turn / 256,
            turn % 256
        );
        answers.push(rig.hand(request("POST", "/_waf/bans", &text)));
        rig.turn();
    }
    let told = answers.iter().filter(|answer| !answer.is_empty()).count();
    assert_eq!(told, 5);
    assert_eq!(rig.control.files.waiting(), MAX_WAITING);
    // Those that did not wait are sent to the disk all the same.
    let job = rig.disk.bans.take().unwrap();
    assert_eq!(job.entries.len(), MAX_WAITING + 5);
    assert_eq!(job.saved.len(), MAX_WAITING);
    // Every outcome finds its place in the channel, also when they come all at once.
    job.saved.into_iter().for_each(|saved| saved.tell(true));
    rig.turn();
    assert!(answers.iter().all(|answer| !answer.is_empty()));
    assert_eq!(rig.control.files.waiting(), 0);
}

/// A rig whose journal is open.
fn with_journal(number: u64) -> Rig {
    let journal = JournalStart {
        number,
        is_open: true,
        is_stale: false,
    };
    let start = StartState {
        journal,
        ..StartState::default()
    };
    Rig::with_state(settings(), start).ok().unwrap()
}

const ORDER: &str = r#"{"client":"203.0.113.7","duration":"2h","reason":"r"}"#;

/// STATE-10, STATE-2: a ban by hand is answered once its line is on disk, before the document; the
/// document follows, and then the journal may be emptied.
#[test]
fn an_admin_ban_costs_a_line() {
    let mut rig = with_journal(3);
    let answer = rig.hand(request("POST", "/_waf/bans", ORDER));
    rig.turn();
    assert!(answer.is_empty() && rig.disk.bans.take().is_none());
    let (line, saved) = rig.disk.journal.take().pop().unwrap();
    assert_eq!((line.number, line.put.len(), line.remove.len()), (4, 1, 0));
    saved.into_iter().for_each(|saved| saved.tell(true));
    rig.turn();
    let told = body(&answer.try_recv().unwrap());
    assert_eq!(
        (told["netblock"].as_str(), told.get("persisted")),
        (Some("203.0.113.0/24"), None)
    );
    rig.clock.advance_ms(1000);
    rig.turn();
    let job = rig.disk.bans.take().unwrap();
    assert_eq!((job.entries.len(), job.stand.journal), (1, 4));
    assert!(rig.disk.journal.take().is_empty());
    rig.turn();
    assert_eq!(rig.disk.journal.held(), None);
    rig.disk.bans.wrote(job.stand);
    rig.turn();
    assert_eq!(rig.disk.journal.held(), Some(4));

    // Nobody waits for what the service bans by itself: it is written within the delay, with few
    // bans as a document.
    rig.exceed_limit("198.51.100.7");
    assert!(rig.disk.is_idle() && rig.disk.journal.take().is_empty());
    rig.clock.advance_ms(1000);
    rig.turn();
    let job = rig.disk.bans.take().unwrap();
    assert_eq!((job.entries.len(), job.stand.journal), (2, 4));
    assert!(rig.disk.journal.take().is_empty());
}

/// STATE-10, STATE-7: an answer whose line was lost waits for the document instead, which is sent
/// at once; if that fails too, the answer says so.
#[test]
fn a_lost_line_is_a_document() {
    for is_written in [true, false] {
        let mut rig = with_journal(0);
        let answer = rig.hand(request("POST", "/_waf/bans", ORDER));
        rig.turn();
        rig.alerts();
        rig.disk.journal.lose();
        drop(rig.disk.journal.take());
        rig.turn();
        assert!(answer.is_empty());
        let job = rig.disk.bans.take().unwrap();
        assert_eq!((job.entries.len(), job.saved.len()), (1, 1));
        // Until it is on disk everything goes the same way.
        let further = rig.hand(request("POST", "/_waf/bans", ORDER));
        rig.turn();
        assert!(rig.disk.journal.take().is_empty());
        let next = rig.disk.bans.take().unwrap();
        assert_eq!(next.entries.len(), 2);
        if is_written {
            rig.disk.bans.wrote(next.stand);
        }
        for saved in job.saved.into_iter().chain(next.saved) {
            saved.tell(is_written);
        }
        rig.turn();
        for answer in [answer, further] {
            let told = body(&answer.try_recv().unwrap());
            assert_eq!(told.get("persisted").is_none(), is_written);
        }
        rig.hand(request("DELETE", "/_waf/bans/203.0.113.7", ""));
        rig.turn();
        assert_eq!(rig.disk.journal.take().len(), usize::from(is_written));
    }
}

/// STATE-10, STATE-4: after an edit is applied, no line is written until a document holds the edit:
/// a start would think that the line is older.
#[test]
fn no_line_is_written_behind_an_edit_without_its_document() {
    let mut rig = with_journal(0);
    let added: Ban =
        serde_json::from_str(r#"{"netblock":"10.0.0.0/24","ban_expires":"permanent"}"#).unwrap();
    rig.disk.bans.edit(vec![put_ban(added)]);
    rig.turn();
    let edited = rig.disk.bans.take().unwrap();
    let answer = rig.hand(request("DELETE", "/_waf/bans/10.0.0.7", ""));
    rig.turn();
    assert!(rig.disk.journal.take().is_empty());
    let job = rig.disk.bans.take().unwrap();
    assert_eq!((job.revision, job.entries[0].lifted.is_some()), (1, true));
    rig.disk.bans.wrote(edited.stand);
    job.saved.into_iter().for_each(|saved| saved.tell(true));
    rig.turn();
    assert_eq!(answer.try_recv().unwrap().status, 200);
    rig.hand(request("POST", "/_waf/bans", ORDER));
    rig.turn();
    assert_eq!(rig.disk.journal.take().len(), 1);
}

/// STATE-10: a long journal is closed until a document has emptied it; a disk that accepts no
/// further line counts as hanging.
#[test]
fn a_long_journal_is_closed() {
    let mut rig = with_journal(0);
    rig.disk.journal.grow(1 << 30);
    rig.hand(request("POST", "/_waf/bans", ORDER));
    rig.turn();
    assert_eq!(rig.disk.journal.take().len(), 1);
    let job = rig.disk.bans.take().unwrap();
    rig.hand(request("POST", "/_waf/bans", ORDER));
    rig.turn();
    assert!(rig.disk.journal.take().is_empty());
    rig.disk.journal.grow(0);
    rig.disk.bans.wrote(job.stand);
    rig.turn();
    assert_eq!(rig.disk.journal.held(), Some(1));
    rig.hand(request("POST", "/_waf/bans", ORDER));
    rig.turn();
    assert_eq!(rig.disk.journal.take().len(), 1);
}

/// STATE-3: an edit is in force once it is applied, and later documents say that they hold it.
#[test]
fn an_edit_is_in_force_at_once() {
    let mut rig = Rig::new(settings());
    rig.exceed_limit("203.0.113.7");
    let lifted = Ban {
        lifted: Some(Time(NOW)),
        ..Ban::clone(&rig.control.bans.ledger().all()[0])
    };
    let added: Ban =
        serde_json::from_str(r#"{"netblock":"10.0.0.0/8","ban_expires":"permanent"}"#).unwrap();
    let revision = rig.disk.bans.edit(vec![put_ban(lifted), put_ban(added)]);
    rig.turn();
    assert_eq!(rig.banned_until("203.0.113.7"), None);
    assert_eq!(rig.banned_until("10.9.9.9"), Some(u64::MAX));
    // At once: the thread writes nothing that lacks the edit.
    let job = rig.disk.bans.take().unwrap();
    assert_eq!((job.revision, job.entries.len()), (revision, 2));

    rig.table.put(row("203.0.113.7"));
    let removed = Change::Remove(client("203.0.113.7"));
    rig.disk
        .clients
        .edit(vec![put(row("203.0.113.8")), removed]);
    rig.turn();
    assert_eq!(rig.table.rows(), [row("203.0.113.8")]);
    assert_eq!(rig.disk.clients.take().unwrap().revision, 1);

    let answer = |text: &str| LookupRow {
        client: client(text),
        lookup: Arc::default(),
        answered: Time(NOW),
    };
    let changes = vec![put(answer("8.8.8.8")), put(answer("9.9.9.9"))];
    rig.disk.lookups.edit(changes);
    let removed = Change::Remove(client("8.8.8.8"));
    rig.disk.lookups.edit(vec![put(answer("1.1.1.1")), removed]);
    rig.turn();
    assert_eq!(rig.disk.lookups.take().unwrap().revision, 2);
    let mut rows = rig.control.lookups.rows();
    rows.sort_by_key(|row| row.client);
    assert_eq!(rows, [answer("1.1.1.1"), answer("9.9.9.9")]);
}

/// STATE-4: an edited reason does not undo a lift that happened meanwhile.
#[test]
fn an_edit_and_a_lift_are_both_kept() {
    let mut rig = Rig::new(settings());
    rig.exceed_limit("203.0.113.7");
    let before = Arc::clone(&rig.control.bans.ledger().all()[0]);
    rig.ask(request("DELETE", "/_waf/bans/203.0.113.7", ""));
    let after = Arc::new(Ban {
        reason: "looked into".to_owned(),
        ..Ban::clone(&before)
    });
    let before = Some(before);
    rig.disk.bans.edit(vec![Change::Put { before, after }]);
    rig.turn();
    let held = Arc::clone(&rig.control.bans.ledger().all()[0]);
    assert_eq!(
        (held.reason.as_str(), held.lifted),
        ("looked into", Some(Time(NOW)))
    );
    assert_eq!(rig.banned_until("203.0.113.7"), None);
}

/// Bans and clients read at the start are in force before the first request.
#[test]
fn the_start_state_is_in_force_at_once() {
    let ban: Ban =
        serde_json::from_str(r#"{"netblock":"10.0.0.0/8","ban_expires":"permanent"}"#).unwrap();
    let start = StartState {
        bans: vec![Arc::new(ban.clone())],
        clients: vec![row("203.0.113.7")],
        ..StartState::default()
    };
    let rig = Rig::with_state(settings(), start).ok().unwrap();
    assert_eq!(rig.banned_until("10.9.9.9"), Some(u64::MAX));
    assert!(rig.snapshots.load().can_ban);
    assert_eq!(rig.table.rows(), [row("203.0.113.7")]);
    let small = settings_with(|settings| {
        settings.bans.max = 1;
    });
    let second = Ban {
        ban_started: Some(Time(5)),
        ..ban.clone()
    };
    let error = Rig::with_bans(small, vec![ban, second]).err().unwrap();
    assert_eq!(
        error.to_string(),
        "bans.json holds 2 active bans made by an administrator or permanent, WAF_MAX_BANS is 1: raise the setting or \
             mark some of them lifted"
    );
}

/// A panic in a turn leaves nothing half done: its bans stay, unhandled clients are released, and
/// the loop runs until the stop, which writes everything.
#[test]
fn the_loop_outlives_a_panic_and_stops_with_everything_written() {
    let rig = Rig::new(settings());
    *rig.table.panics_for.lock().unwrap() = Some(client("203.0.113.7"));
    let answer = rig.hand(request("GET", "/_waf/bans", ""));
    rig.report("203.0.113.7");
    rig.report("198.51.100.7");
    rig.handle.stop();
    let Rig {
        control,
        table,
        snapshots,
        disk,
        breaks,
        ..
    } = rig;
    breaks.send(broken("192.0.2.1", NOW)).unwrap();
    std::thread::scope(|scope| {
        let running = scope.spawn(|| control.run());
        while !running.is_finished() {
            disk.tell(true);
            std::thread::yield_now();
        }
        running.join().unwrap();
    });
    assert_eq!(
        body(&answer.recv().unwrap())["bans"]
            .as_array()
            .unwrap()
            .len(),
        3
    );
    let snapshot = snapshots.load();
    for text in ["203.0.113.7", "198.51.100.7", "192.0.2.1"] {
        assert!(
            snapshot.bans.active_until(client(text), NOW).is_some(),
            "{text}"
        );
    }
    let touches = table.touches.lock().unwrap();
    assert!(touches.contains(&Touch::Release(client("203.0.113.7"))));
    assert!(!touches.contains(&Touch::Release(client("198.51.100.7"))));
}

/// STATE-1: a panic during the stop loses only the interrupted step, and not the last write of any
/// file; the ban that it concerns is written, too.
#[test]
fn a_panic_at_the_stop_does_not_cost_the_last_write() {
    let rig = Rig::new(settings());
    *rig.table.panics_for.lock().unwrap() = Some(client("203.0.113.7"));
    rig.report("203.0.113.7");
    let Rig { control, disk, .. } = rig;
    std::thread::scope(|scope| {
        let stopping = scope.spawn(|| control.finish());
        let job = next_saved(&disk.bans);
        assert_eq!(job.entries.len(), 1);
        drop(job);
        drop((
            next_saved(&disk.clients),
            next_saved(&disk.lookups),
            next_saved(&disk.alerts),
        ));
        stopping.join().unwrap();
    });
}

/// BAN-8: a storm of bans is published at once, however long the collection of notes takes; in the
/// end every ban has its notes and every client is reset, even at a stop.
#[test]
fn a_storm_is_published_before_its_circumstances_are_gathered() {
    for stop in [false, true] {
        let mut rig = Rig::new(settings());
        let storm = MAX_BATCH + 76;
        for turn in 0..storm {
            rig.report(&format!("10.{}.{}.1", turn / 256, turn % 256));
        }
        rig.turn();
        assert_eq!(rig.touches().len(), MAX_NOTES_A_TURN);
        assert!(rig.banned_until("10.3.255.9").is_some());
        assert_eq!(rig.banned_until("10.4.0.9"), None);
        rig.turn();
        assert!(rig.banned_until("10.4.0.9").is_some());
        if stop {
            let Rig {
                control,
                disk,
                table,
                ..
            } = rig;
            std::thread::scope(|scope| {
                let stopping = scope.spawn(|| control.finish());
                let bans = next_saved(&disk.bans).entries;
                assert_eq!(bans.len(), storm);
                assert!(bans.iter().all(|ban| ban.notes.is_some()));
                while !stopping.is_finished() {
                    disk.tell(true);
                    std::thread::yield_now();
                }
            });
            assert_eq!(
                table.touches.lock().unwrap().len(),
                storm - MAX_NOTES_A_TURN
            );
        } else {
            while rig.control.bans.has_unnoted() {
                rig.turn();
            }
            assert_eq!(rig.touches().len(), storm - MAX_NOTES_A_TURN);
            assert!(
                rig.control
                    .bans
                    .ledger()
                    .all()
                    .iter()
                    .all(|ban| ban.notes.is_some())
            );
        }
    }
}

/// The ban for a limit that was exceeded just before the stop is in the file.
#[test]
fn breaks_that_wait_at_the_stop_are_written() {
    let rig = Rig::new(settings());
    let storm = 2 * MAX_BATCH + 1;
    for turn in 0..storm {
        rig.report(&format!("10.{}.{}.1", turn / 256, turn % 256));
    }
    let Rig { control, disk, .. } = rig;
    std::thread::scope(|scope| {
        let stopping = scope.spawn(|| control.finish());
        assert_eq!(next_saved(&disk.bans).entries.len(), storm);
        while !stopping.is_finished() {
            disk.tell(false);
            std::thread::yield_now();
        }
    });
}

/// ALIVE-2: a loop that panics again and again reports it at once, writes all state files with all
/// bans, and ends.
#[test]
fn a_loop_that_panics_again_and_again_writes_the_files_and_ends() {
    let (told, ends) = unbounded();
    threads::watch(move |ended| told.send(ended).unwrap());
    let rig = Rig::new(settings());
    for turn in 0..MAX_PANICS {
        rig.report(&format!("10.0.{turn}.1"));
    }
    *rig.table.always_panics.lock().unwrap() = true;
    let Rig { control, disk, .. } = rig;
    std::thread::scope(|scope| {
        let running = scope.spawn(|| control.run());
        let ended = ends.iter().find(|ended| ended.name == THREAD).unwrap();
        assert_eq!(ended.how, threads::How::Panicked);
        let job = next_saved(&disk.bans);
        assert_eq!(job.entries.len(), MAX_PANICS);
        assert!(!running.is_finished());
        drop(job);
        drop((
            next_saved(&disk.clients),
            next_saved(&disk.lookups),
            next_saved(&disk.alerts),
        ));
        running.join().unwrap();
    });
}

/// RESTART-4, ALIVE-2: a panic in a hand-over ends the hand-over, and feeds are fetched again.
#[test]
fn what_stood_still_goes_on_after_a_panic() {
    let mut rig = Rig::new(settings());
    let feeds = FeedsHandle::idle(rig.control.clock.clone(), "drop");
    rig.control.rules = LiveRules::with_feeds(feeds.clone());
    // A turn leaves the last one to the hand-over.
    for turn in 0..=MAX_NOTES_A_TURN {
        rig.report(&format!("10.0.{turn}.1"));
    }
    let last = client(&format!("10.0.{MAX_NOTES_A_TURN}.1"));
    *rig.table.panics_for.lock().unwrap() = Some(last);
    let giving = rig.handle.give();
    let Rig {
        control,
        disk,
        handle,
        ..
    } = rig;
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    std::thread::scope(|scope| {
        let running = scope.spawn(|| control.run());
        while giving.outcome().is_none_or(|given| given.is_ok()) {
            assert!(std::time::Instant::now() < deadline);
            std::thread::yield_now();
        }
        while feeds.fetch("drop") != Some(true) {
            assert!(std::time::Instant::now() < deadline);
            std::thread::yield_now();
        }
        handle.stop();
        while !running.is_finished() {
            disk.tell(true);
            std::thread::yield_now();
        }
        running.join().unwrap();
    });
}

/// STATE-2, STATE-3, with real files: a ban by hand is in the file when it is answered; an edit of
/// the file lifts it; at the stop everything is written.
#[test]
fn the_loop_and_the_files_agree_about_bans_json() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("bans.json");
    let clock = Clock::system();
    let snapshots = Arc::new(ArcSwap::from_pointee(Snapshot::default()));
    let lock = StateLock::claim(dir.path()).unwrap();
    let looks = FileThread::start(clock.clone()).unwrap();
    let (files, start) =
        StateFiles::open(lock, clock.clone(), KnownFiles::default(), &looks).unwrap();
    let rig = Rig::new(settings());
    let (_breaks, breaks) = bounded(1);
    let table = Arc::clone(&rig.table) as Arc<dyn ClientTable>;
    let read = LookupFiles::open(&settings().lookup, &clock).unwrap();
    let lookups = Lookups::start(&settings(), &clock, &table, (read, &looks), Vec::new()).unwrap();
    let (control, handle) = Control::new(Wiring {
        settings: Arc::new(settings()),
        clock: clock.clone(),
        snapshots: Arc::clone(&snapshots),
        table: Arc::clone(&rig.table) as _,
        spared: Arc::clone(&rig.spared),
        counts: None,
        breaks,
        totals: Arc::new(Totals::default),
        faults: looks.faults().clone(),
        files,
        start,
        lookups,
        certificates: None,
        rules: LiveRules::default(),
        feeds: Feeds {
            finished: never(),
            origins: Arc::new(OriginCounts::default),
            lines: bounded(64).0,
        },
        explain: crate::testing::nothing_to_explain(),
        about: crate::testing::about(),
    })
    .unwrap();
    let rig = Rig { handle, ..rig };
    let running = std::thread::spawn(move || control.run());
    let wait = Duration::from_secs(20);

    let text = r#"{"client":"203.0.113.7","duration":"2h","reason":"r"}"#;
    let answer = rig.hand(request("POST", "/_waf/bans", text));
    let answer = body(&answer.recv_timeout(wait).unwrap());
    let on_disk =
        || -> serde_json::Value { serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap() };
    assert_eq!(on_disk()["bans"], serde_json::json!([answer]));

    let is_banned = || {
        let now_ms = clock.now().wall_ms;
        snapshots
            .load()
            .bans
            .active_until(client("203.0.113.9"), now_ms)
            .is_some()
    };
    assert!(is_banned());
    let mut edited = on_disk();
    edited["bans"][0]["lifted"] = answer["ban_started"].clone();
    std::fs::write(&file, edited.to_string()).unwrap();
    let deadline = std::time::Instant::now() + wait;
    while is_banned() {
        assert!(std::time::Instant::now() < deadline);
        std::thread::yield_now();
    }
    // RESTART-1: every file is written because the process asks for it, while the loop goes on.
    assert!(!dir.path().join("clients.json").exists());
    let mut saving = rig.handle.save();
    let saved = loop {
        assert!(std::time::Instant::now() < deadline);
        match saving.outcome() {
            Some(saved) => break saved,
            None => std::thread::yield_now(),
        }
    };
    assert_eq!(saved, Ok(()));
    for which in Which::ALL {
        assert!(dir.path().join(which.name()).exists(), "{}", which.name());
    }
    // RESTART-4: once the files are given away, what needs the loop is 503; the lock is held by
    // whoever has it. They are taken back where nobody keeps them.
    let giving = rig.handle.give();
    let lock = loop {
        assert!(std::time::Instant::now() < deadline);
        match giving.outcome() {
            Some(lock) => break lock.unwrap(),
            None => std::thread::yield_now(),
        }
    };
    let list = || {
        let answer = rig.hand(request("GET", "/_waf/bans", ""));
        answer.recv_timeout(wait).unwrap()
    };
    let refused = list();
    assert_eq!(
        (
            refused.status.as_u16(),
            refused.headers["retry-after"].as_bytes()
        ),
        (503, &b"1"[..])
    );
    assert!(StateLock::passed(dir.path(), lock).is_ok());
    drop(giving);
    while list().status != 200 {
        assert!(std::time::Instant::now() < deadline);
    }
    rig.handle.stop();
    running.join().unwrap();
    assert_eq!(on_disk()["bans"][0]["lifted"], answer["ban_started"]);
    assert!(dir.path().join("clients.json").exists());
}

/// Without a data plane the loop does not spin; without a control plane requests are answered 503.
#[test]
fn a_closed_channel_is_asked_no_more() {
    let mut rig = Rig::new(settings());
    let (closed, _) = crossbeam_channel::unbounded();
    rig.breaks = closed;
    rig.turn();
    let began = std::time::Instant::now();
    rig.control.turn(Duration::from_millis(20));
    assert!(began.elapsed() >= Duration::from_millis(20));
    drop(rig.control);
    let (send, receive) = crossbeam_channel::unbounded();
    let step = rig.handle.handover()(
        request("GET", "/_waf/bans", ""),
        Box::new(move |answer| drop(send.send(answer))),
    );
    assert!(matches!(step, weir_shared::handover::Step::Done(answer) if answer.status == 503));
    assert!(receive.try_recv().is_err());
}

fn watched(requests_per_minute: u64) -> Settings {
    let mut settings = settings();
    settings.anomalies.client.requests[0] = Some(requests_per_minute);
    settings
}

fn kinds(alerts: &[serde_json::Value]) -> Vec<&str> {
    alerts
        .iter()
        .map(|alert| alert["kind"].as_str().unwrap())
        .collect()
}

/// ALERT-1, ALERT-2, ALERT-4: from finished requests to one line, one count and one entry of
/// alerts.json; repeats are held back until the hour's summary. Nothing is refused.
#[test]
fn an_anomaly_is_told_once_and_summed_up() {
    let mut rig = Rig::new(watched(3));
    rig.finish("203.0.113.7", 10, 3);
    assert!(rig.alerts().is_empty());
    rig.finish("203.0.113.7", 10, 4);
    let alerts = rig.alerts();
    assert_eq!(kinds(&alerts), ["anomaly"]);
    assert_eq!(
        (&alerts[0]["of"], &alerts[0]["count"]),
        (&"203.0.113.7".into(), &4.into())
    );
    assert_eq!(rig.metric("waf_alerts_total{kind=\"anomaly\"}"), Some(1.0));
    rig.clock.advance_ms(HOUR);
    rig.turn();
    let alerts = rig.alerts();
    assert_eq!(kinds(&alerts), ["anomaly_summary"]);
    assert_eq!(
        alerts[0]["scopes"][0]["held_back"]["requests_per_minute"],
        3
    );
    assert!(rig.snapshots.load().bans.is_empty());
    let kept = rig.saved_alerts();
    let kept: Vec<AlertsKey> = kept.iter().map(AlertsKey::of).collect();
    // The cooldown has run out with the hour and was dropped.
    assert!(matches!(
        kept.as_slice(),
        [
            AlertsKey::Counter(_),
            AlertsKey::Alert(Time(NOW)),
            AlertsKey::Alert(_)
        ]
    ));
}

/// ALERT-2, table 3.2 across a restart: counters, cooldowns and kept alerts continue from
/// alerts.json.
#[test]
fn a_restart_keeps_counters_cooldowns_and_alerts() {
    let mut rig = Rig::new(watched(3));
    rig.finish("203.0.113.7", 10, 6);
    rig.finish("198.51.100.7", 10, 3);
    rig.clock.advance_ms(60_000);
    rig.turn();
    let alerts = rig.saved_alerts();
    let start = StartState {
        alerts: alerts.clone(),
        ..StartState::default()
    };
    let mut again = Rig::with_state(watched(3), start).ok().unwrap();
    again.finish("203.0.113.7", 10, 1);
    assert!(again.alerts().is_empty(), "held back as before");
    again.finish("198.51.100.7", 10, 1);
    assert_eq!(kinds(&again.alerts()), ["anomaly"], "the fourth request");
    again.clock.advance_ms(HOUR);
    again.turn();
    let summary = again.alerts();
    assert_eq!(kinds(&summary), ["anomaly_summary"]);
    // Two before the restart, one after it.
    assert_eq!(summary[0]["held_back"], 3);
    assert_eq!(again.saved_alerts().len(), 2 + 3);
}

/// ALERT-4: 100,000 alerts in a minute: a bounded number of lines, bounded memory, right counts.
#[test]
fn a_flood_of_anomalies_is_bounded_and_counted() {
    let mut rig = Rig::new(watched(1));
    for block in 0..100_000u32 / 250 {
        let batch = (0..250).flat_map(|last| {
            let address = std::net::Ipv4Addr::from(0x0a00_0000 | (block * 250 + last));
            vec![
                Finished {
                    address: address.into(),
                    lookup: None,
                    bytes: 1,
                };
                2
            ]
        });
        rig.finished.send(batch.collect()).unwrap();
    }
    while !rig.finished.is_empty() {
        rig.turn();
    }
    assert_eq!(rig.alerts().len(), 60);
    assert_eq!(
        rig.metric("waf_alerts_total{kind=\"anomaly\"}"),
        Some(100_000.0)
    );
    rig.clock.advance_ms(60_000);
    rig.turn();
    let rest = rig.alerts();
    assert_eq!((rest.len(), &rest[0]["more"]), (1, &99_940.into()));
    // 20,000 counters, 20,000 cooldowns, 61 alerts.
    assert_eq!(rig.saved_alerts().len(), 40_061);
}

/// ALERT-4: a ban raises an alert with the exceeded limit, its percent and the lookup; a ban by
/// hand raises one too.
#[test]
fn a_ban_is_an_alert() {
    let mut rig = Rig::new(settings());
    let lookup = Lookup {
        country: Some("DE".to_owned()),
        asn: Some("AS64496".to_owned()),
        as_name: Some("Example".to_owned()),
    };
    rig.table.put(weir_shared::table::ClientRow {
        lookup: Some(Arc::new(lookup)),
        ..row("203.0.113.7")
    });
    rig.exceed_limit("203.0.113.7");
    rig.post(r#"{"netblock":"198.51.100.0/24","duration":"permanent","reason":"r"}"#);
    let alerts = rig.alerts();
    assert_eq!(kinds(&alerts), ["ban", "ban"]);
    assert_eq!(alerts[0]["limit"], "minute");
    assert_eq!(alerts[0]["limit_percent"], 100);
    assert_eq!(alerts[0]["limit_value"], 1000);
    assert_eq!(alerts[0]["lookup"]["asn"], "AS64496");
    assert_eq!(alerts[0]["ban_expires"], "2026-11-21T17:00:00Z");
    assert_eq!(alerts[1]["cause"], "admin");
    assert_eq!(alerts[1]["ban_expires"], "permanent");
    assert_eq!(rig.metric("waf_alerts_total{kind=\"ban\"}"), Some(2.0));
}

/// ALIVE-5: a limit exceeded beside a trusted proxy, or beside a peer that looks like a forgotten
/// one, bans the client alone; the peer itself is spared for an hour, and counted.
#[test]
fn no_automatic_ban_covers_a_proxy() {
    let mut rig = Rig::new(settings_with(|settings| {
        settings.identity.trusted_proxies = ["203.0.113.9".parse().unwrap()].into_iter().collect();
    }));
    let forwarder = "198.51.100.1";
    rig.spared.spare(forwarder.parse().unwrap(), NOW);
    rig.exceed_limit(forwarder);
    assert_eq!(rig.banned_until(forwarder), None);
    assert_eq!(rig.touches(), [Touch::Release(client(forwarder))]);
    for (text, beside) in [("203.0.113.7", "203.0.113.9"), ("198.51.100.7", forwarder)] {
        rig.exceed_limit(text);
        assert!(rig.banned_until(text).is_some());
        assert_eq!(rig.banned_until(beside), None);
    }
    assert_eq!(rig.metric("waf_untrusted_forwarders"), Some(1.0));
    rig.clock.advance_ms(HOUR);
    assert_eq!(rig.metric("waf_untrusted_forwarders"), Some(0.0));
    rig.exceed_limit(forwarder);
    assert!(rig.banned_until("198.51.100.9").is_some(), "its netblock");
}

/// ALIVE-5: an edit that bans a wide netblock, or a proxy, is applied, with an alert for each such
/// entry, unless the entry has `"force":true` or was there before.
#[test]
fn a_wide_edit_is_taken_and_told() {
    let mut rig = Rig::new(settings_with(|settings| {
        settings.identity.trusted_proxies = ["203.0.113.9".parse().unwrap()].into_iter().collect();
    }));
    let ban = |netblock: &str, force: bool| -> Ban {
        let text = format!(
            r#"{{"netblock":"{netblock}","ban_started":"2026-11-21T15:00:00Z","ban_expires":"permanent","force":{force}}}"#
        );
        serde_json::from_str(&text).unwrap()
    };
    let wide = ["0.0.0.0/0", "16.0.0.0/7", "2000::/15", "203.0.113.0/24"];
    let narrow = ["16.0.0.0/8", "2000::/16", "203.0.114.0/24"];
    let mut changes: Vec<_> = (wide.iter().chain(&narrow))
        .map(|netblock| put_ban(ban(netblock, false)))
        .collect();
    changes.push(put_ban(ban("::/0", true)));
    rig.disk.bans.edit(changes);
    rig.turn();
    let alerts = rig.alerts();
    assert_eq!(kinds(&alerts), ["edit"; 4]);
    for (alert, netblock) in alerts.iter().zip(wide) {
        assert_eq!(alert["netblock"], netblock);
        assert_eq!(alert["file"], "bans.json");
    }
    assert_eq!(alerts[1]["error"], "16.0.0.0/7 is wider than an IPv4 /8");
    assert!(rig.banned_until("203.0.113.9").is_some());
    let before = Some(Arc::new(ban("0.0.0.0/0", false)));
    let mut after = ban("0.0.0.0/0", false);
    after.reason = "why".to_owned();
    let after = Arc::new(after);
    rig.disk.bans.edit(vec![Change::Put { before, after }]);
    rig.turn();
    assert_eq!(rig.alerts().len(), 0);
}

/// ALIVE-5: an operator's ban of himself, or of a wide netblock, needs force.
#[test]
fn an_administrator_who_would_ban_himself_is_asked_for_force() {
    let mut rig = Rig::new(settings());
    rig.spared.spare("198.51.100.1".parse().unwrap(), NOW);
    let ban = |rig: &mut Rig, netblock: &str, force: bool| {
        let body =
            format!(r#"{{"netblock":"{netblock}","duration":"1h","reason":"r","force":{force}}}"#);
        let mut request = request("POST", "/_waf/bans", &body);
        request.client = Some(client("192.0.2.200"));
        rig.ask(request)
    };
    for (netblock, why) in [
        ("192.0.2.0/24", "covers the client that sends this request"),
        ("198.51.100.0/24", "covers 198.51.100.1, which forwards"),
        ("32.0.0.0/7", "is wider than an IPv4 /8"),
        ("2000::/15", "is wider than an IPv6 /16"),
    ] {
        let refused = ban(&mut rig, netblock, false);
        assert_eq!(refused.status, 422, "{netblock}");
        let errors = body(&refused);
        let detail = errors["errors"][0]["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains(why), "{detail}");
        assert_eq!(ban(&mut rig, netblock, true).status, 201, "{netblock}");
    }
    assert_eq!(ban(&mut rig, "203.0.113.0/24", false).status, 201);
}

/// STATE-7: a state file that cannot be written is an alert.
#[test]
fn a_failing_write_is_an_alert() {
    let mut rig = Rig::new(settings());
    let fault = PartFault::state("bans.json", "No space left on device");
    rig.faults.tell(fault);
    rig.turn();
    let alerts = rig.alerts();
    assert_eq!(kinds(&alerts), ["state_error"]);
    assert_eq!(alerts[0]["file"], "bans.json");
    assert_eq!(alerts[0]["error"], "No space left on device");
}

/// STATE-3: an edit of alerts.json replaces the held data: a removed cooldown holds nothing back
/// any more, an edited counter continues from the edited value, a removed alert is forgotten.
#[test]
fn an_edit_of_alerts_json_is_taken_in() {
    let mut rig = Rig::new(watched(3));
    rig.finish("203.0.113.7", 10, 4);
    assert_eq!(rig.alerts().len(), 1);
    rig.clock.advance_ms(1);
    let scope = crate::anomaly::Scope::Client(client("203.0.113.7"));
    rig.disk.alerts.edit(vec![
        put(AlertsEntry::Counter(scope, Default::default())),
        Change::Remove(AlertsKey::Cooldown(scope)),
        Change::Remove(AlertsKey::Alert(Time(NOW))),
    ]);
    rig.turn();
    rig.finish("203.0.113.7", 10, 3);
    assert!(rig.alerts().is_empty());
    rig.finish("203.0.113.7", 10, 1);
    assert_eq!(rig.alerts().len(), 1);
    rig.clock.advance_ms(60_000);
    rig.turn();
    let saved = rig.saved_alerts();
    let alerts = saved.iter().map(AlertsKey::of);
    let alerts: Vec<AlertsKey> = alerts
        .filter(|key| matches!(key, AlertsKey::Alert(_)))
        .collect();
    assert_eq!(alerts, [AlertsKey::Alert(Time(NOW + 1))]);
}

/// METRIC: countries and AS numbers have a series once seen, at most N of them; the others count as
/// `other`.
#[test]
fn requests_by_place_are_counted() {
    let mut rig = Rig::new(settings_with(|settings| {
        settings.endpoints.metrics_top_n = 2;
    }));
    let country = |name: &str| format!("waf_requests_by_country_total{{country=\"{name}\"}}");
    assert_eq!(rig.metric(&country("DE")), None);
    for (code, asn, times) in [
        (Some("DE"), "AS64496", 5),
        (Some("FR"), "AS64512", 3),
        (None, "AS64497", 4),
    ] {
        let lookup = Lookup {
            country: code.map(str::to_owned),
            asn: Some(asn.to_owned()),
            as_name: None,
        };
        for _ in 0..times {
            rig.origins.lock().unwrap().count(Origin::of(&lookup));
        }
    }
    assert_eq!(rig.metric(&country("DE")), Some(5.0));
    assert_eq!(rig.metric(&country("unknown")), Some(4.0));
    assert_eq!(rig.metric(&country("other")), Some(3.0));
    assert_eq!(rig.metric(&country("FR")), None);
    let asn = |name: &str| format!("waf_requests_by_asn_total{{asn=\"{name}\"}}");
    assert_eq!(rig.metric(&asn("AS64496")), Some(5.0));
    assert_eq!(rig.metric(&asn("unknown")), Some(7.0));
    assert_eq!(rig.metric(&asn("other")), None);
}
