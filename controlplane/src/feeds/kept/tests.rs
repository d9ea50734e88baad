use std::cell::{Cell, RefCell};
use std::time::Duration;

use http::StatusCode;

use super::super::wanted::Use;
use super::*;

const NOW: u64 = 1_795_276_800_000;
const HOUR_MS: u64 = 3_600_000;

/// The rest of the service.
#[derive(Default)]
struct Rest {
    now_ms: Cell<u64>,
    taken: RefCell<Vec<Vec<String>>>,
    alerts: RefCell<Vec<String>>,
    /// Why the rules take nothing.
    refuses: RefCell<Option<String>>,
    trusted: RefCell<Vec<Netblock>>,
}

impl Outside for Rest {
    fn now_ms(&self) -> u64 {
        self.now_ms.get()
    }

    fn random(&self, _: u64) -> u64 {
        0
    }

    fn offer(&self, offered: Offered) -> Result<(), String> {
        if let Some(why) = &*self.refuses.borrow() {
            return Err(why.clone());
        }
        let netblocks = offered.feed.list.netblocks();
        let netblocks = netblocks.map(|netblock| netblock.to_string()).collect();
        self.taken.borrow_mut().push(netblocks);
        Ok(())
    }

    fn alert(&self, feed: &str, error: &str) {
        self.alerts.borrow_mut().push(format!("{feed}: {error}"));
    }

    fn guard(&self) -> Guard {
        Guard::new(self.trusted.borrow().iter().copied(), [])
    }
}

struct Place {
    directory: tempfile::TempDir,
    copies: Copies,
    rest: Rest,
    kept: Kept,
}

fn wanted() -> Wanted {
    Wanted {
        name: "drop".to_owned(),
        url: FeedUrl::try_from("http://127.0.0.1:9/list".to_owned()).unwrap(),
        every: super::super::wanted::Every(Duration::from_secs(3600)),
        used: Some(Use::Deny),
        crowdsec: None,
        until: None,
    }
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let copies = Copies::new(directory.path());
        let rest = Rest::default();
        rest.now_ms.set(NOW);
        let kept = Kept::new(wanted(), Arc::new(Feed::none("drop")), &copies, &rest);
        Self {
            directory,
            copies,
            rest,
            kept,
        }
    }

    /// What a list came to, and the pause until the next fetch in minutes.
    fn body(&mut self, text: &str) -> (Outcome, u64) {
        self.settle(Ok(Fetched::Body(text.into(), Validators::default())))
    }

    fn settle(&mut self, fetched: Result<Fetched, Failure>) -> (Outcome, u64) {
        self.kept.settle(fetched, &self.copies, &self.rest);
        let wait_ms = self.kept.fetch_in_ms(self.rest.now_ms.get());
        (self.kept.report().outcome.unwrap(), wait_ms / 60_000)
    }

    fn pass(&self, ms: u64) {
        self.rest.now_ms.set(self.rest.now_ms.get() + ms);
    }

    fn alerts(&self) -> usize {
        self.rest.alerts.borrow().len()
    }

    fn entries(&self) -> usize {
        self.kept.report().feed.list.len()
    }

    /// The thread after another start.
    fn again(&self) -> Kept {
        let copy = self.copies.read(&wanted());
        let feed = copy.map_or_else(
            || Feed::none("drop"),
            |copy| {
                Feed::new(
                    "drop",
                    copy.netblocks,
                    copy.head.taken.0,
                    copy.head.confirmed.0,
                )
            },
        );
        Kept::new(wanted(), Arc::new(feed), &self.copies, &self.rest)
    }
}

fn list(count: u32) -> String {
    let line = |number: u32| format!("{}\n", std::net::Ipv4Addr::from(0xc600_0000 + number));
    (0..count).map(line).collect()
}

/// FEED-4, RESTART-4: a version that the old process applied after the new one had read its rules
/// is in force in the new one too, unless the rules refuse it.
#[test]
fn a_version_that_was_taken_meanwhile_holds() {
    let mut place = Place::new();
    assert_eq!(place.body(&list(1)).0, Outcome::Taken);
    let read = place.kept.report().feed;
    place.pass(1);
    assert_eq!(place.body(&list(3)).0, Outcome::Taken);
    let next = |place: &Place| {
        let kept = Kept::new(wanted(), Arc::clone(&read), &place.copies, &place.rest);
        kept.report().feed.list.len()
    };
    assert_eq!(next(&place), 3);
    assert_eq!(place.rest.taken.borrow().len(), 3);
    place.again();
    assert_eq!(place.rest.taken.borrow().len(), 3, "it holds already");
    *place.rest.refuses.borrow_mut() = Some("no room".to_owned());
    assert_eq!(next(&place), 1);
}

