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
mod tests {
    use weir_shared::lookup::{Lookup, Origin};
    use weir_shared::units::Time;

    use super::*;
    use crate::files::MAX_WAITING;
    use crate::lookup::LookupRow;
    use crate::testing::{
        NOW, Rig, Touch, body, broken, next_saved, put, put_ban, request, row, settings,
        settings_with,
    };

    const HOUR: u64 = 3_600_000;

    fn client(text: &str) -> Client {
        text.parse().unwrap()
    }

    /// LIMIT-6: the ban is published before its client is reset (the table of the tests asserts it at every reset), and
    /// one publication serves a whole batch.
    #[test]
    fn a_batch_of_breaks_is_published_once_and_then_reset() {
        let mut rig = Rig::new(settings());
        let before = rig.snapshots.load().generation;
        for text in ["203.0.113.7", "203.0.113.8", "198.51.100.1"] {
            rig.report(text);
        }
        rig.turn();
        assert_eq!(rig.snapshots.load().generation, before + 1);
        assert_eq!(
            rig.touches(),
            ["203.0.113.8", "203.0.113.7", "198.51.100.1"]
                .map(|text| Touch::Reset(client(text), before + 1))
        );
        assert_eq!(rig.control.ledger.all().len(), 2);
    }

    /// BAN-2: a break that arrives when the netblock is banned already makes no ban and no publication, but its client
    /// is reset, so that it does not break its limit for ever.
    #[test]
    fn a_break_of_a_banned_netblock_resets_only() {
        let mut rig = Rig::new(settings());
        rig.break_limit("203.0.113.7");
        let generation = rig.snapshots.load().generation;
        rig.touches();
        rig.break_limit("203.0.113.99");
        assert_eq!(
            rig.touches(),
            [Touch::Reset(client("203.0.113.99"), generation)]
        );
        assert_eq!(rig.snapshots.load().generation, generation);
    }

