//! Who is verified, who is a fake, and of whom nobody knows (CRAWL-2, CRAWL-3).

use serde_json::json;

use super::{
    CRAWLER, GOOGLEBOT, NEIGHBOUR, becomes, counted, denials, dns, get, start, start_in, state,
    verify,
};
use crate::support::application::Application;
use crate::support::clocks::Clocks;
use crate::support::dns::{Dns, Mood};
use crate::support::wait_until;
use crate::support::weir::state_dir;

/// CRAWL-2, CRAWL-3: the first request waits for nothing and is nobody's; a name below a suffix at
/// the border of a label that leads back is a proof, over aliases too; everything else that DNS
/// says is a no. Of many names the first four count.
#[test]
fn a_name_that_leads_back_is_a_proof() {
    let dns = dns();
    dns.set_ttl(0);
    dns.delegated("66.249.66.3", "3.rev.example", &["c3.googlebot.com"]);
    dns.alias("c3.googlebot.com", "c3.other.example");
    dns.addresses("c3.other.example", &["66.249.66.3"]);
    let five = [
        "a.example",
        "b.example",
        "c.example",
        "d.example",
        "c4.googlebot.com",
    ];
    dns.names("66.249.66.4", &five);
    dns.addresses("c4.googlebot.com", &["66.249.66.4"]);
    dns.names("66.249.66.5", &five[1..]);
    dns.addresses("c4.googlebot.com", &["66.249.66.5"]);
    // Forged: what the names lead to is somebody else.
    dns.names("66.249.66.6", &["crawl-66-249-66-1.googlebot.com"]);
    dns.both("66.249.66.7", "evilgooglebot.com");
    dns.both("66.249.66.8", "googlebot.com.evil.example");
    dns.names("66.249.66.9", &["nowhere.googlebot.com"]);
    dns.both("2001:4860:4801:10::1", "c6.googlebot.com");
    let application = Application::ok();
    let (weir, _state) = start(&application, &dns, denials(), &[]);
    get(&weir, "/first", CRAWLER, GOOGLEBOT).expect(463);
    for (client, expected) in [
        (CRAWLER, "verified"),
        ("66.249.66.3", "verified"),
        ("66.249.66.4", "fake"),
        ("66.249.66.5", "verified"),
        ("66.249.66.6", "fake"),
        ("66.249.66.7", "fake"),
        ("66.249.66.8", "fake"),
        ("66.249.66.9", "fake"),
        ("66.249.66.99", "fake"),
        ("2001:4860:4801:10::1", "verified"),
        // Of the same /64, and yet another address.
        ("2001:4860:4801:10::2", "fake"),
        ("2001:4860:4801:10::1", "verified"),
    ] {
        becomes(&weir, client, expected);
    }
    // A TTL of nothing is ten minutes: nobody is asked about twice.
    for client in [CRAWLER, "66.249.66.6", "2001:4860:4801:10::1"] {
        assert_eq!(dns.asked_about(client), 1, "{client}");
    }
    get(&weir, "/no-claim", NEIGHBOUR, "curl/8").expect(200);
    assert_eq!(dns.asked_about(NEIGHBOUR), 0);
    // Nobody outside knows the names of such an address.
    assert_eq!(state(&weir, "192.0.2.1"), "unproven");
    assert_eq!(dns.asked_about("192.0.2.1"), 0);
    let line = weir.line_of("/first");
    let expected = json!({"name": "googlebot", "purpose": "search", "state": "unproven"});
    assert_eq!(line["crawler"], expected, "{line}");
}