/// FEED-3, FEED-4: a version is applied, kept with its time, and confirmed; a start continues with
/// it.
#[test]
fn a_version_is_taken_and_kept() {
    let mut place = Place::new();
    assert_eq!(place.kept.fetch_in_ms(NOW), 0);
    assert_eq!(place.body(&list(10)), (Outcome::Taken, 60));
    assert_eq!(place.rest.taken.borrow().len(), 1);
    let head = place.copies.head(&wanted()).unwrap();
    assert_eq!(
        (head.taken, head.confirmed, head.entries),
        (Time(NOW), Time(NOW), 10)
    );
    place.pass(HOUR_MS);
    assert_eq!(place.again().fetch_in_ms(NOW + HOUR_MS), 0);
    assert_eq!(
        place.settle(Ok(Fetched::Unchanged)),
        (Outcome::Unchanged, 60)
    );
    let head = place.copies.head(&wanted()).unwrap();
    assert_eq!(
        (head.taken, head.confirmed),
        (Time(NOW), Time(NOW + HOUR_MS))
    );
    assert_eq!(place.kept.report().feed.confirmed_ms(), Some(NOW + HOUR_MS));
    assert_eq!(place.copies.read(&wanted()).unwrap().netblocks.len(), 10);
    assert_eq!(place.again().fetch_in_ms(NOW + HOUR_MS), HOUR_MS);
    // The same without a word of the publisher: nothing is compiled anew.
    let validators = Validators {
        etag: Some("\"v2\"".to_owned()),
        last_modified: None,
    };
    let same = Fetched::Body(list(10).into(), validators.clone());
    assert_eq!(place.settle(Ok(same)), (Outcome::Unchanged, 60));
    assert_eq!(place.rest.taken.borrow().len(), 1);
    assert_eq!(place.again().validators(), validators);
    // The copy that holds is another: what its validators name is not there.
    let mut other = place.again();
    other.want(wanted(), Arc::new(Feed::none("drop")), &place.rest);
    assert_eq!(other.validators(), Validators::default());
    assert_eq!(place.kept.report().fetches, [1, 2, 0, 0]);
}

/// FEED-5: a version without entries, halved, or more than quadrupled is refused and reported once
/// a day, and an operator can accept it; a good version ends the reports.
#[test]
fn a_version_that_is_strange_is_not_taken() {
    let mut place = Place::new();
    assert_eq!(place.body("<html>Sign in</html>").0, Outcome::Refused);
    assert_eq!(place.alerts(), 1);
    assert_eq!(
        place.kept.accept(&place.copies, &place.rest),
        Err(NotAccepted::Nothing)
    );
    assert_eq!(place.body(&list(100)).0, Outcome::Taken);
    for (text, why) in [
        (list(0), "it has no entry"),
        ("Sign in first\n".to_owned(), "it has no entry"),
        ("{\"prefixes\":[".to_owned(), "it has a fault in line 1"),
        (list(49), "less than half of the 100"),
        (list(401), "more than four times the 100"),
    ] {
        assert_eq!(place.body(&text), (Outcome::Refused, 60), "{why}");
        let told = place.kept.report().error.unwrap();
        assert!(told.contains(why), "{told}");
        assert_eq!(place.entries(), 100);
    }
    assert_eq!(place.alerts(), 2, "of five in a row one is told");
    let told = place.rest.alerts.borrow().last().unwrap().clone();
    assert!(
        told.starts_with("drop: a version of the feed \"drop\" is not taken: it has no entry; the 100 entries of 2026-"),
        "{told}"
    );
    assert!(
        told.ends_with(", and `weir feeds accept drop` takes it"),
        "{told}"
    );
    // Once a day, however rarely it is fetched.
    place.pass(DAY_MS - 1);
    place.kept.tell_due(&place.copies, &place.rest);
    assert_eq!(
        (place.alerts(), place.kept.wait_ms(NOW + DAY_MS - 1)),
        (2, 0)
    );
    // A start knows of it, and of the day that has begun.
    let mut again = place.again();
    again.tell_due(&place.copies, &place.rest);
    assert_eq!(again.report().outcome, Some(Outcome::Refused));
    assert_eq!((place.alerts(), again.tell_in_ms(NOW + DAY_MS - 1)), (2, 1));
    place.pass(1);
    place.kept.tell_due(&place.copies, &place.rest);
    place.kept.tell_due(&place.copies, &place.rest);
    assert_eq!(place.alerts(), 3);
    // A start behind it counts the day from there.
    place.again().tell_due(&place.copies, &place.rest);
    assert_eq!(place.alerts(), 3);
    assert_eq!(place.kept.accept(&place.copies, &place.rest), Ok(401));
    assert_eq!(
        (place.entries(), place.kept.report().outcome),
        (401, Some(Outcome::Taken))
    );
    assert_eq!(place.copies.read(&wanted()).unwrap().netblocks.len(), 401);
    assert_eq!(
        place.kept.accept(&place.copies, &place.rest),
        Err(NotAccepted::Nothing)
    );
    // What is told again later is a new fault.
    assert_eq!(place.body(&list(1)).0, Outcome::Refused);
    assert_eq!(place.alerts(), 4);
    assert_eq!(place.settle(Ok(Fetched::Unchanged)).0, Outcome::Unchanged);
    assert!(place.copies.refused(&wanted()).is_none());
    place.pass(2 * DAY_MS);
    place.kept.tell_due(&place.copies, &place.rest);
    assert_eq!(place.alerts(), 4);
}

