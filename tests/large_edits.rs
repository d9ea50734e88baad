//! Who gives the memory of something large back to the system once it was replaced: a thread that
//! is there for that moment, and not whichever worker frees memory next (FEED-6).

use std::fs;

use serde_json::json;

use crate::support::application::Application;
use crate::support::wait_until;
use crate::support::weir::{EXEMPT, Weir, from_now, pretty, state_dir, write_bans};

/// Entries from which on the thread comes.
const LARGE: u32 = 10_000;

/// Whether the thread is there.
fn gives_back(weir: &Weir) -> bool {
    let tasks = fs::read_dir(format!("/proc/{}/task", weir.pid())).expect("tasks");
    let mut names = tasks
        .flatten()
        .map(|task| fs::read_to_string(task.path().join("comm")));
    names.any(|name| name.is_ok_and(|name| name.trim() == "weir-memory"))
}

/// So many addresses, and one more.
fn addresses(count: u32, more: &str) -> Vec<String> {
    let address = |number: u32| std::net::Ipv4Addr::from((100 << 24) + number).to_string();
    let mut all: Vec<String> = (0..count).map(address).collect();
    all.push(more.to_owned());
    all
}

/// FEED-6: after an edit of a large list, and of a large bans.json, the thread is there for a
/// while; after an edit of a small one it is not.
#[test]
fn what_was_large_is_given_back_by_its_own_thread() {
    let application = Application::ok();
    for (count, is_large) in [(LARGE, true), (10, false)] {
        let state = state_dir();
        let at = |name: &str| state.path().join(name);
        let list = |more| addresses(count, more).join("\n");
        fs::write(at("drop.txt"), list("192.0.2.1")).expect("writes");
        let rules = json!({"version": 1, "deny": [{"file": "drop.txt"}]});
        fs::write(at("rules.json"), rules.to_string()).expect("writes");
        let bans = |more: &str| {
            let expires = from_now(86_400);
            let ban = |netblock: String| json!({"netblock": netblock, "ban_expires": expires});
            let bans: Vec<_> = addresses(count, more).into_iter().map(ban).collect();
            json!({"version": 1, "bans": bans})
        };
        write_bans(state.path(), &bans("198.51.100.1")["bans"]);
        let most = (2 * LARGE).to_string();
        let settings = [EXEMPT, ("WAF_MAX_BANS", &most)];
        let weir = Weir::start_at(application.address(), &state, &settings);
        let judge = |what: &str, weir: &Weir| match is_large {
            true => wait_until(&format!("{what}: the thread"), || gives_back(weir)),
            false => assert!(!gives_back(weir), "{what}"),
        };
        // What the start itself has read and written.
        wait_until("nothing is given back", || !gives_back(&weir));
        fs::write(at("drop.txt"), list("192.0.2.2")).expect("writes");
        weir.wait_until_refused("192.0.2.2");
        judge("a list", &weir);
        wait_until("nothing is given back", || !gives_back(&weir));
        let edited = bans("198.51.100.2");
        fs::write(at("bans.json"), pretty(&edited)).expect("writes");
        weir.wait_until_refused("198.51.100.2");
        judge("bans", &weir);
    }
}
