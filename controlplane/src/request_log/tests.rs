use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crossbeam_channel::never;
use http::{HeaderName, HeaderValue, StatusCode};
use proptest::prelude::*;
use serde_json::{Value, json};
use weir_shared::ban::{Cause, Expiry};
use weir_shared::record::Record;
use weir_shared::rules::RuleKind;
use weir_shared::settings::{LogRequests, WatchNet};
use weir_shared::snapshot::ActiveBan;
use weir_shared::units::Time;
use weir_shared::verdict::{
    Action, AppliedPercent, Counts, Group, LimitHit, LimitKind, PercentSetting,
};

use super::line::{Stamp, address, escaped, milliseconds};
use super::*;
use crate::testing::bare_record as bare;

fn settings(log_file: Option<PathBuf>) -> Settings {
    let mut settings = Settings::default();
    settings.log.instance_name = Some("edge-1".to_owned());
    settings.log.file = log_file;
    settings.log.request_headers = ["x-tag", "authorization", "cookie", "set-cookie", "x-tag"]
        .map(HeaderName::from_static)
        .to_vec();
    settings
}

fn full(batch: &mut Batch) -> Record {
    let tags = ["one", "two"].map(HeaderValue::from_static);
    Record {
        client: "2001:db8:1:2::/64".parse().unwrap(),
        address: "2001:db8:1:2::9".parse().unwrap(),
        group: Group::Allow,
        forwarded_for: batch.keep(Some("192.0.2.1, 192.0.2.2")),
        scheme: "https",
        method: batch.keep(Some("POST")),
        host: batch.keep(Some("example.org")),
        query: batch.keep(Some("c=d")),
        user_agent: batch.keep(Some("x\"y")),
        referer: batch.keep(Some("http://r/")),
        content_type: batch.keep(Some("text/plain")),
        content_length: Some(12),
        headers: batch.keep_headers(tags.iter().map(|value| (0, value))),
        has_authorization: true,
        has_cookie: true,
        status: Some(StatusCode::TOO_MANY_REQUESTS),
        response_content_type: batch.keep(Some("text/html")),
        cache_control: batch.keep(Some("no-store")),
        location: batch.keep(Some("/next")),
        action: Action::RateLimited,
        enforced: false,
        limit_hit: Some(LimitHit::Window(LimitKind::HourBytes)),
        shared: None,
        application: batch.keep(Some("count=login")),
        crawler: None,
        rule: Some((batch.keep(Some("login")), RuleKind::Limit)),
        list: Some((
            "203.0.113.0/24".parse().unwrap(),
            batch.keep(Some("drop.txt")),
        )),
        limit_percent: Some(AppliedPercent {
            percent: 50,
            setting: PercentSetting::Asn,
        }),
        bytes_percent: Some(AppliedPercent {
            percent: 20,
            setting: PercentSetting::AsnBytes,
        }),
        country: batch.keep(Some("DE")),
        asn: batch.keep(Some("AS64496")),
        as_name: batch.keep(Some("Example")),
        counts: Some(Counts {
            requests: [1, 22, 333].into(),
            bytes: [4444, 255, 256].into(),
        }),
        request_bytes: 12,
        response_bytes: 34,
        total_us: 1_234,
        lookup_wait_us: Some(10),
        connect_us: Some(500),
        first_byte_us: Some(12_000),
        ..bare(batch, "/a%20b")
    }
}

/// Batches as the workers send them.
fn batch(count: usize, path: &str) -> Batch {
    let mut batch = Batch::default();
    for _ in 0..count {
        batch.add(|batch| bare(batch, path));
    }
    batch
}

fn line(fill: impl FnOnce(&mut Batch) -> Record) -> String {
    let (mut batch, mut out) = (Batch::default(), Vec::new());
    batch.add(fill);
    Form::new(&settings(None)).lines(&batch, &mut out);
    String::from_utf8(out).unwrap()
}

