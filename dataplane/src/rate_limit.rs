//! The `RateLimit` fields of a response (LIMIT-8).

use std::fmt::Write as _;

use http::{HeaderMap, HeaderName, HeaderValue};
use weir_shared::units::retry_after_seconds;
use weir_shared::verdict::{Counts, LimitKind, Limits};

const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// `RateLimit-Policy` and `RateLimit` (draft-ietf-httpapi-ratelimit-headers) for every limit that
/// is on.
///
/// The reset time `t` is that of the current bucket: what is left then is known for certain.
pub fn add_fields(headers: &mut HeaderMap, limits: &Limits, counts: &Counts, wall_ms: u64) {
    let (mut policy, mut state) = (String::new(), String::new());
    for kind in LimitKind::ALL {
        let (Some(limit), count) = (*limits.get(kind), *counts.get(kind)) else {
            continue;
        };
        let comma = if policy.is_empty() { "" } else { ", " };
        let span_ms = kind.span().ms();
        let unit = if kind.counts_bytes() {
            ";qu=\"content-bytes\""
        } else {
            ""
        };
        let window = span_ms / 1000;
        let reset = retry_after_seconds(span_ms - wall_ms % span_ms);
        let name = kind.name();
        let remaining = limit.saturating_sub(count);
        // Writing to a String does not fail.
        let _ = write!(policy, "{comma}\"{name}\";q={limit}{unit};w={window}");
        let _ = write!(state, "{comma}\"{name}\";r={remaining};t={reset}");
    }
    if policy.is_empty() {
        return;
    }
    for (name, value) in [(RATE_LIMIT_POLICY, policy), (RATE_LIMIT, state)] {
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.insert(name, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// LIMIT-8: the fields name every limit that is on, its unit, what remains and when.
    #[test]
    fn rate_limit_fields_name_what_is_on() {
        let limits = Limits {
            requests: [Some(1000), None, None].into(),
            bytes: [Some(500), None, None].into(),
        };
        let counts = Counts {
            requests: [1001, 0, 0].into(),
            bytes: [20, 0, 0].into(),
        };
        let mut headers = HeaderMap::new();
        add_fields(&mut headers, &limits, &counts, 1_795_276_800_000 + 18_500);
        assert_eq!(
            headers[RATE_LIMIT_POLICY],
            r#""minute";q=1000;w=60, "minute_bytes";q=500;qu="content-bytes";w=60"#
        );
        assert_eq!(
            headers[RATE_LIMIT],
            r#""minute";r=0;t=42, "minute_bytes";r=480;t=42"#
        );
        let mut none = HeaderMap::new();
        add_fields(&mut none, &Limits::default(), &Counts::default(), 0);
        assert!(none.is_empty());
    }
}
