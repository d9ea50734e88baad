//! How much of a response reached the client's socket. The request is charged and logged with what
//! was written, when the last piece has been written or is thrown away (CONN-5).

use std::cell::Cell;
use std::rc::Rc;

use bytes::{Buf, Bytes};
use weir_shared::verdict::Action;

use crate::exchange::Exchange;

/// A request whose response is on its way. Whoever may still add to it holds it: the body while
/// more is to come, and each piece until it is written. With the last of them it is finished.
pub struct Delivery {
    /// None once finished.
    exchange: Option<Box<Exchange>>,
    /// How the body ended.
    action: Cell<Action>,
    /// Bytes of content that were given to hyper.
    given: Cell<u64>,
    /// Those of them that the socket took.
    written: Cell<u64>,
}

impl Delivery {
    /// Nothing was given yet. A body that is dropped before its end is a client that went away, or
    /// whose connection was cut.
    pub fn new(exchange: Box<Exchange>) -> Rc<Self> {
        Rc::new(Self {
            exchange: Some(exchange),
            action: Cell::new(Action::ClientAborted),
            given: Cell::new(0),
            written: Cell::new(0),
        })
    }

    /// The request, while it is under way.
    pub fn exchange(&self) -> Option<&Exchange> {
        self.exchange.as_deref()
    }

    /// Content for the client.
    pub fn piece(self: &Rc<Self>, content: Bytes) -> Piece {
        let length = content.len() as u64;
        self.given.set(self.given.get() + length);
        // A short answer is counted before the client can see it: whoever has read it finds it
        // counted.
        let is_certain = |exchange: &Exchange| exchange.downstream.takes(self.given.get());
        if self.exchange().is_some_and(is_certain) {
            self.wrote(length);
            return Piece::uncounted(content);
        }
        Piece {
            content,
            delivery: Some(Rc::clone(self)),
        }
    }

    /// The body has ended so: the next request is awaited.
    pub fn end(&self, action: Action) {
        self.action.set(action);
        if let Some(exchange) = self.exchange() {
            exchange.release_connection();
        }
    }

    /// Content that was given, and not written yet.
    pub fn unwritten(&self) -> u64 {
        self.given.get().saturating_sub(self.written.get())
    }

    fn wrote(&self, bytes: u64) {
        self.written.set(self.written.get() + bytes);
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        let Some(mut exchange) = self.exchange.take() else {
            return;
        };
        let written = self.written.get();
        exchange.response_bytes = written;
        exchange.finish(match self.action.get() {
            Action::Passed if written < self.given.get() => Action::ClientAborted,
            action => action,
        });
    }
}

/// A piece of a response in hyper's hands, which counts what is taken of it.
pub struct Piece {
    content: Bytes,
    /// None where nothing is counted.
    delivery: Option<Rc<Delivery>>,
}

impl Piece {
    /// A piece of a response that is counted elsewhere.
    pub const fn uncounted(content: Bytes) -> Self {
        Self {
            content,
            delivery: None,
        }
    }
}

impl Piece {
    /// Whether what is taken of it is counted.
    pub const fn is_counted(&self) -> bool {
        self.delivery.is_some()
    }

    /// Takes so much off it, to be counted by what is returned; by nothing, if it is not counted.
    pub fn advance_untold(&mut self, count: usize) -> Option<Untold> {
        self.content.advance(count);
        let delivery = Rc::clone(self.delivery.as_ref()?);
        Some(Untold {
            delivery,
            bytes: count as u64,
        })
    }
}

/// Content that is on its way to the socket. Dropped, it did not get there.
pub struct Untold {
    delivery: Rc<Delivery>,
    bytes: u64,
}

impl Untold {
    /// The socket has it.
    pub fn tell(self) {
        self.delivery.wrote(self.bytes);
    }
}

impl Buf for Piece {
    fn remaining(&self) -> usize {
        self.content.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.content
    }

    fn advance(&mut self, count: usize) {
        self.content.advance(count);
        if let Some(delivery) = &self.delivery {
            delivery.wrote(count as u64);
        }
    }
}
