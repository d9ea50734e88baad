//! A control loop with everything around it in memory, for the tests: turned by hand, on a clock that stands still.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender, unbounded};
use http::{HeaderValue, Method};
use serde_json::Value;
use weir_shared::ban::{Ban, RequestNote};
use weir_shared::client::Client;
use weir_shared::clock::{Clock, ManualClock};
use weir_shared::event::{Finished, LimitExceeded};
use weir_shared::handover::{Body, OwnRequest, OwnResponse, Step};
use weir_shared::lookup::Lookup;
use weir_shared::netblock::Netblock;
use weir_shared::settings::{AdminToken, LookupSettings, Secret, Settings};
use weir_shared::snapshot::Snapshot;
use weir_shared::table::{ClientRow, ClientTable};
use weir_shared::totals::{OriginCounts, Totals};
use weir_shared::units::Time;
use weir_shared::verdict::LimitKind;
use weir_shared::window::Span;

use crate::control_loop::{Control, ControlError, ControlHandle, Disk, Feeds};
use crate::lookup::Lookups;
use crate::state::{
    AlertsEntry, Edit, EditChange, FileCounts, Save, Saved, StartState, StateCounts, WriteFault,
};

/// 2026-11-21T16:00:00Z
pub(crate) const NOW: u64 = 1_795_276_800_000;
pub(crate) const ADMIN: &str = "Bearer admin-token";
pub(crate) const METRICS: &str = "Bearer metrics-token";

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
    settings.endpoints.metrics_token = Some(Secret::new("metrics-token".to_owned()));
    settings.endpoints.admin_token = AdminToken::Value(Secret::new("admin-token".to_owned()));
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
    /// Counting the requests of this client's netblock panics, as a bug would.
    pub(crate) panics_for: Mutex<Option<Client>>,
    /// Or those of every netblock.
    pub(crate) always_panics: Mutex<bool>,
    snapshots: Arc<ArcSwap<Snapshot>>,
    clock: Clock,
}

impl ClientTable for Table {
    /// LIMIT-6, at every reset of every test: what is published already bans the client, in this very generation.
    fn reset(&self, client: Client, generation: u64) {
        let snapshot = self.snapshots.load();
        let now_ms = self.clock.now().wall_ms;
        assert_eq!(snapshot.generation, generation);
        assert!(snapshot.bans.active_until(client, now_ms).is_some());
        self.touches
            .lock()
            .unwrap()
            .push(Touch::Reset(client, generation));
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

/// The loop and its surroundings.
pub(crate) struct Rig {
    pub(crate) control: Control,
    pub(crate) handle: ControlHandle,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) snapshots: Arc<ArcSwap<Snapshot>>,
    pub(crate) table: Arc<Table>,
    pub(crate) breaks: Sender<LimitExceeded>,
    pub(crate) edits: Sender<Edit>,
    pub(crate) saves: Receiver<(Save, u64, Option<Saved>)>,
    pub(crate) faults: Sender<WriteFault>,
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
        let table = Arc::new(Table {
            rows: Mutex::default(),
            touches: Mutex::default(),
            panics_for: Mutex::default(),
            always_panics: Mutex::default(),
            snapshots: Arc::clone(&snapshots),
            clock: clock.clone(),
        });
        let (breaks, broken) = unbounded();
        let (edits, edited) = unbounded();
        let (sent, saves) = unbounded();
        let (faults, faulted) = unbounded();
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
        let disk = Disk {
            edits: edited,
            faults: faulted,
            save: Box::new(move |document, applied, saved| {
                sent.send((document, applied, saved)).unwrap();
            }),
            counts: Box::new(|| StateCounts {
                files: [FileCounts {
                    file: "bans.json",
                    writes_ok: 0,
                    writes_error: 0,
                    edits_taken: 0,
                    edits_bad: 0,
                }; 4],
            }),
        };
        let clients = Arc::clone(&table) as Arc<dyn ClientTable>;
        let lookups = Lookups::start(&settings, &clock, &clients, Vec::new()).unwrap();
        let (control, handle) = Control::with_disk(
            Arc::new(settings),
            clock,
            Arc::clone(&snapshots),
            Arc::clone(&table) as Arc<dyn ClientTable>,
            broken,
            Arc::new(Totals::default),
            disk,
            start,
            lookups,
            feeds,
            "0.0.0",
        )?;
        Ok(Self {
            control,
            handle,
            clock: manual,
            snapshots,
            table,
            breaks,
            edits,
            saves,
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
    pub(crate) fn break_limit(&mut self, client: &str) {
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
        let saves = self.saves.try_iter();
        saves
            .filter_map(|(save, ..)| match save {
                Save::Alerts(entries) => Some(entries),
                Save::Bans(_) | Save::Clients(_) | Save::Lookups(_) => None,
            })
            .last()
            .expect("a save of alerts.json")
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

    pub(crate) fn edit(&mut self, number: u64, change: EditChange) {
        let before = Vec::new();
        let edit = Edit {
            number,
            change,
            before,
        };
        self.edits.send(edit).unwrap();
        self.turn();
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

    /// Hands a request over as the data plane does; the answer comes at once or through the receiver.
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
            while let Ok((_, _, saved)) = self.saves.try_recv() {
                if let Some(saved) = saved {
                    saved.tell(true);
                }
            }
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
        limit: LimitKind::Minute,
        limit_value: 1000,
        limit_percent: 100,
        at_ms,
        request: RequestNote {
            path: Some("/a".to_owned()),
            ..RequestNote::default()
        },
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
        request_id: "id-1".to_owned(),
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
    }
}

pub(crate) fn body(answer: &OwnResponse) -> Value {
    serde_json::from_slice(&answer.body).unwrap()
}
