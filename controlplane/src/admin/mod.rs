//! Operators' requests (ADMIN-1..4, CONTROL-2): routes, tokens, the queue to the control loop.
//!
//! There is one [`Router`] for every [`Door`]: the public port under `/_waf/`, where it runs on the
//! data plane's threads after the ladder, and the control socket and the admin listener under
//! `/v1/`. The router never blocks: it answers requests that need no ledger at once, and queues the
//! others for the control loop. `bans.rs`, `clients.rs`, `status.rs` make the answers; `answers.rs`
//! writes long ones.
//!
//! A route matches its exact spelling only. Any other spelling of the same path is 404, so that it
//! cannot bypass a rule of a cache or proxy in front (CHECK-1). These routes have no `HEAD`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::{ArcSwap, ArcSwapOption};
use crossbeam_channel::{Sender, TrySendError};
use http::Method;
use weir_shared::client::Client;
use weir_shared::handover::{Body, Handover, OwnRequest, OwnResponse, Respond, Step};
use weir_shared::path::own_path_exact;
use weir_shared::reload::{Part, Reloaded, Take};
use weir_shared::settings::Listed;
use weir_shared::spared::Spared;

use crate::bans::Subject;
use crate::bans::feed::Cursor;
use crate::bans::ledger::AdminBan;
use crate::bans::ledger::import::Batch;
use crate::feeds::handle::FeedsHandle;
use crate::process::Asking;
use crate::rules::{Change, RulesOrders};

use bans::{Filter, OrderReader};
use body::no_long_body;
use clients::Most;
use door::{Door, only_get};
use explain::Asked;
use feeds::FeedRoute;
use groups::By;
use import::{Judged, MAX_IMPORT};
use lists::ListReader;
use problem::{Problem, of_metrics};
use process::ProcessRoute;
use query::{by, client_of, cursor, filter, minutes, most, only, question, subject_of};
use token::{Token, Tokens, allow};

pub(crate) mod answers;
pub(crate) mod bans;
mod body;
pub(crate) mod clients;
pub(crate) mod door;
pub(crate) mod explain;
mod feeds;
pub(crate) mod groups;
pub(crate) mod import;
mod lists;
pub(crate) mod problem;
pub(crate) mod process;
mod query;
pub(crate) mod requests;
pub(crate) mod settings;
pub(crate) mod status;
pub(crate) mod token;

/// The most bytes of a POST body, except of an import.
pub(crate) const MAX_BODY: usize = 64 * 1024;

/// Routes requests, and answers those that need no control loop.
pub(crate) struct Router {
    /// A reload may replace the tokens while requests read them.
    metrics_token: ArcSwapOption<Token>,
    admin_token: ArcSwapOption<Token>,
    read_token: ArcSwapOption<Token>,
    orders: OrderReader,
    lists: ListReader,
    /// The queues of the thread of rules.json and of that of its feeds.
    rules: RulesOrders,
    feeds: FeedsHandle,
    /// The answer of `/v1/settings`.
    listing: ArcSwap<Arc<[Listed]>>,
    /// The queue of the process, for reloads and hand-overs.
    process: Asking,
    /// True once a stop was asked for: health then answers 503.
    stopping: AtomicBool,
    /// The bounded queue of the control loop; if it is full, the answer is 503.
    queue: Sender<Request>,
}

/// A request for the control loop.
pub(crate) struct Request {
    /// The question.
    pub(crate) ask: Ask,
    /// The id of the request, for problem documents.
    pub(crate) request_id: String,
    /// The entry by which it arrived.
    pub(crate) door: Door,
    /// Sends the answer; called once.
    pub(crate) respond: Respond,
}

/// A question to the control loop.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Ask {
    /// `GET metrics`
    Metrics,
    /// `GET bans`
    List(Filter),
    /// `POST bans`
    Ban(AdminBan),
    /// `DELETE bans/<address>`; not on the public port, `DELETE bans/<netblock>`
    Lift(Subject),
    /// `GET clients/<address>`
    Client(Client),
    /// `GET clients`, or `GET groups` of them; not on the public port
    Clients(Option<By>, Most),
    /// `GET status`; not on the public port
    Status,
    /// `GET history`, with the most minutes; not on the public port
    History(usize),
    /// `GET alerts`; not on the public port
    Alerts,
    /// `GET fleet`; not on the public port
    Fleet,
    /// `GET explain`; not on the public port
    Explain(Asked),
    /// `POST bans/import`; not on the public port
    Import(Box<Batch>),
}

/// An endless answer.
pub(crate) enum Streamed {
    /// `GET events`
    Events,
    /// `GET bans/stream`, from a cursor or from now on
    Bans(Option<Cursor>),
}

