//! A control loop with everything around it in memory, for the tests: turned by hand, on a clock
//! that stands still.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender, unbounded};
use http::{HeaderValue, Method, Version};
use serde_json::Value;
use weir_shared::ban::{Ban, RequestNote};
use weir_shared::client::Client;
use weir_shared::clock::{Clock, ManualClock, Now};
use weir_shared::event::{Finished, LimitExceeded, Offence};
use weir_shared::explain::{Explain, Explanation, Outcome};
use weir_shared::fleet::ValueHash;
use weir_shared::handover::{Body, OwnRequest, OwnResponse, Step};
use weir_shared::lookup::Lookup;
use weir_shared::netblock::{Netblock, PrefixLengths};
use weir_shared::proof::NamesAnswer;
use weir_shared::record::{Batch, Record, Text};
use weir_shared::settings::{LookupSettings, Secret, Settings, TokenSource};
use weir_shared::snapshot::Snapshot;
use weir_shared::spared::Spared;
use weir_shared::table::{
    ClientRow, ClientTable, KnownRow, SharedCountsUse, SharedRefusal, SharedRow,
};
use weir_shared::totals::{OriginCounts, Totals};
use weir_shared::units::Time;
use weir_shared::verdict::{Action, Group, LimitKind};
use weir_shared::window::{PerSpan, Span};

use crate::alert::document::{AlertsEntry, AlertsFile};
use crate::bans::document::{BanKey, BansFile};
use crate::clients::ClientsFile;
use crate::control_loop::Control;
use crate::faults::Faults;
use crate::files::{StartState, StateFiles};
use crate::lookup::document::LookupsFile;
use crate::lookup::{LookupFiles, Lookups};
use crate::rules::LiveRules;
use crate::state::document::{Document, Row};
use crate::state::journal::testing::TestJournal;
use crate::state::{Change, Job, StateThread, TestFile};
use crate::watching::FileThread;
use crate::wiring::{About, ControlError, ControlHandle, Feeds, Wiring};

/// 2026-11-21T16:00:00Z
pub(crate) const NOW: u64 = 1_795_276_800_000;
pub(crate) const ADMIN: &str = "Bearer admin-token";
pub(crate) const METRICS: &str = "Bearer metrics-token";

/// Runs a future to its end, on this thread.
pub(crate) fn run<T>(future: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().unwrap().block_on(future)
}

/// The defaults, with both tokens.
pub(crate) fn settings() -> Settings {
    settings_with(|_| {})
}

/// The same but for what `change` changes.
pub(crate) fn settings_with(change: impl FnOnce(&mut Settings)) -> Settings {
    let mut settings = Settings {
        lookup: LookupSettings::default(),
        ..Settings::default()
    };
    settings.endpoints.metrics_token = TokenSource::Value(Secret::new("metrics-token".to_owned()));
    settings.endpoints.admin_token = TokenSource::Value(Secret::new("admin-token".to_owned()));
    change(&mut settings);
    settings
}

/// What the loop did to the table, in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Touch {
    Reset(Client, u64),
    Release(Client),
    Forget(Client),
    Answer(Client),
    AskAgain(Client, u64),
    ForgetLookup(Client),
}

/// A table that remembers what was done to it.
pub(crate) struct Table {
    pub(crate) rows: Mutex<Vec<ClientRow>>,
    pub(crate) touches: Mutex<Vec<Touch>>,
    /// What it was told of the names of addresses.
    pub(crate) names: Mutex<Vec<(IpAddr, NamesAnswer)>>,
    /// Counting the requests of this client's netblock panics, as a bug would.
    pub(crate) panics_for: Mutex<Option<Client>>,
    /// Or those of every netblock.
    pub(crate) always_panics: Mutex<bool>,
    /// Shared limits that refuse.
    pub(crate) refusals: Mutex<Vec<SharedRefusal>>,
    /// Counts that clients share.
    pub(crate) shared: Mutex<Vec<SharedRow>>,
    /// Known clients.
    pub(crate) known: Mutex<Vec<KnownRow>>,
    snapshots: Arc<ArcSwap<Snapshot>>,
    clock: Clock,
}

impl Table {
    fn new(snapshots: Arc<ArcSwap<Snapshot>>, clock: Clock) -> Self {
        Self {
            rows: Mutex::default(),
            touches: Mutex::default(),
            names: Mutex::default(),
            panics_for: Mutex::default(),
            always_panics: Mutex::default(),
            refusals: Mutex::default(),
            shared: Mutex::default(),
            known: Mutex::default(),
            snapshots,
            clock,
        }
    }
}