/// FEED-5: a list without entries can be accepted, and the next version is judged like a first one.
/// No report says that a text which is no list, or has no allowed entry, can be accepted.
#[test]
fn an_empty_version_can_be_accepted() {
    let told = |place: &Place| place.rest.alerts.borrow().last().unwrap().clone();
    let accept = |place: &mut Place| place.kept.accept(&place.copies, &place.rest);
    for text in ["# empty now\n", "", "{\"prefixes\": []}"] {
        let mut place = Place::new();
        assert_eq!(place.body(&list(2)).0, Outcome::Taken);
        assert_eq!(place.body(text).0, Outcome::Refused);
        assert!(told(&place).contains("it has no entry"), "{text}");
        assert!(told(&place).ends_with("`weir feeds accept drop` takes it"));
        let mut again = place.again();
        assert_eq!(again.accept(&place.copies, &place.rest), Ok(0), "{text}");
        assert_eq!(place.again().report().feed.taken_ms(), Some(NOW));
        place.kept = again;
        assert_eq!(place.body(text).0, Outcome::Unchanged);
        assert_eq!(place.body(&list(50)).0, Outcome::Taken);
    }
    for text in [
        "<html>Sign in</html>",
        "Sign in first\n",
        "{\"prefixes\":[",
        "10.0.0.1\n",
    ] {
        let mut place = Place::new();
        assert_eq!(place.body(&list(2)).0, Outcome::Taken);
        assert_eq!(place.body(text).0, Outcome::Refused);
        assert!(!told(&place).contains("accept"), "{}", told(&place));
        assert_eq!(accept(&mut place), Err(NotAccepted::Nothing), "{text}");
        assert_eq!(place.entries(), 2);
    }
}

/// FEED-5: half and fourfold refer to the entries in force: entries that are left out neither fill
/// up a shrunken version nor make one too large.
#[test]
fn entries_that_are_left_out_do_not_count() {
    let private = |count: u32| -> String {
        let line = |number: u32| format!("{}\n", std::net::Ipv4Addr::from(0x0a00_0000 + number));
        (0..count).map(line).collect()
    };
    let mut place = Place::new();
    assert_eq!(place.body(&(list(100) + &private(200))).0, Outcome::Taken);
    assert_eq!(place.entries(), 100);
    assert_eq!(place.body(&(list(49) + &private(251))).0, Outcome::Refused);
    let told = place.kept.report().error.unwrap();
    assert_eq!(
        told,
        "it has 49 entries that may hold, less than half of the 100 of the version before"
    );
    assert_eq!(place.body(&list(401)).0, Outcome::Refused);
    assert_eq!(place.body(&(list(50) + &private(500))).0, Outcome::Taken);
    // All that is left of it is left out by other settings: the next version is as a first one.
    *place.rest.trusted.borrow_mut() = vec!["198.0.0.0/8".parse().unwrap()];
    place.kept.guard_anew(&place.copies, &place.rest);
    assert_eq!(place.entries(), 0);
    place.rest.trusted.borrow_mut().clear();
    assert_eq!(place.body(&list(500)).0, Outcome::Taken);
}