/// The result of routing a request.
enum Routed {
    Answer(OwnResponse),
    ReadBody(usize),
    Ask(Ask),
    Change(Change),
    Feed(FeedRoute),
    Process(ProcessRoute),
}

impl Router {
    pub(crate) fn new(
        reloaded: &Reloaded,
        tokens: Tokens,
        spared: Arc<Spared>,
        (rules, feeds): (RulesOrders, FeedsHandle),
        process: Asking,
        queue: Sender<Request>,
    ) -> Self {
        let settings = &reloaded.settings;
        Self {
            metrics_token: ArcSwapOption::new(tokens.metrics.map(Arc::new)),
            admin_token: ArcSwapOption::new(tokens.admin.map(Arc::new)),
            read_token: ArcSwapOption::new(tokens.read.map(Arc::new)),
            lists: ListReader::new(Arc::clone(&spared)),
            orders: OrderReader::new(spared, settings.bans.prefixes),
            rules,
            feeds,
            listing: ArcSwap::from_pointee(Arc::clone(&reloaded.listing)),
            process,
            stopping: AtomicBool::new(false),
            queue,
        }
    }

    /// The router's part of a reload: reads the token files again, and updates the listing of
    /// settings.
    pub(crate) fn part(self: &Arc<Self>) -> Part {
        let router = Arc::clone(self);
        Box::new(move |new| {
            let tokens = Tokens::read(&new.settings.endpoints);
            let tokens = tokens.map_err(|faults| faults.sentences())?;
            let (router, new) = (Arc::clone(&router), new.clone());
            Ok(Box::new(move || {
                router.metrics_token.store(tokens.metrics.map(Arc::new));
                router.admin_token.store(tokens.admin.map(Arc::new));
                router.read_token.store(tokens.read.map(Arc::new));
                router.orders.set_prefixes(new.settings.bans.prefixes);
                router.listing.store(Arc::new(new.listing));
                Ok(())
            }) as Take)
        })
    }

    /// The function that the data plane calls.
    pub(crate) fn handover(self: Arc<Self>) -> Handover {
        Arc::new(move |request, respond| self.step(Door::Public, request, respond))
    }

