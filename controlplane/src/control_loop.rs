//! The control loop: one thread that owns the bans, and does everything that follows from an event.
//!
//! Exceeded limits come from the data plane, admin requests from the router, edits from the thread
//! of the state files, commands from the process. Each turn takes exceeded limits first, because
//! only they are urgent. Then it does what is due by time: write state files, give up waiting
//! answers, publish that bans can be made again.
//!
//! Each part owns its fields and returns what happened in it; the loop passes the consequences to
//! the other parts: bans in `bans/`, alerts in `alert/`, routes and bodies in `admin/`, and files
//! on a thread of their own. Nothing here waits for a disk. Long work is done in pieces, one in
//! each turn (gathering lists of bans), or on other threads (writing them).
//!
//! A panic in a turn is a bug. It is logged, everything derived from the bans is rebuilt, and the
//! loop goes on. After [`MAX_PANICS`] within [`PANIC_SPAN_NS`] the loop writes the state files and
//! the service ends, because a filter that can no longer ban must not look alive (ALIVE-2).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use crossbeam_channel::{Receiver, Select, TryRecvError};
use weir_shared::clock::{Clock, Now};
use weir_shared::explain::Explain;
use weir_shared::fleet::CountsOf;
use weir_shared::handover::Respond;
use weir_shared::pulse::Pulse;
use weir_shared::reload::Reloaded;
use weir_shared::settings::Settings;
use weir_shared::spared::Spared;
use weir_shared::table::ClientTable;
use weir_shared::threads::{self, Ended, How};
use weir_shared::totals::Totals;

use crate::admin::answers::Page;
use crate::admin::bans::Pending;
use crate::admin::clients;
use crate::admin::explain::{Asked, Explained};
use crate::admin::problem::Problem;
use crate::admin::requests::Requests;
use crate::admin::status::Status;
use crate::admin::{Ask, Request};
use crate::alert::detection::Detection;
use crate::bans::ledger::Full;
use crate::bans::{Bans, MAX_NOTES_A_TURN};
use crate::crawlers::falls::Falls;
use crate::events::Events;
use crate::faults::Faults;
use crate::files::{AnyEdit, Content, Files, Which};
use crate::fleet::Fleet;
use crate::fleet::facts::FleetFacts;
use crate::giving::Give;
use crate::history::History;
use crate::lookup::Lookups;
use crate::metrics::Facts;
use crate::order::LoopCommand;
use crate::origins::Origins;
use crate::recent::Recent;
use crate::rules::LiveRules;
use crate::shared_state::SharedState;

mod anomalies;
mod ending;
mod fleet;
mod left_fleet;
mod minutes;
mod rules;
mod sparing;

use left_fleet::LeftFleet;

/// The longest sleep of the loop. A write, or the news that bans can be made again, may be late by
/// this.
const TICK: Duration = Duration::from_millis(100);

/// The most admin requests that are answered before exceeded limits are looked at again.
const MAX_ADMIN_A_TURN: usize = 4;

/// This many panics within [`PANIC_SPAN_NS`] end the service.
const MAX_PANICS: usize = 5;
/// The thread that the loop runs on.
pub const THREAD: &str = "weir-control";

/// One minute.
const PANIC_SPAN_NS: u64 = 60_000_000_000;

