//! The next request of a connection, read up to the end of its head.

use std::mem::MaybeUninit;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::io::ReadBuf;

use crate::downstream::Downstream;
use crate::http1::head_end::HeadEnd;
use crate::plain::{self, Parsed, Plain, PlainHead};
use crate::worker::{Current, MAX_HEAD};

/// So much is read at once: what hyper reads, so that it loses nothing where it has to go on.
const READ: usize = 8 * 1024;
/// Room for a head that is not whole grows by so much, since it may stay so for long (CONN-1).
const STEP: usize = 4 * 1024;

/// What was read and is not answered.
#[derive(Default)]
pub struct Received {
    bytes: Vec<u8>,
    /// Where they are the beginning of a head, how far it has come.
    begun: Option<HeadEnd>,
}

/// What there is to be done with what was read.
pub enum Read {
    /// A plain request is to be answered; whether it asks to close the connection.
    Plain(PlainHead, bool),
    /// hyper is to go on with it.
    Other,
    /// The connection has ended.
    End,
}

impl Received {
    /// This was read already.
    pub fn new(early: Bytes) -> Self {
        Self {
            bytes: early.into(),
            begun: None,
        }
    }

    /// What is left for others.
    pub fn into_bytes(self) -> Bytes {
        self.bytes.into()
    }

    /// Waits until a head is whole, or is none.
    pub fn poll(
        &mut self,
        current: &Current,
        downstream: &Downstream,
        cx: &mut Context<'_>,
    ) -> Poll<Read> {
        if self.begun.is_none() && !self.bytes.is_empty() {
            downstream.note_read();
            let bytes = std::mem::take(&mut self.bytes);
            if let Some(read) = self.look(&bytes) {
                return Poll::Ready(read);
            }
        }
        loop {
            let read = current.worker().with_read_buffer(|buffer| {
                let room = READ.min(MAX_HEAD - self.bytes.len());
                let mut buffer = ReadBuf::new(buffer.get_mut(..room).unwrap_or_default());
                let outcome = ready!(downstream.poll_read(cx, &mut buffer));
                if outcome.is_err() || buffer.filled().is_empty() {
                    return Poll::Ready(Some(Read::End));
                }
                Poll::Ready(self.take(buffer.filled()))
            });
            if let Some(read) = ready!(read) {
                return Poll::Ready(read);
            }
        }
    }

    /// Takes what came next. None: the head is not whole.
    fn take(&mut self, bytes: &[u8]) -> Option<Read> {
        let Some(begun) = &mut self.begun else {
            return self.look(bytes);
        };
        let is_whole = begun.find(bytes).is_some();
        let length = self.bytes.len() + bytes.len();
        if self.bytes.capacity() < length {
            let room = length.next_multiple_of(STEP) - self.bytes.len();
            self.bytes.reserve_exact(room);
        }
        self.bytes.extend_from_slice(bytes);
        if is_whole {
            self.begun = None;
            let bytes = std::mem::take(&mut self.bytes);
            return self.look(&bytes);
        }
        (length >= MAX_HEAD).then_some(Read::Other)
    }

    /// What these bytes begin with; what follows it is held, or all of it. None: a head that is not
    /// whole.
    fn look(&mut self, bytes: &[u8]) -> Option<Read> {
        let mut fields = [const { MaybeUninit::uninit() }; plain::MAX_FIELDS];
        let parsed = Plain::parse(bytes, &mut fields);
        if let Parsed::Whole(head, length) = &parsed
            && let Some(own) = PlainHead::of(head, bytes, *length)
        {
            self.bytes = bytes.get(*length..).unwrap_or_default().to_vec();
            return Some(Read::Plain(own, head.closes));
        }
        self.bytes = bytes.to_vec();
        let mut end = HeadEnd::default();
        let waits = matches!(parsed, Parsed::Partial)
            && end.find(bytes).is_none()
            && bytes.len() < MAX_HEAD;
        if !waits {
            return Some(Read::Other);
        }
        self.begun = Some(end);
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What there is to be done after all of these pieces, and what is held then.
    fn read<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (Option<Read>, Received) {
        let mut received = Received::default();
        for piece in pieces {
            let read = received.take(piece);
            let held = (received.bytes.len(), received.bytes.capacity());
            assert!(held.1 < held.0 + STEP, "{held:?}: length and room");
            if read.is_some() {
                return (read, received);
            }
        }
        (None, received)
    }

    fn told(read: &Option<Read>) -> String {
        match read {
            None => "more".to_owned(),
            Some(Read::Plain(head, closes)) => {
                format!("{} {} {closes}", head.verb(), head.target())
            }
            Some(Read::Other) => "other".to_owned(),
            Some(Read::End) => "end".to_owned(),
        }
    }

    fn head() -> impl Strategy<Value = String> {
        let field = prop_oneof![
            Just("Connection: close".to_owned()),
            Just("Content-Length: 3".to_owned()),
            "[A-Z]{1,5}: [ -~]{0,40}",
            (0_usize..12_000).prop_map(|length| format!("X: {}", "x".repeat(length))),
        ];
        let fields = prop::collection::vec(field, 0..5);
        let begin = prop_oneof![Just(""), Just("\r\n"), Just("\n")];
        (begin, "/[a-z]{0,9}", fields, any::<bool>()).prop_map(
            |(begin, target, fields, is_bare)| {
                let mut head = format!("{begin}GET {target} HTTP/1.1\r\nHost: a\r\n");
                let end = if is_bare { "\n" } else { "\r\n" };
                fields.iter().for_each(|field| head.extend([field, end]));
                head + end
            },
        )
    }

    proptest! {
        /// CONN-1: a head that comes in pieces is read as one that comes whole, and no more room is
        /// held for it than it needs.
        #[test]
        fn pieces_are_read_as_the_whole(
            head in head(),
            behind in "[ -~]{0,20}",
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        ) {
            prop_assume!(head.len() < MAX_HEAD);
            let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(head.len())).collect();
            cuts.extend([0, head.len()]);
            cuts.sort_unstable();
            let pieces = cuts.windows(2).map(|cut| &head.as_bytes()[cut[0]..cut[1]]);
            let whole = head.clone() + &behind;
            // What follows comes with the end.
            let mut pieces: Vec<_> = pieces.filter(|piece| !piece.is_empty()).collect();
            let last = pieces.pop().expect("a head is not empty").len();
            pieces.push(&whole.as_bytes()[head.len() - last..]);
            let (read, received) = read(pieces);
            let mut twin = Received::default();
            let expected = twin.look(whole.as_bytes());
            prop_assert_ne!(told(&read), "more");
            prop_assert_eq!(told(&read), told(&expected));
            prop_assert_eq!(received.bytes, twin.bytes);
        }
    }

    /// CONN-1: what has no end is hyper's to refuse once it is as long as a head may be.
    #[test]
    fn a_head_without_an_end_is_held_to_its_bound() {
        let field = [b"X: ".as_slice(), &[b'x'; 995], b"\r\n"].concat();
        let begin = b"GET / HTTP/1.1\r\n".as_slice();
        let (read, received) = read([begin].into_iter().chain(std::iter::repeat_n(&*field, 40)));
        assert_eq!(told(&read), "other");
        assert!((MAX_HEAD..MAX_HEAD + field.len()).contains(&received.bytes.len()));
    }
}