    /// From now on health answers that the service stops.
    pub(crate) fn announce_stop(&self) {
        // Relaxed: nothing else is read with it.
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// The stream that a request asks for, or why it is refused; none if it asks for none.
    pub(crate) fn asks_for_stream(
        &self,
        door: Door,
        request: &OwnRequest,
    ) -> Option<Result<Streamed, Problem>> {
        let query = request.query.as_deref().unwrap_or_default();
        let asked = match request.path.as_str() {
            _ if door == Door::Public => return None,
            "/v1/events" => only(request, &[]).map(|()| Streamed::Events),
            "/v1/bans/stream" => only(request, &["cursor"])
                .and_then(|()| cursor(query))
                .map(Streamed::Bans),
            _ => return None,
        };
        let admitted = self.admit(door, request).and_then(|()| only_get(request));
        let read = admitted.and_then(|()| no_long_body(request, MAX_BODY));
        Some(read.and(asked))
    }

    /// Takes one step with a request from any entry, as the data plane's [`Handover`] does.
    pub(crate) fn step(&self, door: Door, request: OwnRequest, respond: Respond) -> Step {
        let routed = match self.route(door, &request) {
            Routed::Answer(answer) if !answer.status.is_success() => return Step::Done(answer),
            routed => routed,
        };
        let is_for_no_body = !matches!(&routed, Routed::ReadBody(_)) && request.body.is_none();
        if is_for_no_body && let Err(problem) = no_long_body(&request, MAX_BODY) {
            return Step::Done(problem.answer(&request.request_id));
        }
        let ask = match routed {
            Routed::Answer(answer) => return Step::Done(answer),
            Routed::ReadBody(limit) => return Step::ReadBody { limit },
            Routed::Process(route) => {
                let busy = Problem::Busy.answer(&request.request_id);
                let order = route.order(request.request_id, respond);
                return match (self.process)(order) {
                    true => Step::Later,
                    false => Step::Done(busy),
                };
            }
            Routed::Feed(route) => return route.answer(&self.feeds, request.request_id, respond),
            Routed::Change(change) => {
                let (asked, id) = (change.clone(), request.request_id);
                self.rules.change(change, move |changed| {
                    respond(lists::answer(&asked, changed, &id));
                });
                return Step::Later;
            }
            Routed::Ask(ask) => ask,
        };
        let request = Request {
            ask,
            request_id: request.request_id,
            door,
            respond,
        };
        match self.queue.try_send(request) {
            Ok(()) => Step::Later,
            Err(TrySendError::Full(request) | TrySendError::Disconnected(request)) => {
                let busy = Problem::Busy.answer(&request.request_id);
                Step::Done(match request.ask {
                    Ask::Metrics => of_metrics(busy),
                    Ask::List(_)
                    | Ask::Ban(_)
                    | Ask::Lift(_)
                    | Ask::Client(_)
                    | Ask::Clients(..)
                    | Ask::Status
                    | Ask::History(_)
                    | Ask::Alerts
                    | Ask::Fleet
                    | Ask::Explain(_)
                    | Ask::Import(_) => busy,
                })
            }
        }
    }

    /// Every route. The checks come in this order: path, token, method, everything else.
    fn route(&self, door: Door, request: &OwnRequest) -> Routed {
        let id = request.request_id.as_str();
        let wrong = |problem: Problem| Routed::Answer(problem.answer(id));
        let metrics = door == Door::Admin && request.path == "/metrics";
        let rest = request.path.strip_prefix(door.prefix());
        match rest.unwrap_or(if metrics { "metrics" } else { "" }) {
            "metrics" => match self.metrics(door, metrics, request) {
                Ok(ask) => Routed::Ask(ask),
                Err(problem) => Routed::Answer(of_metrics(problem.answer(id))),
            },
            // GET and HEAD were answered before the ladder.
            "health" if door == Door::Public => {
                wrong(Problem::MethodNotAllowed { allow: "GET, HEAD" })
            }
            "bans" => match self.bans(door, request) {
                Ok(routed) => routed,
                Err(problem) => wrong(problem),
            },
            rest => {
                let whole = match door {
                    Door::Public => None,
                    Door::Admin | Door::Socket => self.whole(door, request, rest),
                };
                let one = || self.one_address(door, request, rest).map(Routed::Ask);
                whole.unwrap_or_else(one).unwrap_or_else(wrong)
            }
        }
    }

    /// Admits a request with the admin token, and any request over the socket. The admin listener
    /// also admits a GET with the read token.
    fn admit(&self, door: Door, request: &OwnRequest) -> Result<(), Problem> {
        match door {
            Door::Socket => Ok(()),
            Door::Admin if allow(&self.read_token, request).is_ok() => match request.method {
                Method::GET => Ok(()),
                // One text may be both tokens.
                _ => allow(&self.admin_token, request).map_err(|_| Problem::ReadOnly),
            },
            Door::Public | Door::Admin => allow(&self.admin_token, request),
        }
    }

    fn metrics(&self, door: Door, alone: bool, request: &OwnRequest) -> Result<Ask, Problem> {
        if door == Door::Public || alone {
            allow(&self.metrics_token, request)?;
        } else {
            self.admit(door, request)?;
        }
        only_get(request)?;
        Ok(Ask::Metrics)
    }

    /// The routes without an address that the public port lacks.
    fn whole(
        &self,
        door: Door,
        request: &OwnRequest,
        rest: &str,
    ) -> Option<Result<Routed, Problem>> {
        let query = request.query.as_deref().unwrap_or_default();
        let ask = match rest {
            "health" => Ok(Routed::Answer(status::health(
                self.stopping.load(Ordering::Relaxed),
            ))),
            "settings" => Ok(Routed::Answer(settings::answer(&self.listing.load()))),
            "reload" => return Some(self.process(door, request, ProcessRoute::Reload)),
            "upgrade" => return Some(self.process(door, request, ProcessRoute::Upgrade)),
            "bans/import" => return Some(self.import(door, request, query)),
            "lists" => return Some(self.lists(door, request)),
            rest if rest == "feeds" || rest.starts_with("feeds/") => {
                return Some(self.of_feeds(door, request, rest));
            }
            rest if rest.starts_with("lists/") => return Some(self.unlist(door, request, rest)),
            "status" => Ok(Routed::Ask(Ask::Status)),
            "history" => minutes(query).map(|most| Routed::Ask(Ask::History(most))),
            "alerts" => Ok(Routed::Ask(Ask::Alerts)),
            "fleet" => Ok(Routed::Ask(Ask::Fleet)),
            "explain" => question(query).map(|asked| Routed::Ask(Ask::Explain(asked))),
            "clients" => most(query).map(|most| Routed::Ask(Ask::Clients(None, most))),
            "groups" => by(query)
                .and_then(|by| most(query).map(|most| Routed::Ask(Ask::Clients(Some(by), most)))),
            _ => return None,
        };
        let names: &[&str] = match rest {
            "explain" => &[
                "address",
                "method",
                "path",
                "host",
                "query",
                "field",
                "partly",
                "other_site",
                "request",
            ],
            "clients" => &["sort", "limit"],
            "history" => &["minutes"],
            "groups" => &["by", "sort", "limit"],
            _ => &[],
        };
        let admitted = self.admit(door, request).and_then(|()| only_get(request));
        Some(admitted.and_then(|()| only(request, names)).and(ask))
    }

    fn process(
        &self,
        door: Door,
        request: &OwnRequest,
        route: ProcessRoute,
    ) -> Result<Routed, Problem> {
        self.admit(door, request)?;
        only(request, &[])?;
        match request.method {
            Method::POST => Ok(Routed::Process(route)),
            _ => Err(Problem::MethodNotAllowed { allow: "POST" }),
        }
    }

    /// An import of bans.
    fn import(&self, door: Door, request: &OwnRequest, query: &str) -> Result<Routed, Problem> {
        self.admit(door, request)?;
        match request.method {
            Method::POST => with_body(request, MAX_IMPORT, |body| {
                let judged = import::read(query, body, self.orders.spared())?;
                Ok(match judged {
                    Judged::Take(batch) => Routed::Ask(Ask::Import(Box::new(batch))),
                    Judged::WouldTake(count) => Routed::Answer(import::would_take(count)),
                })
            }),
            _ => Err(Problem::MethodNotAllowed { allow: "POST" }),
        }
    }

    /// Adds a member to a list.
    fn lists(&self, door: Door, request: &OwnRequest) -> Result<Routed, Problem> {
        self.admit(door, request)?;
        only(request, &[])?;
        match request.method {
            Method::POST => with_body(request, MAX_BODY, |body| {
                self.lists.read(body).map(Routed::Change)
            }),
            _ => Err(Problem::MethodNotAllowed { allow: "POST" }),
        }
    }

    /// Removes a member of a list.
    fn unlist(&self, door: Door, request: &OwnRequest, rest: &str) -> Result<Routed, Problem> {
        let change = lists::removal(rest.trim_start_matches("lists/"));
        self.admit(door, request)?;
        only(request, &[])?;
        match request.method {
            Method::DELETE => change.map(Routed::Change),
            _ => Err(Problem::MethodNotAllowed { allow: "DELETE" }),
        }
    }

    fn of_feeds(&self, door: Door, request: &OwnRequest, rest: &str) -> Result<Routed, Problem> {
        self.admit(door, request)?;
        only(request, &[])?;
        FeedRoute::read(&request.method, rest).map(Routed::Feed)
    }

    fn bans(&self, door: Door, request: &OwnRequest) -> Result<Routed, Problem> {
        self.admit(door, request)?;
        match request.method {
            Method::GET => {
                only(request, &["active", "ip", "limit", "after", "newest"])?;
                let filter = filter(request.query.as_deref().unwrap_or_default())?;
                Ok(Routed::Ask(Ask::List(filter)))
            }
            Method::POST => with_body(request, MAX_BODY, |body| {
                only(request, &[])?;
                let order = self.orders.read(body, request.client);
                order.map(|order| Routed::Ask(Ask::Ban(order)))
            }),
            _ => Err(Problem::MethodNotAllowed { allow: "GET, POST" }),
        }
    }

    /// `bans/<address>` and `clients/<address>`.
    fn one_address(&self, door: Door, request: &OwnRequest, rest: &str) -> Result<Ask, Problem> {
        let (list, address) = rest.split_once('/').ok_or(Problem::NotFound)?;
        // Only the public port insists on one spelling, because caches and proxies judge the path
        // there too.
        let canonical = door != Door::Public || own_path_exact(&request.path);
        if !canonical || address.is_empty() || !matches!(list, "bans" | "clients") {
            return Err(Problem::NotFound);
        }
        self.admit(door, request)?;
        only(request, &[])?;
        match (list, &request.method) {
            ("bans", &Method::DELETE) if door == Door::Public => {
                client_of(address).map(|client| Ask::Lift(Subject::Client(client)))
            }
            ("bans", &Method::DELETE) => subject_of(address).map(Ask::Lift),
            ("clients", &Method::GET) => client_of(address).map(Ask::Client),
            ("bans", _) => Err(Problem::MethodNotAllowed { allow: "DELETE" }),
            _ => Err(Problem::MethodNotAllowed { allow: "GET" }),
        }
    }
}

/// Asks for the body, or reads it if it is there. `limit` bounds its bytes.
fn with_body(
    request: &OwnRequest,
    limit: usize,
    read: impl FnOnce(&[u8]) -> Result<Routed, Problem>,
) -> Result<Routed, Problem> {
    match &request.body {
        None => Ok(Routed::ReadBody(limit)),
        // The limit is checked here as well, not only by the reader of the body.
        Some(Body::Whole(body)) if body.len() <= limit => read(body),
        Some(Body::TooLarge | Body::Whole(_)) => Err(Problem::TooLarge { limit }),
        Some(Body::CutOff) => Err(Problem::BadRequest("the body ended early".to_owned())),
    }
}

#[cfg(test)]
mod tests;
