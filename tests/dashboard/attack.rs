//! Ten minutes of an attack, counted by a service whose clocks the test moves, as the page shows
//! them; the pictures in docs/ are those of this test.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use super::{Browser, Dashboard};
use crate::support::application::{After, Application};
use crate::support::moved::Moved;
use crate::support::raw_client::{Connection, request};
use crate::support::wait_until;

/// Networks: the first two or three numbers of their addresses, country, AS and its name. They are
/// of a net that is kept for tests; those of documentation are not looked up.
const NETWORKS: [(&str, &str, &str, &str); 8] = [
    ("44.128.10.", "DE", "AS64496", "Example Cable"),
    ("44.128.20.", "FR", "AS64497", "Exemple Mobile"),
    ("44.128.30.", "NL", "AS64498", "Voorbeeld Net"),
    ("44.128.40.", "US", "AS64499", "Example Broadband"),
    ("44.128.50.", "JP", "AS64500", "Example Fiber"),
    ("44.128.60.", "BR", "AS64501", "Exemplo Fibra"),
    ("44.130.", "SG", "AS64510", "Example Cloud"),
    ("44.131.", "US", "AS64511", "Example Hosting"),
];

const PAGES: [&str; 7] = [
    "/",
    "/news",
    "/about",
    "/products/1",
    "/products/2",
    "/search?q=weir",
    "/contact",
];

const RULES: &str = r#"{"version": 1,
 "traps": [{"name": "scanner", "paths": ["/.env", "/.git/", "/wp-login.php"]}],
 "jails": [{"name": "guesses", "path": "/login", "statuses": [401], "per_minute": 3}]}"#;

/// Minutes before the attack, and of it.
const QUIET: usize = 20;
const ATTACK: usize = 10;

/// An application that becomes slow, and then fails, with the number of searches in a minute. It is
/// its own lookup service.
fn application(searches: Arc<AtomicU64>) -> Application {
    Application::start(move |exchange| {
        exchange.read_body();
        let target = exchange.request.target.clone();
        if let Some(address) = target.strip_prefix("/lookup/") {
            let of = NETWORKS
                .iter()
                .find(|(begin, ..)| address.starts_with(begin));
            let (_, country, asn, name) = of.copied().unwrap_or_default();
            let known = json!({"country_code": country, "asn": asn, "organization_name": name});
            exchange.answer(200, &[], known.to_string().as_bytes());
            return After::KeepAlive;
        }
        let load = match target.starts_with("/search?page") {
            true => searches.fetch_add(1, Ordering::SeqCst),
            false => searches.load(Ordering::SeqCst) / 2,
        };
        std::thread::sleep(Duration::from_millis(1 + load / 3));
        let status = match target.as_str() {
            "/login" => 401,
            _ if load > 45 => 503,
            _ => 200,
        };
        let body = "a page of the application\n".repeat(120 + target.len() * 7);
        exchange.answer(status, &[("Content-Type", "text/plain")], body.as_bytes());
        After::KeepAlive
    })
}

/// The requests of one minute. Attackers come from a new network each minute, and those of before
/// go on; in the last minutes fewer do.
fn minute(moved: &Moved, searches: &AtomicU64, number: usize) {
    searches.store(0, Ordering::SeqCst);
    let mut connection = Connection::open(moved.weir.address());
    let mut ask = |method: &str, path: &str, client: &str| {
        let body = (method == "POST").then_some(&b"user=admin&password=guess"[..]);
        connection.send(&request(method, path, &[("X-Forwarded-For", client)], body));
        connection.response().status
    };
    for visit in 0..70 + number * 7919 % 23 {
        let (network, ..) = NETWORKS[visit * visit % 7 % 6];
        let client = format!("{network}{}", 10 + (visit * 31 + number) % 16);
        ask(
            "GET",
            PAGES[(visit * visit + number) % PAGES.len()],
            &client,
        );
    }
    if number % 7 == 3 {
        ask("GET", "/.env", &format!("44.128.30.{}", 100 + number));
    }
    let Some(wave) = number.checked_sub(QUIET).filter(|wave| *wave < ATTACK) else {
        return;
    };
    for before in 0..=wave.min(7) {
        let network = format!("44.{}.{}.", 130 + before % 2, 10 * before);
        let eagerness = if before == wave { 26 } else { 14 + 3 * before };
        for page in 0..eagerness.saturating_sub(wave.saturating_sub(6) * 8) {
            for host in [7, 8, 9] {
                ask(
                    "GET",
                    &format!("/search?page={page}"),
                    &format!("{network}{host}"),
                );
            }
        }
    }
    for _ in 0..5 {
        ask("POST", "/login", &format!("44.128.60.{}", 100 + wave));
    }
}

