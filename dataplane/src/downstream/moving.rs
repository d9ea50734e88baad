//! What goes to the client past hyper: bytes of a response that are moved inside the system, and a
//! head that never was a map of fields.

use super::Downstream;
use crate::http1::response::HeadText;
use crate::pipe::Pipe;

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

    /// Whether bytes that were moved are still to be written. If so, the connection's task is woken
    /// once they are.
    pub fn must_drain(&self) -> bool {
        let must = self.pipe.borrow().is_some();
        self.wants_room.set(must);
        must
    }

    /// Whether an encrypted connection is to take what it has before it gets more: what waits there
    /// is held twice, as it came and encrypted (CONN-1). If so, its task is woken once some of it
    /// was taken.
    pub fn must_take(&self) -> bool {
        let must = self.is_tls() && self.is_write_waiting();
        self.wants_room.set(must);
        must
    }

    /// There is room again: wakes the task where that is waited for.
    pub(super) fn has_room(&self) {
        if self.wants_room.take() {
            self.wake();
        }
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
