//! `GET /v1/settings`: every setting with its value and the source of the value (CONTROL-2).

use http::StatusCode;
use weir_shared::api::settings::SettingList;
use weir_shared::handover::OwnResponse;
use weir_shared::settings::Listed;

use super::problem::json as json_answer;

/// The answer.
pub(crate) fn answer(listing: &[Listed]) -> OwnResponse {
    json_answer(StatusCode::OK, &SettingList::from(listing))
}