/// The loop, before it runs.
pub struct Control {
    /// Where time comes from; read once a turn.
    pub(crate) clock: Clock,
    /// The settings in force, for answers and the metrics (`WAF_MAX_BANS`, the mode).
    pub(crate) settings: Arc<Settings>,
    /// The same settings, shared with the thread that writes the status.
    pub(crate) reloaded: Arc<ArcSwap<Reloaded>>,
    /// Commands of the process, such as the steps of a reload.
    pub(crate) orders: Receiver<LoopCommand>,
    /// The ban ledger, and the exceeded limits that lead to bans.
    pub(crate) bans: Bans,
    /// The clients that the service never bans by itself (ALIVE-5).
    pub(crate) spared: Arc<Spared>,
    /// Anomalies and alerts.
    pub(crate) detection: Detection,
    /// Lookups of clients; their threads do the work.
    pub(crate) lookups: Lookups,
    /// The rules of rules.json; their thread reads the file.
    pub(crate) rules: LiveRules,
    /// Verified crawlers that were caught by traps or jails.
    pub(crate) falls: Falls,
    /// Faults that other threads report.
    pub(crate) faults: Faults,
    /// The state files; their thread reads and writes them.
    pub(crate) files: Files,
    /// The data plane's clients, for clients.json and the admin answer.
    pub(crate) table: Arc<dyn ClientTable>,
    /// Admin requests; at most 64 of them wait, and as many lists of bans.
    pub(crate) requests: Requests,
    /// Runs the data plane's ladder without a charge.
    pub(crate) explain: Explain,
    /// The last refusals.
    pub(crate) events: Arc<Events>,
    /// The fleet that this is an instance of.
    pub(crate) fleet: Option<Fleet>,
    /// The fleet that this instance left by a reload.
    pub(crate) left: Option<LeftFleet>,
    /// What an instance of a fleet needs at its start: the data plane's counts, and the version.
    pub(crate) made_from: (Option<CountsOf>, &'static str),
    /// Folds the data plane's counters, for the metrics.
    pub(crate) totals: Arc<dyn Fn() -> Totals + Send + Sync>,
    /// Requests by country and AS number, for the metrics.
    pub(crate) origins: Origins,
    /// Totals of the last minutes, for the status.
    pub(crate) recent: Recent,
    /// Totals of each minute of a day.
    pub(crate) history: History,
    /// Shared limits and known clients, which are kept over a restart.
    pub(crate) shared: SharedState,
    /// Receives the signal to stop from the handle.
    pub(crate) stop: Receiver<Stop>,
    /// Set if the state files must be given away after this turn.
    pub(crate) giving: Option<Give>,
}

/// The message that ends the loop.
pub(crate) struct Stop;

/// Whether the loop goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Flow {
    Go,
    Stop,
    /// The loop ends without a write: the state files belong to another process.
    Leave,
}

impl Control {
    /// Runs until `ControlHandle::stop`, on a thread of its own that has the name [`THREAD`].
    pub fn run(mut self) {
        let mut panics: Vec<u64> = Vec::new();
        let pulse = Pulse::of_this_thread();
        loop {
            pulse.beat();
            let turn = || match self.turn(TICK) {
                Flow::Go => self.give_away(&pulse),
                flow => flow,
            };
            match catch_unwind(AssertUnwindSafe(turn)) {
                Ok(Flow::Go) => {}
                Ok(Flow::Stop) => break,
                Ok(Flow::Leave) => return,
                Err(_) => {
                    let now_ns = self.clock.now().mono_ns;
                    panics.retain(|at| now_ns.saturating_sub(*at) < PANIC_SPAN_NS);
                    panics.push(now_ns);
                    let again = catch_unwind(AssertUnwindSafe(|| {
                        self.recover();
                        // The panic may have interrupted giving the state files away.
                        self.take_back();
                    }));
                    if again.is_err() || panics.len() >= MAX_PANICS {
                        tracing::error!(
                            "the control loop panicked {} times within a minute: the service ends, since no ban would be made any more",
                            panics.len()
                        );
                        // Reported before the last writes, which may wait for a slow disk.
                        threads::tell(Ended {
                            name: THREAD.to_owned(),
                            how: How::Panicked,
                        });
                        break;
                    }
                }
            }
        }
        self.finish();
    }

    /// Waits for something to do, at most for `wait`, and does it.
    pub(crate) fn turn(&mut self, wait: Duration) -> Flow {
        self.wait(wait);
        let now = self.clock.now();
        self.turn_spared(now);
        self.bans.take(now);
        self.note_bans(self.bans.notes_a_turn(), now);
        self.detection.count(now);
        self.share(now);
        self.recent.turn(now, &*self.totals);
        self.count_minute(now);
        self.take_edits(now);
        self.take_faults(now);
        self.take_rules(now);
        self.take_orders(now);
        self.files.take_outcomes(now);
        self.hear_fleet(now);
        let changes = self.answer_requests(now);
        // One publication covers all bans that were made and lifted in this turn, and no request is
        // answered before it. It is needed without any change too: a ban that ended may have made
        // room (BAN-7).
        self.bans.publish(now);
        self.answer_saved(changes, now);
        self.turn_fleet(now);
        self.rename_in_fleet();
        (self.requests).go_on_listing(self.bans.ledger(), now.wall_ms);
        let flow = match self.stop.try_recv() {
            // Without a handle nobody could ask for a stop any more.
            Ok(Stop) | Err(TryRecvError::Disconnected) => Flow::Stop,
            Err(TryRecvError::Empty) => Flow::Go,
        };
        self.save_due(now);
        self.files.give_up(now);
        self.bans.log_held_back(now);
        flow
    }

