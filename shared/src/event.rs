//! What the data plane reports upward, by value.

use crate::ban::RequestNote;
use crate::client::Client;
use crate::verdict::LimitKind;

/// A client broke a limit; its own bounded channel, so that log traffic never pushes a ban out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Break {
    /// Who broke it.
    pub client: Client,
    /// Which limit.
    pub limit: LimitKind,
    /// Its value after the percentage, requests or bytes.
    pub limit_value: u64,
    /// The percentage applied, 0 to 100.
    pub limit_percent: u8,
    /// When, milliseconds since 1970.
    pub at_ms: u64,
    /// The request.
    pub request: RequestNote,
}
