use std::cell::{Cell, RefCell};

use super::super::judge::Guard;
use super::super::wanted::Use;
use super::*;

const NOW: u64 = 1_795_276_800_000;

/// The rest of the service.
#[derive(Default)]
struct Rest {
    now_ms: Cell<u64>,
    taken: RefCell<Vec<usize>>,
    alerts: RefCell<Vec<String>>,
    /// The most entries that the rules take.
    room: Cell<usize>,
}

impl Outside for Rest {
    fn now_ms(&self) -> u64 {
        self.now_ms.get()
    }

    fn random(&self, _: u64) -> u64 {
        0
    }

    fn offer(&self, offered: Offered) -> Result<(), String> {
        let count = offered.feed.entries();
        if count > self.room.get() {
            return Err(format!("it has {count} entries"));
        }
        self.taken.borrow_mut().push(count);
        Ok(())
    }

    fn alert(&self, feed: &str, error: &str) {
        self.alerts.borrow_mut().push(format!("{feed}: {error}"));
    }

    fn guard(&self) -> Guard {
        Guard::new([], [])
    }
}

struct Place {
    directory: tempfile::TempDir,
    copies: Copies,
    rest: Rest,
    stream: Stream,
}

fn new(copies: &Copies, rest: &Rest) -> Stream {
    of(copies, rest, Arc::new(Feed::none("cs")))
}

/// With the version that the rules hold.
fn of(copies: &Copies, rest: &Rest, feed: Arc<Feed>) -> Stream {
    let crowdsec = CrowdSec {
        key_file: "/nowhere/key".into(),
        other: Default::default(),
    };
    let wanted = Wanted {
        name: "cs".to_owned(),
        url: "http://127.0.0.1:8080".to_owned().try_into().unwrap(),
        every: Default::default(),
        used: Some(Use::Deny),
        crowdsec: Some(crowdsec.clone()),
        until: None,
    };
    Stream::new((wanted, crowdsec), feed, copies, rest)
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let copies = Copies::new(directory.path());
        let rest = Rest::default();
        rest.now_ms.set(NOW);
        rest.room.set(100);
        let stream = new(&copies, &rest);
        Self {
            directory,
            copies,
            rest,
            stream,
        }
    }

    fn settle(&mut self, fetched: Result<Vec<u8>, Failure>) -> (Outcome, u64) {
        let is_start = self.stream.is_start();
        self.stream
            .settle(fetched, is_start, &self.copies, &self.rest);
        let report = self.stream.report();
        (report.outcome.unwrap(), report.next.0 - self.rest.now_ms())
    }

    fn answer(&mut self, new: &[(i64, &str, &str)], deleted: &[i64]) -> (Outcome, u64) {
        let new: Vec<_> = new
            .iter()
            .map(|(id, value, left)| {
                serde_json::json!({"id": id, "type": "ban", "scope": "Ip", "value": value, "duration": left})
            })
            .collect();
        let deleted: Vec<_> = deleted
            .iter()
            .map(|id| serde_json::json!({"id": id}))
            .collect();
        let text = serde_json::json!({"new": new, "deleted": deleted}).to_string();
        self.settle(Ok(text.into_bytes()))
    }

    fn entries(&self) -> usize {
        self.stream.report().feed.entries()
    }

    fn later(&self, ms: u64) {
        self.rest.now_ms.set(self.rest.now_ms() + ms);
    }
}

fn status(status: StatusCode) -> Failure {
    Failure::Status {
        status,
        pause: None,
    }
}

/// FEED-7: the stream gives all decisions once, then the changes. After any failure it gives all of
/// them again, which replace the known ones; these stay in force meanwhile, and end at their own
/// time.
#[test]
fn everything_again_after_a_failure() {
    let mut place = Place::new();
    assert!(place.stream.is_start());
    let begun = place.answer(&[(1, "192.0.2.1", "1h"), (2, "192.0.2.2", "5m")], &[]);
    assert_eq!(begun, (Outcome::Taken, EVERY_MS));
    assert!(!place.stream.is_start());
    assert_eq!(place.answer(&[], &[]), (Outcome::Unchanged, EVERY_MS));
    assert_eq!(
        place.answer(&[(3, "192.0.2.1", "2h")], &[]).0,
        Outcome::Unchanged
    );
    assert_eq!(place.answer(&[], &[1]).0, Outcome::Unchanged);
    assert_eq!(place.entries(), 2);
    let pauses: Vec<u64> = [
        Err(Failure::TimedOut),
        Ok(b"<html>".to_vec()),
        Ok(b"{\"new\":[".to_vec()),
        Err(status(StatusCode::INTERNAL_SERVER_ERROR)),
    ]
    .into_iter()
    .map(|fetched| {
        let (outcome, pause) = place.settle(fetched);
        assert_eq!(outcome, Outcome::Failed);
        pause
    })
    .collect();
    assert_eq!(pauses, [10_000, 20_000, 40_000, 60_000]);
    assert!(place.stream.is_start());
    assert_eq!(place.entries(), 2);
    assert!(place.rest.alerts.borrow().is_empty());
    place.later(300_000);
    assert_eq!(place.stream.wait_ms(place.rest.now_ms()), 0);
    place.stream.end_due(&place.rest);
    assert_eq!(place.entries(), 1);
    place.later(300_000);
    place.settle(Err(Failure::TimedOut));
    place.settle(Err(Failure::TimedOut));
    assert_eq!(place.rest.alerts.borrow().len(), 1);
    // It has forgotten everything but one.
    assert_eq!(
        place.answer(&[(9, "192.0.2.9", "1h")], &[]).0,
        Outcome::Taken
    );
    assert!(!place.stream.is_start());
    let listed: Vec<_> = place.stream.report().feed.list.netblocks().collect();
    assert_eq!(listed, ["192.0.2.9".parse().unwrap()]);
    place.stream.ask(&place.rest);
    assert!(place.stream.is_start());
}

