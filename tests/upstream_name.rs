//! The application under a name: its addresses are asked for away from the requests (FORWARD-9).

use std::fs;

use crate::support::application::{After, Application};
use crate::support::wait_until;
use crate::support::weir::{Weir, state_dir};

/// The threads of a service, by name.
fn threads(weir: &Weir) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{}/task", weir.pid())).expect("its threads");
    let names = tasks.map(|task| fs::read_to_string(task.expect("a thread").path().join("comm")));
    let mut names: Vec<_> = names.map(|name| name.expect("a name")).collect();
    names.sort();
    names
}

/// FORWARD-9: a name is resolved by one thread, whatever number of connections is made; none is
/// there for an address.
#[test]
fn a_name_is_resolved_by_one_thread() {
    let application = Application::start(|exchange| {
        exchange.answer(200, &[], b"");
        After::Close
    });
    let port = application.address().port();
    let named = format!("http://localhost:{port}");
    let weir = Weir::start(&application, &[("WAF_UPSTREAM", &named)]);
    weir.get("/", "203.0.113.7").expect(200);
    // A new thread has its parent's name until it runs.
    weir.wait_for_rest();
    let before = threads(&weir);
    let resolvers = before.iter().filter(|name| *name == "weir-resolver\n");
    assert_eq!(resolvers.count(), 1, "{before:?}");
    for _ in 0..20 {
        weir.get("/", "203.0.113.7").expect(200);
    }
    assert_eq!(application.connections(), 21);
    assert_eq!(
        threads(&weir),
        before,
        "no connection has a thread of its own"
    );
    let weir = Weir::start(&application, &[]);
    weir.get("/", "203.0.113.7").expect(200);
    let none = threads(&weir);
    assert!(!none.contains(&"weir-resolver\n".to_owned()), "{none:?}");
}

/// FORWARD-9: a name that does not resolve stops no start: requests are answered 502, until a
/// reload names another application.
#[test]
fn a_name_that_does_not_resolve_is_502() {
    let application = Application::ok();
    let state = state_dir();
    let file = state.path().join("weir.env");
    let name = |upstream: &str| {
        let text = format!("WAF_UPSTREAM={upstream}\nWAF_UPSTREAM_CONNECT_TIMEOUT=15s\n");
        fs::write(&file, text).expect("writes");
    };
    name("http://nowhere.invalid:80");
    let settings = file.to_str().expect("a path");
    // The harness names the application in the environment, where an empty value is none.
    let weir = Weir::try_start(
        &["--settings", settings],
        application.address(),
        &state,
        &[("WAF_UPSTREAM", "")],
    );
    let weir = weir.expect("it starts");
    weir.get("/", "203.0.113.7").expect(502);
    weir.wait_for_process_log(&["the application's name nowhere.invalid does not resolve"]);
    name(&format!(
        "http://localhost:{}",
        application.address().port()
    ));
    weir.signal("HUP");
    wait_until("the application", || {
        weir.get("/", "203.0.113.7").status == 200
    });
}
