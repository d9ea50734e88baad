//! The entries by which admin requests arrive.

use http::Method;
use weir_shared::handover::OwnRequest;
use weir_shared::path::OWN_PREFIX;

use super::problem::Problem;

/// The entry by which a request arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Door {
    /// The public port, after the ladder.
    Public,
    /// `WAF_ADMIN_LISTEN`
    Admin,
    /// The control socket. Its peers need no token: the system tells their uid.
    Socket,
}

impl Door {
    /// The prefix of its routes.
    pub(crate) const fn prefix(self) -> &'static str {
        match self {
            Self::Public => OWN_PREFIX,
            Self::Admin | Self::Socket => "/v1/",
        }
    }
}

/// Refuses any method but GET.
pub(super) fn only_get(request: &OwnRequest) -> Result<(), Problem> {
    match request.method {
        Method::GET => Ok(()),
        _ => Err(Problem::MethodNotAllowed { allow: "GET" }),
    }
}