/// FEED-5: entries that cover too much are left out, also after other settings, and those that were
/// left out come back.
#[test]
fn entries_that_cover_too_much_do_not_hold() {
    let mut place = Place::new();
    let text = "198.51.100.0/24\n0.0.0.0/0\n10.0.0.0/24\n203.0.113.0/24\n::/1\n8000::/1\n";
    assert_eq!(place.body(text).0, Outcome::Taken);
    let taken = |place: &Place| place.rest.taken.borrow().last().unwrap().clone();
    assert_eq!(taken(&place), ["198.51.100.0/24", "203.0.113.0/24"]);
    place.kept.guard_anew(&place.copies, &place.rest);
    assert_eq!(place.rest.taken.borrow().len(), 1);
    *place.rest.trusted.borrow_mut() = vec!["198.51.100.7".parse().unwrap()];
    place.kept.guard_anew(&place.copies, &place.rest);
    assert_eq!(taken(&place), ["203.0.113.0/24"]);
    assert_eq!(place.kept.report().feed.taken_ms(), Some(NOW));
    place.rest.trusted.borrow_mut().clear();
    place.kept.guard_anew(&place.copies, &place.rest);
    assert_eq!(taken(&place), ["198.51.100.0/24", "203.0.113.0/24"]);
    // Nothing is left of it.
    let mut place = Place::new();
    assert_eq!(place.body("10.0.0.1\n").0, Outcome::Refused);
    assert_eq!(place.entries(), 0);
    // Each holds by itself, and together they are nearly everybody.
    let pieces: String = (0..255)
        .map(|at| format!("{at}.0.0.0/9\n{at}.128.0.0/10\n"))
        .collect();
    assert_eq!(place.body(&pieces).0, Outcome::Refused);
    assert_eq!(place.entries(), 0);
}

/// FEED-6, FEED-3: a version that has no room in the rules is refused; a failure keeps the version,
/// and doubles the pause.
#[test]
fn what_is_not_taken_leaves_the_version() {
    let mut place = Place::new();
    assert_eq!(place.body(&list(10)).0, Outcome::Taken);
    *place.rest.refuses.borrow_mut() = Some("it has too many entries".to_owned());
    assert_eq!(place.body(&list(11)), (Outcome::Refused, 60));
    assert!(place.rest.alerts.borrow()[0].contains("it has too many entries"));
    assert_eq!(
        (
            place.entries(),
            place.copies.head(&wanted()).unwrap().entries
        ),
        (10, 10)
    );
    let told = place.rest.alerts.borrow()[0].clone();
    assert!(!told.contains("accept"), "{told}");
    let accepted = |place: &mut Place| place.kept.accept(&place.copies, &place.rest);
    assert_eq!(accepted(&mut place), Err(NotAccepted::Nothing));
    assert_eq!(place.body(&list(1)).0, Outcome::Refused);
    assert_eq!(
        accepted(&mut place),
        Err(NotAccepted::Unfit("it has too many entries".to_owned()))
    );
    let late = || Err(Failure::TimedOut);
    assert_eq!(place.settle(late()), (Outcome::Failed, 1));
    assert_eq!(place.settle(late()), (Outcome::Failed, 2));
    let busy = Failure::Status {
        status: StatusCode::SERVICE_UNAVAILABLE,
        pause: Some(Duration::from_secs(7200)),
    };
    assert_eq!(place.settle(Err(busy)), (Outcome::Failed, 120));
    assert_eq!(place.kept.report().fetches, [1, 0, 2, 3]);
    place.kept.event(&place.rest);
    assert_eq!(place.kept.fetch_in_ms(NOW), 2 * HOUR_MS);
    place.kept.ask(&place.rest);
    assert_eq!(place.kept.fetch_in_ms(NOW), 0);
    // A disk that takes nothing: the version holds all the same.
    let mut place = Place::new();
    std::fs::write(place.directory.path().join("feeds"), "in the way").unwrap();
    assert_eq!(place.body(&list(10)).0, Outcome::Taken);
    assert_eq!(place.entries(), 10);
}
