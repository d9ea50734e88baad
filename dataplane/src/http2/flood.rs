//! Floods of frames (EDGE-3): a budget for what a client makes us do, read from its frames as they
//! come; and the heads that the library refuses by itself, read from its own frames.

use std::cell::{Cell, RefCell};

use weir_shared::totals::ConnectionError;

use crate::worker::counters::Counters;

/// What a client may spend at once.
const FULL: u32 = 2_000;
/// What it gets back in a second, whatever it does.
const PER_SECOND: u64 = 200;
const SECOND_NS: u64 = 1_000_000_000;
/// What the answer to a request gives back: more than its head cost.
const ANSWERED: u32 = 8;
/// Bytes of an answer that give one back: whoever reads tells of the room it has.
const CARRIED: u64 = 1_024;
/// What a frame may be padded with, and the byte that says so.
const PADDING: u32 = 256;

/// What every connection begins with (RFC 9113 §3.4).
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Kinds of frames (RFC 9113 §6).
const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

/// Flags of frames.
pub const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;

/// Why a connection is to end for what its client has sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The client has spent everything.
    Flood,
    /// The first frame is not SETTINGS (RFC 9113 §3.4), which the library does not ask for.
    NoSettings,
}

/// What a client may still spend.
#[derive(Debug)]
pub struct Budget {
    left: Cell<u32>,
    /// Up to when time has given back.
    at_ns: Cell<u64>,
    /// Bytes of answers that have given nothing back yet.
    carried: Cell<u64>,
}

impl Budget {
    /// All of it.
    pub const fn new(now_ns: u64) -> Self {
        Self {
            left: Cell::new(FULL),
            at_ns: Cell::new(now_ns),
            carried: Cell::new(0),
        }
    }

    fn spend(&self, cost: u32, now_ns: u64) -> Result<(), Fault> {
        if cost == 0 {
            return Ok(());
        }
        let passed_ns = now_ns.saturating_sub(self.at_ns.get());
        // Before that much of a second has passed that it gives one back, none of it is lost.
        let given = passed_ns.saturating_mul(PER_SECOND) / SECOND_NS;
        if given > 0 {
            self.at_ns.set(now_ns);
            self.give_back(u32::try_from(given).unwrap_or(FULL));
        }
        let left = self.left.get().checked_sub(cost).ok_or(Fault::Flood)?;
        self.left.set(left);
        Ok(())
    }

    fn give_back(&self, given: u32) {
        self.left
            .set(self.left.get().saturating_add(given).min(FULL));
    }

    /// A request was answered, and the answer given out whole.
    pub fn answered(&self) {
        self.give_back(ANSWERED);
    }

    /// The client was sent so many bytes.
    pub fn carried(&self, bytes: u64) {
        let carried = self.carried.get().saturating_add(bytes);
        self.carried.set(carried % CARRIED);
        self.give_back(u32::try_from(carried / CARRIED).unwrap_or(FULL));
    }
}

/// The content of a frame of DATA, at least.
const fn content(flags: u8, length: u32) -> u32 {
    let padding = if flags & PADDED == 0 { 0 } else { PADDING };
    length.saturating_sub(padding)
}

/// What a frame costs.
fn cost(kind: u8, flags: u8, length: u32) -> u32 {
    match kind {
        DATA if flags & END_STREAM == 0 && content(flags, length) == 0 => 10,
        DATA => 0,
        // Given back with the answer.
        HEADERS => 4,
        RST_STREAM => 8,
        PING => 10,
        SETTINGS | GOAWAY | CONTINUATION => 20,
        WINDOW_UPDATE => 1,
        // PRIORITY, and kinds that are not known: they are to be ignored.
        _ => 4,
    }
}

/// What the header of a frame says (RFC 9113 §4.1).
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    /// What it is.
    pub kind: u8,
    /// Its flags.
    pub flags: u8,
    /// Bytes of its payload.
    pub length: u32,
    /// Its stream; 0 is the connection.
    pub stream: u32,
}

