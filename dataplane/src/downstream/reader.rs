//! Who reads the body of the current request from the client's socket: hyper, or who sends it on.

use std::cell::{Cell, RefCell};

use crate::client_body::ClientBody;

/// Who reads it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Who {
    /// hyper reads all there is.
    #[default]
    Hyper,
    /// hyper hands over what it has.
    Changing,
    /// hyper has nothing left, and reads nothing.
    Sender,
}

/// Who reads the body of the current request.
#[derive(Default)]
pub struct Reader {
    who: Cell<Who>,
    /// hyper's half of a body that was read to its end past it. Dropped before the response is
    /// written, it would have hyper close the connection.
    parked: RefCell<Option<ClientBody>>,
}

impl Reader {
    /// hyper has the connection anew.
    pub fn reset(&self) {
        self.who.set(Who::Hyper);
        drop(self.parked.take());
    }

    /// Whether a request's body was read past hyper: its connection takes no other.
    pub const fn is_past_hyper(&self) -> bool {
        matches!(self.who.get(), Who::Sender)
    }

    /// hyper is to hand over what it has, and to read nothing more.
    pub fn change(&self) {
        self.who.set(Who::Changing);
    }

    /// hyper reads on, if it has not been kept from reading yet. If it has, it would take what
    /// comes for what stands at another place of the body.
    pub fn keep(&self) {
        if self.who.get() == Who::Changing {
            self.who.set(Who::Hyper);
        }
    }

    /// hyper asks for more, and so has nothing left: true if that was waited for.
    pub fn has_changed(&self) -> bool {
        let changes = self.who.get() == Who::Changing;
        if changes {
            self.who.set(Who::Sender);
        }
        changes
    }

    /// Keeps hyper's half of a body that has ended until the response is written.
    pub fn park(&self, incoming: ClientBody) {
        *self.parked.borrow_mut() = Some(incoming);
    }

    /// Whether a body was read to its end past hyper.
    pub fn has_parked(&self) -> bool {
        self.parked.borrow().is_some()
    }
}
