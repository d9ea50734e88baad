//! `weir dashboard`: who may ask it, and the page in a real browser (CONTROL-3).

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::support::application::Application;
use crate::support::command::run;
use crate::support::engine::Engine;
use crate::support::raw_client::{Ended, Response, request, try_exchange};
use crate::support::weir::{ONE_PER_HOUR, Weir, state_dir};
use crate::support::{wait_for, wait_until};

mod attack;

/// A running dashboard.
struct Dashboard {
    child: Child,
    address: SocketAddr,
    /// `/`, the secret, `/`.
    path: String,
}

impl Dashboard {
    #[track_caller]
    fn start(state: &Path) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_weir"))
            .args(["dashboard", "--json"])
            .env_clear()
            .env("WAF_STATE_DIR", state)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary runs");
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        output.read_line(&mut line).expect("a line");
        let told: Value = serde_json::from_str(&line).expect("JSON");
        let url = told["url"].as_str().expect("an address");
        let rest = url.strip_prefix("http://").expect("http");
        let (address, path) = rest.split_once('/').expect("a path");
        Self {
            child,
            address: address.parse().expect("an address"),
            path: format!("/{path}"),
        }
    }

    fn url(&self) -> String {
        format!("http://{}{}", self.address, self.path)
    }

    /// A request as the page makes it, with other fields where they are given.
    #[track_caller]
    fn ask(&self, method: &str, path: &str, fields: &[(&str, &str)], body: &str) -> Response {
        let host = self.address.to_string();
        let mut all = vec![("Connection", "close")];
        if !fields.iter().any(|(name, _)| *name == "Host") {
            all.push(("Host", &host));
        }
        all.extend(fields);
        let body = (!body.is_empty()).then_some(body.as_bytes());
        try_exchange(self.address, &request(method, path, &all, body)).expect("an answer")
    }

    #[track_caller]
    fn own(&self, method: &str, target: &str, body: &str) -> Response {
        let path = format!("{}{target}", self.path);
        self.ask(method, &path, &[("X-Weir-Dashboard", "1")], body)
    }

    #[track_caller]
    fn stop(mut self) {
        let id = rustix::process::Pid::from_raw(self.child.id().cast_signed()).expect("a pid");
        rustix::process::kill_process(id, rustix::process::Signal::INT).expect("it runs");
        assert_eq!(self.child.wait().expect("ends").code(), Some(0));
    }
}

