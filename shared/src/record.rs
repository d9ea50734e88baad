//! One request, as plain data for the log writer. Nothing is formatted on the request path (LOG).
//!
//! A worker copies the logged values into a [`Batch`] of its own. The writer sends emptied batches
//! back, so that in the long run nothing is allocated, and nothing is freed by another thread. And
//! because no reference to a request outlives it, hyper reads the next request into the same
//! buffer.

use std::net::IpAddr;
use std::sync::Arc;

use http::header::{AUTHORIZATION, COOKIE, PROXY_AUTHORIZATION, SET_COOKIE};
use http::{HeaderName, StatusCode, Version};

use crate::client::Client;
use crate::netblock::Netblock;
use crate::rules::{ClaimState, Purpose, RuleKind, SharedKey};
use crate::snapshot::ActiveBan;
use crate::verdict::{Action, AppliedPercent, Counts, Group, LimitHit};

/// Records that travel together.
const BATCH_RECORDS: usize = 64;
/// A batch is full with this much text; the last record may bring it far past that, by a head of
/// the largest size.
const BATCH_TEXT_BYTES: usize = 32 << 10;

/// A text is kept up to this length (TELL-2).
const MAX_TEXT_BYTES: usize = 4 << 10;
/// A text of a request from a permanently refused client is kept up to this length (LOG-6).
const MAX_REFUSED_TEXT_BYTES: usize = 1 << 10;

/// Everything the request log line may name. Absent members are `None` or [`Text::NONE`]; texts are
/// as the client or the application sent them.
#[derive(Debug)]
pub struct Record {
    /// When the head was read, milliseconds since 1970.
    pub at_ms: u64,
    /// `request_id`
    pub request_id: Text,
    /// The client that limits and bans apply to.
    pub client: Client,
    /// The full address.
    pub address: IpAddr,
    /// Which list the client stands on.
    pub group: Group,
    /// The browser says that a page of another site caused the request (RULE-8).
    pub other_site: bool,
    /// `X-Forwarded-For` as it arrived, whether believed or not.
    pub forwarded_for: Text,
    /// `http` or `https`, as the trusted proxy said.
    pub scheme: &'static str,
    /// As the client sent it.
    pub method: Text,
    /// Without user information: it is a credential.
    pub host: Text,
    /// As the client sent it.
    pub path: Text,
    /// What follows the `?`.
    pub query: Text,
    /// The HTTP version.
    pub version: Version,
    /// From the request.
    pub user_agent: Text,
    /// From the request.
    pub referer: Text,
    /// From the request.
    pub content_type: Text,
    /// From the request.
    pub content_length: Option<u64>,
    /// The fields of `WAF_LOG_REQUEST_HEADERS`.
    pub headers: Headers,
    /// Whether the request has one; the value is never here (LOG-1).
    pub has_authorization: bool,
    /// Whether the request has one; the value is never here (LOG-1).
    pub has_cookie: bool,
    /// Whether a WebSocket was asked for.
    pub websocket: bool,
    /// The status that was sent; none if the connection was closed unanswered.
    pub status: Option<StatusCode>,
    /// From the answer.
    pub response_content_type: Text,
    /// From the answer.
    pub cache_control: Text,
    /// From the answer.
    pub location: Text,
    /// How it ended.
    pub action: Action,
    /// False if observe mode let a request pass that enforce mode would have refused.
    pub enforced: bool,
    /// The ban that refused it.
    pub ban: Option<ActiveBan>,
    /// The limit that it exceeded.
    pub limit_hit: Option<LimitHit>,
    /// The rule that refused or banned: its name and its kind (RULE).
    pub rule: Option<(Text, RuleKind)>,
    /// Which count of the rule, if clients share it (SHARE-8).
    pub shared: Option<SharedKey>,
    /// What the application reported about the client in its answer (APP-5).
    pub application: Text,
    /// The crawler that it claims to be, the crawler's purpose, and whether the claim is true
    /// (CRAWL-7).
    pub crawler: Option<(Text, Purpose, ClaimState)>,
    /// The member of a list that let the client through or refused it, and the list.
    pub list: Option<(Netblock, Text)>,
    /// The percentage of request limits and its setting, if one was applied.
    pub limit_percent: Option<AppliedPercent>,
    /// The same for byte limits.
    pub bytes_percent: Option<AppliedPercent>,
    /// From the client's lookup.
    pub country: Text,
    /// From the client's lookup.
    pub asn: Text,
    /// From the client's lookup.
    pub as_name: Text,
    /// Estimates, the request included; none if nothing was counted.
    pub counts: Option<Counts>,
    /// Body or WebSocket bytes from the client.
    pub request_bytes: u64,
    /// Body or WebSocket bytes to the client.
    pub response_bytes: u64,
    /// From the head to the end, microseconds.
    pub total_us: u64,
    /// The wait for the lookup, in microseconds.
    pub lookup_wait_us: Option<u64>,
    /// Connecting upstream, microseconds; none on a pooled connection.
    pub connect_us: Option<u64>,
    /// From the head to the first byte of the application's answer, microseconds.
    pub first_byte_us: Option<u64>,
}

