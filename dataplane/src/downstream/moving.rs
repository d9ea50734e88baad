//! What goes to the client past hyper: bytes of a response that are moved inside the system, and a
//! head that never was a map of fields.

use super::Downstream;
use crate::http1::response::HeadText;
use crate::pipe::Pipe;

/// Pieces of a body that are smaller than this together are written together.
const LITTLE: u64 = 4 * 1024;

impl Downstream {
    /// From now on bytes of a response may be moved to the socket inside the system. True only of a
    /// connection that carries one response at a time, as it is: not over TLS.
    pub fn allow_moving(&self) {
        self.moves.set(!self.is_tls());
    }

    /// Whether bytes of a response may be moved to the socket.
    pub const fn can_move(&self) -> bool {
        self.moves.get()
    }

    /// Whether hyper is to write what it has of a body before it gets more (CONN-1): bytes that
    /// were moved, or so many that were read. If so, the connection's task is woken once it wrote
    /// some.
    pub fn must_write_first(&self, unwritten: u64) -> bool {
        let must = self.has_moved() || unwritten >= LITTLE && !self.is_stream();
        self.wants_room.set(must);
        must
    }

    /// Some was written: wakes the task where that is waited for.
    pub(super) fn wake_for_more(&self) {
        if self.wants_room.get() && !self.has_moved() {
            self.wants_room.set(false);
            self.wake();
        }
    }

    fn has_moved(&self) -> bool {
        self.pipe.borrow().is_some()
    }

    /// Has these bytes written in the place of their placeholder, which hyper is given next.
    pub fn put_pipe(&self, pipe: Pipe) {
        *self.pipe.borrow_mut() = Some(pipe);
    }

    /// Has the head of the response written as this text.
    pub fn put_head(&self, text: HeadText) {
        *self.head.borrow_mut() = Some(text);
    }

    /// The text of the response's head, if it is one.
    pub fn take_head(&self) -> Option<HeadText> {
        self.head.borrow_mut().take()
    }
}