impl Drop for Dashboard {
    fn drop(&mut self) {
        // Nothing is left behind by a test that fails.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// CONTROL-3: the page comes with a policy that allows its own files alone, and works without
/// another; it shows, bans, lifts and explains.
#[test]
fn the_page_asks_the_service() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[ONE_PER_HOUR]);
    weir.break_limit("203.0.113.7");
    let dashboard = Dashboard::start(&weir.state_path(""));
    assert_eq!(dashboard.path.len(), 34);
    for (file, kind) in [
        ("", "text/html"),
        ("style.css", "text/css"),
        ("plots.js", "text/javascript"),
        ("app.js", "text/javascript"),
    ] {
        let answer = dashboard.ask("GET", &format!("{}{file}", dashboard.path), &[], "");
        let answer = answer.expect(200);
        assert!(
            answer
                .header("content-type")
                .expect("a type")
                .starts_with(kind)
        );
        let policy = answer.header("content-security-policy").expect("a policy");
        assert!(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self';"));
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(answer.header("referrer-policy"), Some("no-referrer"));
        assert_eq!(answer.header("access-control-allow-origin"), None);
        let text = answer.text();
        for inside in [
            "<style",
            " style=",
            " onclick=",
            "<script>",
            "innerHTML",
            "http://",
            "https://",
        ] {
            assert!(!text.contains(inside), "{file}: {inside}");
        }
    }
    let status = dashboard.own("GET", "api/status", "").expect(200).json();
    assert_eq!(status["bans"]["active"], 1);
    assert_eq!(
        dashboard.own("GET", "api/alerts", "").expect(200).json()["alerts"][0]["kind"],
        "ban"
    );
    let history = dashboard.own("GET", "api/history?minutes=5", "");
    assert!(history.expect(200).json()["times"].is_array());
    let clients = dashboard
        .own("GET", "api/clients?sort=refused&limit=1", "")
        .expect(200);
    assert_eq!(clients.json()["clients"][0]["client"], "203.0.113.7");
    let explained = dashboard
        .own("GET", "api/explain?address=203.0.113.7", "")
        .expect(200)
        .json();
    assert!(
        explained["text"]
            .as_str()
            .expect("words")
            .starts_with("REFUSED now: banned")
    );
    dashboard
        .own("DELETE", "api/bans/203.0.113.0%2F24", "")
        .expect(200);
    assert!(weir.bans().iter().all(|ban| ban["lifted"].is_string()));
    let order = json!({"client": "198.51.100.7", "duration": "1h", "reason": "weir dashboard"});
    dashboard
        .own("POST", "api/bans", &order.to_string())
        .expect(201);
    assert!(
        weir.bans()
            .iter()
            .any(|ban| ban["netblock"] == "198.51.100.0/24")
    );
    // FLEET-29: without a fleet there is nothing of one, and no error.
    let fleet = dashboard.own("GET", "api/fleet", "").expect(200);
    assert_eq!(fleet.json(), Value::Null);
    // What the page does not need is not there.
    for (method, target) in [
        ("GET", "api/settings"),
        ("GET", "api/events"),
        ("POST", "api/reload"),
        ("GET", "api/bans/203.0.113.0%2F24"),
        ("GET", "index.html"),
    ] {
        dashboard.own(method, target, "").expect(404);
    }
    dashboard.stop();
}

/// CONTROL-3: another page of the same browser, or another program that does not know the address,
/// reads and changes nothing.
#[test]
fn nobody_else_may_ask() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[]);
    let dashboard = Dashboard::start(&weir.state_path(""));
    let api = format!("{}api/status", dashboard.path);
    let own = ("X-Weir-Dashboard", "1");
    dashboard.ask("GET", &api, &[own], "").expect(200);
    let port = dashboard.address.port();
    let local = format!("localhost:{port}");
    dashboard
        .ask("GET", &api, &[own, ("Host", &local)], "")
        .expect(200);
    // A name that was turned to this machine (DNS rebinding).
    let foreign = format!("evil.example:{port}");
    dashboard
        .ask("GET", &api, &[own, ("Host", &foreign)], "")
        .expect(421);
    dashboard
        .ask("GET", &dashboard.path, &[("Host", &foreign)], "")
        .expect(421);
    // Without the secret.
    for path in [
        "/",
        "/api/status",
        "/00000000000000000000000000000000/",
        "/app.js",
    ] {
        dashboard.ask("GET", path, &[own], "").expect(404);
    }
    // A form or an image of another page cannot send the field; with it, its origin tells.
    let ban = r#"{"client":"198.51.100.7","duration":"1h","reason":"x"}"#;
    let bans = format!("{}api/bans", dashboard.path);
    dashboard.ask("POST", &bans, &[], ban).expect(403);
    dashboard.ask("GET", &api, &[], "").expect(403);
    let origin = ("Origin", "http://evil.example");
    dashboard
        .ask("POST", &bans, &[own, origin], ban)
        .expect(403);
    dashboard
        .ask("POST", &bans, &[own, ("Origin", "null")], ban)
        .expect(403);
    // A browser asks first whether the field may be sent, and is not told so.
    let asked = dashboard.ask("OPTIONS", &bans, &[origin], "");
    assert_eq!(asked.status, 403);
    assert_eq!(asked.header("access-control-allow-origin"), None);
    assert!(weir.bans().is_empty());
    let own_origin = format!("http://127.0.0.1:{port}");
    dashboard
        .ask("POST", &bans, &[own, ("Origin", &own_origin)], ban)
        .expect(201);
    let long = format!("{{\"reason\":\"{}\"}}", "x".repeat(20_000));
    dashboard.ask("POST", &bans, &[own], &long).expect(400);
    dashboard.stop();
}

/// CONTROL-3: without a service it is one sentence and status 69, a port that is taken is status 2.
#[test]
fn wrong_calls_are_one_sentence() {
    let run = |state: &Path, arguments: &[&str]| {
        let ran = run(state, &[&["dashboard"], arguments].concat());
        (ran.code, ran.err)
    };
    let (code, text) = run(state_dir().path(), &[]);
    assert_eq!((code, text.lines().count()), (69, 1), "{text}");
    let application = Application::ok();
    let weir = Weir::start(&application, &[]);
    let port = weir.address().port().to_string();
    let (code, text) = run(&weir.state_path(""), &["--port", &port]);
    assert_eq!(code, 2, "{text}");
    assert!(
        text.contains("cannot be bound: Address already in use"),
        "{text}"
    );
}

