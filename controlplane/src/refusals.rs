//! The last refusals by the ids of their requests, wherever the request log goes (CONTROL-5): a
//! visitor names the id that the answer showed, and `weir explain --request` finds it here.
//!
//! The thread of the request log stores the refusals that it writes. Slots are reused, so that a
//! flood of refusals takes only the memory of [`KEPT`] of them, at most some 6 MiB, and as much
//! again if header fields are logged.

use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use http::header::{HOST, USER_AGENT};
use http::{HeaderName, HeaderValue, Method};
use weir_shared::explain::Question;
use weir_shared::record::{Batch, Record};
use weir_shared::rules::{Remembered, Told};
use weir_shared::units::Time;
use weir_shared::verdict::Action;

/// Refusals that are kept.
pub(crate) const KEPT: usize = 4096;
/// Bytes of a text that are kept: enough to be judged once more.
const MAX_TEXT: usize = 1024;

/// The last refusals.
#[derive(Default)]
pub(crate) struct Refusals {
    ring: Mutex<Ring>,
}

#[derive(Default)]
struct Ring {
    slots: Vec<Slot>,
    /// Where the next one goes; behind the last one it is the first again.
    next: usize,
}

struct Slot {
    at_ms: u64,
    address: IpAddr,
    action: Action,
    enforced: bool,
    other_site: bool,
    /// Id, method, path, host, query and user agent, one behind the other.
    texts: Vec<u8>,
    /// The end of each text.
    ends: [usize; 6],
    /// Its fields of `WAF_LOG_REQUEST_HEADERS`, up to [`MAX_TEXT`] bytes.
    fields: Vec<(HeaderName, HeaderValue)>,
}

/// A refusal that was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Refusal {
    /// The request; a long path is cut.
    pub(crate) question: Question,
    /// When.
    pub(crate) at: Time,
    /// The action.
    pub(crate) action: Action,
    /// False if observe mode let it pass.
    pub(crate) enforced: bool,
}

impl Refusals {
    /// Stores the refusals among these records.
    pub(crate) fn take(&self, batch: &Batch) {
        let mut held = None;
        for (record, ..) in batch.records() {
            if record.action.is_refusal() {
                held.get_or_insert_with(|| self.ring()).take(batch, record);
            }
        }
    }

