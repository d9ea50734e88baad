//! Scopes, whose requests are counted together, and measures, what is counted.

use weir_shared::client::Client;
use weir_shared::lookup::AsNumber;
use weir_shared::netblock::Netblock;
use weir_shared::settings::Thresholds;
use weir_shared::window::Span;

/// The clients whose requests are counted together.
#[derive(
    Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, serde::Serialize, serde::Deserialize,
)]
pub enum Scope {
    /// One client.
    Client(Client),
    /// The netblock of a client, as a ban would mask it.
    Net(Netblock),
    /// One AS number.
    Asn(u32),
    /// Everybody.
    Total,
    /// A netblock of `WAF_WATCH_NETS`.
    Watch(Netblock),
}

impl Scope {
    /// `client`, `net`, `asn`, `total`, `watch`.
    pub const fn kind(self) -> &'static str {
        match self {
            Self::Client(_) => "client",
            Self::Net(_) => "net",
            Self::Asn(_) => "asn",
            Self::Total => "total",
            Self::Watch(_) => "watch",
        }
    }

    /// Which client, netblock or AS number; none for everybody.
    pub fn of(self) -> Option<String> {
        match self {
            Self::Client(client) => Some(client.to_string()),
            Self::Net(netblock) | Self::Watch(netblock) => Some(netblock.to_string()),
            Self::Asn(number) => Some(format!("AS{number}")),
            Self::Total => None,
        }
    }

    /// Parses a scope from its [`Scope::kind`] and [`Scope::of`].
    ///
    /// # Errors
    /// One sentence.
    pub fn read(kind: &str, of: Option<&str>) -> Result<Self, String> {
        let some = || of.ok_or_else(|| format!("a scope \"{kind}\" needs the member \"of\""));
        Ok(match kind {
            "client" => Self::Client(some()?.parse().map_err(|error| format!("{error}"))?),
            "net" => Self::Net(some()?.parse().map_err(|error| format!("{error}"))?),
            "watch" => Self::Watch(some()?.parse().map_err(|error| format!("{error}"))?),
            "asn" => {
                let text = some()?;
                let number = text
                    .strip_prefix("AS")
                    .and_then(|digits| AsNumber::parse_named(digits).ok()?.0)
                    .ok_or_else(|| {
                        format!("{text:?} is not an AS number: expected one such as AS64496")
                    })?;
                Self::Asn(number.number())
            }
            "total" => Self::Total,
            _ => {
                return Err(format!(
                    "{kind:?} is not a scope: expected client, net, asn, total or watch"
                ));
            }
        })
    }
}

/// What is counted, and over which time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Measure {
    /// Requests in a minute.
    RequestsPerMinute,
    /// Requests in an hour.
    RequestsPerHour,
    /// Bytes in a minute.
    BytesPerMinute,
    /// Bytes in an hour.
    BytesPerHour,
}

impl Measure {
    /// Every measure, in the order of [`super::Counter::windows`].
    pub const ALL: [Self; 4] = [
        Self::RequestsPerMinute,
        Self::RequestsPerHour,
        Self::BytesPerMinute,
        Self::BytesPerHour,
    ];

    /// The name in alerts and in alerts.json.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RequestsPerMinute => "requests_per_minute",
            Self::RequestsPerHour => "requests_per_hour",
            Self::BytesPerMinute => "bytes_per_minute",
            Self::BytesPerHour => "bytes_per_hour",
        }
    }

    /// The window's length.
    pub const fn span(self) -> Span {
        match self {
            Self::RequestsPerMinute | Self::BytesPerMinute => Span::Minute,
            Self::RequestsPerHour | Self::BytesPerHour => Span::Hour,
        }
    }

    pub(super) const fn threshold(self, thresholds: &Thresholds) -> Option<u64> {
        let [requests_minute, requests_hour] = thresholds.requests;
        let [bytes_minute, bytes_hour] = thresholds.bytes;
        match self {
            Self::RequestsPerMinute => requests_minute,
            Self::RequestsPerHour => requests_hour,
            Self::BytesPerMinute => bytes_minute,
            Self::BytesPerHour => bytes_hour,
        }
    }

    pub(super) const fn amount(self, bytes: u64) -> u64 {
        match self {
            Self::RequestsPerMinute | Self::RequestsPerHour => 1,
            Self::BytesPerMinute | Self::BytesPerHour => bytes,
        }
    }
}