/// CRAWL-3: an answer is kept for its TTL, up to seven days.
#[test]
fn an_answer_is_kept_for_up_to_seven_days() {
    const DAY_MS: u64 = 86_400_000;
    let dns = dns();
    dns.set_ttl(30 * 86_400);
    let (application, state_dir) = (Application::ok(), state_dir());
    let mut clocks = Clocks::new(state_dir.path());
    let (name, file) = clocks.setting();
    let settings = [(name.as_str(), file.as_str())];
    let weir = start_in(&state_dir, &application, &dns, denials(), &settings);
    becomes(&weir, CRAWLER, "verified");
    clocks.move_on(6 * DAY_MS);
    assert_eq!(state(&weir, CRAWLER), "verified");
    assert_eq!(dns.asked_about(CRAWLER), 1);
    clocks.move_on(2 * DAY_MS);
    assert_eq!(state(&weir, CRAWLER), "unproven");
    becomes(&weir, CRAWLER, "verified");
    assert_eq!(dns.asked_about(CRAWLER), 2);
}

/// CRAWL-2: a server that fails, or says nothing, makes nobody a fake and nobody verified; that it
/// knows nothing of one zone is no matter of the others, and is asked again.
#[test]
fn a_failure_is_no_proof() {
    let dns = dns();
    let application = Application::ok();
    let (weir, _state) = start(&application, &dns, denials(), &[]);
    for last in 1..=9 {
        dns.broken(&format!("66.249.70.{last}"), Mood::Fails);
        assert_eq!(state(&weir, &format!("66.249.70.{last}")), "unproven");
    }
    wait_until("all questions", || {
        (1..=9).all(|last| dns.asked_about(&format!("66.249.70.{last}")) > 0)
    });
    for last in 1..=9 {
        assert_eq!(state(&weir, &format!("66.249.70.{last}")), "unproven");
    }
    becomes(&weir, CRAWLER, "verified");
    dns.set_mood(Mood::Silent);
    assert_eq!(state(&weir, "66.249.66.2"), "unproven");
    wait_until("the question", || dns.asked_about("66.249.66.2") > 0);
    assert_eq!(state(&weir, "66.249.66.2"), "unproven");
    assert_eq!(state(&weir, CRAWLER), "verified", "it is known");
}

/// CRAWL-3, LOOKUP-3: a server that does not answer at all is left alone after five failures, and
/// nobody is a fake meanwhile.
#[test]
fn a_server_that_cannot_be_reached_is_left_alone() {
    let dns = Dns::start();
    // A port of nobody: the system says at once that nobody listens.
    let gone = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
    let nobody = gone.local_addr().expect("an address").to_string();
    drop(gone);
    let application = Application::ok();
    let settings = [("WAF_NAME_SERVERS", nobody.as_str())];
    let (weir, _state) = start(&application, &dns, denials(), &settings);
    wait_until("the breaker", || {
        // Each network counts once.
        for net in 1..=32 {
            assert_eq!(state(&weir, &format!("{net}.249.66.7")), "unproven");
        }
        weir.process_log_text()
            .contains("names of crawlers are not answered")
    });
}

/// CRAWL-7: the status has what the metrics count, by name and state; states of nothing are left
/// out.
#[test]
fn the_status_has_the_counts_of_crawlers() {
    let (application, dns) = (Application::ok(), dns());
    let (weir, _state) = start(&application, &dns, json!({}), &[]);
    let crawlers = || weir.control("GET", "/v1/status", None).json()["crawlers"].clone();
    assert_eq!(crawlers(), json!([]));
    verify(&weir, CRAWLER);
    let of = |outcome: &str| counted(&weir, "verified", outcome);
    let shown = crawlers();
    let verified = shown.as_array().expect("a list").iter();
    let mut verified = verified.filter(|one| one["state"] == "verified");
    let one = verified.next().expect("it was verified");
    assert_eq!(one["name"], "googlebot");
    assert_eq!(one["purpose"], "search");
    assert_eq!(
        (one["passed"].as_f64(), one["refused"].as_f64()),
        (Some(of("passed")), Some(of("refused")))
    );
    assert!(one["passed"].as_u64() > Some(0), "{shown}");
    assert!(verified.next().is_none(), "{shown}");
    let fakes = shown.as_array().expect("a list").iter();
    assert!(
        fakes.into_iter().all(|one| one["state"] != "fake"),
        "{shown}"
    );
}
