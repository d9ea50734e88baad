use super::*;

fn fault(text: &str) -> (usize, usize, String, String) {
    let reader = Reader::new();
    let fault = reader.read(text.as_bytes()).expect_err(text);
    (fault.line, fault.column, fault.pointer, fault.message)
}

fn message(text: &str) -> (String, String) {
    let (.., pointer, message) = fault(text);
    (pointer, message)
}

/// The example of the rules' document.
const EXAMPLE: &str = r#"{"version":1,
 "allow":[{"netblock":"192.0.2.0/24","comment":"office"},{"netblock":"203.0.113.7","until":"2026-12-01T00:00:00Z"},{"file":"monitors.txt"}],
 "deny":[{"netblock":"198.51.100.0/24"},{"file":"drop.txt"}],
 "limits":[{"name":"login","methods":["POST"],"path":"/login","per_minute":5,"per_hour":30,"on_limit":"ban"}],
 "traps":[{"name":"scanner","paths":["/.env","/wp-login.php","/.git/"]}],
 "jails":[{"name":"not-found","statuses":[404],"per_minute":60},{"name":"auth","path":"/login","statuses":[401,403],"per_minute":10}]}
"#;

/// RULE-2: every member of the example is read.
#[test]
fn the_example_is_read() {
    let file = Reader::new().read(EXAMPLE.as_bytes()).unwrap();
    assert_eq!(
        (file.allow.len(), file.deny.len(), file.traps[0].paths.len()),
        (3, 2, 3)
    );
    assert_eq!(file.limits[0].which.methods, ["POST"]);
    let quotas = &file.limits[0].quotas;
    assert_eq!(
        (quotas.per_minute, quotas.per_hour, quotas.per_day),
        (Some(5), Some(30), None)
    );
    assert_eq!(file.jails[1].statuses, [401, 403]);
    assert_eq!(file.jails[1].which.path.as_deref(), Some("/login"));
}

/// RULE-1, RULE-2, RULE-3, RULE-4: what does not fit is told with its place, and a member that
/// nobody knows is a fault: a slip of the pen must not switch a limit off in silence.
#[test]
fn faults_have_a_place() {
    assert_eq!(fault("{\"version\":1,\n \"limits\":[}").0, 2);
    let (line, column, pointer, _) =
        fault("{\"version\":1,\n \"deny\":[{\"netblock\":\"192.0.2.0/33\"}]}");
    assert_eq!((line, column, &*pointer), (2, 35, "/deny/0/netblock"));
    for (text, pointer) in [
        (r#"{"version":2}"#, "/version"),
        (r#"{"version":1,"version":1}"#, "/version"),
        (r#"{"version":1,"limit":[]}"#, "/limit"),
        (
            r#"{"version":1,"limits":[{"name":"a","per_minit":5}]}"#,
            "/limits/0",
        ),
        (r#"{"version":1,"limits":[{"name":"a"}]}"#, "/limits/0"),
        (
            r#"{"version":1,"limits":[{"name":"A","per_minute":5}]}"#,
            "/limits/0/name",
        ),
        (
            r#"{"version":1,"limits":[{"name":"a","per_minute":0}]}"#,
            "/limits/0/per_minute",
        ),
        (
            r#"{"version":1,"limits":[{"name":"a","per_minute":1,"until":"tomorrow"}]}"#,
            "/limits/0/until",
        ),
        (
            r#"{"version":1,"limits":[{"name":"a","per_minute":1,"path":"x"}]}"#,
            "/limits/0/path",
        ),
        (
            r#"{"version":1,"limits":[{"name":"a","per_minute":1,"path":"/x?y"}]}"#,
            "/limits/0/path",
        ),
        (
            r#"{"version":1,"limits":[{"name":"a","per_minute":1,"exact":true}]}"#,
            "/limits/0/exact",
        ),
        (
            r#"{"version":1,"limits":[{"name":"a","per_minute":1,"on_limit":"drop"}]}"#,
            "/limits/0/on_limit",
        ),
        (
            r#"{"version":1,"jails":[{"name":"a","per_minute":1,"statuses":[600]}]}"#,
            "/jails/0/statuses/0",
        ),
        (
            r#"{"version":1,"jails":[{"name":"a","per_minute":1,"statuses":[]}]}"#,
            "/jails/0/statuses",
        ),
        (
            r#"{"version":1,"traps":[{"name":"a","paths":["/ok","/_waf/x"]}]}"#,
            "/traps/0/paths/1",
        ),
        (
            r#"{"version":1,"traps":[{"name":"a","paths":["//./"]}]}"#,
            "/traps/0/paths/0",
        ),
        (
            r#"{"version":1,"traps":[{"name":"a","paths":["/x"]}],"jails":[{"name":"a","per_day":1,"statuses":[404]}]}"#,
            "/jails/0/name",
        ),
        (
            r#"{"version":1,"deny":[{"netblock":"192.0.2.1","file":"x"}]}"#,
            "/deny/0",
        ),
        (r#"{"version":1,"deny":[{"comment":"x"}]}"#, "/deny/0"),
        (
            r#"{"version":1,"allow":[{"netblock":"1::2::3"}]}"#,
            "/allow/0/netblock",
        ),
    ] {
        assert!(
            message(text).0.starts_with(pointer),
            "{text}: {:?}",
            message(text)
        );
    }
}

/// RULE-2, RULE-3: the bounds of what a file may hold.
#[test]
fn what_a_file_holds_is_bounded() {
    let limits = |count: usize| {
        let limit = |number| format!(r#"{{"name":"l{number}","per_minute":1}}"#);
        let limits: Vec<_> = (0..count).map(limit).collect();
        format!(r#"{{"version":1,"limits":[{}]}}"#, limits.join(","))
    };
    assert!(Reader::new().read(limits(16).as_bytes()).is_ok());
    assert_eq!(message(&limits(17)).0, "/limits");
    let traps = |count: usize| {
        let path = |number| format!("\"/{number}\"");
        let paths: Vec<_> = (0..count).map(path).collect();
        format!(
            r#"{{"version":1,"traps":[{{"name":"t","paths":[{}]}}]}}"#,
            paths.join(",")
        )
    };
    assert!(Reader::new().read(traps(10_000).as_bytes()).is_ok());
    assert_eq!(message(&traps(10_001)).0, "/traps/0/paths/10000");
    let names = |count: usize| {
        let trap = |number| format!(r#"{{"name":"t{number}","paths":["/{number}"]}}"#);
        let traps: Vec<_> = (0..count).map(trap).collect();
        format!(
            r#"{{"version":1,"traps":[{}],"jails":[{{"name":"j","per_day":1,"statuses":[404]}}]}}"#,
            traps.join(",")
        )
    };
    assert!(Reader::new().read(names(63).as_bytes()).is_ok());
    assert_eq!(message(&names(64)).0, "/jails/0/name");
}
