//! The state of the screen, and how keys change it. Pure: this file draws nothing and asks no
//! service.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use weir_shared::api::clients::Listed;
use weir_shared::api::groups::Group;
use weir_shared::api::status::{Crawler, SharedLimit};
use weir_shared::ban::Ban;

use super::source::{
    ALLOW_FOR, BAN_FOR, By, Command, Groups, Look, Report, Sort, Wanted, address_of,
};
use crate::commands::alerts;
use crate::commands::bans::{cause, end};
use crate::commands::paths::Row;
use crate::commands::text::{maybe, plain, since_time, until_end};

/// The list that is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Pane {
    #[default]
    Clients,
    Netblocks,
    Ases,
    Countries,
    Paths,
    Bans,
    Alerts,
    Shared,
    Crawlers,
}

impl Pane {
    /// In the order of their keys, with their names.
    pub const ALL: [(Self, &str); 9] = [
        (Self::Clients, "1 Clients"),
        (Self::Netblocks, "2 Nets"),
        (Self::Ases, "3 AS"),
        (Self::Countries, "4 CC"),
        (Self::Paths, "5 Paths"),
        (Self::Bans, "6 Bans"),
        (Self::Alerts, "7 Alerts"),
        (Self::Shared, "8 Shared"),
        (Self::Crawlers, "9 Bots"),
    ];

    /// The key by which the service must sum clients for this pane, if any.
    const fn by(self) -> Option<By> {
        match self {
            Self::Netblocks => Some(By::Netblock),
            Self::Ases => Some(By::Asn),
            Self::Countries => Some(By::Country),
            Self::Paths => Some(By::Path),
            Self::Clients | Self::Bans | Self::Alerts | Self::Shared | Self::Crawlers => None,
        }
    }

    /// Whether the service sorts this list by the chosen order.
    pub const fn is_sorted(self) -> bool {
        match self {
            Self::Clients | Self::Netblocks | Self::Ases | Self::Countries => true,
            Self::Paths | Self::Bans | Self::Alerts | Self::Shared | Self::Crawlers => false,
        }
    }

    /// The pane of a key.
    fn of_key(key: char) -> Option<Self> {
        let mut named = Self::ALL.iter().filter(|(_, name)| name.starts_with(key));
        named.next().map(|(pane, _)| *pane)
    }

    /// The next pane; the first follows the last.
    fn next(self) -> Self {
        let mut panes = Self::ALL.iter().map(|(pane, _)| *pane).cycle();
        let _ = panes.find(|pane| *pane == self);
        panes.next().unwrap_or(self)
    }
}

/// The box over the list.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Over {
    #[default]
    Nothing,
    Help,
    /// An explanation or an error.
    Text(String),
    /// A command that needs confirmation, and a sentence about it.
    Confirm(Command, String),
    /// The search text is being typed.
    Search,
}

/// The state of the screen.
#[derive(Debug, Default)]
pub struct Screen {
    pub look: Option<Box<Look>>,
    /// Requests a second between the last two looks, in tenths.
    pub rate_tenths: Option<u64>,
    pub pane: Pane,
    pub sort: Sort,
    pub search: String,
    pub chosen: usize,
    pub over: Over,
    /// The outcome of the last command.
    pub note: String,
    /// True if the service did not answer the last look.
    pub is_lost: bool,
    pub quits: bool,
}

