//! The stream of the ledger's changes (CONTROL-10): `GET /v1/bans/stream`.
//!
//! The last changes are kept in a ring with their numbers. Each follower reads from the ring at its
//! own pace. A follower that is too slow misses the changes that were overwritten, and is told to
//! list again. So no follower holds up the control loop, and memory is bounded. A cursor is a
//! number and the process that gave it: after a restart every follower lists again.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::watch;
use tokio::time::timeout;
use weir_shared::ban::Ban;
use weir_shared::ban_origin::BanOrigin;
use weir_shared::netblock::Netblock;
use weir_shared::units::Time;

use super::ledger::changes::{Happened, LedgerChange};

/// Changes that are kept for slow followers.
pub(crate) const KEPT: usize = 8192;
/// The most followers at the same time.
const MAX_FOLLOWERS: usize = 8;
/// The most changes in one piece of the response.
const PIECE: usize = 64;
/// Pieces that may wait for one connection.
const QUEUE: usize = 2;
/// How often an idle follower's connection is checked.
const LOOK: Duration = Duration::from_secs(1);

/// The position of a follower: the process that gave it, and the last change that the follower
/// knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Cursor {
    process: u64,
    number: u64,
}

impl Cursor {
    /// Parses the text of a cursor.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (process, number) = text.split_once('-')?;
        Some(Self {
            process: u64::from_str_radix(process, 16).ok()?,
            number: number.parse().ok()?,
        })
    }
}

impl std::fmt::Display for Cursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:x}-{}", self.process, self.number)
    }
}

/// The last changes.
pub(crate) struct Feed {
    ring: Mutex<Ring>,
    /// The number of the newest change, which followers watch.
    newest: watch::Sender<u64>,
}

#[derive(Default)]
struct Ring {
    /// The number of this process in its cursors.
    process: u64,
    /// At most [`KEPT`], with the numbers up to `newest`.
    changes: VecDeque<LedgerChange>,
    newest: u64,
}

impl Default for Feed {
    fn default() -> Self {
        Self {
            ring: Mutex::default(),
            newest: watch::Sender::new(0),
        }
    }
}

/// The error that no further follower is allowed.
#[derive(Debug)]
pub(crate) struct TooManyFollow {
    /// The most followers.
    pub(crate) most: usize,
}

/// The next item for a follower.
enum Next {
    /// Lines of JSON, and the last change in them.
    Lines(Bytes, u64),
    /// The follower knows every change.
    Nothing,
    /// The next change is no longer kept.
    Lost,
}

/// A line of the stream.
#[derive(Serialize)]
struct Told<'a> {
    event: &'static str,
    cursor: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    ban: Option<&'a Arc<Ban>>,
    netblock: Netblock,
    ban_started: Time,
    origin: BanOrigin,
}

impl Feed {
    /// Starts the numbering, for a process that was started at this time.
    pub(crate) fn begin(&self, started_ms: u64) {
        self.ring().process = started_ms;
    }

    /// Appends changes. Never blocks.
    pub(crate) fn offer(&self, changes: &[LedgerChange]) {
        if changes.is_empty() {
            return;
        }
        let mut ring = self.ring();
        for change in changes {
            if ring.changes.len() == KEPT {
                ring.changes.pop_front();
            }
            ring.changes.push_back(change.clone());
            ring.newest += 1;
        }
        let newest = ring.newest;
        drop(ring);
        self.newest.send_replace(newest);
    }

    /// Tells every follower to list again, because changes may have been lost.
    pub(crate) fn lose(&self) {
        let mut ring = self.ring();
        ring.changes.clear();
        ring.newest += 1;
        let newest = ring.newest;
        drop(ring);
        self.newest.send_replace(newest);
    }

    /// The cursor from which a follower continues after a list of all bans made now.
    pub(crate) fn cursor(&self) -> Cursor {
        let ring = self.ring();
        Cursor {
            process: ring.process,
            number: ring.newest,
        }
    }