/// A browser, driven over WebDriver.
struct Browser {
    driver: Child,
    address: SocketAddr,
    session: String,
}

impl Browser {
    #[track_caller]
    fn start(scheme: &str) -> Self {
        Self::of_size(scheme, (1100, 1260), false)
    }

    /// A window, or the screen of a phone.
    #[track_caller]
    fn of_size(scheme: &str, (width, height): (u32, u32), is_phone: bool) -> Self {
        let window = format!("--window-size={width},{height}");
        let mut driver = Command::new("chromedriver")
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("chromedriver is installed");
        let output = BufReader::new(driver.stdout.take().expect("piped"));
        let mut lines = output.lines().map_while(Result::ok);
        let port = lines.find_map(|line| {
            let (_, port) = line.split_once("successfully on port ")?;
            port.trim_end_matches('.').parse::<u16>().ok()
        });
        let mut browser = Self {
            driver,
            address: SocketAddr::from(([127, 0, 0, 1], port.expect("a port"))),
            session: String::new(),
        };
        let mut arguments = vec!["--headless=new", "--no-sandbox", "--disable-gpu"];
        arguments.extend([
            window.as_str(),
            "--hide-scrollbars",
            "--disable-dev-shm-usage",
        ]);
        arguments.extend((scheme == "dark").then_some("--blink-settings=preferredColorScheme=0"));
        let mut options = json!({"args": arguments});
        if is_phone {
            let metrics =
                json!({"width": width, "height": height, "pixelRatio": 2, "mobile": true});
            options["mobileEmulation"] = json!({"deviceMetrics": metrics});
        }
        let options = json!({"goog:chromeOptions": options});
        let wanted = json!({"capabilities": {"alwaysMatch": options}});
        let session = browser.command("POST", "/session", &wanted);
        let id = session["sessionId"].as_str().expect("a session");
        browser.session = format!("/session/{id}");
        browser
    }

    fn exchange(&self, method: &str, path: &str, body: &Value) -> Result<Response, Ended> {
        let body = (!body.is_null()).then(|| body.to_string());
        let body = body.as_deref().map(str::as_bytes);
        let host = self.address.to_string();
        let fields = [("Host", host.as_str()), ("Connection", "close")];
        let path = format!("{}{path}", self.session);
        try_exchange(self.address, &request(method, &path, &fields, body))
    }

    #[track_caller]
    fn command(&self, method: &str, path: &str, body: &Value) -> Value {
        let answer = self.exchange(method, path, body).expect("an answer");
        assert_eq!(answer.status, 200, "{method} {path}: {}", answer.text());
        answer.json()["value"].clone()
    }

    #[track_caller]
    fn script(&self, script: &str) -> Value {
        self.command(
            "POST",
            "/execute/sync",
            &json!({"script": script, "args": []}),
        )
    }

    #[track_caller]
    fn shows(&self, text: &str) {
        wait_for(&format!("{text:?} on the page"), || {
            let shown = self.script("return document.body.innerText");
            shown
                .as_str()
                .is_some_and(|shown| shown.contains(text))
                .then_some(())
        });
    }

    #[track_caller]
    fn shows_plots(&self) {
        wait_for("six plots", || {
            let plots = self.script("return document.querySelectorAll('figure svg').length");
            (plots == 6).then_some(())
        });
    }

    /// Presses keys, wherever the focus is.
    #[track_caller]
    fn press(&self, keys: &str) {
        let actions = keys.chars().flat_map(|key| {
            ["keyDown", "keyUp"].map(|kind| json!({"type": kind, "value": key.to_string()}))
        });
        let actions: Vec<Value> = actions.collect();
        let keyboard = json!({"type": "key", "id": "keyboard", "actions": actions});
        self.command("POST", "/actions", &json!({"actions": [keyboard]}));
    }

