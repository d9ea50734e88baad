//! The control loop: one thread that owns the bans, and everything that follows from an event.
//!
//! Exceeded limits come up from the data plane, admin requests over the handover, edits from the
//! thread of the state files, commands from the process. Each turn takes exceeded limits first,
//! since nothing else is urgent for anybody's safety; then it does what time asks for: write state
//! files, give up waiting, publish that bans can be made again.
//!
//! Each part has its own fields and returns what happened to it; the loop says what follows for the
//! others: bans in `bans/`, alerts in `alert/`, routes and bodies in `admin/`, and files on a
//! thread of their own. Nothing here waits for a disk, and what takes long is done a piece a turn
//! (lists of bans) or elsewhere (writing them).
//!
//! A panic in a turn is a bug. It is logged, what follows from the bans is worked out anew, and the
//! loop goes on; after [`MAX_PANICS`] within [`PANIC_SPAN_NS`] it writes the state files and the
//! service ends, since a filter that cannot ban any more must not look alive (ALIVE-2).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use crossbeam_channel::{Receiver, Select, TryRecvError};
use weir_shared::clock::{Clock, Now};
use weir_shared::explain::Explain;
use weir_shared::handover::{OwnResponse, Respond};
use weir_shared::pulse::Pulse;
use weir_shared::reload::Reloaded;
use weir_shared::settings::Settings;
use weir_shared::spared::Spared;
use weir_shared::table::ClientTable;
use weir_shared::threads::{self, Ended, How};
use weir_shared::totals::Totals;

use crate::admin::answers::Page;
use crate::admin::bans::Pending;
use crate::admin::explain::Asked;
use crate::admin::problem::Problem;
use crate::admin::requests::Requests;
use crate::admin::status::{self, Status};
use crate::admin::{Ask, Request, clients, explain};
use crate::alert::detection::Detection;
use crate::bans::ledger::Full;
use crate::bans::{Bans, MAX_NOTES_A_TURN};
use crate::events::Events;
use crate::files::{AnyEdit, Content, Files, Which};
use crate::giving::Give;
use crate::lookup::{FileFault, Lookups};
use crate::metrics::Facts;
use crate::order::Order;
use crate::origins::Origins;
use crate::recent::Recent;
use crate::rules::{Found, LiveRules};
use crate::state::WriteFault;

mod ending;

/// The longest the loop sleeps: how late a write may be, or the word that bans can be made again.
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
    /// For answers and the metrics: `WAF_MAX_BANS`, the mode.
    pub(crate) settings: Arc<Settings>,
    /// What the status tells of them, on another thread.
    pub(crate) reloaded: Arc<ArcSwap<Reloaded>>,
    /// Steps of a reload.
    pub(crate) orders: Receiver<Order>,
    /// Every ban, and what leads to one.
    pub(crate) bans: Bans,
    /// Who is not banned by the service itself (ALIVE-5).
    pub(crate) spared: Arc<Spared>,
    /// Anomalies and alerts.
    pub(crate) detection: Detection,
    /// Lookups of clients; they work on threads of their own.
    pub(crate) lookups: Lookups,
    /// rules.json; its thread reads it.
    pub(crate) rules: LiveRules,
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
    /// Folds the data plane's counters, for the metrics.
    pub(crate) totals: Arc<dyn Fn() -> Totals + Send + Sync>,
    /// Requests by country and AS number, for the metrics.
    pub(crate) origins: Origins,
    /// What they were within the last minutes, for the status.
    pub(crate) recent: Recent,
    /// Receives the signal to stop from the handle.
    pub(crate) stop: Receiver<Stop>,
    /// The state files are to be given away, after this turn.
    pub(crate) giving: Option<Give>,
}

/// SIGTERM, after the last request.
pub(crate) struct Stop;