/// Requests that were refused and have no line of their own in the log (LOG-6).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeftOut {
    /// When they were counted together, milliseconds since 1970.
    pub at_ms: u64,
    /// The netblock of their clients, as a ban would cover it; none where several netblocks are
    /// counted together.
    pub netblock: Option<Netblock>,
    /// How they ended.
    pub action: Action,
    /// The number of requests.
    pub count: u64,
}

/// Where a text lies in its batch.
#[derive(Clone, Copy, Debug)]
pub struct Text {
    start: u32,
    bytes: u32,
}

impl Text {
    /// No text: it starts beyond the end of every batch, so looking it up finds nothing.
    pub const NONE: Self = Self {
        start: u32::MAX,
        bytes: 0,
    };
}

/// Where the logged header fields of a record lie in their batch.
#[derive(Clone, Copy, Debug)]
pub struct Headers {
    start: usize,
    end: usize,
}

/// A batch's data of one record.
#[derive(Clone, Copy, Debug)]
struct Kept {
    /// All of its texts, one behind the other.
    texts: Text,
    /// Whether one of them was cut.
    truncated: bool,
}

/// The records of one worker since its last send.
#[derive(Default)]
pub struct Batch {
    /// The fields whose values are among [`Batch::headers`].
    names: Option<Arc<[HeaderName]>>,
    records: Vec<(Record, Kept)>,
    /// Whether a text of the record that is being added was cut.
    truncated: bool,
    /// True while the record being added is from a refused client.
    is_refused: bool,
    /// Requests without a record.
    left_out: Vec<LeftOut>,
    /// The texts of all records, one behind the other.
    texts: Vec<u8>,
    /// The logged header fields of all records: which of [`logged_headers`], and the value.
    headers: Vec<(usize, Text)>,
}

impl Batch {
    /// Adds the record that `fill` makes from the texts it [keeps](Batch::keep).
    pub fn add(&mut self, fill: impl FnOnce(&mut Self) -> Record) {
        let start = self.texts.len();
        let record = fill(self);
        let texts = self.since(start);
        let truncated = std::mem::take(&mut self.truncated);
        self.records.push((record, Kept { texts, truncated }));
    }

    /// Adds a record of a permanently refused client: 1 KiB of each text is kept (LOG-6).
    pub fn add_refused(&mut self, fill: impl FnOnce(&mut Self) -> Record) {
        self.is_refused = true;
        self.add(fill);
        self.is_refused = false;
    }

    /// Adds the number of requests that have no record.
    pub fn add_left_out(&mut self, left_out: LeftOut) {
        self.left_out.push(left_out);
    }

    /// The requests that have no record.
    pub fn left_out(&self) -> &[LeftOut] {
        &self.left_out
    }

    /// Copies a text, at most 4 KiB of it: a client must not fill the log with one line.
    pub fn keep(&mut self, text: Option<&(impl AsRef<[u8]> + ?Sized)>) -> Text {
        let Some(text) = text else { return Text::NONE };
        let (start, mut text) = (self.texts.len(), text.as_ref());
        let max = if self.is_refused {
            MAX_REFUSED_TEXT_BYTES
        } else {
            MAX_TEXT_BYTES
        };
        if let Some(cut) = cut(text, max) {
            (text, self.truncated) = (cut, true);
        }
        self.texts.extend_from_slice(text);
        self.since(start)
    }

    /// Copies header fields, each with its position in [`logged_headers`]; fields of one name are
    /// next to each other.
    pub fn keep_headers(
        &mut self,
        values: impl Iterator<Item = (usize, impl AsRef<[u8]>)>,
    ) -> Headers {
        let start = self.headers.len();
        for (name, value) in values {
            let value = self.keep(Some(value.as_ref()));
            self.headers.push((name, value));
        }
        Headers {
            start,
            end: self.headers.len(),
        }
    }

    /// All texts from `start` on. No batch comes near the 4 GiB at which this would overflow.
    fn since(&self, start: usize) -> Text {
        Text {
            start: start as u32,
            bytes: (self.texts.len() - start) as u32,
        }
    }

    /// Whether its records hold the values of these fields.
    pub fn is_of(&self, names: &Arc<[HeaderName]>) -> bool {
        self.names
            .as_ref()
            .is_some_and(|held| Arc::ptr_eq(held, names))
    }