/// LOG: every member in its order and under its name.
#[test]
fn a_line_has_every_member_in_its_order() {
    let expected = concat!(
        r#"{"time":"2026-11-21T16:00:00.007Z","event":"request","instance":"edge-1","request_id":"r1","#,
        r#""client":"2001:db8:1:2::/64","address":"2001:db8:1:2::9","netblock":"2001:db8:1::/56","client_group":"allow","#,
        r#""forwarded_for":"192.0.2.1, 192.0.2.2","scheme":"https","method":"POST","host":"example.org","#,
        r#""path":"/a%20b","query":"c=d","protocol":"HTTP/1.1","user_agent":"x\"y","referer":"http://r/","#,
        r#""content_type":"text/plain","content_length":12,"headers":{"x-tag":"one, two"},"#,
        r#""has_authorization":true,"has_cookie":true,"websocket":false,"status":429,"#,
        r#""response_content_type":"text/html","cache_control":"no-store","location":"/next","#,
        r#""action":"rate_limited","enforced":false,"limit_hit":"hour_bytes","#,
        r#""rule":{"name":"login","kind":"limit"},"application":"count=login","list":{"netblock":"203.0.113.0/24","source":"drop.txt"},"#,
        r#""limit_percent":{"percent":50,"setting":"WAF_ASN_LIMIT_PERCENT"},"#,
        r#""bytes_percent":{"percent":20,"setting":"WAF_ASN_BYTES_PERCENT"},"#,
        r#""country":"DE","asn":"AS64496","as_name":"Example","#,
        r#""counts":{"minute":1,"hour":22,"day":333,"minute_bytes":4444,"hour_bytes":255,"day_bytes":256},"#,
        r#""bytes":{"request":12,"response":34},"#,
        r#""timings":{"total":1.234,"lookup_wait":0.01,"connect":0.5,"first_byte":12}}"#,
        "\n"
    );
    assert_eq!(line(full), expected);
    let counts = &serde_json::from_str::<Value>(&line(full)).unwrap()["counts"];
    let names: Vec<_> = counts.as_object().unwrap().keys().collect();
    assert_eq!(names, LimitKind::ALL.map(LimitKind::name));
}

/// LOG: members without a known value are absent.
#[test]
fn what_is_unknown_is_absent() {
    let read: Value = serde_json::from_str(&line(|batch| bare(batch, "/"))).unwrap();
    assert_eq!(
        read,
        json!({"time":"2026-11-21T16:00:00.007Z","event":"request","instance":"edge-1","request_id":"r1",
            "client":"203.0.113.7","address":"203.0.113.7","netblock":"203.0.113.0/24","client_group":"default",
            "scheme":"http","method":"GET","path":"/","protocol":"HTTP/1.1",
            "has_authorization":false,"has_cookie":false,"websocket":false,"action":"passed","enforced":true,
            "bytes":{"request":0,"response":0},"timings":{"total":1}})
    );
}

fn members(fill: impl FnOnce(&mut Batch) -> Record) -> Value {
    serde_json::from_str(&line(fill)).unwrap()
}

/// TELL-2: a refusal by a ban names it.
#[test]
fn a_ban_is_named() {
    let ban = |netblock: &str, expires| ActiveBan {
        netblock: netblock.parse().unwrap(),
        cause: Cause::RateLimit,
        expires,
    };
    for (ban, expected) in [
        (
            ban("203.0.113.0/24", Expiry::At(Time(1_795_276_800_000))),
            json!({"netblock":"203.0.113.0/24","cause":"rate_limit","ban_expires":"2026-11-21T16:00:00Z"}),
        ),
        (
            ban("2001:db8::/32", Expiry::Permanent),
            json!({"netblock":"2001:db8::/32","cause":"rate_limit","ban_expires":"permanent"}),
        ),
    ] {
        let line = members(|batch| Record {
            action: Action::Banned,
            ban: Some(ban),
            ..bare(batch, "/")
        });
        assert_eq!(line["ban"], expected);
    }
}

