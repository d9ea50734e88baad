//! The control loop: one thread that owns the ban ledger, and everything that follows from an event.
//!
//! Breaks come up from the data plane, admin requests over the handover, edits from the thread of the state files, commands from the
//! process. Each turn takes breaks first, since others wait for nobody's safety; then it does what time asks for: write
//! state files, give up waiting, say again that bans can be made.
//!
//! It leaves the ban rules to `bans/`, routes and bodies to `admin/`, and files to a thread of their own: nothing here
//! waits for a disk, and what takes long is done a piece a turn (lists of bans) or elsewhere (writing them).
//!
//! A panic in a turn is a bug. It is logged, what follows from the bans is worked out anew, and the loop goes on; after
//! [`MAX_PANICS`] within [`PANIC_SPAN_NS`] the process ends, since a filter that cannot ban any more must not look alive.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use crossbeam_channel::{Receiver, Select, Sender, TryRecvError, bounded, never};
use weir_schema::CatalogError;
use weir_shared::ban::{Ban, Notes, Unknown, WithUnknown};
use weir_shared::client::Client;
use weir_shared::clock::{Clock, Now};
use weir_shared::event::{Finished, LimitExceeded};
use weir_shared::handover::{Handover, Respond};
use weir_shared::lookup::{AsNumber, Country};
use weir_shared::netblock::Netblock;
use weir_shared::settings::Settings;
use weir_shared::snapshot::Snapshot;
use weir_shared::table::ClientTable;
use weir_shared::totals::{MAX_ASNS, OriginCounts, Totals};

use crate::admin::answers::{Answers, Told};
use crate::admin::bans::{Listing, Pending};
use crate::admin::problem::Problem;
use crate::admin::token::{AdminTokenHolder, TokenError};
use crate::admin::{Ask, Front, Request, clients};
use crate::alert::Alerts;
use crate::alert::document::{AlertsEntry, AlertsFile, AlertsKey};
use crate::anomaly::Anomalies;
use crate::bans::document::{BanKey, BansFile};
use crate::bans::ledger::{BreakOutcome, Full, Ledger, Rules};
use crate::bans::publish::Publisher;
use crate::clients::ClientsFile;
use crate::files::{AnyEdit, Content, Files, StartState, StateFiles, Which};
use crate::line_limit::LineLimit;
use crate::lookup::document::LookupsFile;
use crate::lookup::{FileFault, Lookups};
use crate::metrics::Facts;
use crate::state::{Change, WriteFault};
use crate::top::Top;

/// The longest the loop sleeps: how late a write may be, or the word that bans can be made again.
const TICK: Duration = Duration::from_millis(100);

/// The most breaks that are made into bans before they are published: a flood of breaks must not delay the first.
const MAX_BATCH: usize = 1024;

/// The most bans whose circumstances are gathered before breaks are looked at again: counting the requests of a netblock
/// walks the client table, and a storm of bans must not hold up the next one (BAN-8).
const MAX_NOTES_A_TURN: usize = 8;

/// The most bans that wait for their circumstances; beyond it they go without the count of their netblock.
const MAX_UNNOTED: usize = 4096;

/// The most batches of finished requests that are counted before breaks are looked at again: some 16,000 requests, a few
/// milliseconds.
const MAX_FINISHED_A_TURN: usize = 64;

/// Two letters leave no more countries than this, and the unknown one.
const MAX_COUNTRIES: usize = 26 * 26 + 1;

/// The most admin requests that are answered before breaks are looked at again.
const MAX_ADMIN_A_TURN: usize = 4;

/// The most bans that are looked at for lists before breaks are looked at again: a fraction of a millisecond.
const MAX_LISTED_A_TURN: usize = 4096;

/// Lists of bans that may be under way; one more is 503.
const MAX_LISTINGS: usize = 64;

/// Admin requests that may wait for the loop; one more is 503.
const ADMIN_QUEUE: usize = 64;

/// How long a stop waits for the last writes.
const STOP_WAIT: Duration = Duration::from_secs(10);

/// This many panics within [`PANIC_SPAN_NS`] end the process.
const MAX_PANICS: usize = 5;

/// One minute.
const PANIC_SPAN_NS: u64 = 60_000_000_000;