    /// Streams the changes after this cursor, or from now on, until the follower is gone or too
    /// slow. Must be called on a runtime.
    ///
    /// # Errors
    /// [`TooManyFollow`]
    pub(crate) fn follow(
        self: Arc<Self>,
        after: Option<Cursor>,
    ) -> Result<Receiver<Bytes>, TooManyFollow> {
        let newest = self.newest.subscribe();
        if self.newest.receiver_count() > MAX_FOLLOWERS {
            let most = MAX_FOLLOWERS;
            return Err(TooManyFollow { most });
        }
        let here = self.cursor();
        let known = match after {
            None => Some(here.number),
            Some(after) => (after.process == here.process).then_some(after.number),
        };
        let (lines, receiver) = channel(QUEUE);
        tokio::spawn(self.tell(known, lines, newest));
        Ok(receiver)
    }

    /// Sends the changes after `known`; none if the cursor is from another process.
    async fn tell(
        self: Arc<Self>,
        known: Option<u64>,
        lines: Sender<Bytes>,
        mut newest: watch::Receiver<u64>,
    ) {
        let again = Bytes::from_static(b"{\"event\":\"list_again\"}\n");
        let Some(mut known) = known else {
            let _ = lines.send(again).await;
            return;
        };
        loop {
            match self.next(known) {
                Next::Lines(piece, last) => {
                    // Waits for a slow reader; the ring goes on meanwhile.
                    if lines.send(piece).await.is_err() {
                        return;
                    }
                    known = last;
                }
                Next::Lost => {
                    let _ = lines.send(again).await;
                    return;
                }
                Next::Nothing => {
                    let news = newest.wait_for(|newest| *newest > known);
                    match timeout(LOOK, news).await {
                        Ok(Err(_)) => return,
                        Err(_) if lines.is_closed() => return,
                        Ok(Ok(_)) | Err(_) => {}
                    }
                }
            }
        }
    }