/// The header of a frame, as far as it has come.
#[derive(Debug, Default)]
pub struct FrameHeader {
    bytes: [u8; 9],
    filled: usize,
}

impl FrameHeader {
    /// A new one, of which nothing has come.
    const fn new() -> Self {
        Self {
            bytes: [0; 9],
            filled: 0,
        }
    }

    /// Reads on in it: what it says once it is whole, and what follows it.
    pub fn read<'a>(&mut self, bytes: &'a [u8]) -> (Option<Frame>, &'a [u8]) {
        let wanted = self.bytes.len() - self.filled;
        let (part, rest) = bytes.split_at_checked(wanted).unwrap_or((bytes, &[]));
        let places = self.bytes.get_mut(self.filled..).unwrap_or_default();
        for (place, byte) in places.iter_mut().zip(part) {
            *place = *byte;
        }
        self.filled += part.len();
        if self.filled < self.bytes.len() {
            return (None, rest);
        }
        self.filled = 0;
        let [high, middle, low, kind, flags, stream @ ..] = self.bytes;
        let frame = Frame {
            kind,
            flags,
            length: u32::from_be_bytes([0, high, middle, low]),
            stream: u32::from_be_bytes(stream) & (u32::MAX >> 1),
        };
        (Some(frame), rest)
    }
}

/// Reads the headers of the frames that a client sends.
#[derive(Debug)]
pub struct Scanner {
    preface_left: usize,
    /// SETTINGS have come.
    has_settings: bool,
    header: FrameHeader,
    payload_left: u32,
    /// The head that is coming opens a stream.
    opens: bool,
    /// Heads that have come whole, each of a stream of its own.
    heads: u64,
    /// The frame whose payload is coming ends a head.
    ends_head: bool,
    /// Since when a head has been coming, if one is.
    head_since: Option<u64>,
    last_stream: u32,
}

impl Scanner {
    /// Nothing has come.
    pub const fn new() -> Self {
        Self {
            preface_left: PREFACE.len(),
            has_settings: false,
            header: FrameHeader::new(),
            payload_left: 0,
            opens: false,
            heads: 0,
            ends_head: false,
            head_since: None,
            last_stream: 0,
        }
    }

    /// Since when a head has been coming, if one is.
    pub const fn head_since(&self) -> Option<u64> {
        self.head_since
    }

    /// So much of the time in which a head has been coming does not count.
    pub fn put_off(&mut self, by_ns: u64) {
        self.head_since = self.head_since.map(|since| since.saturating_add(by_ns));
    }

    /// Heads that have come whole, each of a stream of its own.
    pub const fn heads(&self) -> u64 {
        self.heads
    }

    /// The last stream that the client has opened.
    pub const fn last_stream(&self) -> u32 {
        self.last_stream
    }

    /// Looks at what has come.
    ///
    /// # Errors
    /// [`Fault`] where the connection is to end.
    pub fn scan(&mut self, mut bytes: &[u8], budget: &Budget, now_ns: u64) -> Result<(), Fault> {
        let preface = self.preface_left.min(bytes.len());
        self.preface_left -= preface;
        bytes = bytes.get(preface..).unwrap_or_default();
        while !bytes.is_empty() {
            if self.payload_left > 0 {
                let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
                let skipped = self.payload_left.min(length);
                self.payload_left -= skipped;
                bytes = bytes.get(skipped as usize..).unwrap_or_default();
                self.end_frame();
                continue;
            }
            let (frame, rest) = self.header.read(bytes);
            bytes = rest;
            if let Some(frame) = frame {
                self.begin_frame(frame, budget, now_ns)?;
            }
        }
        Ok(())
    }

