//! What is shown, asked for by a thread of its own: a service that does not answer holds up no key.

use std::sync::mpsc::{Receiver, Sender, channel};

use http::Method;
use serde_json::{Value, json};

use crate::commands::ask::Place;
use crate::commands::common::{Failure, now, percent_encoded};
use crate::commands::explain;

/// How many clients are asked for.
const CLIENTS: u32 = 500;

/// By what clients are sorted, as the service names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Sort {
    #[default]
    Requests,
    Bytes,
    Refused,
    LastSeen,
}

impl Sort {
    /// As the service names it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Bytes => "bytes",
            Self::Refused => "refused",
            Self::LastSeen => "last_seen",
        }
    }

    /// The next, in a circle.
    pub const fn next(self) -> Self {
        match self {
            Self::Requests => Self::Bytes,
            Self::Bytes => Self::Refused,
            Self::Refused => Self::LastSeen,
            Self::LastSeen => Self::Requests,
        }
    }
}

/// Everything at one moment.
#[derive(Clone, Debug)]
pub struct Look {
    pub status: Value,
    pub clients: Value,
    pub bans: Value,
    pub alerts: Value,
    pub now_ms: u64,
}

/// What the thread is asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Order {
    Look(Sort),
    /// Why a client is, or would be, refused.
    Explain(String),
    /// A ban of the netblock of a client.
    Ban(String),
    /// An address or a netblock.
    Lift(String),
}

/// What it says.
#[derive(Debug)]
pub enum Report {
    Look(Box<Look>),
    Explained(String),
    /// What was done, in words.
    Done(String),
    /// What could not be done, or that nobody answers.
    Failed(String),
}

/// The thread, seen from the screen.
pub struct Source {
    pub orders: Sender<Order>,
    pub reports: Receiver<Report>,
}

/// How long a ban from the screen lasts.
pub const BAN_FOR: &str = "1h";

/// Asks for everything once.
pub fn look(place: &Place, sort: Sort) -> Result<Look, Failure> {
    let get = |target: &str| place.expect(Method::GET, target, None)?.good();
    Ok(Look {
        status: get("/v1/status")?,
        clients: get(&format!("/v1/clients?sort={}&limit={CLIENTS}", sort.name()))?,
        bans: get("/v1/bans?active=true")?,
        alerts: get("/v1/alerts")?,
        now_ms: now().wall_ms,
    })
}

impl Source {
    /// Starts the thread.
    pub fn start(place: Place) -> std::io::Result<Self> {
        let (orders, taken) = channel();
        let (told, reports) = channel();
        let thread = std::thread::Builder::new().name("top-source".to_owned());
        thread.spawn(move || {
            while let Ok(order) = taken.recv() {
                let report =
                    obey(&place, &order).unwrap_or_else(|failure| Report::Failed(failure.sentence));
                if told.send(report).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { orders, reports })
    }
}

fn obey(place: &Place, order: &Order) -> Result<Report, Failure> {
    match order {
        Order::Look(sort) => look(place, *sort).map(|look| Report::Look(Box::new(look))),
        Order::Explain(client) => {
            let target = format!(
                "/v1/explain?address={}",
                percent_encoded(address_of(client))
            );
            let answer = place.expect(Method::GET, &target, None)?.good()?;
            Ok(Report::Explained(explain::in_words(&answer)))
        }
        Order::Ban(client) => {
            let order = json!({
                "client": address_of(client),
                "duration": BAN_FOR,
                "reason": "weir top",
            });
            let ban = place
                .expect(Method::POST, "/v1/bans", Some(&order))?
                .good()?;
            let netblock = ban.get("netblock").and_then(Value::as_str);
            let netblock = netblock.unwrap_or_default();
            Ok(Report::Done(format!("{netblock} is banned for {BAN_FOR}")))
        }
        Order::Lift(subject) => {
            let target = format!("/v1/bans/{}", percent_encoded(subject));
            place.expect(Method::DELETE, &target, None)?.good()?;
            Ok(Report::Done(format!("no ban of {subject} is left")))
        }
    }
}

/// An IPv6 client is a /64: its first address stands for it.
pub fn address_of(client: &str) -> &str {
    client.trim_end_matches("/64")
}