    /// The newest refusal of a request with this id.
    pub(crate) fn find(&self, id: &str) -> Option<Refusal> {
        let ring = self.ring();
        let (newer, older) = ring.slots.split_at_checked(ring.next)?;
        let mut newest_first = newer.iter().rev().chain(older.iter().rev());
        newest_first
            .find(|slot| slot.text(0) == id.as_bytes())?
            .refusal()
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        // Nothing panics while it is held.
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ring {
    fn take(&mut self, batch: &Batch, record: &Record) {
        if self.slots.len() < KEPT {
            self.slots.push(Slot::of(record));
        }
        let at = self.next % KEPT;
        self.next = at + 1;
        if let Some(slot) = self.slots.get_mut(at) {
            let texts = std::mem::take(&mut slot.texts);
            *slot = Slot {
                texts,
                ..Slot::of(record)
            };
            slot.fill(batch, record);
        }
    }
}

impl Slot {
    const fn of(record: &Record) -> Self {
        Self {
            at_ms: record.at_ms,
            address: record.address,
            action: record.action,
            enforced: record.enforced,
            other_site: record.other_site,
            texts: Vec::new(),
            ends: [0; 6],
            fields: Vec::new(),
        }
    }

    fn fill(&mut self, batch: &Batch, record: &Record) {
        self.texts.clear();
        let texts = [
            record.request_id,
            record.method,
            record.path,
            record.host,
            record.query,
            record.user_agent,
        ];
        for (end, text) in self.ends.iter_mut().zip(texts) {
            let text = batch.text(text).unwrap_or_default();
            let kept = text.get(..MAX_TEXT).unwrap_or(text);
            self.texts.extend_from_slice(kept);
            *end = self.texts.len();
        }
        let names = batch.names().map_or(&[][..], AsRef::as_ref);
        let mut room = MAX_TEXT;
        for (name, text) in batch.headers(record.headers) {
            let text = batch.text(*text).unwrap_or_default();
            let kept = text.get(..room).unwrap_or(text);
            room -= kept.len();
            let name = names
                .get(*name)
                .filter(|_| !kept.is_empty() || text.is_empty());
            let value = HeaderValue::from_bytes(kept).ok();
            self.fields.extend(name.cloned().zip(value));
        }
    }

    fn text(&self, which: usize) -> &[u8] {
        let before = which
            .checked_sub(1)
            .and_then(|before| self.ends.get(before));
        let start = before.copied().unwrap_or(0);
        let end = self.ends.get(which).copied().unwrap_or(0);
        self.texts.get(start..end).unwrap_or_default()
    }

    fn refusal(&self) -> Option<Refusal> {
        // An absent text and an empty one are the same here.
        let told = |which| Some(self.text(which)).filter(|text| !text.is_empty());
        let fields = [(HOST, 3), (USER_AGENT, 5)].into_iter();
        let fields = fields
            .filter_map(|(name, which)| Some((name, HeaderValue::from_bytes(told(which)?).ok()?)));
        let logged = self.fields.iter().filter(|(name, _)| *name != USER_AGENT);
        let fields = fields.chain(logged.cloned());
        let query = told(4).map(|query| String::from_utf8_lossy(query).into_owned());
        let sent = Remembered {
            fields: fields.collect(),
            query: Told::Known(query),
            known: Some(&["host", "user-agent"]),
        };
        Some(Refusal {
            question: Question {
                address: self.address,
                method: Method::from_bytes(self.text(1)).ok()?,
                path: String::from_utf8_lossy(self.text(2)).into_owned(),
                sent,
                other_site: self.other_site,
            },
            at: Time(self.at_ms),
            action: self.action,
            enforced: self.enforced,
        })
    }
}

#[cfg(test)]
mod tests {
    use weir_shared::client::Client;
    use weir_shared::record::Text;

    use super::*;
    use crate::testing::bare_record;

    fn refused(refusals: &Refusals, ids: std::ops::Range<usize>, path: &str) {
        let mut batch = Batch::default();
        for id in ids {
            batch.add(|batch| Record {
                request_id: batch.keep(Some(&format!("id-{id}"))),
                method: batch.keep(Some("POST")),
                path: batch.keep(Some(path)),
                host: if id % 2 == 0 {
                    batch.keep(Some("a.example"))
                } else {
                    Text::NONE
                },
                action: Action::Banned,
                address: [203, 0, 113, 7].into(),
                client: Client::V4(0),
                ..bare_record(batch, "/")
            });
        }
        refusals.take(&batch);
    }

    /// CONTROL-5: the last 4,096 refusals are found by their ids, the newest of equal ones; older
    /// ones, and requests that were not refused, are not found.
    #[test]
    fn the_last_refusals_are_found() {
        let refusals = Refusals::default();
        assert_eq!(refusals.find("id-0"), None);
        refused(&refusals, 0..3, "/a");
        let found = refusals.find("id-1").unwrap();
        assert_eq!(
            (found.question.path.as_str(), found.action),
            ("/a", Action::Banned)
        );
        assert_eq!(found.question.method, Method::POST);
        assert_eq!(found.question.sent.fields.get(HOST), None);
        assert_eq!(
            refusals.find("id-2").unwrap().question.sent.fields[HOST],
            "a.example"
        );
        refused(&refusals, 3..KEPT, "/b");
        assert!(refusals.find("id-0").is_some());
        refused(&refusals, KEPT..KEPT + 2, "/c");
        assert_eq!((refusals.find("id-0"), refusals.find("id-1")), (None, None));
        for id in 2..KEPT + 2 {
            assert!(refusals.find(&format!("id-{id}")).is_some(), "{id}");
        }
        refused(&refusals, 50..51, "/newer");
        assert_eq!(refusals.find("id-50").unwrap().question.path, "/newer");
        let mut batch = Batch::default();
        batch.add(|batch| Record {
            request_id: batch.keep(Some("passed")),
            ..bare_record(batch, "/")
        });
        refusals.take(&batch);
        assert_eq!(refusals.find("passed"), None);
        assert_eq!(refusals.ring().slots.len(), KEPT);
    }

    /// CONTROL-5: the texts of a client take no more room than is reserved for them.
    #[test]
    fn texts_are_bounded() {
        let refusals = Refusals::default();
        let path = format!("/{}", "é".repeat(3000));
        for _ in 0..3 {
            refused(&refusals, 0..KEPT, &path);
        }
        let ring = refusals.ring();
        let bytes: usize = ring.slots.iter().map(|slot| slot.texts.capacity()).sum();
        assert!(bytes < 8 << 20, "{bytes}");
        drop(ring);
        assert!(
            refusals
                .find("id-7")
                .unwrap()
                .question
                .path
                .starts_with("/éé")
        );
    }
}