    fn wait(&self, wait: Duration) {
        let mut select = Select::new();
        self.bans.select(&mut select);
        self.requests.select(&mut select);
        self.files.select(&mut select);
        self.rules.select(&mut select);
        select.recv(&self.orders);
        select.recv(&self.stop);
        let has_more =
            self.detection.has_more() || self.bans.has_unnoted() || self.requests.is_listing();
        let wait = if has_more { Duration::ZERO } else { wait };
        let wait = self.select_fleet(&mut select, wait);
        let _ = select.ready_timeout(wait);
    }

    /// Adds the notes to at most `most` bans, and raises their alerts, which contain them.
    fn note_bans(&mut self, most: usize, now: Now) {
        for _ in 0..most {
            let Some(ban) = self.bans.note_next(now) else {
                break;
            };
            self.detection.alerts.ban(&ban, now.wall_ms);
        }
    }

    /// Raises an alert for each reported fault: of state files (STATE-7), of files that are read
    /// again (LOOKUP-5, EDGE-2, RULE-1), of feeds (FEED-5).
    fn take_faults(&mut self, now: Now) {
        while let Some(fault) = self.faults.next() {
            self.detection.alerts.fault(&fault, now.wall_ms);
        }
    }

    /// Applies edits of state files. After each one its document is sent: the thread of the files
    /// writes no document that lacks the edit.
    fn take_edits(&mut self, now: Now) {
        while let Some(edit) = self.files.next_edit() {
            self.take_edit(&edit, now);
            self.edit_taken(&edit, now);
        }
    }

    fn edit_taken(&mut self, edit: &AnyEdit, now: Now) {
        let which = self.files.taken(edit);
        let content = self.content(which, now);
        self.files.save_edited(content, now);
    }

    /// Answers a bounded number of admin requests. Those that changed the bans are returned.
    fn answer_requests(&mut self, now: Now) -> Vec<(Respond, Pending)> {
        let mut changes = Vec::new();
        for _ in 0..MAX_ADMIN_A_TURN {
            let Some(request) = self.requests.next() else {
                break;
            };
            // Bans first: a client that was told of its ban and asks for the list then finds it
            // there.
            self.bans.take(now);
            self.note_bans(MAX_NOTES_A_TURN, now);
            changes.extend(self.answer(request, now));
        }
        changes
    }

    /// Answers changes of the bans once they are on disk, or once the write failed or took too long
    /// (STATE-2).
    fn answer_saved(&mut self, mut changes: Vec<(Respond, Pending)>, now: Now) {
        self.offer_changes(now);
        self.await_fleet(&mut changes);
        if changes.is_empty() && !self.files.has_unrecorded() {
            return;
        }
        let held = self.bans.ledger().len();
        if let Err(changes) = self.files.record(changes, held, now) {
            // Once a turn only: with 100,000 bans this takes a millisecond.
            let bans = self.bans.ledger().all();
            self.files.answer_saved(bans, changes, now);
        }
    }

    /// Answers a request. A request that changed the bans is returned instead: its answer waits
    /// until they are published and saved.
    // long: one arm for each question
    fn answer(&mut self, request: Request, now: Now) -> Option<(Respond, Pending)> {
        let Request {
            ask,
            request_id,
            door,
            respond,
        } = request;
        match ask {
            Ask::Metrics => {
                let facts = Page::Metrics(Box::new(self.facts(now)));
                self.requests.write(facts, &request_id, respond);
            }
            Ask::Fleet => self.tell_fleet(&request_id, respond, now),
            Ask::Status => {
                let facts = self.facts(now);
                let since = self.recent.since(now, facts.totals);
                let status = Page::Status(Box::new(Status { facts, since, now }));
                self.requests.write(status, &request_id, respond);
            }
            Ask::History(most) => {
                let last = self.history.last(most, now, &self.counted(now));
                self.requests
                    .write(Page::History(last), &request_id, respond);
            }
            Ask::Clients(by, most) => {
                let clients = Page::Clients(by, most, now.wall_ms);
                self.requests.write(clients, &request_id, respond);
            }
            Ask::Explain(asked) => {
                let page = self.explain(asked, now).ok_or(Problem::UnknownRequest);
                self.write(page, &request_id, respond);
            }
            Ask::Import(batch) => match self.bans.import(*batch, now) {
                Ok(imported) => return Some((respond, Pending::imported(imported))),
                Err(Full) => respond(self.full().answer(&request_id)),
            },
            Ask::Alerts => {
                let alerts = self.detection.alerts.recent().cloned().collect();
                (self.requests).write(Page::Alerts(alerts), &request_id, respond);
            }
            Ask::List(filter) => {
                let cursor = self.events.bans().cursor();
                self.requests.list(filter, cursor, request_id, respond);
            }
            Ask::Client(client) => {
                let held = clients::held(client, &*self.table, self.bans.ledger());
                let page = held.map(|held| Page::Client(Box::new(held)));
                self.write(page.ok_or(Problem::NotFound), &request_id, respond);
            }
            Ask::Ban(order) => match self.bans.add(order, now) {
                Ok(ban) => {
                    self.detection.alerts.ban(&ban, now.wall_ms);
                    return Some((respond, Pending::made(&ban, door)));
                }
                Err(Full) => respond(self.full().answer(&request_id)),
            },
            Ask::Lift(subject) => {
                let lifted = self.bans.lift(subject, now);
                let is_told = self.lift_in_fleet(subject, now);
                let pending = Pending::lifted(&lifted);
                if !lifted.is_empty() || is_told {
                    return Some((respond, pending));
                }
                respond(pending.answer(true));
            }
        }
        None
    }

