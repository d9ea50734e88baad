//! What the screen shows, and what keys do to it. Pure: it draws nothing and asks nobody.
#![expect(
    clippy::indexing_slicing,
    reason = "a member that a JSON document does not have reads as null"
)]

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use serde_json::Value;

use super::source::{BAN_FOR, Look, Order, Report, Sort, address_of};
use crate::commands::bans::{cause, end};
use crate::commands::text::{cell, since, until};

/// Which list is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Pane {
    #[default]
    Clients,
    Bans,
    Alerts,
}

/// What lies over the list.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Over {
    #[default]
    Nothing,
    Help,
    /// An explanation, or what went wrong.
    Text(String),
    /// What is about to be done, and in words.
    Confirm(Order, String),
    /// The text that is searched for is being written.
    Search,
}

/// Everything that is shown.
#[derive(Debug, Default)]
pub struct Screen {
    pub look: Option<Box<Look>>,
    /// Requests a second, in tenths, between the last two looks.
    pub rate_tenths: Option<u64>,
    pub pane: Pane,
    pub sort: Sort,
    pub search: String,
    pub chosen: usize,
    pub over: Over,
    /// The last thing that was done, or failed.
    pub note: String,
    /// The service did not answer the last time.
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
            Pane::Bans => &["NETBLOCK", "ENDS IN", "CAUSE", "CLIENT", "HITS", "REASON"],
            Pane::Alerts => &["TIME", "KIND", "OF", "WHAT"],
        }
    }

    /// The rows of the pane that hold the text that is searched for.
    pub fn rows(&self) -> Vec<Vec<String>> {
        let Some(look) = &self.look else {
            return Vec::new();
        };
        let list = match self.pane {
            Pane::Clients => &look.clients["clients"],
            Pane::Bans => &look.bans["bans"],
            Pane::Alerts => &look.alerts["alerts"],
        };
        let list = list.as_array().into_iter().flatten();
        let rows = list.map(|one| match self.pane {
            Pane::Clients => client_row(one, look.now_ms),
            Pane::Bans => ban_row(one, look.now_ms),
            Pane::Alerts => alert_row(one),
        });
        let mut rows: Vec<_> = rows.filter(|row| self.is_searched(row)).collect();
        if self.pane != Pane::Clients {
            // The newest first.
            rows.reverse();
        }
        rows
    }

    fn is_searched(&self, row: &[String]) -> bool {
        let wanted = self.search.to_lowercase();
        row.iter().any(|cell| cell.to_lowercase().contains(&wanted))
    }

    /// The first cell of the chosen row.
    fn chosen_subject(&self) -> Option<String> {
        let rows = self.rows();
        let row = rows.get(self.chosen.min(rows.len().saturating_sub(1)))?;
        row.first().cloned()
    }

    /// Takes in what the source says.
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

    /// Obeys a key; gives what the source is to be asked.
    pub fn key(&mut self, key: KeyEvent) -> Option<Order> {
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

    fn plain_key(&mut self, code: KeyCode) -> Option<Order> {
        match code {
            KeyCode::Char('q') => self.quits = true,
            KeyCode::Char('?' | 'h') => self.over = Over::Help,
            KeyCode::Char('/') => self.over = Over::Search,
            KeyCode::Esc => self.search.clear(),
            KeyCode::Char('1') => self.show(Pane::Clients),
            KeyCode::Char('2') => self.show(Pane::Bans),
            KeyCode::Char('3') => self.show(Pane::Alerts),
            KeyCode::Tab => self.show(match self.pane {
                Pane::Clients => Pane::Bans,
                Pane::Bans => Pane::Alerts,
                Pane::Alerts => Pane::Clients,
            }),
            KeyCode::Down | KeyCode::Char('j') => self.go(1),
            KeyCode::Up | KeyCode::Char('k') => self.go(-1),
            KeyCode::PageDown => self.go(10),
            KeyCode::PageUp => self.go(-10),
            KeyCode::Home => self.chosen = 0,
            KeyCode::End => self.go(isize::MAX),
            KeyCode::Char('s') if self.pane == Pane::Clients => {
                self.sort = self.sort.next();
                return Some(Order::Look(self.sort));
            }
            KeyCode::Enter => return self.explain(),
            KeyCode::Char('b') => self.ask_ban(),
            KeyCode::Char('u' | 'l') => self.ask_lift(),
            _ => {}
        }
        None
    }

    fn show(&mut self, pane: Pane) {
        self.pane = pane;
        self.chosen = 0;
    }

    fn go(&mut self, by: isize) {
        let last = self.rows().len().saturating_sub(1);
        self.chosen = self.chosen.saturating_add_signed(by).min(last);
    }

    fn explain(&mut self) -> Option<Order> {
        let subject = self.chosen_subject()?;
        match self.pane {
            Pane::Clients => Some(Order::Explain(subject)),
            // The first address of the netblock stands for it.
            Pane::Bans => Some(Order::Explain(subject.split('/').next()?.to_owned())),
            Pane::Alerts => None,
        }
    }

    fn ask_ban(&mut self) {
        match (self.pane, self.chosen_subject()) {
            (Pane::Clients, Some(client)) => {
                let words = format!("Ban the netblock of {client} for {BAN_FOR}?");
                self.over = Over::Confirm(Order::Ban(client), words);
            }
            _ => self.note = "a client is chosen for a ban: 1".to_owned(),
        }
    }

    fn ask_lift(&mut self) {
        let Some(subject) = self.chosen_subject() else {
            return;
        };
        match self.pane {
            Pane::Clients => {
                let words = format!("Lift every ban that covers {subject}?");
                let order = Order::Lift(address_of(&subject).to_owned());
                self.over = Over::Confirm(order, words);
            }
            Pane::Bans => {
                let words = format!("Lift the bans of exactly {subject}?");
                self.over = Over::Confirm(Order::Lift(subject), words);
            }
            Pane::Alerts => {}
        }
    }
}

fn rate(before: &Look, after: &Look) -> Option<u64> {
    let total = |look: &Look| look.status["total"]["requests"].as_u64();
    let requests = total(after)?.checked_sub(total(before)?)?;
    let passed_ms = after.now_ms.checked_sub(before.now_ms)?;
    requests.saturating_mul(10_000).checked_div(passed_ms)
}

fn client_row(client: &Value, now_ms: u64) -> Vec<String> {
    vec![
        cell(&client["client"]),
        cell(&client["requests"]["day"]["current"]),
        cell(&client["passed"]),
        cell(&client["refused"]),
        since(&client["last_seen"], now_ms),
        cell(&client["lookup"]["country"]),
        cell(&client["lookup"]["asn"]),
        until(&client["ban_expires"], now_ms),
    ]
}

fn ban_row(ban: &Value, now_ms: u64) -> Vec<String> {
    vec![
        cell(&ban["netblock"]),
        end(ban, now_ms),
        cause(ban),
        cell(&ban["client"]),
        cell(&ban["notes"]["netblock_requests"]),
        cell(&ban["reason"]),
    ]
}

fn alert_row(alert: &Value) -> Vec<String> {
    let first = |names: &[&str]| {
        let mut members = names.iter().map(|name| &alert[*name]);
        cell(
            members
                .find(|value| !value.is_null())
                .unwrap_or(&Value::Null),
        )
    };
    vec![
        cell(&alert["time"]),
        cell(&alert["kind"]),
        first(&["netblock", "of", "file", "scope", "hour"]),
        first(&["reason", "error", "threshold", "held_back"]),
    ]
}