impl ClientTable for Table {
    /// LIMIT-6, at every reset of every test: what is published already bans the client, in this
    /// very generation.
    fn reset(&self, client: Client, banned: Netblock, generation: u64, _: u64) {
        assert!(banned.covers_client(client));
        let snapshot = self.snapshots.load();
        let now_ms = self.clock.now().wall_ms;
        assert_eq!(snapshot.generation, generation);
        assert!(snapshot.bans.active_until(client, now_ms).is_some());
        self.touches
            .lock()
            .unwrap()
            .push(Touch::Reset(client, generation));
    }

    fn seen_since(&self, wall_ms: u64) -> u64 {
        let rows = self.rows.lock().unwrap();
        rows.iter().filter(|row| row.last_seen.0 >= wall_ms).count() as u64
    }

    fn release(&self, client: Client) {
        self.touches.lock().unwrap().push(Touch::Release(client));
    }

    fn row(&self, client: Client) -> Option<ClientRow> {
        let rows = self.rows.lock().unwrap();
        rows.iter().find(|row| row.client == client).cloned()
    }

    fn rows(&self) -> Vec<ClientRow> {
        self.rows.lock().unwrap().clone()
    }

    fn forget_idle(&self, _: Now) {}

    fn shared_use(&self, _: u64) -> SharedCountsUse {
        SharedCountsUse::default()
    }

    fn take_shared_refusals(&self) -> Vec<SharedRefusal> {
        std::mem::take(&mut *self.refusals.lock().unwrap())
    }

    fn tell_values_by(&self, _: ValueHash) {}

    fn shared_rows(&self) -> Vec<SharedRow> {
        self.shared.lock().unwrap().clone()
    }

    fn put_shared(&self, row: SharedRow) {
        self.shared.lock().unwrap().push(row);
    }

    fn remember_after(&self, _: Option<Duration>) {}

    fn known_rows(&self) -> Vec<KnownRow> {
        self.known.lock().unwrap().clone()
    }

    fn put_known(&self, row: KnownRow) {
        self.known.lock().unwrap().push(row);
    }

    fn known_len(&self) -> u64 {
        self.known.lock().unwrap().len() as u64
    }

    fn put(&self, row: ClientRow) {
        let mut rows = self.rows.lock().unwrap();
        rows.retain(|held| held.client != row.client);
        rows.push(row);
    }

    fn forget(&self, client: Client) {
        self.touches.lock().unwrap().push(Touch::Forget(client));
        let mut rows = self.rows.lock().unwrap();
        rows.retain(|held| held.client != client);
    }

    fn answer(&self, client: Client, lookup: Arc<Lookup>, _: u64) {
        self.touches.lock().unwrap().push(Touch::Answer(client));
        let mut rows = self.rows.lock().unwrap();
        if let Some(row) = rows.iter_mut().find(|row| row.client == client) {
            row.lookup = Some(lookup);
        }
    }

    fn ask_again(&self, client: Client, again_ns: u64) {
        let touch = Touch::AskAgain(client, again_ns);
        self.touches.lock().unwrap().push(touch);
    }

    fn names(&self, address: IpAddr, answer: NamesAnswer) {
        self.names.lock().unwrap().push((address, answer));
    }

    fn forget_lookup(&self, client: Client) {
        let touch = Touch::ForgetLookup(client);
        self.touches.lock().unwrap().push(touch);
    }

    fn netblock_requests(&self, netblock: Netblock, _: Span, _: u64) -> u64 {
        assert!(!*self.always_panics.lock().unwrap());
        let panics_for = *self.panics_for.lock().unwrap();
        assert!(!panics_for.is_some_and(|client| netblock.covers_client(client)));
        1043
    }
}

/// A service of which there is nothing to tell.
pub(crate) fn about() -> About {
    About {
        version: "0.0.0",
        places: vec!["127.0.0.1:8080".to_owned()],
        listing: Vec::new(),
        warnings: Vec::new(),
        process: Arc::new(|_| false),
        events: Arc::default(),
    }
}

/// A data plane that passes everything.
pub(crate) fn nothing_to_explain() -> Explain {
    Arc::new(|question| {
        let client = Client::of(question.address);
        Explanation {
            client,
            netblock: Netblock::of(client, PrefixLengths::default()),
            outcome: Outcome::Forward,
            otherwise: None,
            group: Group::Default,
            list: None,
            list_since_ms: None,
            exempt: None,
            rule: None,
            rule_since_ms: None,
            counted: true,
            known: false,
            trusted: false,
            lookup: None,
            requests: PerSpan::default(),
            bytes: PerSpan::default(),
            elsewhere: None,
            limit_percent: None,
            bytes_percent: None,
            next_ban: None,
            claim: None,
            rule_limits: Vec::new(),
            jails: Vec::new(),
        }
    })
}