    /// The picture of the page; written into docs/ where `WEIR_BLESS` is set.
    #[track_caller]
    fn picture(&self, name: &str) {
        let picture = self.command("GET", "/screenshot", &Value::Null);
        let picture = picture.as_str().expect("a picture").as_bytes();
        let picture = data_encoding::BASE64.decode(picture).expect("base64");
        assert!(picture.starts_with(b"\x89PNG"));
        if std::env::var_os("WEIR_BLESS").is_some() {
            let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
            std::fs::write(docs.join(name), picture).expect("writes");
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // After a failure, too: a driver that is killed leaves its browser behind. Nothing here may
        // fail then, and opening a connection to a driver that has ended would.
        if !self.session.is_empty() && TcpStream::connect(self.address).is_ok() {
            let _ = self.exchange("DELETE", "", &Value::Null);
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

/// CONTROL-3: a person works with the page in a browser, by keys alone: looks, searches, explains,
/// lifts; the browser reports no breach of the page's own policy and no error; light and dark.
#[test]
#[ignore = "needs chromium and chromedriver"]
fn a_person_works_with_the_page() {
    const ENTER: &str = "\u{e007}";
    let application = Application::ok();
    let state = state_dir();
    // Nobody asks about an address of documentation: who says that it is the crawler is unproven.
    std::fs::write(
        state.path().join("rules.json"),
        r#"{"version":1,"crawlers":[{"name":"examplebot","purpose":"search",
            "user_agent":["ExampleBot"],"verify":{"dns":[".crawl.example"]}}]}"#,
    )
    .expect("writes");
    let weir = Weir::start_at(
        application.address(),
        &state,
        &[
            ONE_PER_HOUR,
            ("WAF_TRUSTED_PROXIES", "127.0.0.0/8"),
            ("WAF_NAME_SERVERS", "127.0.0.1:9"),
        ],
    );
    for client in ["198.51.100.23", "192.0.2.81", "2001:db8:5:1::7"] {
        weir.get("/", client).expect(200);
    }
    weir.break_limit("203.0.113.7");
    let dashboard = Dashboard::start(&weir.state_path(""));
    let browser = Browser::start("light");
    browser.command("POST", "/url", &json!({"url": dashboard.url()}));
    browser.shows("203.0.113.7");
    browser.shows("Requests a minute");
    wait_for("six plots and bars", || {
        let plots = browser.script("return document.querySelectorAll('figure svg').length");
        let bars = browser.script("return document.querySelector('#bars-clients').innerText");
        let bars = bars.as_str().unwrap_or_default();
        let are_there = |client: &&str| bars.contains(*client);
        let clients = [
            "198.51.100.23",
            "192.0.2.81",
            "2001:db8:5:1::",
            "203.0.113.7",
        ];
        println!("{plots} plots, bars of {bars:?}");
        (plots == 6 && clients.iter().all(are_there)).then_some(())
    });
    // The search, then the first button of the only row that is left.
    browser.press("/203.");
    browser.press("\u{e004}");
    wait_for("one row", || {
        (browser.script("return document.querySelectorAll('tbody tr').length") == 1).then_some(())
    });
    browser.script("document.querySelector('tbody button').focus()");
    browser.press(ENTER);
    browser.shows("REFUSED now: banned");
    browser.press("\u{e00c}");
    // The lists by keys; the lift is asked for, and a "No" changes nothing.
    browser.script("document.activeElement.blur()");
    browser.press("6");
    browser.shows("more than 1 requests per hour");
    let lift = "document.querySelector('tbody button:last-of-type').focus()";
    browser.script(lift);
    browser.press(ENTER);
    browser.shows("Lift the bans of exactly 203.0.113.0/24?");
    browser.press(ENTER);
    assert!(weir.bans().iter().all(|ban| ban["lifted"].is_null()));
    browser.script(lift);
    browser.press(ENTER);
    browser.shows("Lift the bans of exactly 203.0.113.0/24?");
    browser.script("document.getElementById('yes').focus()");
    browser.press(ENTER);
    browser.shows("no ban of 203.0.113.0/24 is left");
    assert!(weir.bans().iter().all(|ban| ban["lifted"].is_string()));
    browser.press("7");
    browser.shows("203.0.113.0/24");
    // Clients added up, and what is asked for while the page is open.
    browser.press("2");
    browser.shows("203.0.113.0/24");
    browser.press("4");
    browser.shows("Country");
    browser.press("5/");
    browser.press("\u{e00c}");
    browser.shows("The last minute: ");
    wait_until("the path on the page", || {
        weir.get("/watched", "203.0.113.99");
        let shown = browser.script("return document.body.innerText");
        shown
            .as_str()
            .is_some_and(|shown| shown.contains("/watched"))
    });
    // Crawlers, by whether they are who they say.
    let fields = [
        ("X-Forwarded-For", "192.0.2.99"),
        ("User-Agent", "ExampleBot/1.0"),
    ];
    weir.send(&request("GET", "/", &fields, None)).expect(200);
    browser.press("9");
    browser.shows("examplebot");
    browser.shows("unproven");
    let log = browser.command("POST", "/se/log", &json!({"type": "browser"}));
    assert_eq!(log, json!([]), "the browser's own log");
    drop(browser);

    let dark = Browser::start("dark");
    dark.command("POST", "/url", &json!({"url": dashboard.url()}));
    dark.shows("203.0.113.7");
    let ground = dark.script("return getComputedStyle(document.body).backgroundColor");
    assert_eq!(ground, "rgb(21, 24, 26)");
    drop(dark);

    // On a phone nothing is to the right of the screen; a ban asks for how long and why.
    let phone = Browser::of_size("light", (390, 844), true);
    phone.command("POST", "/url", &json!({"url": dashboard.url()}));
    phone.shows("198.51.100.23");
    let width = phone.script("return document.documentElement.scrollWidth");
    assert!(width.as_u64() <= Some(390), "{width}");
    phone.script(
        "[...document.querySelectorAll('td button')].find((one) => \
         one.getAttribute('aria-label') === 'Ban: 198.51.100.23').click()",
    );
    phone.shows("Ban the netblock of 198.51.100.23?");
    phone.script("document.getElementById('for').value = '24h'");
    phone.script("document.getElementById('why').value = 'a slow scan'");
    phone.script("document.getElementById('yes').click()");
    phone.shows("is banned (24h)");
    let bans = weir.bans();
    let made = bans.iter().find(|ban| ban["netblock"] == "198.51.100.0/24");
    assert_eq!(made.expect("the ban")["reason"], "a slow scan");
    drop(phone);

    // In observe mode a banner says that nobody is refused.
    let observed = Weir::start(&application, &[ONE_PER_HOUR, ("WAF_MODE", "observe")]);
    let watching = Dashboard::start(&observed.state_path(""));
    let browser = Browser::start("light");
    browser.command("POST", "/url", &json!({"url": watching.url()}));
    browser.shows("Observe mode: nobody is refused.");
    browser.shows("would refuse, 5 min");
    drop(browser);
    watching.stop();
    dashboard.stop();
}

/// FLEET-29: the page lists the instances of a fleet, and says whether they are in step; where
/// there is no fleet it offers no such list.
#[test]
#[ignore = "needs redis-server, chromium and chromedriver"]
fn the_page_lists_the_instances_of_a_fleet() {
    let (application, engine) = (Application::ok(), Engine::start());
    let key = engine.key_file().display().to_string();
    let [one, _other] = ["edge-1", "edge-2"].map(|name| {
        let fleet = [
            ("WAF_FLEET", engine.place().as_str()),
            ("WAF_FLEET_INSTANCE", name),
            ("WAF_FLEET_KEY_FILE", &key),
            ("WAF_BAN_FIRST", if name == "edge-1" { "1h" } else { "2h" }),
        ]
        .map(|(name, value)| (name, value.to_owned()));
        let fleet: Vec<(&str, &str)> = fleet
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        Weir::start(&application, &fleet)
    });
    let dashboard = Dashboard::start(&one.state_path(""));
    wait_until("two instances in step", || {
        let fleet = dashboard.own("GET", "api/fleet", "").expect(200).json();
        fleet["in_step"] == true && fleet["instances"][1]["name"] == "edge-2"
    });
    let browser = Browser::start("light");
    browser.command("POST", "/url", &json!({"url": dashboard.url()}));
    browser.shows("Keys: 1 to 9 lists, 0 the fleet");
    browser.press("0");
    browser.shows("edge-1 (this one)");
    browser.shows("edge-2");
    browser.shows("WAF_BAN_FIRST 2h (here 1h)");
    browser.shows("in step: all hold the same");
    let log = browser.command("POST", "/se/log", &json!({"type": "browser"}));
    assert_eq!(log, json!([]), "the browser's own log");
    drop(browser);
    dashboard.stop();

    let single = Weir::start(&application, &[]);
    let dashboard = Dashboard::start(&single.state_path(""));
    let browser = Browser::start("light");
    browser.command("POST", "/url", &json!({"url": dashboard.url()}));
    browser.shows("Keys: 1 to 9 lists, / search");
    browser.shows_plots();
    browser.press("0");
    let text = browser.script("return document.body.innerText");
    assert!(!text.as_str().expect("a text").contains("Fleet"), "{text}");
    drop(browser);
    dashboard.stop();
}
