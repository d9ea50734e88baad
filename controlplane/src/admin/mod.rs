//! The endpoints under `/_waf/` (ADMIN-1..4): routes, tokens, and the queue to the control loop.
//!
//! [`Front`] runs on the data plane's threads after the ladder and never blocks: it answers what
//! needs no ledger at once and queues the rest. What the control loop makes of it lies in
//! `bans.rs`, `clients.rs` and `metrics.rs`; long answers are written by `answers.rs`.
//!
//! A route is known by its exact spelling only. Any other spelling of the same path is nothing of
//! ours and is 404, so that no rule of a cache or of a proxy in front can be walked around
//! (CHECK-1). `HEAD` is no method of these routes.

use std::net::IpAddr;
use std::sync::Arc;

use crossbeam_channel::{Sender, TrySendError};
use http::Method;
use percent_encoding::percent_decode_str;
use weir_schema::CatalogError;
use weir_shared::client::Client;
use weir_shared::handover::{Body, Handover, OwnRequest, OwnResponse, Respond, Step};
use weir_shared::path::{OWN_PREFIX, own_path_exact};
use weir_shared::settings::Settings;

use crate::bans::ledger::Order;

use bans::{Filter, Orders};
use problem::{Problem, of_metrics};
use token::{AdminTokenHolder, Token};

pub(crate) mod answers;
pub(crate) mod bans;
pub(crate) mod clients;
pub(crate) mod problem;
pub(crate) mod requests;
pub(crate) mod token;

/// The most bytes of a POST body that are read.
const MAX_BODY: usize = 64 * 1024;

/// What the data plane's threads know of the endpoints.
pub(crate) struct Front {
    metrics_token: Option<Token>,
    admin_token: Arc<AdminTokenHolder>,
    orders: Orders,
    /// Bounded; full is 503.
    queue: Sender<Request>,
}

/// A request for the control loop.
pub(crate) struct Request {
    /// What is asked.
    pub(crate) ask: Ask,
    /// For problem documents.
    pub(crate) request_id: String,
    /// To be called once.
    pub(crate) respond: Respond,
}

/// What the control loop can be asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Ask {
    /// `GET /_waf/metrics`
    Metrics,
    /// `GET /_waf/bans`
    List(Filter),
    /// `POST /_waf/bans`
    Ban(Order),
    /// `DELETE /_waf/bans/<address>`
    Lift(Client),
    /// `GET /_waf/clients/<address>`
    Client(Client),
}

/// What follows from a request alone.
enum Routed {
    Answer(OwnResponse),
    ReadBody,
    Ask(Ask),
}

impl Front {
    /// # Errors
    /// As [`Orders::new`].
    pub(crate) fn new(
        settings: &Settings,
        admin_token: Arc<AdminTokenHolder>,
        queue: Sender<Request>,
    ) -> Result<Self, CatalogError> {
        Ok(Self {
            metrics_token: settings.endpoints.metrics_token.as_ref().map(Token::of),
            admin_token,
            orders: Orders::new(
                settings.identity.trusted_proxies.clone(),
                settings.bans.prefixes,
            )?,
            queue,
        })
    }

    /// The function that the data plane calls.
    pub(crate) fn handover(self: Arc<Self>) -> Handover {
        Arc::new(move |request, respond| self.step(request, respond))
    }

    fn step(&self, request: OwnRequest, respond: Respond) -> Step {
        let ask = match self.route(&request) {
            Routed::Answer(answer) => return Step::Done(answer),
            Routed::ReadBody => return Step::ReadBody { limit: MAX_BODY },
            Routed::Ask(ask) => ask,
        };
        let request = Request {
            ask,
            request_id: request.request_id,
            respond,
        };
        match self.queue.try_send(request) {
            Ok(()) => Step::Later,
            Err(TrySendError::Full(request) | TrySendError::Disconnected(request)) => {
                let busy = Problem::Busy.answer(&request.request_id);
                Step::Done(match request.ask {
                    Ask::Metrics => of_metrics(busy),
                    Ask::List(_) | Ask::Ban(_) | Ask::Lift(_) | Ask::Client(_) => busy,
                })
            }
        }
    }