    /// The records to come hold the values of these fields. It must be empty.
    pub fn set_names(&mut self, names: &Arc<[HeaderName]>) {
        self.names = Some(Arc::clone(names));
    }

    /// The fields whose values its records hold; none where nobody set them.
    pub const fn names(&self) -> Option<&Arc<[HeaderName]>> {
        self.names.as_ref()
    }

    /// The records in their order, each with all of its texts one behind the other, and whether one
    /// of them was cut.
    pub fn records(&self) -> impl Iterator<Item = (&Record, &[u8], bool)> {
        self.records.iter().map(|(record, kept)| {
            let texts = self.text(kept.texts).unwrap_or_default();
            (record, texts, kept.truncated)
        })
    }

    /// A text that was kept here.
    pub fn text(&self, text: Text) -> Option<&[u8]> {
        let start = text.start as usize;
        self.texts.get(start..start + text.bytes as usize)
    }

    /// The header fields of a record.
    pub fn headers(&self, headers: Headers) -> &[(usize, Text)] {
        self.headers
            .get(headers.start..headers.end)
            .unwrap_or_default()
    }

    /// The number of requests: those with a record, and those that were left out.
    pub fn requests(&self) -> u64 {
        let left_out: u64 = self.left_out.iter().map(|left_out| left_out.count).sum();
        left_out.saturating_add(self.records.len() as u64)
    }

    /// Whether it has no request.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty() && self.left_out.is_empty()
    }

    /// Whether it is time to send it.
    pub fn is_full(&self) -> bool {
        self.records.len() >= BATCH_RECORDS || self.texts.len() >= BATCH_TEXT_BYTES
    }

    /// Empties it for its next use. It keeps its memory, but no more than ordinary requests need.
    pub fn clear(&mut self) {
        self.records.clear();
        self.left_out.clear();
        self.texts.clear();
        self.texts.shrink_to(2 * BATCH_TEXT_BYTES);
        self.headers.clear();
        self.headers.shrink_to(BATCH_TEXT_BYTES);
    }
}

/// The kept part of a text that is too long, cut at the end of a character.
fn cut(text: &[u8], max: usize) -> Option<&[u8]> {
    let (kept, rest) = text.split_at_checked(max)?;
    let first = rest.first()?;
    let is_inside = |byte: &u8| byte & 0xc0 == 0x80;
    if !is_inside(first) {
        return Some(kept);
    }
    // A character has at most four bytes. Text that is not UTF-8 is cut at the limit.
    let begin = kept.iter().rev().take(3).position(|byte| !is_inside(byte));
    let end = begin.map_or(kept.len(), |back| kept.len() - back - 1);
    kept.get(..end)
}

/// Whether a character changes how a terminal shows other text: a control character, or one that
/// breaks a line or changes the direction of writing, so that a line reads differently (TELL-2).
pub fn disturbs(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{2028}' | '\u{2029}'
                | '\u{061c}'
                | '\u{200e}' | '\u{200f}'
                | '\u{202a}'..='\u{202e}'
                | '\u{2066}'..='\u{2069}'
        )
}

