//! `GET /v1/settings`: every setting with its value and where that comes from (CONTROL-2).

use http::StatusCode;
use serde_json::{Value, json};
use weir_shared::handover::OwnResponse;
use weir_shared::settings::Listed;

use super::problem::json as json_answer;

/// The answer.
pub(crate) fn answer(listing: &[Listed]) -> OwnResponse {
    json_answer(StatusCode::OK, &settings_json(listing))
}

/// The settings as the answer and `weir settings --json` write them.
pub fn settings_json(listing: &[Listed]) -> Value {
    let one = |listed: &Listed| {
        json!({
            "name": listed.name,
            "group": listed.theme,
            "value": listed.value,
            "origin": listed.origin.name(),
            "secret": listed.secret,
            "unset": if listed.value.is_none() { Some(listed.unset) } else { None },
        })
    };
    json!({"settings": listing.iter().map(one).collect::<Vec<_>>()})
}