/// What the control plane is wired to.
pub struct Wiring {
    /// The settings.
    pub settings: Arc<Settings>,
    /// Where time comes from.
    pub clock: Clock,
    /// Where bans are published.
    pub snapshots: Arc<ArcSwap<Snapshot>>,
    /// The data plane's clients.
    pub table: Arc<dyn ClientTable>,
    /// Broken limits.
    pub breaks: Receiver<LimitExceeded>,
    /// Folds the data plane's counters.
    pub totals: Arc<dyn Fn() -> Totals + Send + Sync>,
    /// The state files.
    pub files: StateFiles,
    /// What they held.
    pub start: StartState,
    /// The lookups; what lookups.json held is theirs already.
    pub lookups: Lookups,
    /// What comes and goes for anomalies, alerts and the metrics by place.
    pub feeds: Feeds,
    /// For `waf_build_info`.
    pub version: &'static str,
}

/// What comes and goes for anomalies, alerts and the metrics by place.
pub struct Feeds {
    /// Finished requests; nobody sends any while every threshold is off.
    pub finished: Receiver<Vec<Finished>>,
    /// Takes the requests by country and AS number since the last time.
    pub origins: Arc<dyn Fn() -> OriginCounts + Send + Sync>,
    /// Alert lines, to the request log.
    pub lines: Sender<Vec<u8>>,
}

/// Why the control plane cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The token file.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The schema of POST bodies, which a test would have found.
    #[error(transparent)]
    Schema(#[from] CatalogError),
    /// bans.json holds more than may be dropped.
    #[error(
        "bans.json holds {held} active bans made by an administrator or permanent, WAF_MAX_BANS is {max_bans}: raise the \
         setting or mark some of them lifted"
    )]
    TooManyBans {
        /// Those that may not be dropped.
        held: usize,
        /// The setting.
        max_bans: usize,
    },
    /// The system refused a thread.
    #[error("the thread of the answers cannot be started: {0}")]
    Thread(std::io::Error),
}

/// The loop, before it runs.
pub struct Control {
    clock: Clock,
    settings: Arc<Settings>,
    ledger: Ledger,
    publisher: Publisher,
    table: Arc<dyn ClientTable>,
    totals: Arc<dyn Fn() -> Totals + Send + Sync>,
    answers: Answers,
    alerts: Alerts,
    anomalies: Anomalies,
    finished: Receiver<Vec<Finished>>,
    /// Whether more finished requests wait than one turn takes.
    finished_wait: bool,
    origins: Arc<dyn Fn() -> OriginCounts + Send + Sync>,
    countries: Top<Option<Country>>,
    asns: Top<Option<AsNumber>>,
    lookups: Lookups,
    files: Files,
    breaks: Receiver<LimitExceeded>,
    requests: Receiver<Request>,
    /// Lists that are being gathered, in the order they were asked for; at most [`MAX_LISTINGS`].
    listings: VecDeque<(Listing, String, Respond)>,
    stop: Receiver<Stop>,
    /// Clients whose breaks are being handled: after a panic they are released, or they would never be reported again.
    in_hand: Vec<Client>,
    /// Bans that are published and wait for their circumstances; their clients are reset afterwards.
    unnoted: VecDeque<(LimitExceeded, BanKey)>,
    ban_notices: LineLimit,
    drop_notices: LineLimit,
}

/// Steers the loop from other threads.
#[derive(Clone)]
pub struct ControlHandle {
    front: Arc<Front>,
    admin_token: Arc<AdminTokenHolder>,
    stop: Sender<Stop>,
}

/// SIGTERM, after the last request.
struct Stop;

impl ControlHandle {
    /// The function that answers requests under `/_waf/`.
    pub fn handover(&self) -> Handover {
        Arc::clone(&self.front).handover()
    }

    /// Reads `WAF_ADMIN_TOKEN_FILE` again (SIGHUP), on the thread of the caller: the loop waits for no disk. A file that
    /// cannot be used is logged, and the old token stays.
    pub fn reload_tokens(&self) {
        match self.admin_token.reload() {
            Ok(true) => tracing::info!("WAF_ADMIN_TOKEN_FILE was read again"),
            Ok(false) => {}
            Err(error) => tracing::error!("{error}; the token read before stays in use"),
        }
    }

    /// Ends [`Control::run`] after a last write of every state file. Call it once the data plane has stopped; requests
    /// that still wait for an answer are dropped.
    pub fn stop(&self) {
        let _ = self.stop.try_send(Stop);
    }
}

