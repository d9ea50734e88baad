//! The requests of the combinations, and the application that answers them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::support::application::{After, Application};

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Kind {
    Get,
    Post,
    Chunked,
    /// 40 KiB.
    Large,
    Expect,
    /// HTTP/1.0, the connection to be kept.
    Old,
    Health,
    /// A GET whose head is sent in two pieces; the first one is read before the second is sent.
    Halves,
    Te,
    /// An upgrade to something else than a WebSocket.
    Upgrade,
    /// A target with a scheme and a host.
    Absolute,
}

impl Kind {
    pub(super) const ALL: [Self; 11] = [
        Self::Get,
        Self::Post,
        Self::Chunked,
        Self::Large,
        Self::Expect,
        Self::Old,
        Self::Health,
        Self::Halves,
        Self::Te,
        Self::Upgrade,
        Self::Absolute,
    ];

    /// Whether a body follows the head.
    pub(super) fn has_body(self) -> bool {
        matches!(
            self,
            Self::Post | Self::Chunked | Self::Large | Self::Expect
        )
    }

    /// The request for this path, with these fields besides.
    pub(super) fn bytes(self, path: &str, fields: &str) -> Vec<u8> {
        let get = |target: &str, version: &str, own: &str| {
            format!("GET {target} HTTP/{version}\r\nHost: a\r\n{fields}{own}\r\n")
        };
        let post = |own: &str, body: &str| {
            format!("POST {path} HTTP/1.1\r\nHost: a\r\n{fields}{own}\r\n{body}")
        };
        let sized = |size: usize, own: &str| {
            let own = format!("Content-Length: {size}\r\n{own}");
            post(&own, &"b".repeat(size))
        };
        let text = match self {
            Self::Get | Self::Halves => get(path, "1.1", ""),
            Self::Post => sized(100, ""),
            Self::Chunked => {
                let body = format!(
                    "32\r\n{0}\r\n1e\r\n{1}\r\n0\r\n\r\n",
                    "c".repeat(50),
                    "d".repeat(30)
                );
                post("Transfer-Encoding: chunked\r\n", &body)
            }
            Self::Large => sized(40 * 1024, ""),
            Self::Expect => sized(100, "Expect: 100-continue\r\n"),
            Self::Old => get(path, "1.0", "Connection: keep-alive\r\n"),
            Self::Health => get("/_waf/health", "1.1", ""),
            Self::Te => get(path, "1.1", "TE: trailers\r\nConnection: TE\r\n"),
            Self::Upgrade => get(path, "1.1", "Connection: Upgrade\r\nUpgrade: h2c\r\n"),
            Self::Absolute => get(&format!("http://a{path}"), "1.1", ""),
        };
        text.into_bytes()
    }
}

/// How many requests of each row have arrived at the application.
pub(super) type Arrived = Arc<Mutex<HashMap<String, usize>>>;

/// Answers with what it was asked, so that no two answers on a connection are alike. What the query
/// names is counted.
pub(super) fn application() -> (Application, Arrived) {
    let arrived = Arrived::default();
    let counts = Arc::clone(&arrived);
    let application = Application::start(move |exchange| {
        let is_whole = exchange.read_body();
        let request = &exchange.request;
        let (path, row) = request.target.split_once('?').unwrap_or_default();
        if is_whole {
            let mut counts = counts.lock().expect("the counts");
            *counts.entry(row.to_owned()).or_default() += 1;
        }
        let sum = request.body.iter().map(|byte| usize::from(*byte));
        let (length, sum) = (request.body.len(), sum.sum::<usize>());
        let text = format!("{} {path} {length} {sum}", request.method);
        exchange.answer(200, &[("Content-Type", "text/plain")], text.as_bytes());
        After::KeepAlive
    });
    (application, arrived)
}
