//! Why a request is refused, and the words for it.

use weir_shared::ban::{Expiry, Scope};
use weir_shared::snapshot::ActiveBan;
use weir_shared::verdict::Action;

use crate::clients::entry::Exceeded;

/// Why a request is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// `WAF_DENY_NETS`
    DeniedNet,
    /// `WAF_ALLOW_COUNTRIES` or `WAF_DENY_COUNTRIES`
    DeniedCountry,
    /// An active ban.
    Banned(ActiveBan),
    /// An exceeded limit.
    RateLimited {
        /// Which.
        exceeded: Exceeded,
        /// The end of the ban that follows; none where no ban can be made.
        ban: Option<Expiry>,
    },
    /// A path of a trap (RULE-3).
    Trapped {
        /// What a ban covers by the rule; none where the page of another site asked, and no ban
        /// follows (RULE-8).
        bans: Option<Scope>,
        /// Whether nobody was told of an offence of this client yet.
        first: bool,
        /// The end of the ban that follows; none where no ban can be made.
        ban: Option<Expiry>,
    },
    /// `Content-Length` over `WAF_MAX_BODY_SIZE`.
    BodyTooLarge,
}

impl Refusal {
    /// Whether it stands for whatever the client asks for.
    pub const fn is_of_the_client(self) -> bool {
        match self {
            Self::DeniedNet | Self::DeniedCountry | Self::Banned(_) => true,
            Self::RateLimited { .. } | Self::Trapped { .. } | Self::BodyTooLarge => false,
        }
    }

    /// Whether it is a matter of time (TELL-1).
    pub const fn waits(self) -> bool {
        match self {
            Self::Banned(_) | Self::RateLimited { .. } => true,
            Self::DeniedNet | Self::DeniedCountry | Self::Trapped { .. } | Self::BodyTooLarge => {
                false
            }
        }
    }

    /// The action that the log, the metrics and the history are told.
    pub const fn action(self) -> Action {
        match self {
            Self::DeniedNet => Action::DeniedNet,
            Self::DeniedCountry => Action::DeniedCountry,
            Self::Banned(_) => Action::Banned,
            Self::RateLimited { .. } => Action::RateLimited,
            Self::Trapped { .. } => Action::Trapped,
            Self::BodyTooLarge => Action::BodyTooLarge,
        }
    }
}