/// TELL-2: a record whose text was cut says so, and the next one does not.
#[test]
fn a_cut_text_is_told() {
    let (mut batch, mut out) = (Batch::default(), Vec::new());
    for path in ["a".repeat(5000), "b".to_owned()] {
        batch.add(|batch| bare(batch, &path));
    }
    Form::new(&settings(None)).lines(&batch, &mut out);
    let out = String::from_utf8(out).unwrap();
    let read: Vec<Value> = out
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(
        (&read[0]["path"], &read[0]["truncated"]),
        (&json!("a".repeat(4096)), &json!(true))
    );
    assert_eq!(
        (&read[1]["path"], read[1].get("truncated")),
        (&json!("b"), None)
    );
}

/// TELL-2: characters that change the direction of writing are escaped, so that no line looks like
/// another on a terminal.
#[test]
fn the_direction_of_writing_is_not_turned() {
    let turning = "\u{61c}\u{200e}\u{200f}\u{202a}\u{202e}\u{2066}\u{2069}";
    let line = line(|batch| bare(batch, turning));
    assert!(
        line.contains(r"\u061c\u200e\u200f\u202a\u202e\u2066\u2069"),
        "{line}"
    );
    let read: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(read["path"], turning);
}

/// TELL-2: the combined format is the one that analysers expect, and no value ends a field early.
#[test]
fn the_combined_format_is_what_analysers_read() {
    let written = |fill: fn(&mut Batch) -> Record| {
        let (mut batch, mut out) = (Batch::default(), Vec::new());
        batch.add(fill);
        combined::lines(&batch, &mut out);
        String::from_utf8(out).unwrap()
    };
    assert_eq!(
        written(full),
        concat!(
            "2001:db8:1:2::9 - - [21/Nov/2026:16:00:00 +0000] ",
            r#""POST /a%20b?c=d HTTP/1.1" 429 34 "http://r/" "x\x22y""#,
            "\n"
        )
    );
    assert_eq!(
        written(|batch| Record {
            user_agent: batch.keep(Some("a\\\n\u{e9} b")),
            ..bare(batch, "/")
        }),
        concat!(
            "203.0.113.7 - - [21/Nov/2026:16:00:00 +0000] ",
            r#""GET / HTTP/1.1" 444 0 "-" "a\x5C\x0A\xC3\xA9 b""#,
            "\n"
        )
    );
    let aborted = written(|batch| Record {
        action: Action::ClientAborted,
        ..bare(batch, "/")
    });
    assert!(aborted.contains(" 499 0 "), "{aborted}");
}