/// Counted in the next minute is what comes from now on.
#[track_caller]
fn next_minute(moved: &mut Moved) {
    let last = |moved: &Moved| {
        let told = moved
            .weir
            .control("GET", "/v1/history", None)
            .expect(200)
            .json();
        told["times"]
            .as_array()
            .and_then(|times| times.last().and_then(Value::as_u64))
    };
    let before = last(moved);
    moved.move_on(60_000);
    wait_until("the next minute", || last(moved) > before);
}

/// Labels of one plot that lie on each other, and what is wider than its place.
const CROWDED: &str = "
    const boxes = (all) => [...all].map((one) => [one.textContent, one.getBoundingClientRect()]);
    const crowded = [];
    for (const svg of document.querySelectorAll('figure svg')) {
      const texts = boxes(svg.querySelectorAll('text'));
      texts.forEach(([one, a], at) => texts.slice(at + 1).forEach(([other, b]) => {
        if (a.left < b.right && b.left < a.right && a.top + 2 < b.bottom && b.top + 2 < a.bottom) {
          crowded.push(one + ' on ' + other);
        }
      }));
      const whole = svg.getBoundingClientRect();
      for (const [text, box] of texts) if (box.right > whole.right + 1 || box.left < whole.left - 1) crowded.push(text);
    }
    for (const [text, box] of boxes(document.querySelectorAll('.tiles li, figcaption, nav button'))) {
      if (box.right > innerWidth) crowded.push(text);
    }
    return crowded";

/// CONTROL-3, CONTROL-11: an attack is seen in the plots and in the bars, in light and dark and on
/// a phone: its minutes, reasons, bans, and who it was. No label lies on another.
#[test]
#[ignore = "needs chromium and chromedriver"]
fn an_attack_of_ten_minutes_is_seen() {
    let searches = Arc::new(AtomicU64::new(0));
    let application = application(Arc::clone(&searches));
    let lookup = format!("http://{}/lookup/{{ip}}", application.address());
    let rules: Value = serde_json::from_str(RULES).expect("JSON");
    let settings = [
        ("WAF_LOOKUP_SOURCE", "url"),
        ("WAF_LOOKUP_URL", lookup.as_str()),
        ("WAF_RATE_LIMIT_PER_MINUTE", "20"),
        ("WAF_WORKERS", "1"),
    ];
    let mut moved = Moved::start(&application, &rules, &settings);
    for number in 0..QUIET + ATTACK + 2 {
        minute(&moved, &searches, number);
        next_minute(&mut moved);
    }
    let dashboard = Dashboard::start(&moved.weir.state_path(""));
    for (name, scheme, size, is_phone) in [
        ("light", "light", (1280, 1620), false),
        ("dark", "dark", (1280, 1620), false),
        ("phone", "light", (390, 2600), true),
    ] {
        let browser = Browser::of_size(scheme, size, is_phone);
        browser.command("POST", "/url", &json!({"url": dashboard.url()}));
        browser.shows_plots();
        minute(&moved, &searches, QUIET + ATTACK);
        let count = |what: &str| {
            let found = browser.script(&format!(
                "return document.querySelectorAll('{what}').length"
            ));
            found.as_u64().expect("a number")
        };
        wait_until("bars", || {
            let lists = ["country", "asn", "netblock", "clients", "paths"];
            lists
                .iter()
                .all(|list| count(&format!("#bars-{list} li")) >= 4)
        });
        // Each minute of the attack has bars of bans.
        let attacked = count("#plot-refusals rect.bad");
        assert!(attacked >= ATTACK as u64, "{attacked} minutes");
        assert!(count("#plot-bans circle") >= 5);
        assert!(count("#plot-errors rect") >= 1);
        assert_eq!(browser.script(CROWDED), json!([]), "{name}");
        let width = browser.script("return document.documentElement.scrollWidth");
        assert!(width.as_u64() <= Some(size.0.into()), "{name}: {width}");
        browser.picture(&format!("dashboard-{name}.png"));
        let log = browser.command("POST", "/se/log", &json!({"type": "browser"}));
        assert_eq!(log, json!([]), "the browser's own log");
    }
    dashboard.stop();
}
