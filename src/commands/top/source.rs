//! Asks the service on a thread of its own, so that a service that does not answer blocks no key.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use http::Method;
use serde_json::{Value, json};
use weir_shared::api;

use crate::commands::ask::{Place, typed};
use crate::commands::common::{Failure, now, percent_encoded};
use crate::commands::explain;
use crate::commands::lists::{self, List};
use crate::commands::paths::{Paths, Report as PathsReport};

/// How many clients, groups of them, and bans are asked for.
const MOST: u32 = 500;

/// How many minutes are drawn.
const MINUTES: u32 = 20;

/// The order of clients.
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

    /// The next order; the first follows the last.
    pub const fn next(self) -> Self {
        match self {
            Self::Requests => Self::Bytes,
            Self::Bytes => Self::Refused,
            Self::Refused => Self::LastSeen,
            Self::LastSeen => Self::Requests,
        }
    }
}

/// The key by which the service sums clients; paths are summed in this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    Netblock,
    Asn,
    Country,
    Path,
}

impl By {
    /// As the service names it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Netblock => "netblock",
            Self::Asn => "asn",
            Self::Country => "country",
            Self::Path => "path",
        }
    }
}

/// What to ask for beside the status, the clients and the alerts, and in which order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Wanted {
    pub sort: Sort,
    pub by: Option<By>,
    /// The newest bans.
    pub bans: bool,
}

/// Sums for groups of clients, or for paths.
#[derive(Clone, Debug)]
pub enum Groups {
    /// The key, and the service's answer.
    Clients(By, api::groups::Groups),
    Paths(PathsReport),
}

/// The answers of one look.
#[derive(Clone, Debug)]
pub struct Look {
    pub status: api::status::Status,
    pub clients: api::clients::ClientList,
    /// None where nobody asked for them.
    pub bans: api::bans::BanList,
    pub alerts: api::alerts::AlertList,
    /// The last minutes; empty if the service has none.
    pub history: api::history::History,
    /// The instances that act as one with this one.
    pub fleet: Option<api::fleet::Fleet>,
    /// None where nobody asked for them.
    pub groups: Option<Groups>,
    pub now_ms: u64,
}

/// A command for the thread.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    Look(Wanted),
    /// Explain why a client is, or would be, refused.
    Explain(String),
    /// Ban the netblock of a client.
    Ban(String),
    /// Ban exactly this netblock.
    BanNetblock(String),
    /// Lift the bans of an address or a netblock.
    Lift(String),
    /// Add an address or a netblock to the allow list of rules.json.
    Allow(String),
}

/// A report of the thread.
#[derive(Debug)]
pub enum Report {
    Look(Box<Look>),
    Explained(String),
    /// What was done, in words.
    Done(String),
    /// Why a command failed, or that the service does not answer.
    Failed(String),
}

/// The screen's handle of the thread.
pub struct Source {
    pub orders: Sender<Command>,
    pub reports: Receiver<Report>,
}

/// How long a ban from the screen lasts.
pub const BAN_FOR: &str = "1h";
/// How long an entry of the allow list from the screen lasts.
pub const ALLOW_FOR: &str = "24h";

/// The state of the thread.
pub struct Asker {
    place: Arc<Place>,
    paths: Arc<Paths>,
}

impl Asker {
    pub fn new(place: Place) -> Self {
        Self {
            place: Arc::new(place),
            paths: Arc::default(),
        }
    }

    fn get(&self, target: &str) -> Result<Value, Failure> {
        self.place.expect(Method::GET, target, None)?.good()
    }

    /// Asks for everything once.
    pub fn look(&self, Wanted { sort, by, bans }: Wanted) -> Result<Look, Failure> {
        let sort = sort.name();
        let groups = match by {
            None => None,
            Some(By::Path) => Some(Groups::Paths(self.paths.report(&self.place))),
            Some(by) => Some(Groups::Clients(by, self.groups(by, sort)?)),
        };
        Ok(Look {
            status: typed(self.get("/v1/status")?)?,
            clients: typed(self.get(&format!("/v1/clients?sort={sort}&limit={MOST}"))?)?,
            bans: match bans {
                true => typed(self.get(&format!("/v1/bans?active=true&newest={MOST}"))?)?,
                false => api::bans::BanList::default(),
            },
            alerts: typed(self.get("/v1/alerts")?)?,
            history: self
                .get(&format!("/v1/history?minutes={MINUTES}"))
                .and_then(typed)
                .unwrap_or_default(),
            fleet: self.get("/v1/fleet").and_then(typed).ok(),
            groups,
            now_ms: now().wall_ms,
        })
    }

    /// Asks for the sums of groups of clients.
    pub fn groups(&self, by: By, sort: &str) -> Result<api::groups::Groups, Failure> {
        let by = by.name();
        typed(self.get(&format!("/v1/groups?by={by}&sort={sort}&limit={MOST}"))?)
    }
}

impl Source {
    /// Starts the thread.
    pub fn start(asker: Asker) -> std::io::Result<Self> {
        let (orders, taken) = channel();
        let (told, reports) = channel();
        let thread = std::thread::Builder::new().name("top-source".to_owned());
        thread.spawn(move || {
            while let Ok(order) = taken.recv() {
                let report =
                    obey(&asker, &order).unwrap_or_else(|failure| Report::Failed(failure.sentence));
                if told.send(report).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { orders, reports })
    }
}

fn obey(asker: &Asker, order: &Command) -> Result<Report, Failure> {
    let place = &asker.place;
    match order {
        Command::Look(wanted) => asker.look(*wanted).map(|look| Report::Look(Box::new(look))),
        Command::Explain(client) => {
            let address = percent_encoded(address_of(client));
            let answer = asker.get(&format!("/v1/explain?address={address}"))?;
            let words = explain::in_words(&typed(answer)?, &place.flags);
            Ok(Report::Explained(words))
        }
        Command::Ban(client) => ban(place, "client", address_of(client)),
        Command::BanNetblock(netblock) => ban(place, "netblock", netblock),
        Command::Lift(subject) => {
            let target = format!("/v1/bans/{}", percent_encoded(subject));
            let answer = place.expect(Method::DELETE, &target, None)?;
            typed::<api::bans::Lifted>(answer.good()?)?;
            Ok(Report::Done(format!("no ban of {subject} is left")))
        }
        Command::Allow(subject) => {
            let until = lists::until(ALLOW_FOR)?;
            let told = lists::add(place, List::Allow, subject, Some(until), "weir top")?;
            Ok(Report::Done(told))
        }
    }
}

fn ban(place: &Place, member: &str, subject: &str) -> Result<Report, Failure> {
    let order = json!({member: subject, "duration": BAN_FOR, "reason": "weir top"});
    let answer = place.expect(Method::POST, "/v1/bans", Some(&order))?;
    let api::bans::Banned { ban, .. } = typed(answer.good()?)?;
    let netblock = ban.netblock;
    Ok(Report::Done(format!("{netblock} is banned for {BAN_FOR}")))
}

/// The address to ask about for a client: an IPv6 client is a /64, and its first address stands for
/// it.
pub fn address_of(client: &str) -> &str {
    client.trim_end_matches("/64")
}