proptest! {
        /// LOG-2: one line of valid JSON whatever bytes a client sends, and the readable ones
        /// arrive as they were.
        #[test]
        fn hostile_bytes_stay_in_one_line(raw in prop::collection::vec(any::<u8>(), 0..80), unicode in "\\PC{0,20}[\u{80}-\u{9f}\u{2028}\"\\\\]?") {
            for bytes in [raw.as_slice(), unicode.as_bytes()] {
                let mut inside = Vec::new();
                escaped(bytes, &mut inside);
                let inside = String::from_utf8(inside).unwrap();
let breaks = inside.chars().any(|c| c.is_control() || c == '\u{2028}' || c == '\u{2029}');
                prop_assert!(!breaks);
                let read: String = serde_json::from_str(&format!("\"{inside}\"")).unwrap();
                prop_assert_eq!(read, String::from_utf8_lossy(bytes).into_owned());
                let value = HeaderValue::from_bytes(bytes).unwrap_or(HeaderValue::from_static("a"));
                let line = line(|batch| {
                    let text = batch.keep(Some(bytes));
                    let headers = batch.keep_headers([(0, &value)].into_iter());
                    Record {
                        request_id: text, forwarded_for: text, method: text, host: text, path: text, query: text,
                        user_agent: text, referer: text, content_type: text, headers, location: text,
                        ..bare(batch, "/")
                    }
                });
                prop_assert_eq!(line.matches('\n').count(), 1);
                prop_assert!(line.ends_with('\n'));
                let read: Value = serde_json::from_str(&line).unwrap();
                prop_assert_eq!(read["user_agent"].as_str(), Some(&*String::from_utf8_lossy(bytes)));
            }
        }

        /// LOG: numbers and addresses are written as the standard library would.
        #[test]
        fn numbers_agree_with_the_standard_library(value in any::<u64>(), shift in 0u32..64, octets in any::<[u8; 4]>()) {
            let value = value >> shift;
            let mut out = Vec::new();
            number(value, &mut out);
            prop_assert_eq!(std::str::from_utf8(&out).unwrap(), value.to_string());
            out.clear();
            // Those that a float holds exactly.
            let value = value >> 14;
            milliseconds(value, &mut out);
            let read: f64 = std::str::from_utf8(&out).unwrap().parse().unwrap();
            prop_assert_eq!(read, value as f64 / 1000.0);
            prop_assert!(!out.contains(&b'.') || out.last() != Some(&b'0'));
            out.clear();
            address(octets.into(), &mut out);
            prop_assert_eq!(std::str::from_utf8(&out).unwrap(), Ipv4Addr::from(octets).to_string());
        }

        /// LOG: the cached second gives the same text as a conversion each time.
        #[test]
        fn the_stamp_agrees_with_the_calendar(times in prop::collection::vec(1_795_276_800_000u64..1_795_276_803_000, 1..20)) {
            let mut stamp = Stamp::default();
            for at in times {
                let mut out = Vec::new();
                stamp.write(at, &mut out);
                let text = String::from_utf8(out).unwrap();
                prop_assert_eq!(text.parse::<Time>(), Ok(Time(at)));
                prop_assert_eq!(text.len(), "2026-11-21T16:00:00.000Z".len());
            }
        }
    }

/// Nobody takes emptied batches.
fn spares() -> Sender<Batch> {
    bounded(1).0
}

fn none_lost() -> Lost {
    Arc::new(|| 0)
}

fn lines(path: &Path) -> Vec<Value> {
    fs::read_to_string(path)
        .unwrap_or_default()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::yield_now();
    }
}

/// LOG: the file is opened again without a lost or doubled line; lines sent before are in the old
/// file.
#[test]
fn a_rotated_log_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (path, old) = (dir.path().join("log"), dir.path().join("log.1"));
    let (send, receive) = bounded(10_000);
    let log = RequestLog::start(
        &settings(Some(path.clone())),
        receive,
        spares(),
        never(),
        none_lost(),
        Arc::default(),
    )
    .unwrap();
    for _ in 0..500 {
        send.send(batch(1, "/before")).unwrap();
    }
    fs::rename(&path, &old).unwrap();
    log.reopen();
    until("the file is there again", || path.exists());
    for _ in 0..500 {
        send.send(batch(2, "/after")).unwrap();
    }
    log.stop();
    assert_eq!(lines(&old).len(), 500);
    assert_eq!(lines(&path).len(), 1000);
    assert!(lines(&path).iter().all(|line| line["path"] == "/after"));
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o007, 0);
}

/// A writer that nobody gives orders.
fn writer(records: Receiver<Batch>, target: Target) -> Writer {
    Writer {
        form: Form::new(&settings(None)),
        format: LogFormat::Json,
        records,
        spare: spares(),
        lines: never(),
        orders: never(),
        lost: none_lost(),
        events: Arc::default(),
        lost_logged: 0,
        target,
        pending: Vec::new(),
        written: 0,
        failing: false,
        busy: false,
        next: Arc::default(),
        _ending: bounded(0).0,
    }
}