impl Control {
    /// Takes in what the state files held and publishes the first snapshot: when it returns, every ban is in force.
    ///
    /// # Errors
    /// See [`ControlError`].
    pub fn new(wiring: Wiring) -> Result<(Self, ControlHandle), ControlError> {
        let Wiring {
            settings,
            clock,
            snapshots,
            table,
            breaks,
            totals,
            files,
            start,
            lookups,
            feeds,
            version,
        } = wiring;
        let now = clock.now();
        let mut ledger =
            Ledger::new(Rules::from(&*settings), start.bans, now.wall_ms).map_err(|held| {
                ControlError::TooManyBans {
                    held,
                    max_bans: settings.bans.max,
                }
            })?;
        let admin_token = Arc::new(AdminTokenHolder::new(&settings.endpoints.admin_token)?);
        let publisher = Publisher::new(snapshots, &mut ledger, now.wall_ms);
        for row in start.clients {
            table.put(row);
        }
        let mut anomalies = Anomalies::new(&settings, now.wall_ms);
        let mut alerts = Alerts::new(feeds.lines);
        for entry in start.alerts {
            put_entry(&mut anomalies, &mut alerts, entry);
        }
        let (queue, requests) = bounded(ADMIN_QUEUE);
        let (stopping, stop) = bounded(1);
        let front = Front::new(&settings, Arc::clone(&admin_token), queue)?;
        let control = Self {
            clock,
            alerts,
            anomalies,
            finished: feeds.finished,
            finished_wait: false,
            origins: feeds.origins,
            countries: Top::new(settings.endpoints.metrics_top_n),
            asns: Top::new(settings.endpoints.metrics_top_n),
            files: Files::new(files, &settings, now),
            settings,
            ledger,
            publisher,
            table,
            totals,
            answers: Answers::start(version).map_err(ControlError::Thread)?,
            lookups,
            breaks,
            requests,
            listings: VecDeque::new(),
            stop,
            in_hand: Vec::new(),
            unnoted: VecDeque::new(),
            ban_notices: LineLimit::default(),
            drop_notices: LineLimit::default(),
        };
        let handle = ControlHandle {
            front: Arc::new(front),
            admin_token,
            stop: stopping,
        };
        Ok((control, handle))
    }

    /// Runs until [`ControlHandle::stop`], on a thread of its own.
    pub fn run(mut self) {
        let mut panics: Vec<u64> = Vec::new();
        loop {
            match catch_unwind(AssertUnwindSafe(|| self.turn(TICK))) {
                Ok(Flow::Go) => {}
                Ok(Flow::Stop) => break,
                Err(_) => {
                    let now_ns = self.clock.now().mono_ns;
                    panics.retain(|at| now_ns.saturating_sub(*at) < PANIC_SPAN_NS);
                    panics.push(now_ns);
                    let again = catch_unwind(AssertUnwindSafe(|| self.recover()));
                    if again.is_err() || panics.len() >= MAX_PANICS {
                        tracing::error!(
                            "the control loop panicked {} times within a minute: the process ends, since no ban would be made any more",
                            panics.len()
                        );
                        std::process::abort();
                    }
                }
            }
        }
        self.finish();
    }

    /// Waits for something to do, at most for `wait`, and does it.
    pub(crate) fn turn(&mut self, wait: Duration) -> Flow {
        let mut select = Select::new();
        select.recv(&self.breaks);
        select.recv(&self.requests);
        select.recv(&self.stop);
        self.files.select(&mut select);
        let waits = self.finished_wait || !self.unnoted.is_empty() || !self.listings.is_empty();
        let wait = if waits { Duration::ZERO } else { wait };
        let _ = select.ready_timeout(wait);
        drop(select);

        let now = self.clock.now();
        self.take_breaks(now);
        // Beyond the bound they cost little, and all of them go: the queue stays bounded.
        let beyond = self.unnoted.len().saturating_sub(MAX_UNNOTED);
        self.note_bans(MAX_NOTES_A_TURN.max(beyond), now);
        self.take_finished(now);
        self.take_edits(now);
        self.take_faults(now);
        self.files.take_outcomes();
        for _ in 0..MAX_ADMIN_A_TURN {
            match self.requests.try_recv() {
                Ok(request) => {
                    // A client that was told of its break and asks for the bans finds its own among them.
                    self.take_breaks(now);
                    self.note_bans(MAX_NOTES_A_TURN, now);
                    self.answer(request, now);
                }
                Err(TryRecvError::Empty) => break,
                // A channel whose other end is gone is always ready; it would be asked without a pause.
                Err(TryRecvError::Disconnected) => {
                    self.requests = never();
                    break;
                }
            }
        }
        self.list(now);
        let flow = match self.stop.try_recv() {
            // Without a handle nobody could ask for a stop any more.
            Ok(Stop) | Err(TryRecvError::Disconnected) => Flow::Stop,
            Err(TryRecvError::Empty) => Flow::Go,
        };
        self.periodic(now);
        flow
    }

