//! A real Prometheus (Debian's): it finds nothing to say about the page, scrapes it with the token,
//! and evaluates the alert rules that are shipped.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::support::application::Application;
use crate::support::command::fed;
use crate::support::raw_client::{Connection, get};
use crate::support::weir::{METRICS_TOKEN, Weir};
use crate::support::{free_address, wait_for};

/// A Prometheus with its own configuration and data, ended by its process id.
struct Prometheus {
    child: Child,
    address: SocketAddr,
    directory: tempfile::TempDir,
}

impl Prometheus {
    /// Scrapes `target` every two seconds, with the configuration and the rules that are
    /// shipped.
    #[track_caller]
    fn start(target: SocketAddr) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let address = free_address();
        let root = directory.path();
        let shipped = fs::read_to_string(deploy("prometheus.yml")).expect("the configuration");
        assert!(shipped.contains("127.0.0.1:8080"), "{shipped}");
        let configuration = format!(
            "global: {{scrape_interval: 2s, scrape_timeout: 2s, evaluation_interval: 250ms}}\n{}",
            shipped.replace("127.0.0.1:8080", &target.to_string())
        );
        fs::write(root.join("prometheus.yml"), configuration).expect("writes");
        fs::copy(
            deploy("prometheus-rules.yml"),
            root.join("prometheus-rules.yml"),
        )
        .expect("copies");
        fs::write(root.join("metrics-token"), METRICS_TOKEN).expect("writes");
        let child = Command::new("prometheus")
            .arg(format!(
                "--config.file={}",
                root.join("prometheus.yml").display()
            ))
            .arg(format!(
                "--storage.tsdb.path={}",
                root.join("data").display()
            ))
            .arg(format!("--web.listen-address={address}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(root.join("log")).expect("a file"))
            .spawn()
            .expect("prometheus runs");
        Self {
            child,
            address,
            directory,
        }
    }

    /// The `data` of an answer; none while it is not there yet.
    fn api(&self, path: &str) -> Option<Value> {
        let mut connection = Connection::try_open(self.address)?;
        connection.send_what_is_taken(&get(&format!("/api/v1/{path}"), &[]));
        let answer = connection.try_response(false).ok()?;
        (answer.status == 200).then(|| answer.json()["data"].clone())
    }

    /// The value of a query that gives one number.
    fn value(&self, query: &str) -> Option<f64> {
        let encoded: String = query
            .bytes()
            .map(|byte| match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' => char::from(byte).to_string(),
                _ => format!("%{byte:02x}"),
            })
            .collect();
        let data = self.api(&format!("query?query={encoded}"))?;
        data["result"][0]["value"][1].as_str()?.parse().ok()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("prometheus:\n{}", self.log());
        }
    }
}

/// The second has the rules that wait for days.
const RULE_TESTS: [&str; 2] = [
    "prometheus-rules.test.yml",
    "prometheus-rules.days.test.yml",
];

fn deploy(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("controlplane/deploy")
        .join(file)
}

#[track_caller]
fn promtool(arguments: &[&str], input: &str) {
    let output = fed(Command::new("promtool").args(arguments), input.as_bytes());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {said}");
    if arguments == ["check", "metrics"] {
        assert_eq!(said, "", "it finds nothing to say");
    }
}

/// METRIC: `promtool check metrics` finds nothing to say, the rules are well formed, and each fires
/// for what it is about and is silent otherwise.
#[test]
#[ignore = "needs promtool of Debian's prometheus, which .ci/run installs"]
fn promtool_finds_nothing_to_say() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[]);
    weir.get("/a", "203.0.113.7");
    promtool(&["check", "metrics"], &weir.metrics());
    let rules = deploy("prometheus-rules.yml");
    promtool(&["check", "rules", rules.to_str().expect("a path")], "");
    for tests in RULE_TESTS {
        promtool(
            &["test", "rules", deploy(tests).to_str().expect("a path")],
            "",
        );
    }
}

/// METRIC: no rule is without a test that has it fire and one that has it silent.
#[test]
fn every_rule_has_two_tests() {
    let rules = fs::read_to_string(deploy("prometheus-rules.yml")).expect("the rules");
    let tests = RULE_TESTS.map(|file| fs::read_to_string(deploy(file)).expect("the tests"));
    let tests = tests.concat();
    let mut count = 0;
    for rule in rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "))
    {
        for verb in ["fires", "is silent"] {
            assert!(
                tests.contains(&format!("\"{rule} {verb}: ")),
                "{rule} {verb}"
            );
        }
        let asked = format!("alertname=\"{rule}\",alertstate=\"firing\"");
        assert_eq!(tests.matches(&asked).count(), 2, "{rule}");
        count += 1;
    }
    assert!(count > 15, "{count} rules");
}

/// METRIC: a real Prometheus scrapes the service with the token and sees what clients saw; every
/// shipped rule is evaluated without an error, and one of them fires for what it is about.
#[test]
#[ignore = "needs Debian's prometheus, which .ci/run installs"]
fn a_real_prometheus_scrapes_and_evaluates() {
    let application = Application::ok();
    let weir = Weir::start(
        &application,
        &[
            // It is no proxy here, and scrapes from loopback.
            ("WAF_TRUSTED_PROXIES", ""),
            ("WAF_ALLOW_NETS", "127.0.0.1"),
            ("WAF_STATE_WRITE_DELAY", "0s"),
        ],
    );
    let prometheus = Prometheus::start(weir.address());
    wait_for("the target to be up", || {
        (prometheus.value("up{job=\"weir\"}")? == 1.0).then_some(())
    });
    for _ in 0..7 {
        weir.get("/a", "203.0.113.7").expect(200);
    }
    wait_for("the seven requests", || {
        let passed = prometheus.value("waf_requests_total{action=\"passed\",mode=\"enforce\"}")?;
        (passed == 7.0).then_some(())
    });
    wait_for("one build", || {
        (prometheus.value("count(waf_build_info)")? == 1.0).then_some(())
    });
    wait_for("its memory", || {
        let memory = prometheus.value("process_resident_memory_bytes{job=\"weir\"}")?;
        (memory > 1e6).then_some(())
    });
    // That weir is there stands in the data from the second look on.
    let rules = wait_for("every rule to be evaluated", || {
        let rules = prometheus.api("rules")?;
        let rules = rules["groups"][0]["rules"].as_array()?.clone();
        let is_done = |rule: &Value| rule["health"] != "unknown" && rule["state"] == "inactive";
        let done = rules.iter().all(is_done);
        (!rules.is_empty() && done).then_some(rules)
    });
    let shipped = fs::read_to_string(deploy("prometheus-rules.yml")).expect("the rules");
    assert_eq!(rules.len(), shipped.matches("- alert:").count());
    for rule in &rules {
        assert_eq!(rule["health"], "ok", "{rule:#}");
        assert_eq!(rule["state"], "inactive", "all is well: {rule:#}");
    }
    // An edit that does not fit, and a ban, which has it set aside.
    fs::write(weir.state_path("bans.json"), "{\"version\":1}").expect("writes");
    weir.ban("netblock", "198.51.100.0/24", "1h");
    wait_for("the alert about the edit", || {
        let alerts = prometheus.api("alerts")?;
        let alerts = alerts["alerts"].as_array()?.clone();
        let found = alerts.into_iter().find(|alert| {
            alert["labels"]["alertname"] == "WeirStateEditSetAside" && alert["state"] == "firing"
        })?;
        assert_eq!(found["labels"]["file"], "bans.json", "{found}");
        Some(())
    });
}