    fn next(&self, known: u64) -> Next {
        let ring = self.ring();
        let oldest = ring.newest - ring.changes.len() as u64;
        if known < oldest || known > ring.newest {
            return Next::Lost;
        }
        let skipped = usize::try_from(known - oldest).unwrap_or(usize::MAX);
        let changes = ring.changes.iter().skip(skipped).take(PIECE);
        let changes: Vec<LedgerChange> = changes.cloned().collect();
        let process = ring.process;
        // Serialized without the lock.
        drop(ring);
        if changes.is_empty() {
            return Next::Nothing;
        }
        let mut text = Vec::new();
        let mut number = known;
        for change in changes {
            number += 1;
            let told = Told {
                event: name(change.happened),
                cursor: Cursor { process, number }.to_string(),
                ban: change.ban.as_ref(),
                netblock: change.key.netblock,
                ban_started: change.key.ban_started,
                origin: change.key.origin,
            };
            // Cannot fail: a ban was read from JSON or made of text.
            let _ = serde_json::to_writer(&mut text, &told);
            text.push(b'\n');
        }
        Next::Lines(text.into(), number)
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        // Nothing panics while the lock is held; even then the changes would be valid.
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const fn name(happened: Happened) -> &'static str {
    match happened {
        Happened::Made => "made",
        Happened::Noted => "noted",
        Happened::Edited => "edited",
        Happened::Lifted => "lifted",
        Happened::Forgotten | Happened::Dropped => "forgotten",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bans::document::BanKey;
    use crate::testing::run;

    fn change(number: u64) -> LedgerChange {
        let text = format!(
            r#"{{"netblock":"10.0.0.0/24","ban_started":"2026-11-21T16:00:00Z","ban_expires":"permanent","reason":"{number}"}}"#
        );
        let ban: Arc<Ban> = Arc::new(serde_json::from_str(&text).unwrap());
        LedgerChange {
            key: BanKey::of(&ban),
            happened: Happened::Made,
            ban: Some(ban),
        }
    }

    fn feed() -> Arc<Feed> {
        let feed = Feed::default();
        feed.begin(0xabc);
        Arc::new(feed)
    }

    /// Every line that is there once nothing more comes.
    async fn lines(receiver: &mut Receiver<Bytes>) -> Vec<serde_json::Value> {
        let mut all = Vec::new();
        while let Ok(Some(piece)) = timeout(Duration::from_millis(200), receiver.recv()).await {
            let pieces = piece.split(|byte| *byte == b'\n');
            let texts = pieces.filter(|line| !line.is_empty());
            all.extend(texts.map(|line| serde_json::from_slice(line).unwrap()));
        }
        all
    }

    /// CONTROL-10: a follower gets the changes from now or from a cursor on, complete and in order,
    /// each with the cursor after it.
    #[test]
    fn changes_come_from_a_cursor_on() {
        run(async {
            let feed = feed();
            let start = feed.cursor();
            let mut all = Arc::clone(&feed).follow(Some(start)).unwrap();
            let many: Vec<LedgerChange> = (1..=200).map(change).collect();
            feed.offer(&many);
            let mut later = Arc::clone(&feed).follow(None).unwrap();
            feed.offer(&[change(201)]);
            let told = lines(&mut all).await;
            let reasons: Vec<u64> = told
                .iter()
                .map(|line| line["ban"]["reason"].as_str().unwrap().parse().unwrap())
                .collect();
            assert_eq!(reasons, (1..=201).collect::<Vec<u64>>());
            assert_eq!(told[0]["event"], "made");
            assert_eq!(lines(&mut later).await.len(), 1);
            let cursor = Cursor::parse(told[99]["cursor"].as_str().unwrap());
            assert_eq!(cursor.map(|cursor| cursor.number), Some(100));
            let mut rest = Arc::clone(&feed).follow(cursor).unwrap();
            assert_eq!(lines(&mut rest).await.len(), 101);
            let gone = LedgerChange {
                happened: Happened::Forgotten,
                ban: None,
                ..change(1)
            };
            feed.offer(&[gone]);
            let told = lines(&mut rest).await;
            let expected = serde_json::json!({"event": "forgotten", "cursor": feed.cursor().to_string(),
            "netblock": "10.0.0.0/24", "ban_started": "2026-11-21T16:00:00Z", "origin": "file"});
            assert_eq!(told, [expected]);
        });
    }

    /// CONTROL-10: a follower that is too slow, or has a cursor of another process or of the
    /// future, is told to list again, and nothing waits for it.
    #[test]
    fn who_is_too_slow_lists_again() {
        run(async {
            let feed = feed();
            let start = feed.cursor();
            let mut slow = Arc::clone(&feed).follow(Some(start)).unwrap();
            for number in 0..KEPT as u64 + 1000 {
                feed.offer(&[change(number)]);
                if number % 100 == 0 {
                    tokio::task::yield_now().await;
                }
            }
            assert_eq!(feed.ring().changes.len(), KEPT);
            let told = lines(&mut slow).await;
            let again = serde_json::json!({"event": "list_again"});
            assert_eq!(told.last(), Some(&again));
            assert!(told.len() < 1000, "{}", told.len());
            for text in ["abd-0", "abc-99999", "abc-3"] {
                let cursor = Cursor::parse(text);
                let mut follower = Arc::clone(&feed).follow(Some(cursor.unwrap())).unwrap();
                let told = lines(&mut follower).await;
                assert_eq!(told.as_slice(), std::slice::from_ref(&again), "{text}");
                assert!(follower.recv().await.is_none(), "it ends");
            }
            for wrong in ["", "abc", "abc-", "-1", "x-1", "abc-1-1", "abc--1"] {
                assert_eq!(Cursor::parse(wrong), None, "{wrong}");
            }
        });
    }

    /// CONTROL-10: the number of followers is bounded; one that leaves makes room.
    #[test]
    fn followers_are_bounded() {
        run(async {
            let feed = feed();
            let mut all: Vec<_> = (0..MAX_FOLLOWERS)
                .map(|_| Arc::clone(&feed).follow(None).unwrap())
                .collect();
            assert!(Arc::clone(&feed).follow(None).is_err());
            all.pop();
            while feed.newest.receiver_count() >= MAX_FOLLOWERS {
                tokio::task::yield_now().await;
            }
            assert!(Arc::clone(&feed).follow(None).is_ok());
        });
    }
}
