//! Rules that restrict hold however a path or a method is spelled (RULE-7).

use serde_json::json;

use super::{ban_of, send, start, statuses};
use crate::support::application::Application;
use crate::support::command::run;
use crate::support::raw_client::request;

/// Ways to write `/login` that some application takes for it.
const LOGIN: [&str; 16] = [
    "/login",
    "/LOGIN",
    "/Login",
    "/login;a=b",
    "/login%2F",
    "/login%20",
    "/login.",
    "/%6cogin",
    "/%256Cogin",
    "/x/..;/login",
    "/x/%2e%2e%2flogin",
    "/x%5c..%5clogin",
    "//login/",
    "/login%3fx",
    "/login;%2fx",
    "/a//../login",
];

/// RULE-7: a limit counts every spelling of its path and of its methods, and `weir explain` says
/// the same. A path that is another one passes.
#[test]
fn a_limit_cannot_be_spelled_past() {
    let application = Application::ok();
    let rules = r#"{"version":1,"limits":[
        {"name":"login","path":"/login","methods":["POST"],"per_day":1,"on_limit":"refuse"},
        {"name":"coffee","path":"/café","per_day":1,"on_limit":"refuse"},
        {"name":"old","path":"/admin@old","per_day":1,"on_limit":"refuse"},
        {"name":"api","path":"/API","exact_case":true,"per_day":1,"on_limit":"refuse"}]}"#;
    let (weir, state) = start(&application, rules, &[]);
    let post = |path: &str| send(&weir, "POST", path, "203.0.113.7", None).status;
    assert_eq!(post("/login"), 200);
    for path in LOGIN {
        assert_eq!(post(path), 429, "{path}");
        let arguments = ["explain", "203.0.113.7", "--method", "POST", "--path", path];
        let explained = run(state.path(), &arguments);
        assert_eq!(
            explained.code, 1,
            "{path}: {}{}",
            explained.out, explained.err
        );
    }
    for method in ["post", "Post"] {
        assert_eq!(
            send(&weir, method, "/login", "203.0.113.7", None).status,
            429,
            "{method}"
        );
    }
    for path in ["/loginx", "/x/login", "/logi/n"] {
        assert_eq!(post(path), 200, "{path}");
    }
    weir.get("/login", "203.0.113.7").expect(200);
    for (first, second) in [
        ("/caf%C3%A9", "/caf%c3%a9/x"),
        ("/admin@old", "/admin%40old"),
        ("/API/x", "/api/../API"),
    ] {
        weir.get(first, "203.0.113.7").expect(200);
        weir.get(second, "203.0.113.7").expect(429);
    }
    weir.get("/api", "203.0.113.7").expect(200);
}

/// RULE-7: a trap catches every spelling of its paths, and what is below a file.
#[test]
fn a_trap_cannot_be_spelled_past() {
    let application = Application::ok();
    let rules = r#"{"version":1,"traps":[
        {"name":"scanner","paths":["/.env","/.git/config","/wp-login.php"]}]}"#;
    let (weir, _state) = start(&application, rules, &[]);
    let paths = [
        "/.ENV",
        "/.env;x",
        "/%5c.env",
        "/.env%20",
        "/%252eenv",
        "/.git%2fconfig",
        "/.git/./CONFIG",
        "/wp-login.php/x",
        "/x/..;/wp-login.php",
    ];
    for (number, path) in paths.iter().enumerate() {
        weir.get(path, &format!("203.0.{number}.7")).expect(429);
        let line = weir.line_of(path);
        assert_eq!(line["action"], "trapped", "{path}");
        assert_eq!(line["rule"], json!({"name": "scanner", "kind": "trap"}));
    }
    for path in ["/.envx", "/.git/config.bak", "/.git", "/x/.env"] {
        weir.get(path, "198.51.100.7").expect(200);
    }
    assert_eq!(application.requests().len(), 4);
}

/// RULE-7: a jail counts the answers to every spelling of its path.
#[test]
fn a_jail_cannot_be_spelled_past() {
    let application = statuses();
    let rules = r#"{"version":1,"jails":[
        {"name":"auth","path":"/login","methods":["POST"],"statuses":[401],"per_day":3}]}"#;
    let (weir, _state) = start(&application, rules, &[]);
    for path in [
        "/login/401",
        "/LOGIN/401",
        "/login;x/401",
        "/x/..;/login/401",
    ] {
        let answer = weir.send(&request(
            "post",
            path,
            &[("X-Forwarded-For", "203.0.113.7")],
            None,
        ));
        assert_eq!(answer.status, 401, "{path}");
    }
    assert_eq!(ban_of(&weir, "jail")["netblock"], "203.0.113.7/32");
}

/// RULE-7, CHECK-5: an exempt path lets in, and stays as strict as it was.
#[test]
fn an_exempt_path_is_not_read_loosely() {
    let application = Application::ok();
    let settings = [
        ("WAF_EXEMPT_PATHS", "/static"),
        ("WAF_RATE_LIMIT_PER_DAY", "1"),
        ("WAF_ON_LIMIT", "refuse"),
    ];
    let (weir, _state) = start(&application, r#"{"version":1}"#, &settings);
    weir.get("/one", "203.0.113.7").expect(200);
    weir.get("/static/a", "203.0.113.7").expect(200);
    for path in [
        "/STATIC/a",
        "/static;x/a",
        "/x/..;/static/a",
        "/%2573tatic/a",
    ] {
        weir.get(path, "203.0.113.7").expect(429);
    }
}
