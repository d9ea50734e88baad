//! The peer of a connection, as its requests ask about it: whether what it says of clients is
//! believed under their settings.

use super::{Arrival, Downstream};
use crate::identity::Sender;
use crate::in_force::InForce;

impl Downstream {
    /// Whether what the peer says of clients is believed: it lies in `WAF_TRUSTED_PROXIES`, or came
    /// over a Unix socket.
    pub const fn trusted(&self) -> bool {
        self.trusted.get()
    }

    /// The peer, as the sender of a request.
    pub fn sender(&self) -> Sender {
        self.arrival().sender()
    }

    /// Where it came from, as it stands now.
    pub(super) fn arrival(&self) -> Arrival {
        Arrival {
            peer: self.peer,
            peer_is: self.peer_is,
            trusted: self.trusted(),
            scheme: self.scheme,
        }
    }

    /// The next request has these settings.
    pub fn take_settings(&self, settings: &InForce) {
        if self.settings.replace(settings.id) != settings.id {
            let identity = &settings.settings.identity;
            self.trusted.set(self.peer_is.trusted(self.peer, identity));
            self.deadlines.set_timeouts(settings.timeouts);
        }
    }
}