/// LOG: a turn ends though the channel is filled as fast as it is emptied (here each batch that is
/// given back arrives again), so that an order to open the file again and the line about lost lines
/// come through an overload.
#[test]
fn a_turn_ends_in_an_overload() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    let (send, records) = bounded(2);
    for _ in 0..2 {
        send.send(batch(1, "/")).unwrap();
    }
    let arriving = records.clone();
    let mut writer = Writer {
        spare: send,
        ..writer(records, Target::open(Some(path.clone())).unwrap())
    };
    let turn = std::thread::spawn(move || writer.drain());
    let began = Instant::now();
    let mut ended = true;
    while !turn.is_finished() {
        std::thread::yield_now();
        if began.elapsed() > Duration::from_secs(10) {
            // A turn without an end is ended from here: nothing arrives any more.
            ended = false;
            let _ = arriving.try_recv();
        }
    }
    turn.join().unwrap();
    assert!(ended, "the turn went on for as long as batches arrived");
    assert_eq!(lines(&path).len(), 2);
}

/// LOG: a batch comes back empty once its lines are written, for its worker to fill again.
#[test]
fn emptied_batches_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    let (send, receive) = bounded(8);
    let (back, spare) = bounded(8);
    let settings = settings(Some(path.clone()));
    let log = RequestLog::start(
        &settings,
        receive,
        back,
        never(),
        none_lost(),
        Arc::default(),
    )
    .unwrap();
    send.send(batch(3, "/")).unwrap();
    log.stop();
    assert!(spare.try_recv().unwrap().is_empty());
    assert_eq!(lines(&path).len(), 3);
}

/// LOG: lines that were lost are counted in the log, each loss once.
#[test]
fn losses_are_logged_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    let (send, receive) = bounded(8);
    let lost = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&lost);
    let log = RequestLog::start(
        &settings(Some(path.clone())),
        receive,
        spares(),
        never(),
        Arc::new(move || counter.load(Ordering::Relaxed)),
        Arc::default(),
    )
    .unwrap();
    lost.store(3, Ordering::Relaxed);
    until("the loss is logged", || lines(&path).len() == 1);
    lost.store(5, Ordering::Relaxed);
    send.send(batch(1, "/")).unwrap();
    log.stop();
    let lost: Vec<_> = lines(&path)
        .iter()
        .filter(|line| line["event"] == "log_lines_dropped")
        .map(|line| line["count"].as_u64().unwrap())
        .collect();
    assert_eq!(lost, [3, 2]);
}

/// LOG: the thread checks its channels more often while lines arrive than while none do.
#[test]
fn lines_that_come_are_looked_for_more_often() {
    let dir = tempfile::tempdir().unwrap();
    let (send, records) = bounded(2);
    let target = Target::open(Some(dir.path().join("log"))).unwrap();
    let mut writer = writer(records, target);
    assert_eq!(writer.wait(), TICK);
    send.send(batch(1, "/")).unwrap();
    writer.drain();
    assert_eq!(writer.wait(), BUSY_TICK);
    writer.drain();
    assert_eq!(writer.wait(), TICK);
    writer.failing = true;
    assert_eq!(writer.wait(), RETRY);
}

/// LOG: a reader that stalls blocks neither the sender nor the stop; the lines that it reads later
/// are whole.
#[test]
fn a_stalled_reader_blocks_nobody() {
    let (mut reader, end) = io::pipe().unwrap();
    let (send, receive) = bounded(4);
    let (control, orders) = bounded(8);
    let (ending, ended) = bounded(0);
    let target = Target {
        file: File::from(std::os::fd::OwnedFd::from(end)),
        path: None,
    };
    let thread = Writer {
        orders,
        _ending: ending,
        ..writer(receive, target)
    };
    let thread = std::thread::spawn(move || thread.run()).thread().clone();
    let log = RequestLog {
        control,
        next: Arc::default(),
        thread,
        ended,
    };
    let mut refused = 0;
    // Far more than a pipe, a chunk and the channel hold; each send returns at once.
    until("the channel is full", || {
        if send.try_send(batch(200, "/")).is_err() {
            refused += 1;
        }
        refused > 1000
    });
    drop(send);
    let taken = std::thread::spawn(move || {
        let mut all = String::new();
        io::Read::read_to_string(&mut reader, &mut all).unwrap();
        all
    });
    log.stop();
    let all = taken.join().unwrap();
    assert_eq!(all.lines().count() % 200, 0);
    for line in all.lines() {
        serde_json::from_str::<Value>(line).unwrap();
    }
}

