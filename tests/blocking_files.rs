//! A named pipe in the place of each file that is read, which a plain reader would wait for without
//! end (RELOAD-4); and the threads of the process, of which one watches all files.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::json;

use crate::support::application::Application;
use crate::support::tls::Pair;
use crate::support::wait_until;
use crate::support::weir::{Weir, state_dir};

const DATABASE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/country.mmdb");

/// Puts a named pipe in the place of a file. Nobody ever writes to it.
#[track_caller]
fn pipe(path: &Path) {
    let _ = fs::remove_file(path);
    mknodat(CWD, path, FileType::Fifo, Mode::from(0o666), 0).expect("a pipe");
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

/// RELOAD-4: at the start a named pipe in the place of any file is one clear error that names it.
#[test]
fn a_pipe_stops_the_start_at_once() {
    let from_settings: &[&[(&str, &str)]] = &[
        &[("WAF_SETTINGS_FILE", "")],
        &[("WAF_RULES_FILE", "")],
        &[("WAF_REFUSAL_PAGE", "")],
        &[("WAF_ADMIN_TOKEN_FILE", ""), ("WAF_ADMIN_TOKEN", "unset")],
        &[
            ("WAF_METRICS_TOKEN_FILE", ""),
            ("WAF_METRICS_TOKEN", "unset"),
        ],
        &[("WAF_LOOKUP_DB_PATH", ""), ("WAF_LOOKUP_SOURCE", "file")],
        &[("WAF_LOOKUP_CA_FILE", ""), ("WAF_LOOKUP_SOURCE", "geojs")],
        &[("WAF_LOG_FILE", "")],
        &[("WAF_TLS_CERT", ""), ("WAF_TLS_KEY", "key")],
        &[("WAF_TLS_CERT", "cert"), ("WAF_TLS_KEY", "")],
    ];
    let state_files = [
        "bans.json",
        "clients.json",
        "lookups.json",
        "alerts.json",
        "weir.lock",
    ];
    std::thread::scope(|scope| {
        for settings in from_settings {
            scope.spawn(|| {
                let state = state_dir();
                let pair = Pair::write(state.path(), "a", &["a.test"]);
                let (cert, key) = (text(&pair.cert).to_owned(), text(&pair.key).to_owned());
                let path = state.path().join("pipe");
                pipe(&path);
                let value = |value| match value {
                    "" => text(&path),
                    "unset" => "",
                    "cert" => &cert,
                    "key" => &key,
                    other => other,
                };
                let settings: Vec<_> = settings
                    .iter()
                    .map(|(name, of)| (*name, value(of)))
                    .collect();
                told(&Weir::refuse(&state, &settings).stderr, &path);
            });
        }
        for file in state_files {
            scope.spawn(move || {
                let state = state_dir();
                let path = state.path().join(file);
                pipe(&path);
                let stderr = Weir::refuse(&state, &[]).stderr;
                told(&stderr, Path::new(file));
            });
        }
    });
}

/// One error, with the file and what it is.
#[track_caller]
fn told(stderr: &str, path: &Path) {
    let of_file = stderr.lines().filter(|line| line.contains(text(path)));
    let of_file: Vec<&str> = of_file.collect();
    assert_eq!(of_file.len(), 1, "{stderr}");
    assert!(of_file[0].contains("it is a named pipe"), "{stderr}");
}

/// A service that reads every sort of file.
struct Reader {
    weir: Weir,
    settings: PathBuf,
    page: PathBuf,
    token: PathBuf,
    database: PathBuf,
    list: PathBuf,
    pair: Pair,
    log: PathBuf,
}

impl Reader {
    #[track_caller]
    fn start(application: &Application, more: &[(&str, &str)]) -> Self {
        let state = state_dir();
        let at = |name: &str| state.path().join(name);
        let (settings, page, token) = (at("weir.env"), at("page.html"), at("token"));
        let (database, list, log) = (at("country.mmdb"), at("drop.txt"), at("weir.log"));
        let pair = Pair::write(state.path(), "a", &["a.test"]);
        let write = |path: &Path, content: &str| fs::write(path, content).expect("writes");
        write(&settings, "WAF_RATE_LIMIT_PER_DAY=1000\n");
        write(&page, "refused: {reason}");
        write(&token, "a-token-of-metrics");
        write(&list, "192.0.2.0/24\n");
        let rules = json!({"version": 1, "deny": [{"file": "drop.txt"}]});
        write(&at("rules.json"), &rules.to_string());
        fs::copy(DATABASE, &database).expect("copies");
        let mut given = vec![
            ("WAF_SETTINGS_FILE", text(&settings)),
            ("WAF_REFUSAL_PAGE", text(&page)),
            ("WAF_METRICS_TOKEN", ""),
            ("WAF_METRICS_TOKEN_FILE", text(&token)),
            ("WAF_LOOKUP_SOURCE", "file"),
            ("WAF_LOOKUP_DB_PATH", text(&database)),
            ("WAF_TLS_CERT", text(&pair.cert)),
            ("WAF_TLS_KEY", text(&pair.key)),
            ("WAF_LISTEN", "127.0.0.1:0,https://127.0.0.1:0"),
            ("WAF_LOG_FILE", text(&log)),
        ];
        given.extend(more);
        let weir = Weir::start_at(application.address(), &state, &given);
        Self {
            weir,
            settings,
            page,
            token,
            database,
            list,
            pair,
            log,
        }
    }

    /// Requests and operators are answered, whatever lies in the place of a file.
    #[track_caller]
    fn serves(&self) {
        assert_eq!(self.weir.get("/", "203.0.113.7").status, 200);
        self.weir.control("GET", "/v1/status", None).expect(200);
    }
}

/// RELOAD-4: while it runs, a named pipe in the place of any file holds neither requests nor
/// operators nor signals; a reload says which file it could not read, and takes the next good one.
#[test]
fn a_pipe_holds_nothing_while_it_runs() {
    let application = Application::ok();
    let reader = Reader::start(&application, &[]);
    let weir = &reader.weir;
    let rules = weir.state_path("rules.json");
    let files = [
        &reader.settings,
        &rules,
        &reader.page,
        &reader.token,
        &reader.database,
        &reader.pair.cert,
        &reader.pair.key,
        &reader.log,
    ];
    for file in files {
        let held = fs::read(file).expect("its content");
        pipe(file);
        let answer = weir.control("POST", "/v1/reload", None).expect(422).json();
        let detail = answer["detail"].as_str().expect("a detail");
        let is_told = detail.contains(text(file)) && detail.contains("it is a named pipe");
        assert!(is_told, "{}: {detail}", file.display());
        reader.serves();
        fs::remove_file(file).expect("removes");
        fs::write(file, held).expect("writes");
        weir.control("POST", "/v1/reload", None).expect(200);
    }
    // A list of others is no reason to refuse a reload (RULE-10).
    pipe(&reader.list);
    weir.control("POST", "/v1/reload", None).expect(200);
    weir.wait_for_process_log(&["drop.txt", "it is a named pipe"]);
    weir.get("/", "192.0.2.1").expect(429);
    for file in ["bans.json", "clients.json", "lookups.json", "alerts.json"] {
        pipe(&weir.state_path(file));
    }
    weir.wait_for_process_log(&["bans.json", "is no regular file"]);
    reader.serves();
    for file in ["bans.json", "clients.json", "lookups.json", "alerts.json"] {
        wait_until("the pipe is set aside", || weir.state_path(file).is_file());
    }
    fs::write(&reader.settings, "WAF_RATE_LIMIT_PER_DAY=2000\n").expect("writes");
    weir.signal("HUP");
    weir.wait_for_process_log(&["changed: WAF_RATE_LIMIT_PER_DAY 1000 -> 2000"]);
}

/// RELOAD-4: a file on a mount that hangs holds the thread of the reload and
/// nothing else: the reload is refused in time and says for which file it waits, SIGTERM stops the
/// service; once the mount answers, reloads are taken again.
#[test]
fn a_hanging_file_holds_the_reload_alone() {
    let application = Application::ok();
    let directory = tempfile::tempdir().expect("a directory");
    let hangs = directory.path().join("hangs");
    let hook = [
        ("WEIR_TEST_HANGING_FILE", text(&hangs)),
        ("WEIR_TEST_SILENCE_MS", "2000"),
    ];
    let mut reader = Reader::start(&application, &hook);
    let refused = |reader: &Reader, told: &str| {
        let answer = reader.weir.control("POST", "/v1/reload", None);
        let answer = answer.expect(422).json();
        let detail = answer["detail"].as_str().expect("a detail").to_owned();
        assert!(detail.contains(told), "{detail}");
    };
    let rules = reader.weir.state_path("rules.json");
    let files = [
        reader.settings.clone(),
        reader.token.clone(),
        reader.page.clone(),
        rules,
    ];
    for file in files {
        fs::write(&hangs, text(&file)).expect("writes");
        let why = format!(
            "it took longer than 2s: it still waits for {}",
            file.display()
        );
        refused(&reader, &why);
        // Its thread is still there.
        refused(&reader, "the reload before has not ended");
        reader.serves();
        fs::remove_file(&hangs).expect("removes");
        wait_until("a reload is taken", || {
            reader.weir.control("POST", "/v1/reload", None).status == 200
        });
    }
    fs::write(&hangs, text(&reader.page)).expect("writes");
    reader.weir.signal("HUP");
    reader
        .weir
        .wait_for_process_log(&["it took longer than 2s"]);
    reader.serves();
    reader.weir.stop();
}

/// RELOAD-4: one thread looks at all files, and these threads are all there are, whatever is read;
/// docs/architecture.md names each.
#[test]
fn one_thread_looks_at_all_files() {
    let application = Application::ok();
    let reader = Reader::start(&application, &[("WAF_WORKERS", "2")]);
    reader.weir.control("POST", "/v1/reload", None).expect(200);
    let names = || {
        let threads = fs::read_dir(format!("/proc/{}/task", reader.weir.pid())).expect("them");
        let name = |thread: std::io::Result<fs::DirEntry>| {
            fs::read_to_string(thread.ok()?.path().join("comm")).ok()
        };
        let mut names: Vec<String> = threads.filter_map(name).collect();
        names
            .iter_mut()
            .for_each(|name| *name = name.trim().to_owned());
        names.sort();
        names
    };
    // The kernel keeps 15 characters of a name.
    let expected = [
        "notify-rs inoti",
        "weir",
        "weir-answers",
        "weir-control",
        "weir-files",
        "weir-journal",
        "weir-log",
        "weir-operator",
        "weir-process-lo",
        "weir-pulse",
        "weir-state",
        "weir-worker-0",
        "weir-worker-1",
    ];
    wait_until("the thread of the reload has ended", || names() == expected);
    let map = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/architecture.md");
    let map = fs::read_to_string(map).expect("the map");
    for name in expected {
        let is_named = map.contains(name) || name.starts_with("weir-worker");
        assert!(is_named, "{name}");
    }
}