/// FEED-7: an answer to a request for changes, sent before all decisions became due again, is
/// applied and does not count as all decisions.
#[test]
fn a_late_change_is_not_everything() {
    let mut place = Place::new();
    place.answer(&[(1, "192.0.2.1", "1h")], &[]);
    place.stream.begin_anew();
    let change = br#"{"new":[{"id":2,"type":"ban","scope":"Ip","value":"192.0.2.2","duration":"1h"}],"deleted":null}"#;
    place
        .stream
        .settle(Ok(change.to_vec()), false, &place.copies, &place.rest);
    assert_eq!(place.entries(), 2);
    assert!(place.stream.is_start());
}

/// FEED-5, FEED-7: decisions that together cover nearly everybody are refused, and the known ones
/// stay in force.
#[test]
fn nearly_everybody_is_not_taken() {
    let mut place = Place::new();
    place.rest.room.set(1000);
    place.answer(&[(1, "192.0.2.1", "1h")], &[]);
    let nets: Vec<String> = (0..255)
        .flat_map(|at| [format!("{at}.0.0.0/9"), format!("{at}.128.0.0/10")])
        .collect();
    let nets: Vec<(i64, &str, &str)> = (10..)
        .zip(&nets)
        .map(|(id, net)| (id, &**net, "1h"))
        .collect();
    assert_eq!(place.answer(&nets, &[]).0, Outcome::Refused);
    assert_eq!(place.entries(), 1);
    let alerts = place.rest.alerts.borrow();
    assert!(
        alerts[0].contains("more than half of all IPv4"),
        "{alerts:?}"
    );
}

/// FEED-5, FEED-7: a decision on everybody, made by mistake, is left out, and the others are
/// applied.
#[test]
fn a_decision_on_everybody_is_left_out() {
    let mut place = Place::new();
    let all = [
        (1, "192.0.2.1", "1h"),
        (2, "0.0.0.0/0", "1h"),
        (3, "::/0", "1h"),
        (4, "192.0.2.4", "1h"),
    ];
    assert_eq!(place.answer(&all, &[]).0, Outcome::Taken);
    assert_eq!(place.entries(), 2);
    assert_eq!(place.rest.alerts.borrow().len(), 0);
}

/// FEED-7: an answer of 403 is reported at once, and the stream asks again after 5 min, or at a
/// reload.
#[test]
fn a_wrong_key_is_told_at_once() {
    let mut place = Place::new();
    place.answer(&[(1, "192.0.2.1", "1h")], &[]);
    let forbidden = || Err(status(StatusCode::FORBIDDEN));
    assert_eq!(place.settle(forbidden()), (Outcome::Failed, 300_000));
    assert_eq!(place.settle(forbidden()), (Outcome::Failed, 300_000));
    let alerts = place.rest.alerts.borrow().clone();
    assert_eq!(alerts.len(), 1);
    assert!(alerts[0].contains("the key of /nowhere/key is not accepted"));
    assert_eq!(place.entries(), 1);
    place.stream.event(&place.rest);
    assert_eq!(place.stream.fetch_in_ms(NOW), 0);
    assert!(place.stream.is_start());
    place.answer(&[], &[]);
    assert_eq!(place.entries(), 0);
    place.settle(forbidden());
    assert_eq!(place.rest.alerts.borrow().len(), 2);
}

