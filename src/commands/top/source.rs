//! What is shown, asked for by a thread of its own: a service that does not answer holds up no key.

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

/// What clients are added up by, as the service names it; paths are added up here.
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

/// What is to be looked at beside the status, the clients and the alerts, and by what it is sorted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Wanted {
    pub sort: Sort,
    pub by: Option<By>,
    /// The newest bans.
    pub bans: bool,
}

/// Clients added up.
#[derive(Clone, Debug)]
pub enum Groups {
    /// By what, and the service's answer.
    Clients(By, api::groups::Groups),
    Paths(PathsReport),
}

/// Everything at one moment.
#[derive(Clone, Debug)]
pub struct Look {
    pub status: api::status::Status,
    pub clients: api::clients::ClientList,
    /// None where nobody asked for them.
    pub bans: api::bans::BanList,
    pub alerts: api::alerts::AlertList,
    /// The last minutes; none of a service that has none.
    pub history: api::history::History,
    /// The instances that act as one with this one.
    pub fleet: Option<api::fleet::Fleet>,
    /// None where nobody asked for them.
    pub groups: Option<Groups>,
    pub now_ms: u64,
}

/// What the thread is asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    Look(Wanted),
    /// Why a client is, or would be, refused.
    Explain(String),
    /// A ban of the netblock of a client.
    Ban(String),
    /// A ban of exactly this netblock.
    BanNetblock(String),
    /// An address or a netblock.
    Lift(String),
    /// An address or a netblock into the allow list of rules.json.
    Allow(String),
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
    pub orders: Sender<Command>,
    pub reports: Receiver<Report>,
}

/// How long a ban from the screen lasts.
pub const BAN_FOR: &str = "1h";
/// How long an entry of the allow list from the screen lasts.
pub const ALLOW_FOR: &str = "24h";

/// What the thread keeps.
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

    /// Clients added up.
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

/// An IPv6 client is a /64: its first address stands for it.
pub fn address_of(client: &str) -> &str {
    client.trim_end_matches("/64")
}
