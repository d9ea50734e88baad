//! How far the body of the current request has come.

use std::cell::Cell;

/// The reason why a client's body ended too early.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum BodyFault {
    /// Nothing.
    #[default]
    None,
    /// It passed `WAF_MAX_BODY_SIZE`.
    TooLarge,
    /// The client broke it off, or its framing is wrong.
    Client,
    /// Its chunks are so small that they are mostly framing.
    Framing,
}

/// Framing that a chunked body may have whatever its content is, and how many times its content
/// beyond that (CONN-9).
const FREE_FRAMING: u64 = 64 * 1024;
const MAX_FRAMING: u64 = 4;

/// Bytes of a body that a connection holds at most (CONN-1).
const MAX_HELD: u64 = 64 * 1024;

/// The body of the current request, or what the client sent through a tunnel.
#[derive(Debug, Default)]
pub struct Upload {
    bytes: Cell<u64>,
    /// Bytes that were announced; none where that is not known.
    announced: Cell<u64>,
    /// Bytes that its chunks were framed by.
    framing: Cell<u64>,
    fault: Cell<BodyFault>,
    unread: Cell<bool>,
}

impl Upload {
    /// Begins anew, for the next request.
    pub fn reset(&self) {
        self.bytes.set(0);
        self.announced.set(0);
        self.framing.set(0);
        self.fault.set(BodyFault::None);
        self.unread.set(false);
    }

    /// Bytes that came so far.
    pub const fn bytes(&self) -> u64 {
        self.bytes.get()
    }

    /// So many bytes are to come.
    pub fn announce(&self, bytes: u64) {
        self.announced.set(bytes);
    }

    /// Whether these bytes, the last of the client, are not the rest of what was announced. As much
    /// as a connection may hold was read, maybe, and is not counted yet.
    pub const fn lacks(&self, last: u64) -> bool {
        let come = self.bytes.get().saturating_add(last);
        self.announced.get() > come.saturating_add(MAX_HELD)
    }

    /// Counts bytes, if they do not pass the limit; false, and nothing counted, if they do.
    pub fn take(&self, bytes: usize, limit: Option<u64>) -> bool {
        let carried = self.bytes.get().saturating_add(bytes as u64);
        let fits = limit.is_none_or(|limit| carried <= limit);
        if fits {
            self.bytes.set(carried);
        } else {
            self.fault.set(BodyFault::TooLarge);
        }
        fits
    }

    /// So many bytes more were framing.
    pub fn add_framing(&self, bytes: usize) {
        let framing = self.framing.get().saturating_add(bytes as u64);
        self.framing.set(framing);
    }

    /// Whether the framing so far is not too much for what it holds: a small chunk costs what a
    /// large one does (CONN-9).
    pub fn framing_fits(&self) -> bool {
        let allowed = self.bytes.get().saturating_mul(MAX_FRAMING);
        let fits = self.framing.get().saturating_sub(FREE_FRAMING) <= allowed;
        if !fits {
            self.fault.set(BodyFault::Framing);
        }
        fits
    }

    /// The client broke its body off.
    pub fn broke_off(&self) {
        self.fault.set(BodyFault::Client);
    }

    /// The reason why the body ended too early.
    pub const fn fault(&self) -> BodyFault {
        self.fault.get()
    }

    /// Notes whether a part of the body is still to come. A close then lingers, so that the
    /// response is seen and not a reset.
    pub fn set_unread(&self, unread: bool) {
        self.unread.set(unread);
    }

    /// Whether a part of the body is still to come.
    pub const fn is_unread(&self) -> bool {
        self.unread.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// LIMIT-5: bytes up to the limit are counted, those that pass it are not.
    #[test]
    fn bytes_are_counted_up_to_the_limit() {
        let upload = Upload::default();
        assert!(upload.take(60, Some(100)) && upload.take(40, Some(100)));
        assert_eq!((upload.bytes(), upload.fault()), (100, BodyFault::None));
        assert!(!upload.take(1, Some(100)));
        assert_eq!((upload.bytes(), upload.fault()), (100, BodyFault::TooLarge));
        assert!(upload.take(1, None));
        assert_eq!(upload.bytes(), 101);
    }

    /// CONN-1: a body of which less came than was announced is known to be broken off, unless the
    /// rest may be held, or nothing was announced.
    #[test]
    fn a_body_that_ended_early_is_known() {
        let upload = Upload::default();
        assert!(!upload.lacks(0));
        upload.announce(200_000);
        assert!(upload.take(100_000, None));
        assert!(upload.lacks(100_000 - MAX_HELD - 1));
        assert!(!upload.lacks(100_000 - MAX_HELD));
        upload.reset();
        assert!(!upload.lacks(0));
    }

    /// CONN-9: chunks of one byte are ended, those of two are not; nor are few.
    #[test]
    fn chunks_that_are_mostly_framing_are_too_many() {
        let chunks = |size: usize, count: usize| {
            let upload = Upload::default();
            (0..count).all(|_| {
                upload.add_framing(format!("{size:x}").len() + 4);
                upload.take(size, None) && upload.framing_fits()
            })
        };
        assert!(chunks(1, 60_000));
        assert!(!chunks(1, 70_000));
        assert!(chunks(2, 1_000_000));
        assert!(chunks(65_536, 100));
    }

    /// Nothing of one request is said of the next.
    #[test]
    fn a_request_begins_anew() {
        let upload = Upload::default();
        upload.take(1, None);
        upload.broke_off();
        upload.set_unread(true);
        upload.reset();
        let found = (upload.bytes(), upload.fault(), upload.is_unread());
        assert_eq!(found, (0, BodyFault::None, false));
    }
}