    /// Every route. The order is: does the path exist, is the token right, is the method, is the
    /// rest.
    fn route(&self, request: &OwnRequest) -> Routed {
        let id = request.request_id.as_str();
        let wrong = |problem: Problem| Routed::Answer(problem.answer(id));
        let rest = request.path.strip_prefix(OWN_PREFIX).unwrap_or_default();
        match rest {
            "metrics" => match self.metrics(request) {
                Ok(ask) => Routed::Ask(ask),
                Err(problem) => Routed::Answer(of_metrics(problem.answer(id))),
            },
            // GET and HEAD were answered before the ladder.
            "health" => wrong(Problem::MethodNotAllowed { allow: "GET, HEAD" }),
            "bans" => match self.bans(request) {
                Ok(routed) => routed,
                Err(problem) => wrong(problem),
            },
            _ => match self.one_address(request, rest) {
                Ok(ask) => Routed::Ask(ask),
                Err(problem) => wrong(problem),
            },
        }
    }

    fn metrics(&self, request: &OwnRequest) -> Result<Ask, Problem> {
        allow(self.metrics_token, request)?;
        match request.method {
            Method::GET => Ok(Ask::Metrics),
            _ => Err(Problem::MethodNotAllowed { allow: "GET" }),
        }
    }

    fn bans(&self, request: &OwnRequest) -> Result<Routed, Problem> {
        allow(self.admin_token.current(), request)?;
        match request.method {
            Method::GET => filter(request.query.as_deref().unwrap_or_default())
                .map(|filter| Routed::Ask(Ask::List(filter))),
            Method::POST => match &request.body {
                None => Ok(Routed::ReadBody),
                Some(Body::TooLarge) => Err(Problem::TooLarge { limit: MAX_BODY }),
                // The limit is asked of the data plane; it is not left to it alone.
                Some(Body::Whole(body)) if body.len() > MAX_BODY => {
                    Err(Problem::TooLarge { limit: MAX_BODY })
                }
                Some(Body::Whole(body)) => self
                    .orders
                    .read(body)
                    .map(|order| Routed::Ask(Ask::Ban(order))),
            },
            _ => Err(Problem::MethodNotAllowed { allow: "GET, POST" }),
        }
    }

    /// `bans/<address>` and `clients/<address>`.
    fn one_address(&self, request: &OwnRequest, rest: &str) -> Result<Ask, Problem> {
        let (list, address) = rest.split_once('/').ok_or(Problem::NotFound)?;
        let canonical = !address.is_empty() && own_path_exact(&request.path);
        if !canonical || !matches!(list, "bans" | "clients") {
            return Err(Problem::NotFound);
        }
        allow(self.admin_token.current(), request)?;
        match (list, &request.method) {
            ("bans", &Method::DELETE) => client_of(address).map(Ask::Lift),
            ("clients", &Method::GET) => client_of(address).map(Ask::Client),
            ("bans", _) => Err(Problem::MethodNotAllowed { allow: "DELETE" }),
            _ => Err(Problem::MethodNotAllowed { allow: "GET" }),
        }
    }
}

/// Lets a request with the right token through. No token set: the endpoint does not exist
/// (ADMIN-1).
fn allow(token: Option<Token>, request: &OwnRequest) -> Result<(), Problem> {
    match token {
        None => Err(Problem::NotFound),
        Some(token) if token.is_in(request.authorization.as_ref()) => Ok(()),
        Some(_) => Err(Problem::Unauthorized),
    }
}

/// The client of an address in a path or a query, percent-encoded or not.
fn client_of(text: &str) -> Result<Client, Problem> {
    let wrong = |text: &str| {
        Problem::BadRequest(format!(
            "{text:?} is not an address: one IPv4 or IPv6 address is allowed, no netblock and no zone"
        ))
    };
    let decoded = percent_decode_str(text)
        .decode_utf8()
        .map_err(|_| wrong(text))?;
    decoded
        .parse::<IpAddr>()
        .map(Client::of)
        .map_err(|_| wrong(&decoded))
}

/// Reads the query of `GET /_waf/bans`. Parameters of other names are left aside, as everywhere on
/// the web.
fn filter(query: &str) -> Result<Filter, Problem> {
    let mut filter = Filter::default();
    for pair in query.split('&') {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let twice = match name {
            "active" => {
                let active = match value {
                    "true" => true,
                    "false" => false,
                    _ => {
                        return Err(Problem::BadRequest(format!(
                            "active={value:?} is not understood: true or false is allowed"
                        )));
                    }
                };
                filter.active.replace(active).is_some()
            }
            "ip" => filter.client.replace(client_of(value)?).is_some(),
            _ => false,
        };
        if twice {
            return Err(Problem::BadRequest(format!("{name} is given twice")));
        }
    }
    Ok(filter)
}

#[cfg(test)]
mod tests;
