//! What a refused client gets, as the settings say (BAN-6).

use http::StatusCode;
use weir_shared::settings::{BanResponse, BanSettings};

use crate::request::ladder::Refusal;

/// Status or closed connection of bans and denials.
#[derive(Clone, Copy, Debug)]
pub struct Responses {
    /// `WAF_BAN_RESPONSE`
    pub ban: BanResponse,
    /// `WAF_DENY_RESPONSE`
    pub deny: BanResponse,
}

impl Responses {
    /// Those of the settings.
    pub fn of(settings: &BanSettings) -> Self {
        Self {
            ban: settings.response,
            deny: settings.deny_response.unwrap_or(settings.response),
        }
    }

    /// What a refusal gets, and the milliseconds after which a retry makes sense. `can_ban` is
    /// whether a ban that it announces can be made.
    pub fn to(self, refusal: &Refusal, now_ms: u64, can_ban: bool) -> (BanResponse, Option<u64>) {
        match refusal {
            Refusal::RateLimited {
                ban: Some(expiry), ..
            } if can_ban => (self.ban, expiry.remaining_ms(now_ms)),
            Refusal::RateLimited { exceeded, .. } => (
                BanResponse::Status(StatusCode::TOO_MANY_REQUESTS),
                exceeded.fits_in_ms,
            ),
            // Nobody is to be shut out by the page of another site, neither is his connection
            // closed.
            Refusal::Trapped { bans: None, .. } => {
                (BanResponse::Status(StatusCode::TOO_MANY_REQUESTS), None)
            }
            Refusal::BodyTooLarge => (BanResponse::Status(StatusCode::PAYLOAD_TOO_LARGE), None),
            Refusal::DeniedRule(Some(answer)) => (*answer, None),
            of_client => self.to_client(of_client, now_ms),
        }
    }

    /// The same for what is refused whatever is asked for.
    pub fn to_client(self, refusal: &Refusal, now_ms: u64) -> (BanResponse, Option<u64>) {
        match refusal {
            Refusal::Banned(ban) => (self.ban, ban.expires.remaining_ms(now_ms)),
            _ => (self.deny, None),
        }
    }
}
