//! What the library refuses by itself, and tells nobody: heads that are malformed, or larger than
//! they may be (METRIC). It is counted by what goes in and what comes out: a head that came whole,
//! was not handed over for a request and not put off (REFUSED_STREAM) was refused.

use std::cell::{Cell, RefCell};

use weir_shared::totals::ConnectionError;

use super::flood::{END_STREAM, FrameHeader, HEADERS, RST_STREAM};
use crate::counters::Counters;

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