/// A table without a client.
pub(crate) fn empty_table() -> Arc<dyn ClientTable> {
    let snapshots = Arc::new(ArcSwap::from_pointee(Snapshot::default()));
    Arc::new(Table::new(snapshots, Clock::manual(NOW).0))
}

/// The state files without a disk: the test plays their thread.
pub(crate) struct TestDisk {
    pub(crate) bans: TestFile<BansFile>,
    pub(crate) clients: TestFile<ClientsFile>,
    pub(crate) lookups: TestFile<LookupsFile>,
    pub(crate) alerts: TestFile<AlertsFile>,
    pub(crate) journal: TestJournal<Arc<Ban>, BanKey>,
}

impl TestDisk {
    fn new() -> (Self, StateFiles) {
        let (bans, bans_file) = TestFile::pair();
        let (clients, clients_file) = TestFile::pair();
        let (lookups, lookups_file) = TestFile::pair();
        let (alerts, alerts_file) = TestFile::pair();
        let (journal, journal_file) = TestJournal::pair();
        let files = StateFiles {
            bans: bans_file,
            clients: clients_file,
            lookups: lookups_file,
            alerts: alerts_file,
            thread: StateThread::without_disk(),
            journal: journal_file,
        };
        let disk = Self {
            bans,
            clients,
            lookups,
            alerts,
            journal,
        };
        (disk, files)
    }

    /// Every document that waits is written, or is not.
    pub(crate) fn tell(&self, persisted: bool) {
        fn tell<D: Document>(file: &TestFile<D>, persisted: bool) {
            for saved in file.take().into_iter().flat_map(|job| job.saved) {
                saved.tell(persisted);
            }
        }
        tell(&self.bans, persisted);
        tell(&self.clients, persisted);
        tell(&self.lookups, persisted);
        tell(&self.alerts, persisted);
    }

    /// Whether no document waits.
    pub(crate) fn is_idle(&self) -> bool {
        self.bans.take().is_none()
            && self.clients.take().is_none()
            && self.lookups.take().is_none()
            && self.alerts.take().is_none()
    }
}

/// The next document of a file that another thread saves, with those who wait for it.
pub(crate) fn next_saved<D: Document>(file: &TestFile<D>) -> Job<D> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        if let Some(job) = file.take() {
            return job;
        }
        assert!(Instant::now() < deadline, "no document of {}", D::FILE);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// An entry that an edit puts in place of none.
pub(crate) fn put<D: Document<Entry = Row<T>>, T>(row: T) -> Change<D> {
    let after = Row::from(row);
    Change::Put {
        before: None,
        after,
    }
}

/// A ban that an edit puts in place of none.
pub(crate) fn put_ban(ban: Ban) -> Change<BansFile> {
    let after = Arc::new(ban);
    Change::Put {
        before: None,
        after,
    }
}

/// The loop and its surroundings.
pub(crate) struct Rig {
    pub(crate) control: Control,
    pub(crate) handle: ControlHandle,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) snapshots: Arc<ArcSwap<Snapshot>>,
    pub(crate) table: Arc<Table>,
    pub(crate) spared: Arc<Spared>,
    pub(crate) breaks: Sender<LimitExceeded>,
    pub(crate) disk: TestDisk,
    pub(crate) faults: Faults,
    pub(crate) finished: Sender<Vec<Finished>>,
    pub(crate) origins: Arc<Mutex<OriginCounts>>,
    /// Alert lines, as the log would get them.
    pub(crate) lines: Receiver<Vec<u8>>,
}

impl Rig {
    pub(crate) fn new(settings: Settings) -> Self {
        Self::with_bans(settings, Vec::new()).ok().unwrap()
    }

    pub(crate) fn with_bans(settings: Settings, bans: Vec<Ban>) -> Result<Self, ControlError> {
        let start = StartState {
            bans: bans.into_iter().map(Arc::new).collect(),
            ..StartState::default()
        };
        Self::with_state(settings, start)
    }