/// Whether the loop goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Flow {
    Go,
    Stop,
    /// The state files are another process's.
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
                    let again = catch_unwind(AssertUnwindSafe(|| self.recover()));
                    if again.is_err() || panics.len() >= MAX_PANICS {
                        tracing::error!(
                            "the control loop panicked {} times within a minute: the service ends, since no ban would be made any more",
                            panics.len()
                        );
                        // At once: what is written now may wait for a slow disk.
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
        self.spared.end(now.wall_ms);
        self.make_bans(now);
        self.note_bans(self.bans.notes_a_turn(), now);
        self.detection.count(now);
        self.recent.turn(now, &*self.totals);
        self.take_edits(now);
        self.take_faults(now);
        self.take_rules(now);
        self.take_orders(now);
        self.files.take_outcomes();
        let changes = self.answer_requests(now);
        // One publication serves all the bans that were made and lifted, and nobody is answered
        // before it. Room may also have come by a ban that ended (BAN-7).
        self.bans.publish(now);
        self.answer_saved(changes, now);
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
        let _ = select.ready_timeout(wait);
    }

    /// Makes bans of exceeded limits.
    fn make_bans(&mut self, now: Now) {
        if self.bans.take(now) {
            self.files.bans_stale(now);
        }
    }

    /// Gathers the circumstances of up to so many bans: an alert tells of them.
    fn note_bans(&mut self, most: usize, now: Now) {
        for _ in 0..most {
            let Some(ban) = self.bans.note_next(now) else {
                break;
            };
            self.detection.alerts.ban(&ban, now.wall_ms);
            self.files.bans_stale(now);
        }
    }

    /// State files that cannot be written (STATE-7), lookup databases that cannot be read
    /// (LOOKUP-5).
    fn take_faults(&mut self, now: Now) {
        for FileFault { file, error } in self.lookups.file_faults() {
            self.detection.alerts.file_error(&file, &error, now.wall_ms);
        }
        while let Ok(WriteFault { file, error }) = self.files.faults().try_recv() {
            self.detection.alerts.state_error(file, &error, now.wall_ms);
        }
    }

    /// Publishes what rules.json says now, or tells why an edit of it is not taken (RULE).
    fn take_rules(&mut self, now: Now) {
        while let Some(found) = self.rules.next() {
            match found {
                Found::Taken { rules, told, .. } => {
                    self.bans.publish_rules(rules);
                    if let Some(told) = told {
                        told();
                    }
                }
                Found::Fault { file, error } => {
                    self.detection.alerts.file_error(&file, &error, now.wall_ms);
                }
            }
        }
    }

    /// Brings edits into force. Each is followed by a document that holds it: its file is not
    /// written with another.
    fn take_edits(&mut self, now: Now) {
        while let Some(edit) = self.files.next_edit() {
            self.take_edit(&edit, now);
            self.edit_taken(&edit);
        }
    }

    fn edit_taken(&mut self, edit: &AnyEdit) {
        let which = self.files.taken(edit);
        let content = self.content(which);
        self.files.save(content, Vec::new());
    }

    /// Answers a bounded number of admin requests. Those that changed the bans are returned.
    fn answer_requests(&mut self, now: Now) -> Vec<(Respond, Pending)> {
        let mut changes = Vec::new();
        for _ in 0..MAX_ADMIN_A_TURN {
            let Some(request) = self.requests.next() else {
                break;
            };
            // A client that was told of its ban and asks for the bans finds its own among them.
            self.make_bans(now);
            self.note_bans(MAX_NOTES_A_TURN, now);
            changes.extend(self.answer(request, now));
        }
        changes
    }

    /// Answers changes of the bans once bans.json is on disk, or when that failed or took too long
    /// (STATE-2).
    fn answer_saved(&mut self, changes: Vec<(Respond, Pending)>, now: Now) {
        if !changes.is_empty() {
            // Once a turn: with 100,000 bans this is a millisecond.
            let bans = self.bans.ledger().all();
            self.files.answer_saved(bans, changes, now);
        }
    }

    /// Answers a request. What changed the bans is returned instead: its answer waits until they
    /// are published and saved.
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
            Ask::Status => {
                let facts = self.facts(now);
                let since = self.recent.since(now, facts.totals);
                let status = Page::Status(Box::new(Status { facts, since, now }));
                self.requests.write(status, &request_id, respond);
            }
            Ask::Clients(by, most) => {
                let clients = Page::Clients(by, most, now.wall_ms);
                self.requests.write(clients, &request_id, respond);
            }
            Ask::Explain(asked) => respond(self.explain(asked, &request_id, now)),
            Ask::Import(batch) => match self.bans.import(*batch, now) {
                Ok(imported) => return Some((respond, Pending::imported(imported))),
                Err(Full) => {
                    let max_bans = self.settings.bans.max;
                    respond(Problem::Full { max_bans }.answer(&request_id));
                }
            },
            Ask::Alerts => respond(status::alerts(self.detection.alerts.recent())),
            Ask::List(filter) => self.requests.list(filter, request_id, respond),
            Ask::Client(client) => {
                let ledger = self.bans.ledger();
                respond(clients::answer(client, &*self.table, ledger, &request_id));
            }
            Ask::Ban(order) => match self.bans.add(order, now) {
                Ok(ban) => {
                    self.detection.alerts.ban(&ban, now.wall_ms);
                    return Some((respond, Pending::made(&ban, door)));
                }
                Err(Full) => {
                    let max_bans = self.settings.bans.max;
                    respond(Problem::Full { max_bans }.answer(&request_id));
                }
            },
            Ask::Lift(subject) => {
                let lifted = self.bans.lift(subject, now);
                let pending = Pending::lifted(&lifted);
                if !lifted.is_empty() {
                    return Some((respond, pending));
                }
                respond(pending.answer(true));
            }
        }
        None
    }

    fn explain(&self, asked: Asked, request_id: &str, now: Now) -> OwnResponse {
        let (ledger, observe) = (self.bans.ledger(), self.settings.observe);
        let Some((question, seen)) = asked.found(self.events.refusals(), ledger) else {
            return Problem::UnknownRequest.answer(request_id);
        };
        let explained = (self.explain)(&question);
        explain::answer((&question, seen.as_ref()), &explained, ledger, observe, now)
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
            rules: self.rules.facts(),
        }
    }

    fn save_due(&mut self, now: Now) {
        for which in self.files.due(now) {
            let content = self.content(*which);
            self.files.save(content, Vec::new());
        }
    }

    /// What a file is to hold.
    pub(crate) fn content(&mut self, which: Which) -> Content {
        match which {
            Which::Bans => Content::Bans(self.bans.ledger().all()),
            Which::Clients => {
                self.table.forget_idle(self.clock.now());
                Content::Clients(self.table.rows())
            }
            Which::Lookups => Content::Lookups(self.lookups.rows()),
            Which::Alerts => Content::Alerts(self.detection.entries()),
        }
    }

    /// Brings the loop back to what its bans say.
    fn recover(&mut self) {
        let now = self.clock.now();
        tracing::error!("the control loop panicked: it goes on from its bans; please report this");
        self.files.resume();
        self.bans.recover(now);
        self.files.bans_stale(now);
        while let Some(edit) = self.files.interrupted() {
            // Half of it may be in force, and again does no harm.
            let again = catch_unwind(AssertUnwindSafe(|| self.take_edit(&edit, now)));
            if again.is_err() {
                tracing::error!(
                    "an edit of a state file is not wholly in force, by a bug: save it again"
                );
                self.bans.recover(now);
            }
            self.edit_taken(&edit);
        }
    }
}

#[cfg(test)]
mod tests;