    fn full(&self) -> Problem {
        let max_bans = self.settings.bans.max;
        Problem::Full { max_bans }
    }

    /// Has the page, or the problem, written by the thread of the answers.
    fn write(&self, page: Result<Page, Problem>, request_id: &str, respond: Respond) {
        match page {
            Ok(page) => self.requests.write(page, request_id, respond),
            Err(problem) => respond(problem.answer(request_id)),
        }
    }

    /// The explanation of a request; none if the request is not known.
    fn explain(&self, asked: Asked, now: Now) -> Option<Page> {
        let ledger = self.bans.ledger();
        let (question, seen) = asked.found(self.events.refusals(), ledger)?;
        let explanation = (self.explain)(&question);
        Some(Page::Explain(Box::new(Explained {
            bans: ledger.covering(explanation.client),
            question,
            seen,
            explanation,
            observe: self.settings.observe,
            now,
        })))
    }

    fn facts(&mut self, now: Now) -> Facts {
        self.origins.update();
        let ledger = self.bans.ledger();
        Facts {
            alerts: self.detection.alerts.raised(),
            alert_lines_dropped: self.detection.alerts.lines_dropped(),
            countries: self.origins.countries(),
            asns: self.origins.asns(),
            totals: (self.totals)(),
            observe: self.settings.observe,
            bans_active: ledger.active(now.wall_ms),
            bans_made: ledger.made(),
            bans_dropped: ledger.dropped(),
            untrusted_forwarders: self.spared.forwarder_count(),
            certificates: self.detection.certificates.validities(),
            state: self.files.counts(),
            lookups: self.lookups.facts(),
            shared: self.rules.in_force(self.table.shared_use(now.wall_ms)),
            known: self.table.known_len(),
            rules: self.rules.facts(),
            fleet: self.fleet.as_ref().map(|fleet| FleetFacts {
                decisive: self.bans.made_by_others(),
                ..fleet.facts(now)
            }),
            feeds: self.rules.feeds().facts(now.wall_ms),
        }
    }

    fn save_due(&mut self, now: Now) {
        let held = self.bans.ledger().len();
        for which in self.files.due(held, now) {
            let content = self.content(*which, now);
            self.files.save(content, Vec::new(), now);
        }
        self.files.record_due(held, now);
    }

    /// The content to write to a file.
    pub(crate) fn content(&mut self, which: Which, now: Now) -> Content {
        match which {
            Which::Bans => {
                // Takes the changes first: the document contains them, so they need no line of the
                // journal.
                self.offer_changes(now);
                Content::Bans(self.bans.ledger().all())
            }
            Which::Clients => {
                self.table.forget_idle(self.clock.now());
                Content::Clients(self.table.rows())
            }
            Which::Lookups => Content::Lookups(self.lookups.rows()),
            Which::Alerts => Content::Alerts(self.detection.entries()),
        }
    }

    /// Rebuilds everything that is derived from the bans, after a panic.
    fn recover(&mut self) {
        let now = self.clock.now();
        tracing::error!("the control loop panicked: it goes on from its bans; please report this");
        self.files.resume();
        self.bans.recover(now);
        self.files.bans_unsure(now);
        self.events.bans().lose();
        self.recover_fleet(now);
        while let Some(edit) = self.files.interrupted() {
            // Half of the edit may be applied; applying it again does no harm.
            let again = catch_unwind(AssertUnwindSafe(|| self.take_edit(&edit, now)));
            if again.is_err() {
                tracing::error!(
                    "an edit of a state file is not wholly in force, by a bug: save it again"
                );
                self.bans.recover(now);
            }
            self.edit_taken(&edit, now);
        }
    }
}

#[cfg(test)]
mod tests;
