//! The paths requested within the last minute, from the service's stream of events: at most
//! [`A_SECOND`] requests of each second.
#![expect(
    clippy::indexing_slicing,
    reason = "a member that a JSON document does not have reads as null"
)]

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use weir_controlplane::DECISIONS_A_SECOND;
use weir_shared::verdict::Action;

use super::ask::Place;
use super::common::now;

/// The length of the window, in milliseconds.
const WINDOW_MS: u64 = 60_000;
/// The most requests of a second that the service streams.
const A_SECOND: usize = DECISIONS_A_SECOND as usize;
/// The most requests that are kept: those of a minute.
const MOST: usize = A_SECOND * 60;
/// Bytes of a path that are kept.
const PATH: usize = 256;
/// How long to wait before a lost service is asked again.
const PAUSE: Duration = Duration::from_secs(1);

/// One path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    pub path: String,
    pub requests: u64,
    pub refused: u64,
    /// Requests that the application answered with 500 or above, or not at all.
    pub failed: u64,
    pub status: u64,
}

/// The report on the last minute.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Most requests first.
    pub paths: Vec<Row>,
    /// Requests in the stream.
    pub requests: u64,
    /// Requests that the service left out of the stream.
    pub left_out: u64,
    /// Why the service does not stream now.
    pub fault: Option<String>,
}

/// The requests of the last minute.
#[derive(Default)]
struct Minute {
    seen: VecDeque<Seen>,
    left_out: VecDeque<(u64, u64)>,
    /// Why the service does not stream now.
    fault: Option<String>,
}

struct Seen {
    at_ms: u64,
    path: String,
    refused: bool,
    status: u64,
}

/// Starts to listen at the first call of [`Paths::report`], because a service streams to few
/// listeners only.
#[derive(Default)]
pub struct Paths {
    minute: Mutex<Minute>,
    /// Whether the thread runs.
    listens: OnceLock<()>,
}

impl Paths {
    /// The last minute. The thread that listens ends with the process.
    pub fn report(self: &Arc<Self>, place: &Arc<Place>) -> Report {
        self.listens.get_or_init(|| {
            let (paths, place) = (Arc::clone(self), Arc::clone(place));
            let thread = std::thread::Builder::new().name("command-paths".to_owned());
            // Without this thread no paths are shown; everything else is.
            let _ = thread.spawn(move || {
                loop {
                    let listened = place.listen("/v1/events", |line| {
                        paths.minute().take(line, now_ms());
                        true
                    });
                    paths.minute().fault = listened.err().map(|why| why.sentence);
                    std::thread::sleep(PAUSE);
                }
            });
        });
        self.minute().report(now_ms())
    }

    fn minute(&self) -> MutexGuard<'_, Minute> {
        // Nothing panics while the lock is held; even then the list would be whole.
        self.minute.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Report {
    /// The report in JSON, for the dashboard's page.
    pub fn json(&self) -> Value {
        let row = |row: &Row| {
            json!({
                "path": row.path,
                "requests": row.requests,
                "refused": row.refused,
                "failed": row.failed,
                "status": row.status,
            })
        };
        json!({
            "requests": self.requests,
            "left_out": self.left_out,
            "fault": self.fault,
            "paths": self.paths.iter().map(row).collect::<Vec<_>>(),
        })
    }
}

impl Minute {
    /// Adds one line of the stream.
    fn take(&mut self, line: &[u8], at_ms: u64) {
        self.fault = None;
        let Ok(event) = serde_json::from_slice::<Value>(line) else {
            return;
        };
        match event["event"].as_str() {
            Some("request") => {}
            Some("left_out" | "requests_left_out") => {
                let number = |member: &str| event[member].as_u64().unwrap_or(0);
                let counts = ["requests", "lines_lost", "count"].map(number);
                let all = counts.into_iter().fold(0, u64::saturating_add);
                self.left_out.push_back((at_ms, all));
                return self.forget(at_ms);
            }
            _ => return,
        }
        let Some(path) = event["path"].as_str() else {
            return;
        };
        let end = path.floor_char_boundary(PATH);
        self.seen.push_back(Seen {
            at_ms,
            path: path.get(..end).unwrap_or_default().to_owned(),
            refused: event["enforced"] == true && is_refusal(&event["action"]),
            status: event["status"].as_u64().unwrap_or(0),
        });
        self.forget(at_ms);
    }