    /// Makes bans of every break that waits, publishes them in one go, and only then resets the clients (LIMIT-6).
    fn take_breaks(&mut self, now: Now) {
        let mut breaks = Vec::new();
        while breaks.len() < MAX_BATCH {
            match self.breaks.try_recv() {
                Ok(broken) => breaks.push(broken),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    self.breaks = never();
                    break;
                }
            }
        }
        if breaks.is_empty() {
            return;
        }
        self.in_hand = breaks.iter().map(|broken| broken.client).collect();
        let outcomes: Vec<BreakOutcome> = breaks
            .iter()
            .map(|broken| self.ledger.break_limit(broken, now.wall_ms))
            .collect();
        self.publisher.publish(&mut self.ledger, now.wall_ms);
        let generation = self.publisher.generation();
        for (broken, outcome) in breaks.into_iter().zip(outcomes) {
            match outcome {
                BreakOutcome::Banned(key) => {
                    self.notice_ban(key);
                    self.files.bans_stale(now);
                    self.unnoted.push_back((broken, key));
                }
                BreakOutcome::Already => self.table.reset(broken.client, generation),
                BreakOutcome::Full => self.table.release(broken.client),
            }
        }
        self.in_hand.clear();
        self.notice_drops();
    }

    /// Gathers the circumstances of bans that were published, then resets their clients.
    fn note_bans(&mut self, most: usize, now: Now) {
        for _ in 0..most {
            let crowded = self.unnoted.len() > MAX_UNNOTED;
            let Some((broken, key)) = self.unnoted.pop_front() else {
                break;
            };
            let client = broken.client;
            self.in_hand.push(client);
            let notes = self.notes(broken, crowded, now);
            self.ledger.note(key, notes);
            if let Some(ban) = self.ledger.ban(key) {
                self.alerts.ban(ban, now.wall_ms);
            }
            self.files.bans_stale(now);
            self.table.reset(client, self.publisher.generation());
            self.in_hand.clear();
        }
    }

    /// The circumstances of a break (BAN-4). The client is not reset yet, so its own requests are among those counted.
    fn notes(&self, broken: LimitExceeded, crowded: bool, now: Now) -> Notes {
        let netblock = Netblock::of(broken.client, self.settings.bans.prefixes);
        let span = broken.limit.span();
        Notes {
            netblock_requests: (!crowded)
                .then(|| self.table.netblock_requests(netblock, span, now.wall_ms)),
            lookup: self
                .table
                .row(broken.client)
                .and_then(|row| row.lookup)
                .map(WithUnknown::from),
            request: Some(broken.request.into()),
            limit: Some(broken.limit),
            limit_value: Some(broken.limit_value),
            limit_percent: Some(broken.limit_percent),
            unknown: Unknown::default(),
        }
    }

    /// Counts finished requests for the anomalies. Breaks are looked at again after a bounded number of them.
    fn take_finished(&mut self, now: Now) {
        self.finished_wait = false;
        // First, so that nothing of the new hour or minute is told with the one before.
        if let Some(summary) = self.anomalies.turn(now.wall_ms) {
            self.alerts.summary(&summary, now.wall_ms);
        }
        self.alerts.turn(now.wall_ms);
        for _ in 0..MAX_FINISHED_A_TURN {
            let batch = match self.finished.try_recv() {
                Ok(batch) => batch,
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => {
                    self.finished = never();
                    return;
                }
            };
            for finished in &batch {
                let alerts = &mut self.alerts;
                self.anomalies.count(finished, now.wall_ms, |over| {
                    alerts.anomaly(&over, now.wall_ms);
                });
            }
        }
        self.finished_wait = !self.finished.is_empty();
    }

    /// State files that cannot be written (STATE-7), lookup databases that cannot be read (LOOKUP-5).
    fn take_faults(&mut self, now: Now) {
        for FileFault { file, error } in self.lookups.file_faults() {
            self.alerts.file_error(&file, &error, now.wall_ms);
        }
        while let Ok(WriteFault { file, error }) = self.files.faults().try_recv() {
            self.alerts.state_error(file, &error, now.wall_ms);
        }
    }

    /// Brings edits into force. Each is followed by a document that holds it: its file is not written with another.
    fn take_edits(&mut self, now: Now) {
        while let Some(edit) = self.files.next_edit() {
            self.take_edit(&edit, now);
            self.edit_taken(&edit);
        }
    }

    fn edit_taken(&mut self, edit: &AnyEdit) {
        let which = self.files.taken(edit);
        let content = self.content(which);
        self.files.save(content, None);
    }

    fn take_edit(&mut self, edit: &AnyEdit, now: Now) {
        match edit {
            AnyEdit::Bans(edit) => self.edit_bans(&edit.changes, now),
            AnyEdit::Clients(edit) => self.edit_clients(&edit.changes),
            AnyEdit::Lookups(edit) => self.edit_lookups(&edit.changes),
            AnyEdit::Alerts(edit) => self.edit_alerts(&edit.changes),
        }
    }

    fn edit_bans(&mut self, changes: &[Change<BansFile>], now: Now) {
        let refused = self.ledger.edit(changes, now.wall_ms);
        self.publisher.publish(&mut self.ledger, now.wall_ms);
        if refused > 0 {
            tracing::warn!(
                "{refused} entries of the edited bans.json did not fit: none of the {} bans that WAF_MAX_BANS \
                 allows may be dropped",
                self.settings.bans.max
            );
        }
        self.notice_drops();
    }

    fn edit_clients(&self, changes: &[Change<ClientsFile>]) {
        for change in changes {
            match change {
                Change::Remove(client) => self.table.forget(*client),
                Change::Put { after, .. } => self.table.put(after.row.clone()),
            }
        }
    }

    fn edit_lookups(&mut self, changes: &[Change<LookupsFile>]) {
        self.lookups.edit(changes);
        if self.lookups.uses_rows() {
            // Each is asked about again with its next request, and the answer is the edited one.
            for change in changes {
                self.table.forget_lookup(match change {
                    Change::Remove(client) => *client,
                    Change::Put { after, .. } => after.row.client,
                });
            }
        }
    }

    fn edit_alerts(&mut self, changes: &[Change<AlertsFile>]) {
        for change in changes {
            match change {
                Change::Remove(AlertsKey::Counter(scope)) => {
                    self.anomalies.counters().remove(*scope);
                }
                Change::Remove(AlertsKey::Cooldown(scope)) => {
                    self.anomalies.cooldowns().remove(*scope);
                }
                Change::Remove(AlertsKey::Alert(time)) => self.alerts.remove(*time),
                Change::Put { after, .. } => {
                    put_entry(&mut self.anomalies, &mut self.alerts, after.row.clone());
                }
            }
        }
    }

    fn answer(&mut self, request: Request, now: Now) {
        let Request {
            ask,
            request_id,
            respond,
        } = request;
        match ask {
            Ask::Metrics => {
                let facts = Box::new(self.facts(now));
                self.answers
                    .write(Told::Metrics(facts), &request_id, respond);
            }
            Ask::List(_) if self.listings.len() >= MAX_LISTINGS => {
                respond(Problem::Busy.answer(&request_id));
            }
            Ask::List(filter) => {
                let listing = Listing::new(filter);
                self.listings.push_back((listing, request_id, respond));
            }
            Ask::Client(client) => {
                respond(clients::answer(
                    client,
                    &*self.table,
                    &self.ledger,
                    &request_id,
                ));
            }
            Ask::Ban(order) => match self.ledger.add(order, now.wall_ms) {
                Ok(ban) => {
                    self.publisher.publish(&mut self.ledger, now.wall_ms);
                    self.notice_drops();
                    if self.ban_notices.allow() {
                        log_ban(&ban);
                    }
                    self.alerts.ban(&ban, now.wall_ms);
                    self.answer_saved(respond, Pending::made(&ban), now);
                }
                Err(Full) => {
                    let max_bans = self.settings.bans.max;
                    respond(Problem::Full { max_bans }.answer(&request_id));
                }
            },
            Ask::Lift(client) => {
                let lifted = self.ledger.lift(client, now.wall_ms);
                self.publisher.publish(&mut self.ledger, now.wall_ms);
                tracing::info!(%client, bans = lifted.len(), "bans lifted");
                let pending = Pending::lifted(&lifted);
                if lifted.is_empty() {
                    respond(pending.answer(true));
                } else {
                    self.answer_saved(respond, pending, now);
                }
            }
        }
    }

    /// Goes on with the lists that were asked for. Their answers are written elsewhere.
    fn list(&mut self, now: Now) {
        let mut rest = MAX_LISTED_A_TURN;
        // Taken out meanwhile: should looking at its bans panic, a list is given up and not tried again.
        while let Some((mut listing, request_id, respond)) = self.listings.pop_front() {
            rest -= listing.look_at(rest, &self.ledger, now.wall_ms);
            if rest == 0 {
                self.listings.push_front((listing, request_id, respond));
                return;
            }
            let bans = Told::Bans(listing.into_found());
            self.answers.write(bans, &request_id, respond);
        }
    }

    fn facts(&mut self, now: Now) -> Facts {
        let counted = (self.origins)();
        self.countries.take_in(counted.countries, MAX_COUNTRIES);
        self.asns.take_in(counted.asns, MAX_ASNS);
        self.asns.add_other(counted.asns_beyond);
        let country = |code: Option<Country>| code.map_or_else(unknown, |code| code.to_string());
        let asn = |asn: Option<AsNumber>| asn.map_or_else(unknown, |asn| asn.to_string());
        Facts {
            alerts: self.alerts.raised(),
            alert_lines_dropped: self.alerts.lines_dropped(),
            countries: self.countries.series(country),
            asns: self.asns.series(asn),
            totals: (self.totals)(),
            observe: self.settings.observe,
            bans_active: self.ledger.active(now.wall_ms),
            bans_made: self.ledger.made(),
            bans_dropped: self.ledger.dropped(),
            state: self.files.counts(),
            lookups: self.lookups.facts(),
        }
    }

    /// What time asks for.
    fn periodic(&mut self, now: Now) {
        // Room may have come by a ban that ended (BAN-7: nothing else has to happen then).
        self.publisher.publish(&mut self.ledger, now.wall_ms);
        for which in self.files.due(now) {
            let content = self.content(*which);
            self.files.save(content, None);
        }
        self.files.give_up(now);
        if let Some(rest) = self.ban_notices.turn(now.wall_ms) {
            tracing::warn!("{rest} further bans were made in the last minute");
        }
        if let Some(rest) = self.drop_notices.turn(now.wall_ms) {
            tracing::warn!(
                "{rest} further bans were dropped in the last minute, WAF_MAX_BANS is reached"
            );
        }
    }

    /// What a file is to hold.
    fn content(&mut self, which: Which) -> Content {
        match which {
            Which::Bans => Content::Bans(self.ledger.all()),
            Which::Clients => Content::Clients(self.table.rows()),
            Which::Lookups => Content::Lookups(self.lookups.rows()),
            Which::Alerts => Content::Alerts(alerts_entries(&mut self.anomalies, &self.alerts)),
        }
    }

    /// Answers once bans.json is on disk, or when that failed or took too long (STATE-2).
    fn answer_saved(&mut self, respond: Respond, pending: Pending, now: Now) {
        let bans = self.ledger.all();
        self.files.answer_saved(bans, respond, pending, now);
    }

    fn notice_ban(&mut self, key: BanKey) {
        let Some(ban) = self.ledger.ban(key) else {
            return;
        };
        if self.ban_notices.allow() {
            log_ban(ban);
        }
    }

    /// Logs every ban that was dropped for the bound; tells whether there was one.
    fn notice_drops(&mut self) -> bool {
        let drops = self.ledger.take_drops();
        for ban in &drops {
            if self.drop_notices.allow() {
                tracing::warn!(
                    netblock = %ban.netblock, ban_expires = %ban.ban_expires, cause = ban.cause.name(),
                    "ban dropped, WAF_MAX_BANS is reached"
                );
            }
        }
        !drops.is_empty()
    }

    /// Brings the loop back to what its bans say.
    fn recover(&mut self) {
        let now = self.clock.now();
        tracing::error!("the control loop panicked: it goes on from its bans; please report this");
        self.ledger.rebuild();
        self.publisher.publish(&mut self.ledger, now.wall_ms);
        self.files.bans_stale(now);
        for client in std::mem::take(&mut self.in_hand) {
            self.table.release(client);
        }
        while let Some(edit) = self.files.interrupted() {
            // Half of it may be in force, and again does no harm.
            let again = catch_unwind(AssertUnwindSafe(|| self.take_edit(&edit, now)));
            if again.is_err() {
                tracing::error!(
                    "an edit of a state file is not wholly in force, by a bug: save it again"
                );
                self.ledger.rebuild();
                self.publisher.publish(&mut self.ledger, now.wall_ms);
            }
            self.edit_taken(&edit);
        }
    }

    /// Takes in what still waits and writes everything a last time. A panic costs what it interrupted, and no more:
    /// every file is still written.
    fn finish(mut self) {
        let now = self.clock.now();
        if catch_unwind(AssertUnwindSafe(|| self.take_rest(now))).is_err() {
            // What a second panic leaves undone is written as it stands.
            let _ = catch_unwind(AssertUnwindSafe(|| self.recover()));
        }
        for which in Which::ALL {
            let save = || {
                let content = self.content(which);
                self.files.save_last(content);
            };
            if catch_unwind(AssertUnwindSafe(save)).is_err() {
                tracing::error!("{} was not written at the stop, by a bug", which.name());
            }
        }
        let deadline = crossbeam_channel::after(STOP_WAIT);
        while !self.files.all_saved() {
            let mut select = Select::new();
            let late = select.recv(&deadline);
            self.files.select(&mut select);
            let ready = select.ready();
            drop(select);
            self.files.take_outcomes();
            // What an editor saved in the last moment is in the last write too.
            let edits = catch_unwind(AssertUnwindSafe(|| self.take_edits(now)));
            if ready == late || edits.is_err() {
                tracing::error!(
                    "the state files were not written within {} s: the stop waits no longer",
                    STOP_WAIT.as_secs()
                );
                self.files.abandon();
                return;
            }
        }
    }

    /// Everything that was reported before the stop.
    fn take_rest(&mut self, now: Now) {
        while !self.breaks.is_empty() {
            self.take_breaks(now);
        }
        self.note_bans(usize::MAX, now);
        loop {
            self.take_finished(now);
            if !self.finished_wait {
                break;
            }
        }
        self.take_edits(now);
    }
}

