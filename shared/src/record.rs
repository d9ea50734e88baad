//! One request, as plain data for the log writer. Nothing is formatted on the request path (LOG).

use std::net::IpAddr;
use std::sync::Arc;

use http::request::Parts;
use http::{HeaderValue, StatusCode};

use crate::client::Client;
use crate::lookup::Lookup;
use crate::verdict::{Action, Group, LimitKind};

/// Everything the request log line may name. Absent members are `None`.
#[derive(Debug)]
pub struct Record {
    /// When the head was read, milliseconds since 1970.
    pub at_ms: u64,
    /// `request_id`
    pub request_id: HeaderValue,
    /// Who limits and bans are charged to.
    pub client: Client,
    /// The full address.
    pub address: IpAddr,
    /// Which list the client stands on.
    pub group: Group,
    /// The request's head as the client sent it.
    pub head: Parts,
    /// `X-Forwarded-For` as it arrived, whether believed or not.
    pub forwarded_for: Option<HeaderValue>,
    /// `http` or `https`, as the trusted proxy said.
    pub scheme: &'static str,
    /// Whether a WebSocket was asked for.
    pub websocket: bool,
    /// Status sent; none where the connection was dropped unanswered.
    pub status: Option<StatusCode>,
    /// From the answer.
    pub response_content_type: Option<HeaderValue>,
    /// From the answer.
    pub cache_control: Option<HeaderValue>,
    /// From the answer.
    pub location: Option<HeaderValue>,
    /// How it ended.
    pub action: Action,
    /// False where observe mode let through what enforce mode would have refused.
    pub enforced: bool,
    /// The limit it broke.
    pub limit_hit: Option<LimitKind>,
    /// The percentage of request limits and the setting it came from, where one was applied.
    pub limit_percent: Option<(u8, &'static str)>,
    /// The same for byte limits.
    pub bytes_percent: Option<(u8, &'static str)>,
    /// What was known of the client.
    pub lookup: Option<Arc<Lookup>>,
    /// Estimates in the order of [`LimitKind::ALL`], the request included; none where nothing was counted.
    pub counts: Option<[u64; 6]>,
    /// Body or WebSocket bytes from the client.
    pub request_bytes: u64,
    /// Body or WebSocket bytes to the client.
    pub response_bytes: u64,
    /// From the head to the end, microseconds.
    pub total_us: u64,
    /// Waited for the lookup, microseconds.
    pub lookup_wait_us: Option<u64>,
    /// Connecting upstream, microseconds; none on a pooled connection.
    pub connect_us: Option<u64>,
    /// From the head to the first byte of the application's answer, microseconds.
    pub first_byte_us: Option<u64>,
}

/// Records travel in batches; a batch is what one worker gathered since its last send.
pub type Batch = Vec<Record>;