    fn begin_frame(&mut self, frame: Frame, budget: &Budget, now_ns: u64) -> Result<(), Fault> {
        let Frame {
            kind,
            flags,
            length,
            stream,
        } = frame;
        self.payload_left = length;
        self.ends_head = false;
        self.has_settings |= kind == SETTINGS;
        if !self.has_settings {
            return Err(Fault::NoSettings);
        }
        if kind == HEADERS || kind == CONTINUATION {
            self.head_since.get_or_insert(now_ns);
            self.ends_head = flags & END_HEADERS != 0;
        }
        if kind == HEADERS {
            self.opens = stream > self.last_stream;
            self.last_stream = self.last_stream.max(stream);
        }
        self.end_frame();
        budget.spend(cost(kind, flags, length), now_ns)
    }

    /// The payload has come, if there is none left of it.
    fn end_frame(&mut self) {
        if self.payload_left == 0 && self.ends_head {
            self.head_since = None;
            self.heads += u64::from(std::mem::take(&mut self.opens));
        }
    }
}

/// The frame that ends a connection: the last stream that was served, and why it ends.
pub fn goaway(last_stream: u32, reason: h2::Reason) -> [u8; 17] {
    let mut frame = [0; 17];
    let header = [0, 0, 8, GOAWAY, 0, 0, 0, 0, 0];
    let (stream, code) = (last_stream.to_be_bytes(), u32::from(reason).to_be_bytes());
    let bytes = header.into_iter().chain(stream).chain(code);
    for (place, byte) in frame.iter_mut().zip(bytes) {
        *place = byte;
    }
    frame
}

/// The payload of a response with nothing but a status is no longer: an index, a length and three
/// digits. Every response of ours has the id of its request.
const BARE: u32 = 5;

/// Heads of one connection.
#[derive(Debug, Default)]
pub struct Heads {
    /// Those that were handed over.
    taken: Cell<u64>,
    /// Those that may come again, as the library said, or we.
    put_off: Cell<u64>,
    /// Of them, those that were handed over before.
    given_back: Cell<u64>,
    /// Those that the library answered with 431.
    large: Cell<u64>,
    /// Of the refused, how many are counted: malformed ones, and large ones.
    told: Cell<(u64, u64)>,
    sent: RefCell<Sent>,
}

impl Heads {
    /// One was handed over for a request.
    pub fn take(&self) {
        self.taken.set(self.taken.get() + 1);
    }

    /// One that was handed over may come again.
    pub fn give_back(&self) {
        self.given_back.set(self.given_back.get() + 1);
    }

    /// How many the library has refused, as far as they were counted.
    pub fn refused(&self) -> u64 {
        let (malformed, large) = self.told.get();
        malformed + large
    }

    /// Looks at what was sent to the client.
    pub fn sent(&self, mut bytes: &[u8]) {
        let mut sent = self.sent.borrow_mut();
        while !bytes.is_empty() {
            let (frame, rest) = sent.read(bytes);
            bytes = rest;
            match frame {
                Some(Told::PutOff) => self.put_off.set(self.put_off.get() + 1),
                Some(Told::Large) => self.large.set(self.large.get() + 1),
                None => {}
            }
        }
    }

    /// Counts what was refused of so many heads. Called while the library has looked at all of
    /// them and has nothing left to say.
    pub fn count(&self, came: u64, counters: &Counters) {
        let put_off = self.put_off.get().saturating_sub(self.given_back.get());
        let refused = came.saturating_sub(self.taken.get() + put_off);
        let large = self.large.get();
        let malformed = refused.saturating_sub(large);
        let (told_malformed, told_large) = self.told.get();
        for _ in told_malformed..malformed {
            counters.connection_error(ConnectionError::BadRequest);
        }
        for _ in told_large..large {
            counters.connection_error(ConnectionError::HeadTooLarge);
        }
        let told = (malformed.max(told_malformed), large.max(told_large));
        self.told.set(told);
    }
}

/// What a frame tells of a head.
enum Told {
    /// It may come again.
    PutOff,
    /// It is larger than it may be.
    Large,
}