/// The fields of `WAF_LOG_REQUEST_HEADERS` that are logged: each once, and credentials never,
/// whatever the setting says (LOG-1); the start warned about them.
pub fn logged_headers(asked: &[HeaderName]) -> Vec<HeaderName> {
    let mut logged: Vec<HeaderName> = Vec::new();
    for name in asked {
        let credential = [AUTHORIZATION, PROXY_AUTHORIZATION, COOKIE, SET_COOKIE].contains(name);
        if !credential && !logged.contains(name) {
            logged.push(name.clone());
        }
    }
    logged
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    /// LOG: stored texts are read back, and an empty text is not an absent one.
    #[test]
    fn what_was_kept_comes_back() {
        let mut batch = Batch::default();
        let (one, empty, none) = (
            batch.keep(Some("one")),
            batch.keep(Some("")),
            batch.keep(None::<&str>),
        );
        let value = HeaderValue::from_static("v");
        let headers = batch.keep_headers([(3, &value), (3, &value), (5, &value)].into_iter());
        let no_headers = batch.keep_headers(std::iter::empty::<(usize, &[u8])>());
        assert_eq!(batch.text(one), Some(b"one".as_slice()));
        assert_eq!(batch.text(empty), Some(b"".as_slice()));
        assert_eq!(batch.text(none), None);
        let kept: Vec<_> = batch
            .headers(headers)
            .iter()
            .map(|(name, value)| (*name, batch.text(*value)))
            .collect();
        assert_eq!(kept, [3, 3, 5].map(|name| (name, Some(b"v".as_slice()))));
        assert!(batch.headers(no_headers).is_empty());
    }

    /// TELL-2: a text is cut at 4 KiB, at the end of a character, and its record says so.
    #[test]
    fn a_long_text_is_cut() {
        let kept = |text: &[u8]| {
            let mut batch = Batch::default();
            let text = batch.keep(Some(text));
            (batch.text(text).map(<[u8]>::to_vec), batch.truncated)
        };
        let long = "a".repeat(MAX_TEXT_BYTES - 2);
        let whole = format!("{long}é");
        assert_eq!(kept(whole.as_bytes()), (Some(whole.into()), false));
        let over = format!("{long}a\u{1f600}b");
        assert_eq!(
            kept(over.as_bytes()),
            (Some(format!("{long}a").into()), true)
        );
        let no_text = vec![0x80; MAX_TEXT_BYTES + 1];
        assert_eq!(kept(&no_text), (Some(vec![0x80; MAX_TEXT_BYTES]), true));
        // One record's is not the next one's: shown by the log's own tests.
    }

    /// LOG-6: 1 KiB of a refused client's texts is kept, and the next record has its own bound;
    /// requests without a record are counted with the batch.
    #[test]
    fn a_refused_clients_texts_are_short() {
        let mut batch = Batch::default();
        let kept = std::cell::Cell::new(Vec::new());
        let keep = |batch: &mut Batch| {
            let text = batch.keep(Some("a".repeat(MAX_TEXT_BYTES).as_str()));
            let mut lengths = kept.take();
            lengths.push(batch.text(text).map_or(0, <[u8]>::len));
            kept.set(lengths);
            record()
        };
        batch.add_refused(keep);
        batch.add(keep);
        assert_eq!(kept.take(), [MAX_REFUSED_TEXT_BYTES, MAX_TEXT_BYTES]);
        assert!(batch.records().map(|(.., cut)| cut).eq([true, false]));
        let left_out = LeftOut {
            at_ms: 7,
            netblock: None,
            action: Action::Banned,
            count: 40,
        };
        batch.add_left_out(left_out);
        assert_eq!((batch.requests(), batch.left_out()), (42, &[left_out][..]));
        batch.clear();
        assert!(batch.is_empty() && batch.left_out().is_empty());
        batch.add_left_out(left_out);
        assert!(!batch.is_empty());
    }

    fn record() -> Record {
        Record {
            at_ms: 0,
            request_id: Text::NONE,
            client: Client::V4(1),
            address: [203, 0, 113, 7].into(),
            group: Group::Default,
            other_site: false,
            forwarded_for: Text::NONE,
            scheme: "http",
            method: Text::NONE,
            host: Text::NONE,
            path: Text::NONE,
            query: Text::NONE,
            version: Version::HTTP_11,
            user_agent: Text::NONE,
            referer: Text::NONE,
            content_type: Text::NONE,
            content_length: None,
            headers: Headers { start: 0, end: 0 },
            has_authorization: false,
            has_cookie: false,
            websocket: false,
            status: None,
            response_content_type: Text::NONE,
            cache_control: Text::NONE,
            location: Text::NONE,
            action: Action::Passed,
            enforced: true,
            ban: None,
            limit_hit: None,
            shared: None,
            application: Text::NONE,
            crawler: None,
            rule: None,
            list: None,
            limit_percent: None,
            bytes_percent: None,
            country: Text::NONE,
            asn: Text::NONE,
            as_name: Text::NONE,
            counts: None,
            request_bytes: 0,
            response_bytes: 0,
            total_us: 0,
            lookup_wait_us: None,
            connect_us: None,
            first_byte_us: None,
        }
    }

    /// LOG: hostile heads fill a batch early, and an emptied one keeps no more memory than ordinary
    /// requests need.
    #[test]
    fn texts_are_bounded() {
        let mut batch = Batch::default();
        for _ in 0..BATCH_TEXT_BYTES / MAX_TEXT_BYTES {
            assert!(!batch.is_full());
            batch.keep(Some(&[b'a'; 1 << 20]));
        }
        assert!(batch.is_full());
        batch.clear();
        assert!(!batch.is_full());
        assert!(batch.texts.capacity() <= 2 * BATCH_TEXT_BYTES);
    }

    /// LOG-1: credentials are left out whatever the setting says; a name that the setting repeats
    /// is logged once.
    #[test]
    fn credentials_are_not_among_the_logged_headers() {
        let asked = [
            "x-tag",
            "authorization",
            "proxy-authorization",
            "cookie",
            "set-cookie",
            "x-tag",
            "dnt",
        ]
        .map(HeaderName::from_static);
        assert_eq!(logged_headers(&asked), ["x-tag", "dnt"]);
    }
}