    fn forget(&mut self, now_ms: u64) {
        let is_over = |at_ms: u64| now_ms.saturating_sub(at_ms) >= WINDOW_MS;
        let first = |seen: &VecDeque<Seen>| seen.front().is_some_and(|first| is_over(first.at_ms));
        while self.seen.len() > MOST || first(&self.seen) {
            self.seen.pop_front();
        }
        while self.left_out.front().is_some_and(|(at, _)| is_over(*at)) {
            self.left_out.pop_front();
        }
    }

    fn report(&mut self, now_ms: u64) -> Report {
        self.forget(now_ms);
        let mut rows: HashMap<&str, Row> = HashMap::new();
        for seen in &self.seen {
            let row = rows.entry(&seen.path).or_insert_with(|| Row {
                path: seen.path.clone(),
                requests: 0,
                refused: 0,
                failed: 0,
                status: 0,
            });
            row.requests += 1;
            row.refused += u64::from(seen.refused);
            row.failed += u64::from(!seen.refused && seen.status >= 500);
            row.status = seen.status;
        }
        let mut paths: Vec<Row> = rows.into_values().collect();
        paths.sort_by(|one, other| {
            let order = |row: &Row| Reverse(row.requests);
            (order(one), &one.path).cmp(&(order(other), &other.path))
        });
        Report {
            paths,
            requests: self.seen.len() as u64,
            left_out: self.left_out.iter().map(|(_, count)| count).sum(),
            fault: self.fault.clone(),
        }
    }
}

fn is_refusal(action: &Value) -> bool {
    let mut named = Action::ALL.iter().filter(|one| *action == one.name());
    named.next().is_some_and(|one| one.is_refusal())
}

fn now_ms() -> u64 {
    now().mono_ns / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(path: &str, status: u64, action: &str) -> Vec<u8> {
        let line = json!({
            "event": "request", "path": path, "status": status, "action": action, "enforced": true,
        });
        line.to_string().into_bytes()
    }

    /// CONTROL-3: the paths of the last minute come with most requests first; the number of
    /// requests that the service left out is shown, and lines that are no request are skipped.
    #[test]
    fn the_last_minute_by_path() {
        let mut minute = Minute::default();
        minute.take(&request("/old", 200, "passed"), 0);
        minute.take(
            b"{\"event\":\"left_out\",\"requests\":7,\"lines_lost\":1}\n",
            100,
        );
        // LOG-6
        let of_netblock = b"{\"event\":\"requests_left_out\",\"action\":\"banned\",\"count\":20}\n";
        minute.take(of_netblock, 100);
        for (path, status, action) in [
            ("/b", 200, "passed"),
            ("/a", 502, "upstream_error"),
            ("/c", 200, "passed"),
            ("/a", 429, "banned"),
        ] {
            minute.take(&request(path, status, action), 1000);
        }
        minute.take(b"{\"event\":\"ban\"}\n", 1000);
        minute.take(b"no JSON\n", 1000);
        let report = minute.report(60_050);
        let told: Vec<_> = report
            .paths
            .iter()
            .map(|row| {
                (
                    &*row.path,
                    row.requests,
                    row.refused,
                    row.failed,
                    row.status,
                )
            })
            .collect();
        assert_eq!(
            told,
            [
                ("/a", 2, 1, 1, 429),
                ("/b", 1, 0, 0, 200),
                ("/c", 1, 0, 0, 200)
            ]
        );
        assert_eq!((report.requests, report.left_out), (4, 28));
        assert_eq!(minute.report(61_000), Report::default());

        // CONTROL-2: why there are none is told until there are some.
        minute.fault = Some("8 others listen".to_owned());
        assert_eq!(
            minute.report(61_000).json()["fault"],
            json!("8 others listen")
        );
        minute.take(&request("/a", 200, "passed"), 62_000);
        assert_eq!(minute.report(62_000).fault, None);
    }

    /// CONTROL-3: the kept paths are bounded, for any number of requests and any length of paths.
    #[test]
    fn a_minute_is_bounded() {
        let mut minute = Minute::default();
        for number in 0..=MOST {
            let path = format!("/{number}{}", "é".repeat(500));
            minute.take(&request(&path, 200, "passed"), 5);
        }
        assert_eq!(minute.seen.len(), MOST);
        assert!(minute.seen.iter().all(|seen| seen.path.len() <= PATH));
    }
}