impl Screen {
    /// The headings of the pane.
    pub const fn headings(&self) -> &'static [&'static str] {
        match self.pane {
            Pane::Clients => &[
                "CLIENT", "DAY", "PASSED", "REFUSED", "SEEN", "CC", "AS", "BAN",
            ],
            Pane::Netblocks => &[
                "NETBLOCK", "CLIENTS", "BANNED", "DAY", "PASSED", "REFUSED", "SEEN",
            ],
            Pane::Ases => &[
                "AS", "CLIENTS", "BANNED", "DAY", "PASSED", "REFUSED", "SEEN", "NAME",
            ],
            Pane::Countries => &[
                "COUNTRY", "CLIENTS", "BANNED", "DAY", "PASSED", "REFUSED", "SEEN",
            ],
            Pane::Paths => &["PATH", "REQUESTS", "REFUSED", "FAILED", "LAST"],
            Pane::Bans => &["NETBLOCK", "ENDS IN", "CAUSE", "CLIENT", "HITS", "REASON"],
            Pane::Alerts => &["TIME", "KIND", "OF", "WHAT"],
            Pane::Shared => &["LIMIT", "FULLEST", "KEYS", "REFUSED"],
            Pane::Crawlers => &["CRAWLER", "PURPOSE", "STATE", "PASSED", "REFUSED"],
        }
    }

    /// The rows of the pane that contain the search text.
    pub fn rows(&self) -> Vec<Vec<String>> {
        let Some(look) = &self.look else {
            return Vec::new();
        };
        let now_ms = look.now_ms;
        let mut rows = match (self.pane, &look.groups) {
            (Pane::Clients, _) => {
                let clients = look.clients.clients.iter();
                clients.map(|one| client_row(one, now_ms)).collect()
            }
            (Pane::Bans, _) => {
                let bans = look.bans.bans.iter();
                bans.map(|one| ban_row(one, now_ms)).collect()
            }
            (Pane::Alerts, _) => {
                let alerts = look.alerts.alerts.iter();
                alerts.map(|one| alerts::row(one).into()).collect()
            }
            (Pane::Shared, _) => look.status.shared_limits.iter().map(shared_row).collect(),
            (Pane::Crawlers, _) => look.status.crawlers.iter().map(crawler_row).collect(),
            (pane, Some(Groups::Clients(by, groups))) if pane.by() == Some(*by) => {
                let row = |one| group_row(one, *by, now_ms);
                groups.groups.iter().map(row).collect()
            }
            (Pane::Paths, Some(Groups::Paths(report))) => {
                report.paths.iter().map(path_row).collect()
            }
            // Not asked for yet.
            _ => Vec::new(),
        };
        rows.retain(|row| self.is_searched(row));
        if matches!(self.pane, Pane::Bans | Pane::Alerts) {
            // The newest first.
            rows.reverse();
        }
        rows
    }

    /// Requests of the last minute that the stream left out, so that their paths are not known.
    pub fn left_out(&self) -> Option<u64> {
        match (self.pane, self.look.as_ref()?.groups.as_ref()?) {
            (Pane::Paths, Groups::Paths(report)) => {
                (report.left_out > 0).then_some(report.left_out)
            }
            _ => None,
        }
    }

    /// In the pane of paths: why the service does not stream them.
    pub fn paths_fault(&self) -> Option<&str> {
        match (self.pane, self.look.as_ref()?.groups.as_ref()?) {
            (Pane::Paths, Groups::Paths(report)) => report.fault.as_deref(),
            _ => None,
        }
    }

    /// What the source must ask the service for.
    pub const fn wanted(&self) -> Wanted {
        Wanted {
            sort: self.sort,
            by: self.pane.by(),
            bans: matches!(self.pane, Pane::Bans),
        }
    }

    fn is_searched(&self, row: &[String]) -> bool {
        let wanted = self.search.to_lowercase();
        row.iter().any(|cell| cell.to_lowercase().contains(&wanted))
    }

    /// The first cell of the chosen row.
    fn chosen_subject(&self) -> Option<String> {
        self.chosen_cell(0)
    }

    fn chosen_cell(&self, column: usize) -> Option<String> {
        let rows = self.rows();
        let row = rows.get(self.chosen.min(rows.len().saturating_sub(1)))?;
        row.get(column).cloned()
    }

    /// Applies a report of the source.
    pub fn take(&mut self, report: Report) {
        match report {
            Report::Look(look) => {
                self.rate_tenths = self.look.as_ref().and_then(|before| rate(before, &look));
                self.look = Some(look);
                self.is_lost = false;
                self.chosen = self.chosen.min(self.rows().len().saturating_sub(1));
            }
            Report::Explained(text) => self.over = Over::Text(text),
            Report::Done(what) => self.note = what,
            Report::Failed(why) => {
                self.is_lost = true;
                self.note = why;
            }
        }
    }

    /// Handles a key; returns the command for the source, if any.
    pub fn key(&mut self, key: KeyEvent) -> Option<Command> {
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        if is_control && key.code == KeyCode::Char('c') {
            self.quits = true;
            return None;
        }
        match std::mem::take(&mut self.over) {
            Over::Nothing => self.plain_key(key.code),
            Over::Help | Over::Text(_) => None,
            Over::Confirm(order, _) => match key.code {
                KeyCode::Char('y' | 'Y') => Some(order),
                _ => {
                    self.note = "nothing was changed".to_owned();
                    None
                }
            },
            Over::Search => {
                self.search_key(key.code);
                None
            }
        }
    }

    fn search_key(&mut self, code: KeyCode) {
        self.over = Over::Search;
        match code {
            KeyCode::Enter => self.over = Over::Nothing,
            KeyCode::Esc => {
                self.search.clear();
                self.over = Over::Nothing;
            }
            KeyCode::Backspace => drop(self.search.pop()),
            KeyCode::Char(letter) if self.search.len() < 64 => self.search.push(letter),
            _ => {}
        }
        self.chosen = 0;
    }

    fn plain_key(&mut self, code: KeyCode) -> Option<Command> {
        match code {
            KeyCode::Char('q') => self.quits = true,
            KeyCode::Char('?' | 'h') => self.over = Over::Help,
            KeyCode::Char('/') => self.over = Over::Search,
            KeyCode::Esc => self.search.clear(),
            KeyCode::Char(key @ '1'..='9') => {
                return self.show(Pane::of_key(key).unwrap_or(self.pane));
            }
            KeyCode::Tab => return self.show(self.pane.next()),
            KeyCode::Down | KeyCode::Char('j') => self.go(1),
            KeyCode::Up | KeyCode::Char('k') => self.go(-1),
            KeyCode::PageDown => self.go(10),
            KeyCode::PageUp => self.go(-10),
            KeyCode::Home => self.chosen = 0,
            KeyCode::End => self.go(isize::MAX),
            KeyCode::Char('s') if self.pane.is_sorted() => {
                self.sort = self.sort.next();
                return Some(Command::Look(self.wanted()));
            }
            KeyCode::Enter => return self.explain(),
            KeyCode::Char('b') => self.ask_ban(),
            KeyCode::Char('u' | 'l') => self.ask_lift(),
            KeyCode::Char('a') => self.ask_allow(),
            _ => {}
        }
        None
    }

    /// Shows a pane; its sums are asked for at once.
    fn show(&mut self, pane: Pane) -> Option<Command> {
        self.pane = pane;
        self.chosen = 0;
        let is_asked_for = pane.by().is_some() || pane == Pane::Bans;
        is_asked_for.then(|| Command::Look(self.wanted()))
    }

    fn go(&mut self, by: isize) {
        let last = self.rows().len().saturating_sub(1);
        self.chosen = self.chosen.saturating_add_signed(by).min(last);
    }

    fn explain(&mut self) -> Option<Command> {
        let subject = self.chosen_subject()?;
        match self.pane {
            Pane::Clients => Some(Command::Explain(subject)),
            // The first address of the netblock stands for it.
            Pane::Bans | Pane::Netblocks => {
                Some(Command::Explain(subject.split('/').next()?.to_owned()))
            }
            Pane::Ases
            | Pane::Countries
            | Pane::Paths
            | Pane::Alerts
            | Pane::Shared
            | Pane::Crawlers => None,
        }
    }

    fn ask_ban(&mut self) {
        match (self.pane, self.chosen_subject()) {
            (Pane::Clients, Some(client)) => {
                let words = format!("Ban the netblock of {client} for {BAN_FOR}?");
                self.over = Over::Confirm(Command::Ban(client), words);
            }
            (Pane::Netblocks, Some(netblock)) => {
                let clients = self.chosen_cell(1).unwrap_or_default();
                let words =
                    format!("Ban {netblock} for {BAN_FOR}? Clients known of it: {clients}.");
                self.over = Over::Confirm(Command::BanNetblock(netblock), words);
            }
            _ => self.note = "a client or a netblock is chosen for a ban: 1, 2".to_owned(),
        }
    }

    fn ask_allow(&mut self) {
        let subject = self.chosen_subject();
        match (self.pane, subject) {
            (Pane::Clients | Pane::Netblocks | Pane::Bans, Some(subject)) => {
                let words = format!("Let {subject} pass every check for {ALLOW_FOR} (rules.json)?");
                self.over = Over::Confirm(Command::Allow(subject), words);
            }
            _ => self.note = "a client or a netblock is chosen to be allowed: 1, 2".to_owned(),
        }
    }

    fn ask_lift(&mut self) {
        let Some(subject) = self.chosen_subject() else {
            return;
        };
        match self.pane {
            Pane::Clients => {
                let words = format!("Lift every ban that covers {subject}?");
                let order = Command::Lift(address_of(&subject).to_owned());
                self.over = Over::Confirm(order, words);
            }
            Pane::Bans | Pane::Netblocks => {
                let words = format!("Lift the bans of exactly {subject}?");
                self.over = Over::Confirm(Command::Lift(subject), words);
            }
            Pane::Ases
            | Pane::Countries
            | Pane::Paths
            | Pane::Alerts
            | Pane::Shared
            | Pane::Crawlers => {}
        }
    }
}