/// The frames that are sent.
#[derive(Debug, Default)]
struct Sent {
    header: FrameHeader,
    payload_left: u32,
    /// The code of a reset, as far as it was read; none of another frame.
    code: Option<u32>,
}

impl Sent {
    /// Reads to the end of a header, or of a payload; gives the rest.
    fn read<'a>(&mut self, bytes: &'a [u8]) -> (Option<Told>, &'a [u8]) {
        if self.payload_left == 0 {
            let (frame, rest) = self.header.read(bytes);
            let Some(frame) = frame else {
                return (None, rest);
            };
            self.payload_left = frame.length;
            self.code = (frame.kind == RST_STREAM).then_some(0);
            let ends = frame.flags & END_STREAM != 0;
            let is_bare = frame.kind == HEADERS && ends && frame.length <= BARE;
            return (is_bare.then_some(Told::Large), rest);
        }
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let count = self.payload_left.min(length);
        self.payload_left -= count;
        let (payload, rest) = bytes
            .split_at_checked(count as usize)
            .unwrap_or((bytes, &[]));
        let Some(code) = &mut self.code else {
            return (None, rest);
        };
        for byte in payload {
            *code = *code << 8 | u32::from(*byte);
        }
        let is_put_off = self.payload_left == 0 && *code == u32::from(h2::Reason::REFUSED_STREAM);
        (is_put_off.then_some(Told::PutOff), rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRIORITY: u8 = 2;

    fn frame(kind: u8, flags: u8, stream: u32, payload: usize) -> Vec<u8> {
        let [_, high, middle, low] = u32::try_from(payload).unwrap().to_be_bytes();
        let mut frame = vec![high, middle, low, kind, flags];
        frame.extend(stream.to_be_bytes());
        frame.extend(vec![0xff; payload]);
        frame
    }

    /// How many of these frames are taken in one moment, of 10,000.
    fn taken(frames: &[Vec<u8>]) -> usize {
        let (budget, mut scanner) = (Budget::new(0), Scanner::new());
        scanner.scan(PREFACE, &budget, 0).unwrap();
        scanner.has_settings = true;
        let one = frames.concat();
        (0..10_000)
            .take_while(|_| scanner.scan(&one, &budget, 0).is_ok())
            .count()
    }

    /// EDGE-3: each kind of flood ends, and what carries something does not.
    #[test]
    fn each_kind_of_flood_ends() {
        let open = frame(HEADERS, END_HEADERS | END_STREAM, 1, 30);
        for (name, frames, at_most) in [
            ("rapid reset", vec![open, frame(RST_STREAM, 0, 1, 4)], 166),
            ("streams", vec![frame(HEADERS, END_HEADERS, 1, 30)], 500),
            ("CONTINUATION", vec![frame(CONTINUATION, 0, 1, 0)], 100),
            ("SETTINGS", vec![frame(SETTINGS, 0, 0, 0)], 100),
            ("PING", vec![frame(PING, 0, 0, 8)], 200),
            ("empty DATA", vec![frame(DATA, 0, 1, 0)], 200),
            ("padding alone", vec![frame(DATA, PADDED, 1, 256)], 200),
            ("PRIORITY", vec![frame(PRIORITY, 0, 1, 5)], 500),
            ("unknown", vec![frame(0xbe, 0, 0, 100)], 500),
        ] {
            assert_eq!(taken(&frames), at_most, "{name}");
        }
        assert_eq!(taken(&[frame(DATA, 0, 1, 16_384)]), 10_000);
    }

    /// EDGE-3: requests that are answered, answers that are read and time
    /// give back; never more than all.
    #[test]
    fn what_carries_something_gives_back() {
        let budget = Budget::new(0);
        for second in 0..10_000 {
            budget.spend(4, 0).unwrap();
            budget.answered();
            budget.spend(10, 0).unwrap();
            budget.carried(6 * CARRIED);
            budget.spend(200, second * SECOND_NS).unwrap();
        }
        budget.carried(u64::MAX);
        budget.spend(FULL, 0).unwrap();
        assert_eq!(budget.spend(1, 0), Err(Fault::Flood));
    }

    /// EDGE-3: frames are seen however their bytes are cut, and a head is one from its first byte
    /// to its last.
    #[test]
    fn frames_are_seen_however_they_are_cut() {
        let (budget, mut scanner) = (Budget::new(0), Scanner::new());
        let mut bytes = PREFACE.to_vec();
        bytes.extend(frame(SETTINGS, 0, 0, 18));
        bytes.extend(frame(DATA, END_STREAM, 3, 300));
        let before = bytes.len();
        bytes.extend(frame(HEADERS, 0, 5, 40));
        bytes.extend(frame(CONTINUATION, END_HEADERS, 5, 2));
        let mut seen = Vec::new();
        for (at, byte) in bytes.iter().enumerate() {
            scanner.scan(&[*byte], &budget, at as u64).unwrap();
            seen.push(scanner.head_since());
        }
        let begun = before + 8;
        assert!(seen[..begun].iter().all(Option::is_none));
        let whole = bytes.len() - 1;
        let coming = &seen[begun..whole];
        assert!(coming.iter().all(|since| *since == Some(begun as u64)));
        assert_eq!((seen[whole], scanner.last_stream()), (None, 5));
        assert_eq!(budget.left.get(), FULL - 20 - 4 - 20);
    }

    /// EDGE-3, RFC 9113 §3.4: SETTINGS come first.
    #[test]
    fn settings_come_first() {
        let (budget, mut scanner) = (Budget::new(0), Scanner::new());
        let bytes = [PREFACE.to_vec(), frame(PING, 0, 0, 8)].concat();
        let scanned = scanner.scan(&bytes, &budget, 0);
        assert_eq!(scanned, Err(Fault::NoSettings));
    }

    /// RFC 9113 §6.8.
    #[test]
    fn a_goaway_has_its_form() {
        let frame = goaway(0x0102, h2::Reason::ENHANCE_YOUR_CALM);
        assert_eq!(frame, *b"\0\0\x08\x07\0\0\0\0\0\0\0\x01\x02\0\0\0\x0b");
    }
}

#[cfg(test)]
mod refused_tests {
    use std::sync::Arc;

    use weir_shared::totals::Totals;

    use super::*;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u8::try_from(payload.len()).unwrap();
        [&[0, 0, length, kind, flags, 0, 0, 0, 1], payload].concat()
    }

    /// METRIC, EDGE-3: of the heads that came, those are counted that nobody took, by what they
    /// were answered; once each, however the frames are cut.
    #[test]
    fn what_nobody_took_is_counted() {
        let (heads, counters) = (Heads::default(), Arc::new(Counters::default()));
        let counted = |came| {
            heads.count(came, &counters);
            let mut totals = Totals::default();
            counters.fold_into(&mut totals);
            let of = |kind: ConnectionError| totals.connection_errors[kind.index()];
            (
                of(ConnectionError::BadRequest),
                of(ConnectionError::HeadTooLarge),
            )
        };
        // Taken and answered; taken and given back; put off; too large; malformed.
        heads.take();
        heads.take();
        heads.give_back();
        let sent = [
            frame(HEADERS, END_STREAM | 4, &[0x88; 40]),
            frame(RST_STREAM, 0, &[0, 0, 0, 7]),
            frame(RST_STREAM, 0, &[0, 0, 0, 7]),
            frame(HEADERS, END_STREAM | 4, &[0x48, 3, b'4', b'3', b'1']),
            frame(RST_STREAM, 0, &[0, 0, 0, 1]),
        ];
        for byte in sent.concat() {
            heads.sent(&[byte]);
        }
        assert_eq!(counted(5), (1, 1));
        assert_eq!(counted(5), (1, 1));
        heads.sent(&frame(HEADERS, END_STREAM | 4, &[0xbe]));
        assert_eq!(counted(7), (2, 2));
        assert_eq!(heads.refused(), 4);
    }
}