    /// LIMIT-6, BAN-5: with only bans that may not be dropped the client is released and `can_ban` is off; it is on again
    /// when one of them ended, with no event, and when one was lifted.
    #[test]
    fn can_ban_follows_the_ledger() {
        let mut rig = Rig::new(settings_with(|settings| {
            settings.bans.max = 2;
        }));
        for (net, duration) in [("10.0.0.0/24", "permanent"), ("10.1.0.0/24", "1h")] {
            let text = format!(r#"{{"netblock":"{net}","duration":"{duration}","reason":"r"}}"#);
            assert_eq!(rig.post(&text).status, 201);
        }
        assert!(!rig.snapshots.load().can_ban);
        let generation = rig.snapshots.load().generation;
        rig.break_limit("203.0.113.7");
        assert_eq!(rig.touches(), [Touch::Release(client("203.0.113.7"))]);
        assert_eq!(rig.banned_until("203.0.113.7"), None);
        assert_eq!(rig.snapshots.load().generation, generation);

        rig.clock.advance_ms(HOUR);
        rig.turn();
        assert!(rig.snapshots.load().can_ban);
        rig.break_limit("203.0.113.7");
        assert!(rig.banned_until("203.0.113.7").is_some());

        let lifted = rig.ask(request("DELETE", "/_waf/bans/10.0.0.1", ""));
        assert_eq!(body(&lifted)["lifted"].as_array().unwrap().len(), 1);
        assert!(rig.snapshots.load().can_ban);
    }

    /// BAN-4: an automatic ban carries the request, the netblock's requests, the limit, its percent and the lookup.
    #[test]
    fn a_ban_carries_its_notes() {
        let mut rig = Rig::new(settings());
        let lookup = Lookup {
            country: Some("DE".to_owned()),
            ..Lookup::default()
        };
        rig.table.put(weir_shared::table::ClientRow {
            lookup: Some(Arc::new(lookup)),
            ..row("203.0.113.7")
        });
        rig.break_limit("203.0.113.7");
        let listed = rig.get("/_waf/bans");
        assert_eq!(
            body(&listed),
            serde_json::json!({"bans": [{
                "netblock": "203.0.113.0/24", "client": "203.0.113.7",
                "ban_started": "2026-11-21T16:00:00Z", "ban_expires": "2026-11-21T17:00:00Z",
                "cause": "rate_limit", "reason": "more than 1000 requests per minute", "lifted": null, "observed": false,
                "notes": {"request": {"path": "/a"}, "netblock_requests": 1043, "limit": "minute", "limit_value": 1000,
                          "limit_percent": 100, "lookup": {"country": "DE"}}
            }]})
        );
    }

    /// So many bans of netblocks of their own, none of which the tests name.
    fn many_bans(count: usize) -> Vec<Ban> {
        let mut rig = Rig::new(settings());
        rig.break_limit("203.0.113.7");
        let ban = Ban::clone(&rig.control.ledger.all()[0]);
        let numbered = |number: usize| Ban {
            netblock: format!("10.{}.{}.0/24", number / 256, number % 256)
                .parse()
                .unwrap(),
            ..ban.clone()
        };
        (0..count).map(numbered).collect()
    }

    /// BAN-8: while a list of many bans is gathered every turn looks at breaks first, and at no more than a piece of the
    /// list; the loop writes none of it. The list has every ban that was there all the while, once, oldest first.
    #[test]
    fn breaks_are_banned_between_the_pieces_of_a_list() {
        let pieces = 4;
        let held = (pieces - 1) * MAX_LISTED_A_TURN + 1;
        let mut rig = Rig::with_bans(
            settings_with(|settings| {
                settings.bans.max = 100_000;
            }),
            many_bans(held),
        )
        .ok()
        .unwrap();
        let answer = rig.hand(request("GET", "/_waf/bans?active=true", ""));
        for piece in 1..=pieces {
            let client = format!("198.51.{piece}.7");
            rig.break_limit(&client);
            assert!(rig.banned_until(&client).is_some());
            let listed = rig.control.listings.front();
            let looked = listed.map(|(listing, ..)| listing.found().len());
            assert_eq!(
                looked,
                (piece < pieces).then_some(piece * MAX_LISTED_A_TURN)
            );
        }
        let answer = answer.recv_timeout(Duration::from_secs(20)).unwrap();
        let listed = body(&answer);
        let listed: Vec<(&str, &str)> = listed["bans"]
            .as_array()
            .unwrap()
            .iter()
            .map(|ban| {
                let member = |name: &str| ban[name].as_str().unwrap();
                (member("ban_started"), member("netblock"))
            })
            .collect();
        // Those that were made meanwhile sort behind all others by netblock, and the walk had not come to them.
        assert_eq!(listed.len(), held + pieces);
        let netblocks: std::collections::HashSet<_> = listed.iter().map(|ban| ban.1).collect();
        assert_eq!(netblocks.len(), listed.len());
        assert!(listed.is_sorted_by_key(|ban| ban.0));
    }

    /// ADMIN: lists under way are bounded; one more is answered 503, and each of the others is answered.
    #[test]
    fn lists_under_way_are_bounded() {
        let settings = settings_with(|settings| {
            settings.bans.max = 100_000;
        });
        let held = 10 * MAX_LISTED_A_TURN;
        let mut rig = Rig::with_bans(settings, many_bans(held)).ok().unwrap();
        let mut answers = Vec::new();
        for _ in 0..25 {
            for _ in 0..MAX_ADMIN_A_TURN {
                answers.push(rig.hand(request("GET", "/_waf/bans?active=false", "")));
            }
            rig.turn();
            assert!(rig.control.listings.len() <= MAX_LISTINGS);
        }
        while !rig.control.listings.is_empty() {
            rig.turn();
        }
        let wait = Duration::from_secs(20);
        let statuses = answers
            .iter()
            .map(|answer| answer.recv_timeout(wait).unwrap().status);
        let answered = statuses.filter(|status| *status == 200).count();
        // Two were gathered before there were too many.
        assert_eq!(answered, MAX_LISTINGS + 2);
    }

    /// BAN-7: at the end of a ban the client is free with no turn of the loop.
    #[test]
    fn a_ban_ends_by_the_clock() {
        let mut rig = Rig::new(settings());
        rig.break_limit("203.0.113.7");
        assert_eq!(rig.banned_until("203.0.113.200"), Some(NOW + HOUR));
        rig.clock.advance_ms(HOUR);
        assert_eq!(rig.banned_until("203.0.113.200"), None);
    }

    /// STATE-1: bans.json is sent WAF_STATE_WRITE_DELAY after the first change, and every file at the interval.
    #[test]
    fn files_are_saved_when_time_asks_for_it() {
        let mut rig = Rig::new(settings());
        rig.break_limit("203.0.113.7");
        rig.clock.advance_ms(999);
        rig.break_limit("198.51.100.7");
        assert!(rig.disk.is_idle());
        rig.clock.advance_ms(1);
        rig.turn();
        let job = rig.disk.bans.take().unwrap();
        assert_eq!((job.entries.len(), job.revision), (2, 0));
        rig.clock.advance_ms(58_999);
        rig.turn();
        assert!(rig.disk.is_idle());
        rig.table.put(row("203.0.113.7"));
        rig.clock.advance_ms(1);
        rig.turn();
        assert_eq!(rig.disk.bans.take().unwrap().entries.len(), 2);
        assert_eq!(rig.disk.clients.take().unwrap().entries.len(), 1);
    }

    /// STATE-2: an admin ban is in force at once, and answered once it is on disk; where the disk fails or takes too
    /// long, the answer says so.
    #[test]
    fn an_admin_ban_waits_for_the_disk_before_it_is_answered() {
        for (outcome, persisted) in [
            (Some(true), None),
            (Some(false), Some(false)),
            (None, Some(false)),
        ] {
            let mut rig = Rig::new(settings());
            let text = r#"{"client":"203.0.113.7","duration":"2h","reason":"r"}"#;
            let answer = rig.hand(request("POST", "/_waf/bans", text));
            rig.turn();
            assert_eq!(rig.banned_until("203.0.113.9"), Some(NOW + 2 * HOUR));
            let mut job = rig.disk.bans.take().unwrap();
            assert_eq!(job.entries.len(), 1);
            rig.clock.advance_ms(4_999);
            rig.turn();
            assert!(answer.try_recv().is_err());
            match outcome {
                Some(outcome) => job.saved.remove(0).tell(outcome),
                None => rig.clock.advance_ms(1),
            }
            rig.turn();
            let answer = answer.try_recv().unwrap();
            assert_eq!(answer.status, 201);
            let told = body(&answer)
                .get("persisted")
                .and_then(serde_json::Value::as_bool);
            assert_eq!(told, persisted, "{outcome:?}");
        }
    }

    /// STATE-2, STATE-7: with a disk that hangs, the answers that wait are bounded, and the rest do not wait.
    #[test]
    fn a_hanging_disk_holds_a_bounded_number_of_answers() {
        let mut rig = Rig::new(settings());
        let mut answers = Vec::new();
        for turn in 0..MAX_WAITING + 5 {
            let text = format!(
                r#"{{"netblock":"10.{}.{}.0/24","duration":"2h","reason":"r"}}"#,
                turn / 256,
                turn % 256
            );
            answers.push(rig.hand(request("POST", "/_waf/bans", &text)));
            rig.turn();
        }
        let told = answers.iter().filter(|answer| !answer.is_empty()).count();
        assert_eq!(told, 5);
        assert_eq!(rig.control.files.waiting(), MAX_WAITING);
        // Those that did not wait are sent to the disk all the same.
        let job = rig.disk.bans.take().unwrap();
        assert_eq!(job.entries.len(), MAX_WAITING + 5);
        assert_eq!(job.saved.len(), MAX_WAITING);
        // Every outcome finds its place in the channel, also when they come all at once.
        job.saved.into_iter().for_each(|saved| saved.tell(true));
        rig.turn();
        assert!(answers.iter().all(|answer| !answer.is_empty()));
        assert_eq!(rig.control.files.waiting(), 0);
    }

    /// STATE-3: an edit is in force once it was taken in, and documents from then on say that they hold it.
    #[test]
    fn an_edit_is_in_force_at_once() {
        let mut rig = Rig::new(settings());
        rig.break_limit("203.0.113.7");
        let lifted = Ban {
            lifted: Some(Time(NOW)),
            ..Ban::clone(&rig.control.ledger.all()[0])
        };
        let added: Ban =
            serde_json::from_str(r#"{"netblock":"10.0.0.0/8","ban_expires":"permanent"}"#).unwrap();
        let revision = rig.disk.bans.edit(vec![put_ban(lifted), put_ban(added)]);
        rig.turn();
        assert_eq!(rig.banned_until("203.0.113.7"), None);
        assert_eq!(rig.banned_until("10.9.9.9"), Some(u64::MAX));
        // At once: the thread writes nothing that lacks the edit.
        let job = rig.disk.bans.take().unwrap();
        assert_eq!((job.revision, job.entries.len()), (revision, 2));

        rig.table.put(row("203.0.113.7"));
        let removed = Change::Remove(client("203.0.113.7"));
        rig.disk
            .clients
            .edit(vec![put(row("203.0.113.8")), removed]);
        rig.turn();
        assert_eq!(rig.table.rows(), [row("203.0.113.8")]);
        assert_eq!(rig.disk.clients.take().unwrap().revision, 1);

        let answer = |text: &str| LookupRow {
            client: client(text),
            lookup: Arc::default(),
            answered: Time(NOW),
        };
        let changes = vec![put(answer("8.8.8.8")), put(answer("9.9.9.9"))];
        rig.disk.lookups.edit(changes);
        let removed = Change::Remove(client("8.8.8.8"));
        rig.disk.lookups.edit(vec![put(answer("1.1.1.1")), removed]);
        rig.turn();
        assert_eq!(rig.disk.lookups.take().unwrap().revision, 2);
        let mut rows = rig.control.lookups.rows();
        rows.sort_by_key(|row| row.client);
        assert_eq!(rows, [answer("1.1.1.1"), answer("9.9.9.9")]);
    }

    /// STATE-4: an edited reason does not undo a lift that happened meanwhile.
    #[test]
    fn an_edit_and_a_lift_are_both_kept() {
        let mut rig = Rig::new(settings());
        rig.break_limit("203.0.113.7");
        let before = Arc::clone(&rig.control.ledger.all()[0]);
        rig.ask(request("DELETE", "/_waf/bans/203.0.113.7", ""));
        let after = Arc::new(Ban {
            reason: "looked into".to_owned(),
            ..Ban::clone(&before)
        });
        let before = Some(before);
        rig.disk.bans.edit(vec![Change::Put { before, after }]);
        rig.turn();
        let held = Arc::clone(&rig.control.ledger.all()[0]);
        assert_eq!(
            (held.reason.as_str(), held.lifted),
            ("looked into", Some(Time(NOW)))
        );
        assert_eq!(rig.banned_until("203.0.113.7"), None);
    }

    /// Bans and clients read at the start are in force before the first request.
    #[test]
    fn the_start_state_is_in_force_at_once() {
        let ban: Ban =
            serde_json::from_str(r#"{"netblock":"10.0.0.0/8","ban_expires":"permanent"}"#).unwrap();
        let start = StartState {
            bans: vec![Arc::new(ban.clone())],
            clients: vec![row("203.0.113.7")],
            ..StartState::default()
        };
        let rig = Rig::with_state(settings(), start).ok().unwrap();
        assert_eq!(rig.banned_until("10.9.9.9"), Some(u64::MAX));
        assert!(rig.snapshots.load().can_ban);
        assert_eq!(rig.table.rows(), [row("203.0.113.7")]);
        let small = settings_with(|settings| {
            settings.bans.max = 1;
        });
        let second = Ban {
            ban_started: Some(Time(5)),
            ..ban.clone()
        };
        let error = Rig::with_bans(small, vec![ban, second]).err().unwrap();
        assert_eq!(
            error.to_string(),
            "bans.json holds 2 active bans made by an administrator or permanent, WAF_MAX_BANS is 1: raise the setting or \
             mark some of them lifted"
        );
    }

    /// A panic in a turn leaves nothing half done: its bans stand, clients that were not handled are released, and the
    /// loop goes on to the stop, where everything is written.
    #[test]
    fn the_loop_outlives_a_panic_and_stops_with_everything_written() {
        let rig = Rig::new(settings());
        *rig.table.panics_for.lock().unwrap() = Some(client("203.0.113.7"));
        let answer = rig.hand(request("GET", "/_waf/bans", ""));
        rig.report("203.0.113.7");
        rig.report("198.51.100.7");
        rig.handle.stop();
        let Rig {
            control,
            table,
            snapshots,
            disk,
            breaks,
            ..
        } = rig;
        breaks.send(broken("192.0.2.1", NOW)).unwrap();
        std::thread::scope(|scope| {
            let running = scope.spawn(|| control.run());
            while !running.is_finished() {
                disk.tell(true);
                std::thread::yield_now();
            }
            running.join().unwrap();
        });
        assert_eq!(
            body(&answer.recv().unwrap())["bans"]
                .as_array()
                .unwrap()
                .len(),
            3
        );
        let snapshot = snapshots.load();
        for text in ["203.0.113.7", "198.51.100.7", "192.0.2.1"] {
            assert!(
                snapshot.bans.active_until(client(text), NOW).is_some(),
                "{text}"
            );
        }
        let touches = table.touches.lock().unwrap();
        assert!(touches.contains(&Touch::Release(client("203.0.113.7"))));
        assert!(!touches.contains(&Touch::Release(client("198.51.100.7"))));
    }

    /// STATE-1: a bug that shows itself at the stop costs what it interrupted, and not the last write of any file; the ban
    /// that it concerns is among what is written.
    #[test]
    fn a_panic_at_the_stop_does_not_cost_the_last_write() {
        let rig = Rig::new(settings());
        *rig.table.panics_for.lock().unwrap() = Some(client("203.0.113.7"));
        rig.report("203.0.113.7");
        let Rig { control, disk, .. } = rig;
        std::thread::scope(|scope| {
            let stopping = scope.spawn(|| control.finish());
            let job = next_saved(&disk.bans);
            assert_eq!(job.entries.len(), 1);
            drop(job);
            drop((
                next_saved(&disk.clients),
                next_saved(&disk.lookups),
                next_saved(&disk.alerts),
            ));
            stopping.join().unwrap();
        });
    }

    /// BAN-8: a storm of bans is published at once, whatever the gathering of circumstances takes; in the end every ban
    /// has them and every client is reset, also at a stop.
    #[test]
    fn a_storm_is_published_before_its_circumstances_are_gathered() {
        for stop in [false, true] {
            let mut rig = Rig::new(settings());
            let storm = MAX_BATCH + 76;
            for turn in 0..storm {
                rig.report(&format!("10.{}.{}.1", turn / 256, turn % 256));
            }
            rig.turn();
            assert_eq!(rig.touches().len(), MAX_NOTES_A_TURN);
            assert!(rig.banned_until("10.3.255.9").is_some());
            assert_eq!(rig.banned_until("10.4.0.9"), None);
            rig.turn();
            assert!(rig.banned_until("10.4.0.9").is_some());
            if stop {
                let Rig {
                    control,
                    disk,
                    table,
                    ..
                } = rig;
                std::thread::scope(|scope| {
                    let stopping = scope.spawn(|| control.finish());
                    let bans = next_saved(&disk.bans).entries;
                    assert_eq!(bans.len(), storm);
                    assert!(bans.iter().all(|ban| ban.notes.is_some()));
                    while !stopping.is_finished() {
                        disk.tell(true);
                        std::thread::yield_now();
                    }
                });
                assert_eq!(
                    table.touches.lock().unwrap().len(),
                    storm - MAX_NOTES_A_TURN
                );
            } else {
                while !rig.control.unnoted.is_empty() {
                    rig.turn();
                }
                assert_eq!(rig.touches().len(), storm - MAX_NOTES_A_TURN);
                assert!(
                    rig.control
                        .ledger
                        .all()
                        .iter()
                        .all(|ban| ban.notes.is_some())
                );
            }
        }
    }

    /// A break that was reported just before the stop is in the file.
    #[test]
    fn breaks_that_wait_at_the_stop_are_written() {
        let rig = Rig::new(settings());
        let storm = 2 * MAX_BATCH + 1;
        for turn in 0..storm {
            rig.report(&format!("10.{}.{}.1", turn / 256, turn % 256));
        }
        let Rig { control, disk, .. } = rig;
        std::thread::scope(|scope| {
            let stopping = scope.spawn(|| control.finish());
            assert_eq!(next_saved(&disk.bans).entries.len(), storm);
            while !stopping.is_finished() {
                disk.tell(false);
                std::thread::yield_now();
            }
        });
    }

    /// The process ends loudly when the loop panics again and again: this test runs itself in a process of its own.
    #[test]
    fn repeated_panics_end_the_process() {
        const NAME: &str = "control_loop::tests::repeated_panics_end_the_process";
        if std::env::var_os("WEIR_TEST_PANICS").is_none() {
            let own = std::env::current_exe().unwrap();
            let run = std::process::Command::new(own)
                .args([NAME, "--exact", "--test-threads=1"])
                .env("WEIR_TEST_PANICS", "1")
                .output()
                .unwrap();
            // A test that fails ends with a code; only an abort ends without one.
            assert_eq!(run.status.code(), None, "{run:?}");
            return;
        }
        let rig = Rig::new(settings());
        for turn in 0..MAX_PANICS {
            rig.report(&format!("10.0.{turn}.1"));
        }
        rig.handle.stop();
        *rig.table.always_panics.lock().unwrap() = true;
        rig.control.run();
    }

    /// STATE-2, STATE-3, with real files: an admin ban is in the file when it is answered; an edit of the file lifts
    /// it; at the stop everything is written.
    #[test]
    fn the_loop_and_the_files_agree_about_bans_json() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("bans.json");
        let clock = Clock::system();
        let snapshots = Arc::new(ArcSwap::from_pointee(Snapshot::default()));
        let (files, start) = StateFiles::open(dir.path(), clock.clone()).unwrap();
        let rig = Rig::new(settings());
        let (_breaks, breaks) = bounded(1);
        let table = Arc::clone(&rig.table) as Arc<dyn ClientTable>;
        let lookups = Lookups::start(&settings(), &clock, &table, Vec::new()).unwrap();
        let (control, handle) = Control::new(Wiring {
            settings: Arc::new(settings()),
            clock: clock.clone(),
            snapshots: Arc::clone(&snapshots),
            table: Arc::clone(&rig.table) as _,
            breaks,
            totals: Arc::new(Totals::default),
            files,
            start,
            lookups,
            feeds: Feeds {
                finished: never(),
                origins: Arc::new(OriginCounts::default),
                lines: bounded(64).0,
            },
            version: "0.0.0",
        })
        .unwrap();
        let rig = Rig { handle, ..rig };
        let running = std::thread::spawn(move || control.run());
        let wait = Duration::from_secs(20);

        let text = r#"{"client":"203.0.113.7","duration":"2h","reason":"r"}"#;
        let answer = rig.hand(request("POST", "/_waf/bans", text));
        let answer = body(&answer.recv_timeout(wait).unwrap());
        let on_disk = || -> serde_json::Value {
            serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap()
        };
        assert_eq!(on_disk()["bans"], serde_json::json!([answer]));

        let is_banned = || {
            let now_ms = clock.now().wall_ms;
            snapshots
                .load()
                .bans
                .active_until(client("203.0.113.9"), now_ms)
                .is_some()
        };
        assert!(is_banned());
        let mut edited = on_disk();
        edited["bans"][0]["lifted"] = answer["ban_started"].clone();
        std::fs::write(&file, edited.to_string()).unwrap();
        let deadline = std::time::Instant::now() + wait;
        while is_banned() {
            assert!(std::time::Instant::now() < deadline);
            std::thread::yield_now();
        }
        rig.handle.stop();
        running.join().unwrap();
        assert_eq!(on_disk()["bans"][0]["lifted"], answer["ban_started"]);
        assert!(dir.path().join("clients.json").exists());
    }

    /// A data plane that is gone does not make the loop spin, and a control plane that is gone answers 503.
    #[test]
    fn a_closed_channel_is_asked_no_more() {
        let mut rig = Rig::new(settings());
        let (closed, _) = crossbeam_channel::unbounded();
        rig.breaks = closed;
        rig.turn();
        let began = std::time::Instant::now();
        rig.control.turn(Duration::from_millis(20));
        assert!(began.elapsed() >= Duration::from_millis(20));
        drop(rig.control);
        let (send, receive) = crossbeam_channel::unbounded();
        let step = rig.handle.handover()(
            request("GET", "/_waf/bans", ""),
            Box::new(move |answer| drop(send.send(answer))),
        );
        assert!(matches!(step, weir_shared::handover::Step::Done(answer) if answer.status == 503));
        assert!(receive.try_recv().is_err());
    }

    fn watched(requests_per_minute: u64) -> Settings {
        let mut settings = settings();
        settings.anomalies.client.requests[0] = Some(requests_per_minute);
        settings
    }

    fn kinds(alerts: &[serde_json::Value]) -> Vec<&str> {
        alerts
            .iter()
            .map(|alert| alert["kind"].as_str().unwrap())
            .collect()
    }

    /// ALERT-1, ALERT-2, ALERT-4: from finished requests to one line, one count and one entry of alerts.json; repeats are
    /// held back until the hour's summary. Nothing is refused.
    #[test]
    fn an_anomaly_is_told_once_and_summed_up() {
        let mut rig = Rig::new(watched(3));
        rig.finish("203.0.113.7", 10, 3);
        assert!(rig.alerts().is_empty());
        rig.finish("203.0.113.7", 10, 4);
        let alerts = rig.alerts();
        assert_eq!(kinds(&alerts), ["anomaly"]);
        assert_eq!(
            (&alerts[0]["of"], &alerts[0]["count"]),
            (&"203.0.113.7".into(), &4.into())
        );
        assert_eq!(rig.metric("waf_alerts_total{kind=\"anomaly\"}"), Some(1.0));
        rig.clock.advance_ms(HOUR);
        rig.turn();
        let alerts = rig.alerts();
        assert_eq!(kinds(&alerts), ["anomaly_summary"]);
        assert_eq!(
            alerts[0]["scopes"][0]["held_back"]["requests_per_minute"],
            3
        );
        assert!(rig.snapshots.load().bans.is_empty());
        let kept = rig.saved_alerts();
        let kept: Vec<AlertsKey> = kept.iter().map(AlertsKey::of).collect();
        // The cooldown has run out with the hour and was dropped.
        assert!(matches!(
            kept.as_slice(),
            [
                AlertsKey::Counter(_),
                AlertsKey::Alert(Time(NOW)),
                AlertsKey::Alert(_)
            ]
        ));
    }

    /// ALERT-2, table 3.2 across a restart: counters and cooldowns go on from alerts.json, and so do the alerts kept.
    #[test]
    fn a_restart_keeps_counters_cooldowns_and_alerts() {
        let mut rig = Rig::new(watched(3));
        rig.finish("203.0.113.7", 10, 6);
        rig.finish("198.51.100.7", 10, 3);
        rig.clock.advance_ms(60_000);
        rig.turn();
        let alerts = rig.saved_alerts();
        let start = StartState {
            alerts: alerts.clone(),
            ..StartState::default()
        };
        let mut again = Rig::with_state(watched(3), start).ok().unwrap();
        again.finish("203.0.113.7", 10, 1);
        assert!(again.alerts().is_empty(), "held back as before");
        again.finish("198.51.100.7", 10, 1);
        assert_eq!(kinds(&again.alerts()), ["anomaly"], "the fourth request");
        again.clock.advance_ms(HOUR);
        again.turn();
        let summary = again.alerts();
        assert_eq!(kinds(&summary), ["anomaly_summary"]);
        // Two before the restart, one after it.
        assert_eq!(summary[0]["held_back"], 3);
        assert_eq!(again.saved_alerts().len(), 2 + 3);
    }

    /// ALERT-4: 100,000 alerts in a minute: a bounded number of lines, bounded memory, right counts.
    #[test]
    fn a_flood_of_anomalies_is_bounded_and_counted() {
        let mut rig = Rig::new(watched(1));
        for block in 0..100_000u32 / 250 {
            let batch = (0..250).flat_map(|last| {
                let address = std::net::Ipv4Addr::from(0x0a00_0000 | (block * 250 + last));
                vec![
                    Finished {
                        address: address.into(),
                        lookup: None,
                        bytes: 1,
                    };
                    2
                ]
            });
            rig.finished.send(batch.collect()).unwrap();
        }
        while !rig.finished.is_empty() {
            rig.turn();
        }
        assert_eq!(rig.alerts().len(), 60);
        assert_eq!(
            rig.metric("waf_alerts_total{kind=\"anomaly\"}"),
            Some(100_000.0)
        );
        rig.clock.advance_ms(60_000);
        rig.turn();
        let rest = rig.alerts();
        assert_eq!((rest.len(), &rest[0]["more"]), (1, &99_940.into()));
        // 20,000 counters, 20,000 cooldowns, 61 alerts.
        assert_eq!(rig.saved_alerts().len(), 40_061);
    }

    /// ALERT-4: a ban is an alert with the broken limit, its percent and the lookup; an admin's ban is one too.
    #[test]
    fn a_ban_is_an_alert() {
        let mut rig = Rig::new(settings());
        let lookup = Lookup {
            country: Some("DE".to_owned()),
            asn: Some("AS64496".to_owned()),
            as_name: Some("Example".to_owned()),
        };
        rig.table.put(weir_shared::table::ClientRow {
            lookup: Some(Arc::new(lookup)),
            ..row("203.0.113.7")
        });
        rig.break_limit("203.0.113.7");
        rig.post(r#"{"netblock":"198.51.100.0/24","duration":"permanent","reason":"r"}"#);
        let alerts = rig.alerts();
        assert_eq!(kinds(&alerts), ["ban", "ban"]);
        assert_eq!(alerts[0]["limit"], "minute");
        assert_eq!(alerts[0]["limit_percent"], 100);
        assert_eq!(alerts[0]["limit_value"], 1000);
        assert_eq!(alerts[0]["lookup"]["asn"], "AS64496");
        assert_eq!(alerts[0]["ban_expires"], "2026-11-21T17:00:00Z");
        assert_eq!(alerts[1]["cause"], "admin");
        assert_eq!(alerts[1]["ban_expires"], "permanent");
        assert_eq!(rig.metric("waf_alerts_total{kind=\"ban\"}"), Some(2.0));
    }

    /// STATE-7: a state file that cannot be written is an alert.
    #[test]
    fn a_failing_write_is_an_alert() {
        let mut rig = Rig::new(settings());
        rig.faults
            .send(WriteFault {
                file: "bans.json",
                error: "No space left on device".to_owned(),
            })
            .unwrap();
        rig.turn();
        let alerts = rig.alerts();
        assert_eq!(kinds(&alerts), ["state_error"]);
        assert_eq!(alerts[0]["file"], "bans.json");
        assert_eq!(alerts[0]["error"], "No space left on device");
    }

    /// STATE-3: an edit of alerts.json replaces what was held: a cooldown taken out holds nothing back any more, an edited
    /// counter counts on from where the hand put it, an alert taken out is forgotten.
    #[test]
    fn an_edit_of_alerts_json_is_taken_in() {
        let mut rig = Rig::new(watched(3));
        rig.finish("203.0.113.7", 10, 4);
        assert_eq!(rig.alerts().len(), 1);
        rig.clock.advance_ms(1);
        let scope = crate::anomaly::Scope::Client(client("203.0.113.7"));
        rig.disk.alerts.edit(vec![
            put(AlertsEntry::Counter(scope, Default::default())),
            Change::Remove(AlertsKey::Cooldown(scope)),
            Change::Remove(AlertsKey::Alert(Time(NOW))),
        ]);
        rig.turn();
        rig.finish("203.0.113.7", 10, 3);
        assert!(rig.alerts().is_empty());
        rig.finish("203.0.113.7", 10, 1);
        assert_eq!(rig.alerts().len(), 1);
        rig.clock.advance_ms(60_000);
        rig.turn();
        let saved = rig.saved_alerts();
        let alerts = saved.iter().map(AlertsKey::of);
        let alerts: Vec<AlertsKey> = alerts
            .filter(|key| matches!(key, AlertsKey::Alert(_)))
            .collect();
        assert_eq!(alerts, [AlertsKey::Alert(Time(NOW + 1))]);
    }

    /// METRIC: countries and AS numbers have a series once seen, at most N of them, and the rest is `other`.
    #[test]
    fn requests_by_place_are_counted() {
        let mut rig = Rig::new(settings_with(|settings| {
            settings.endpoints.metrics_top_n = 2;
        }));
        let country = |name: &str| format!("waf_requests_by_country_total{{country=\"{name}\"}}");
        assert_eq!(rig.metric(&country("DE")), None);
        for (code, asn, times) in [
            (Some("DE"), "AS64496", 5),
            (Some("FR"), "AS64512", 3),
            (None, "AS64497", 4),
        ] {
            let lookup = Lookup {
                country: code.map(str::to_owned),
                asn: Some(asn.to_owned()),
                as_name: None,
            };
            for _ in 0..times {
                rig.origins.lock().unwrap().count(Origin::of(&lookup));
            }
        }
        assert_eq!(rig.metric(&country("DE")), Some(5.0));
        assert_eq!(rig.metric(&country("unknown")), Some(4.0));
        assert_eq!(rig.metric(&country("other")), Some(3.0));
        assert_eq!(rig.metric(&country("FR")), None);
        let asn = |name: &str| format!("waf_requests_by_asn_total{{asn=\"{name}\"}}");
        assert_eq!(rig.metric(&asn("AS64496")), Some(5.0));
        assert_eq!(rig.metric(&asn("unknown")), Some(7.0));
        assert_eq!(rig.metric(&asn("other")), None);
    }
}