fn rate(before: &Look, after: &Look) -> Option<u64> {
    let total = |look: &Look| look.status.total.requests;
    let requests = total(after).checked_sub(total(before))?;
    let passed_ms = after.now_ms.checked_sub(before.now_ms)?;
    requests.saturating_mul(10_000).checked_div(passed_ms)
}

fn client_row(listed: &Listed, now_ms: u64) -> Vec<String> {
    let client = &listed.client;
    let lookup = client.lookup.as_deref();
    vec![
        client.client.to_string(),
        client.requests.day.current.0.to_string(),
        client.passed.0.to_string(),
        client.refused.0.to_string(),
        since_time(client.last_seen, now_ms),
        maybe(lookup.and_then(|lookup| lookup.country.as_ref())),
        maybe(lookup.and_then(|lookup| lookup.asn.as_ref())),
        maybe(listed.ban_expires.map(|end| until_end(end, now_ms))),
    ]
}

fn group_row(group: &Group, by: By, now_ms: u64) -> Vec<String> {
    let mut row = vec![
        maybe(group.group.as_ref()),
        group.clients.to_string(),
        group.banned.to_string(),
        group.requests.to_string(),
        group.passed.to_string(),
        group.refused.to_string(),
        since_time(group.last_seen, now_ms),
    ];
    row.extend((by == By::Asn).then(|| maybe(group.name.as_ref())));
    row
}

fn path_row(row: &Row) -> Vec<String> {
    vec![
        plain(&row.path),
        row.requests.to_string(),
        row.refused.to_string(),
        row.failed.to_string(),
        row.status.to_string(),
    ]
}

fn ban_row(ban: &Ban, now_ms: u64) -> Vec<String> {
    let notes = ban.notes.as_ref();
    vec![
        ban.netblock.to_string(),
        end(ban, now_ms),
        cause(ban),
        maybe(ban.client),
        maybe(notes.and_then(|notes| notes.netblock_requests)),
        plain(&ban.reason),
    ]
}

/// The row of a limit that clients share.
fn shared_row(of: &SharedLimit) -> Vec<String> {
    vec![
        plain(&of.rule),
        format!("{:.1} %", of.used * 100.0),
        of.keys.to_string(),
        of.hits.to_string(),
    ]
}

fn crawler_row(of: &Crawler) -> Vec<String> {
    vec![
        plain(&of.name),
        plain(&of.purpose),
        plain(&of.state),
        of.passed.to_string(),
        of.refused.to_string(),
    ]
}
