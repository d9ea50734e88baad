//! What the data plane reports upward, by value.

use std::net::IpAddr;
use std::sync::Arc;

use crate::ban::RequestNote;
use crate::client::Client;
use crate::lookup::Lookup;
use crate::verdict::LimitKind;

/// A request that ended, for the anomaly counters; reported only while one of their thresholds is
/// set (ALERT-1). They travel in batches, and are counted at the time they are taken: at most a
/// tick of both planes later.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finished {
    /// The full address of its client: a watched netblock may be narrower than an IPv6 client.
    pub address: IpAddr,
    /// What the lookup knew when the request ended.
    pub lookup: Option<Arc<Lookup>>,
    /// Body or WebSocket bytes, both ways.
    pub bytes: u64,
}

/// A limit that a client exceeded; its own bounded channel, so that log traffic never pushes a ban
/// out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LimitExceeded {
    /// Who exceeded it.
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