/// Whether the loop goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Flow {
    Go,
    Stop,
}

/// What alerts.json is to hold.
fn alerts_entries(anomalies: &mut Anomalies, alerts: &Alerts) -> Vec<AlertsEntry> {
    let counters = anomalies.counters().rows().into_iter();
    let counters: Vec<_> = counters
        .map(|(scope, counter)| AlertsEntry::Counter(scope, counter))
        .collect();
    let cooldowns = anomalies.cooldowns().rows().into_iter();
    let cooldowns = cooldowns.map(|(scope, cooldown)| AlertsEntry::Cooldown(scope, cooldown));
    let recent = alerts.recent().cloned().map(AlertsEntry::Alert);
    counters
        .into_iter()
        .chain(cooldowns)
        .chain(recent)
        .collect()
}

/// What alerts.json holds of one scope, or one alert.
fn put_entry(anomalies: &mut Anomalies, alerts: &mut Alerts, entry: AlertsEntry) {
    match entry {
        AlertsEntry::Counter(scope, counter) => anomalies.counters().put(scope, counter),
        AlertsEntry::Cooldown(scope, cooldown) => anomalies.cooldowns().put(scope, cooldown),
        AlertsEntry::Alert(alert) => alerts.put(alert),
    }
}

fn unknown() -> String {
    "unknown".to_owned()
}

fn log_ban(ban: &Ban) {
    tracing::warn!(
        netblock = %ban.netblock, ban_expires = %ban.ban_expires, cause = ban.cause.name(), reason = ban.reason,
        observed = ban.observed, "ban made"
    );
}

#[cfg(test)]
mod tests;