/// ALERT-4: alerts are whole lines among the requests, and are written even if no request is
/// logged.
#[test]
fn alerts_are_lines_of_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    let mut settings = settings(Some(path.clone()));
    settings.log.requests = LogRequests::Off;
    let (send, lines_in) = bounded(4);
    let log = RequestLog::start(
        &settings,
        never(),
        spares(),
        lines_in,
        none_lost(),
        Arc::default(),
    )
    .unwrap();
    send.send(b"{\"event\":\"alert\"}\n".to_vec()).unwrap();
    until("the alert is written", || lines(&path).len() == 1);
    send.send(b"{\"event\":\"alert\"}\n".to_vec()).unwrap();
    drop(send);
    log.stop();
    assert_eq!(lines(&path), vec![json!({"event":"alert"}); 2]);
}

/// ALERT-3: a watched client is marked in `client_group`, by the narrowest netblock; the lists come
/// first.
#[test]
fn a_watched_client_is_marked() {
    let mut settings = settings(None);
    settings.anomalies.watch_nets = [("office", "203.0.113.0/24"), ("desk", "203.0.113.7/32")]
        .map(|(name, netblock)| WatchNet {
            name: name.to_owned(),
            netblock: netblock.parse().unwrap(),
        })
        .to_vec();
    let mut form = Form::new(&settings);
    for (address, group, expected) in [
        ("203.0.113.8", Group::Default, "watch:office"),
        ("203.0.113.7", Group::Default, "watch:desk"),
        ("203.0.113.7", Group::Allow, "allow"),
        ("203.0.113.7", Group::Deny, "deny"),
        ("203.0.114.7", Group::Default, "default"),
    ] {
        let (mut batch, mut out) = (Batch::default(), Vec::new());
        batch.add(|batch| Record {
            address: address.parse().unwrap(),
            group,
            ..bare(batch, "/")
        });
        form.lines(&batch, &mut out);
        let line: Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(line["client_group"], expected, "{address}");
    }
}

/// SETTING-1: a log file that cannot be opened stops the start with a sentence that names it.
#[test]
fn a_log_file_that_cannot_be_opened_stops_the_start() {
    let (_send, receive) = bounded(1);
    let error = RequestLog::start(
        &settings(Some("/dev/null/log".into())),
        receive,
        spares(),
        never(),
        none_lost(),
        Arc::default(),
    )
    .err()
    .unwrap();
    assert!(
        error.starts_with("WAF_LOG_FILE /dev/null/log cannot be opened: "),
        "{error}"
    );
}

/// TELL-2: the schema of a line names every action and every cause of a ban that there are.
#[test]
fn the_schema_knows_every_action_and_cause() {
    let schema = include_str!("../../../schema/proxy/request-log.schema.json");
    let schema: Value = serde_json::from_str(schema).unwrap();
    let names = |pointer: &str| {
        let named = schema.pointer(pointer).unwrap().as_array().unwrap();
        let mut named: Vec<&str> = named.iter().filter_map(Value::as_str).collect();
        named.sort_unstable();
        named
    };
    let sorted = |mut names: Vec<&'static str>| {
        names.sort_unstable();
        names
    };
    let causes = schema.pointer("/properties/ban/properties/cause/description");
    let causes = causes.and_then(Value::as_str).unwrap();
    for cause in Cause::ALL {
        assert!(causes.contains(cause.name()), "{causes}");
    }
    let actions = Action::ALL.into_iter().map(Action::name).collect();
    assert_eq!(names("/properties/action/enum"), sorted(actions));
}