/// FEED-6, FEED-7: decisions that exceed the room of all lists are refused, and deleted decisions
/// are removed all the same.
#[test]
fn what_is_too_much_is_not_taken() {
    let mut place = Place::new();
    place.rest.room.set(2);
    place.answer(&[(1, "192.0.2.1", "1h"), (2, "192.0.2.2", "1h")], &[]);
    let much = [(3, "192.0.2.3", "1h"), (4, "192.0.2.4", "1h")];
    assert_eq!(place.answer(&much, &[2]), (Outcome::Refused, 300_000));
    assert_eq!(place.entries(), 1);
    assert_eq!(place.rest.alerts.borrow().len(), 1);
    assert!(place.stream.is_start());
}

/// FEED-4, FEED-7: a start continues with the copy, without the decisions that have ended
/// meanwhile.
#[test]
fn a_start_goes_on_from_the_copy() {
    let mut place = Place::new();
    place.answer(&[(1, "192.0.2.1", "1h"), (2, "192.0.2.2", "5m")], &[]);
    let (head, decisions) = place.copies.read_decisions(&place.stream.wanted).unwrap();
    assert_eq!((head.entries, decisions.len()), (2, 2));
    place.later(300_000);
    let mut again = new(&place.copies, &place.rest);
    again.end_due(&place.rest);
    assert_eq!(again.report().feed.entries(), 1);
    assert!(again.is_start());
    assert_eq!(again.fetch_in_ms(place.rest.now_ms()), 0);
}

/// FEED-4, FEED-7: changes are in the copy at once if few decisions are held, and at a stop or a
/// hand-over at the latest: a start without the LAPI has exactly the decisions that were held.
#[test]
fn a_copy_misses_nothing_of_a_stop() {
    let held = |place: &Place| {
        let (_, decisions) = place.copies.read_decisions(&place.stream.wanted).unwrap();
        decisions.listed().netblocks
    };
    let blocks = |texts: &[&str]| -> Vec<weir_shared::netblock::Netblock> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    };
    let mut place = Place::new();
    place.answer(&[(1, "192.0.2.1", "1h"), (2, "192.0.2.2", "1h")], &[]);
    place.later(EVERY_MS);
    place.answer(&[(3, "192.0.2.3", "1h")], &[1]);
    assert_eq!(held(&place), blocks(&["192.0.2.2", "192.0.2.3"]));

    let mut place = Place::new();
    place.rest.room.set(10_000);
    let many: Vec<String> = (0..4_000_u32)
        .map(|at| format!("9.0.{}.{}", at >> 8, at & 255))
        .collect();
    let many: Vec<(i64, &str, &str)> = (10..)
        .zip(&many)
        .map(|(id, value)| (id, &**value, "1h"))
        .collect();
    place.answer(&many, &[]);
    place.later(EVERY_MS);
    place.answer(&[(1, "192.0.2.1", "1h")], &[10]);
    assert!(held(&place).contains(&blocks(&["9.0.0.0"])[0]));
    place.stream.keep(&place.copies, place.rest.now_ms());
    let kept = held(&place);
    assert_eq!(kept.len(), 4_000);
    assert!(kept.contains(&blocks(&["192.0.2.1"])[0]));
    assert!(!kept.contains(&blocks(&["9.0.0.0"])[0]));
    // Nothing has changed since: the file may be another process's by now.
    std::fs::remove_dir_all(place.directory.path().join("feeds")).unwrap();
    place.stream.keep(&place.copies, place.rest.now_ms());
    assert!(!place.directory.path().join("feeds").exists());
}

/// FEED-7, RESTART-4: a new process that read its rules before the old one's last write applies the
/// copy's last content to the rules, whether the LAPI answers or not.
#[test]
fn a_copy_newer_than_the_rules_is_taken() {
    let mut place = Place::new();
    place.answer(&[(1, "192.0.2.1", "1h"), (2, "192.0.2.2", "1h")], &[]);
    let read = place.stream.report().feed;
    place.later(EVERY_MS);
    place.answer(&[(3, "192.0.2.3", "1h"), (4, "192.0.2.4", "1h")], &[1]);
    let next = of(&place.copies, &place.rest, read);
    assert_eq!(next.report().feed.entries(), 3);
    assert_eq!(*place.rest.taken.borrow(), [2, 3, 3]);
    // The same version is not taken twice.
    let same = of(&place.copies, &place.rest, next.report().feed);
    assert_eq!(same.report().feed.entries(), 3);
    assert_eq!(place.rest.taken.borrow().len(), 3);
}

/// FEED-7: the key is one line of a file, and no error has it.
#[test]
fn the_key_is_in_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("key");
    assert!(key(&path).unwrap_err().contains("cannot be read"));
    for (text, is_key) in [
        ("sesame\n", true),
        ("", false),
        ("\n", false),
        ("open sesame", false),
    ] {
        std::fs::write(&path, text).unwrap();
        let read = key(&path);
        assert_eq!(read.is_ok(), is_key, "{text:?}");
        assert!(!format!("{read:?}").contains("sesame"), "{read:?}");
    }
}