    pub(crate) fn with_state(settings: Settings, start: StartState) -> Result<Self, ControlError> {
        let (clock, manual) = Clock::manual(NOW);
        let snapshots = Arc::new(ArcSwap::from_pointee(Snapshot::default()));
        let table = Arc::new(Table::new(Arc::clone(&snapshots), clock.clone()));
        let (breaks, broken) = unbounded();
        let (disk, files) = TestDisk::new();
        let faults = Faults::default();
        let (finished, ended) = unbounded();
        let (lines, written) = unbounded();
        let origins = Arc::new(Mutex::new(OriginCounts::default()));
        let feeds = Feeds {
            finished: ended,
            origins: {
                let origins = Arc::clone(&origins);
                Arc::new(move || std::mem::take(&mut *origins.lock().unwrap()))
            },
            lines,
        };
        let clients = Arc::clone(&table) as Arc<dyn ClientTable>;
        let spared = Arc::new(Spared::new(settings.identity.trusted_proxies.clone()));
        let read = LookupFiles::open(&settings.lookup, &clock).unwrap();
        let lookups = Lookups::start(
            &settings,
            &clock,
            &clients,
            (read, &FileThread::default()),
            Vec::new(),
        )
        .unwrap();
        let (control, handle) = Control::new(Wiring {
            settings: Arc::new(settings),
            clock,
            snapshots: Arc::clone(&snapshots),
            table: Arc::clone(&table) as Arc<dyn ClientTable>,
            spared: Arc::clone(&spared),
            counts: None,
            breaks: broken,
            explain: nothing_to_explain(),
            totals: Arc::new(Totals::default),
            faults: faults.clone(),
            files,
            start,
            lookups,
            certificates: None,
            rules: LiveRules::default(),
            feeds,
            about: about(),
        })?;
        Ok(Self {
            control,
            handle,
            clock: manual,
            snapshots,
            table,
            spared,
            breaks,
            disk,
            faults,
            finished,
            origins,
            lines: written,
        })
    }

    pub(crate) fn turn(&mut self) {
        self.control.turn(Duration::ZERO);
    }

    /// Reports a break of the minute's limit and lets the loop handle it.
    pub(crate) fn exceed_limit(&mut self, client: &str) {
        self.report(client);
        self.turn();
    }

    /// Reports a break and leaves it waiting.
    pub(crate) fn report(&self, client: &str) {
        let at_ms = self.now_ms();
        self.breaks.send(broken(client, at_ms)).unwrap();
    }

    /// Requests of this client that ended, and the turn that counts them.
    pub(crate) fn finish(&mut self, address: &str, bytes: u64, requests: usize) {
        let finished = Finished {
            address: address.parse().unwrap(),
            lookup: None,
            bytes,
        };
        self.finished.send(vec![finished; requests]).unwrap();
        self.turn();
    }

    /// The alert lines since the last call.
    pub(crate) fn alerts(&self) -> Vec<Value> {
        let lines = self.lines.try_iter();
        lines
            .map(|line| serde_json::from_slice(&line).unwrap())
            .collect()
    }

    /// What alerts.json would hold now, as it was last saved.
    pub(crate) fn saved_alerts(&self) -> Vec<AlertsEntry> {
        let job = self.disk.alerts.take().expect("a save of alerts.json");
        job.entries.into_iter().map(|entry| entry.row).collect()
    }

    /// One sample of the metrics page.
    pub(crate) fn metric(&mut self, series: &str) -> Option<f64> {
        let mut ask = request("GET", "/_waf/metrics", "");
        ask.authorization = Some(HeaderValue::from_static(METRICS));
        let page = self.ask(ask);
        let page = String::from_utf8(page.body.to_vec()).unwrap();
        page.lines().find_map(|line| {
            let (name, value) = line.rsplit_once(' ')?;
            (name == series).then(|| value.parse().unwrap())
        })
    }

    pub(crate) fn now_ms(&self) -> u64 {
        Clock::Manual(Arc::clone(&self.clock)).now().wall_ms
    }

    /// When the client is free again, as every request would see it now.
    pub(crate) fn banned_until(&self, client: &str) -> Option<u64> {
        let snapshot = self.snapshots.load();
        let client = client.parse().unwrap();
        snapshot.bans.active_until(client, self.now_ms())
    }

    pub(crate) fn touches(&self) -> Vec<Touch> {
        std::mem::take(&mut *self.table.touches.lock().unwrap())
    }

