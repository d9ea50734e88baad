//! The ways in.

use http::Method;
use weir_shared::handover::OwnRequest;
use weir_shared::path::OWN_PREFIX;

use super::problem::Problem;

/// Where a request came in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Door {
    /// The public port, after the ladder.
    Public,
    /// `WAF_ADMIN_LISTEN`
    Admin,
    /// The control socket. Who speaks there needs no token: the system says who it is.
    Socket,
}

impl Door {
    /// What the paths of its routes begin with.
    pub(crate) const fn prefix(self) -> &'static str {
        match self {
            Self::Public => OWN_PREFIX,
            Self::Admin | Self::Socket => "/v1/",
        }
    }
}

/// Refuses what is no GET.
pub(super) fn only_get(request: &OwnRequest) -> Result<(), Problem> {
    match request.method {
        Method::GET => Ok(()),
        _ => Err(Problem::MethodNotAllowed { allow: "GET" }),
    }
}