    /// Hands a request over as the data plane does; the answer comes at once or through the
    /// receiver.
    pub(crate) fn hand(&self, request: OwnRequest) -> Receiver<OwnResponse> {
        let (send, receive) = unbounded();
        let handover = self.handle.handover();
        let respond = |send: Sender<OwnResponse>| {
            Box::new(move |answer| drop(send.send(answer))) as Box<dyn FnOnce(OwnResponse) + Send>
        };
        let body = request.body.clone();
        let bare = OwnRequest {
            body: None,
            ..request.clone()
        };
        let step = match handover(bare, respond(send.clone())) {
            Step::ReadBody { limit } => {
                assert_eq!(limit, 65_536);
                let body = Some(body.unwrap_or(Body::Whole(Bytes::new())));
                handover(OwnRequest { body, ..request }, respond(send.clone()))
            }
            step => step,
        };
        match step {
            Step::Done(answer) => send.send(answer).unwrap(),
            Step::ReadBody { .. } => panic!("the body is asked for twice"),
            Step::Later => {}
        }
        receive
    }

    /// Asks, with a disk that writes at once, and turns until the answer is there.
    pub(crate) fn ask(&mut self, request: OwnRequest) -> OwnResponse {
        let answer = self.hand(request);
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            self.turn();
            self.disk.tell(true);
            self.turn();
            match answer.recv_timeout(Duration::from_millis(1)) {
                Ok(answer) => return answer,
                Err(_) => assert!(Instant::now() < deadline, "no answer"),
            }
        }
    }

    pub(crate) fn post(&mut self, body: &str) -> OwnResponse {
        self.ask(request("POST", "/_waf/bans", body))
    }

    pub(crate) fn get(&mut self, path: &str) -> OwnResponse {
        self.ask(request("GET", path, ""))
    }
}

pub(crate) fn broken(client: &str, at_ms: u64) -> LimitExceeded {
    LimitExceeded {
        client: client.parse().unwrap(),
        offence: Offence::Limit {
            kind: LimitKind::Minute,
            value: 1000,
            percent: 100,
        },
        at_ms,
        fleet: None,
        request: Some(RequestNote {
            path: Some("/a".to_owned()),
            ..RequestNote::default()
        }),
    }
}

/// A request with the admin's token.
pub(crate) fn request(method: &str, target: &str, body: &str) -> OwnRequest {
    let (path, query) = match target.split_once('?') {
        Some((path, query)) => (path, Some(query.to_owned())),
        None => (target, None),
    };
    OwnRequest {
        method: Method::from_bytes(method.as_bytes()).unwrap(),
        path: path.to_owned(),
        query,
        authorization: Some(HeaderValue::from_static(ADMIN)),
        client: None,
        request_id: "id-1".to_owned(),
        announced: None,
        body: (!body.is_empty()).then(|| Body::Whole(Bytes::copy_from_slice(body.as_bytes()))),
    }
}

pub(crate) fn row(client: &str) -> ClientRow {
    ClientRow {
        client: client.parse().unwrap(),
        first_seen: Time(NOW),
        last_seen: Time(NOW),
        lookup: None,
        passed: 10,
        refused: 2,
        requests: Default::default(),
        bytes: Default::default(),
        rules: Vec::new(),
        other_sites: None,
        first_passed: None,
    }
}

pub(crate) fn body(answer: &OwnResponse) -> Value {
    serde_json::from_slice(&answer.body).unwrap()
}

/// A request with nothing known beyond what every request has.
pub(crate) fn bare_record(batch: &mut Batch, path: &str) -> Record {
    Record {
        at_ms: 1_795_276_800_007,
        request_id: batch.keep(Some("r1")),
        client: "203.0.113.7".parse().unwrap(),
        address: "203.0.113.7".parse().unwrap(),
        group: Group::Default,
        other_site: false,
        forwarded_for: Text::NONE,
        scheme: "http",
        method: batch.keep(Some("GET")),
        host: Text::NONE,
        path: batch.keep(Some(path)),
        query: Text::NONE,
        version: Version::HTTP_11,
        user_agent: Text::NONE,
        referer: Text::NONE,
        content_type: Text::NONE,
        content_length: None,
        headers: batch.keep_headers(std::iter::empty::<(usize, &[u8])>()),
        has_authorization: false,
        has_cookie: false,
        websocket: false,
        status: None,
        response_content_type: Text::NONE,
        cache_control: Text::NONE,
        location: Text::NONE,
        action: Action::Passed,
        enforced: true,
        ban: None,
        limit_hit: None,
        shared: None,
        application: Text::NONE,
        crawler: None,
        rule: None,
        list: None,
        limit_percent: None,
        bytes_percent: None,
        country: Text::NONE,
        asn: Text::NONE,
        as_name: Text::NONE,
        counts: None,
        request_bytes: 0,
        response_bytes: 0,
        total_us: 1000,
        lookup_wait_us: None,
        connect_us: None,
        first_byte_us: None,
    }
}
