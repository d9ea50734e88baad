//! What a start says of lookups, and which settings stop it (LOOKUP-7, SETTING-1).

use crate::support::application::Application;
use crate::support::geo::Geo;
use crate::support::weir::{Weir, state_dir};

use super::{GERMANY, fixture, start};

/// LOOKUP-7: with a service one line says where addresses go and how to stop it; with `file` and
/// `off` there is none.
#[test]
fn the_start_says_where_addresses_go() {
    let (application, geo) = (Application::ok(), Geo::saying(GERMANY));
    let with_service = start(&application, &geo.settings(&[]));
    let line = with_service.wait_for_process_log(&["visitors' addresses"]);
    let text = line.to_string();
    for part in [
        "https://localhost:",
        "WAF_LOOKUP_SOURCE=file",
        "WAF_LOOKUP_SOURCE=off",
    ] {
        assert!(text.contains(part), "{text}");
    }
    let path = fixture("lite.mmdb").display().to_string();
    let file = vec![
        ("WAF_LOOKUP_SOURCE", "file".to_owned()),
        ("WAF_LOOKUP_DB_PATH", path),
    ];
    for settings in [file, vec![]] {
        let weir = start(&application, &settings);
        assert!(!weir.process_log_text().contains("visitors' addresses"));
    }
}

/// SETTING-2: the start is stopped with status 78 and a sentence.
#[test]
fn what_does_not_fit_stops_the_start() {
    let missing = "/nowhere/db.mmdb";
    let other = fixture("other.mmdb").display().to_string();
    for (settings, sentence) in [
        (
            vec![("WAF_LOOKUP_SOURCE", "file")],
            "WAF_LOOKUP_DB_PATH is not set",
        ),
        (
            vec![("WAF_LOOKUP_DB_PATH", missing)],
            "expected a path with file only",
        ),
        (
            vec![
                ("WAF_LOOKUP_SOURCE", "file"),
                ("WAF_LOOKUP_DB_PATH", missing),
            ],
            "the lookup database /nowhere/db.mmdb cannot be read: No such file or directory",
        ),
        (
            vec![
                ("WAF_LOOKUP_SOURCE", "file"),
                ("WAF_LOOKUP_DB_PATH", &other),
            ],
            "holds neither countries nor AS numbers",
        ),
        (
            vec![("WAF_ASN_LIMIT_PERCENT", "AS1=50")],
            "WAF_ASN_LIMIT_PERCENT=\"AS1=50\" needs lookups",
        ),
        (
            vec![("WAF_COUNTRY_BYTES_PERCENT", "DE=0")],
            "WAF_COUNTRY_BYTES_PERCENT=\"DE=0\" needs lookups",
        ),
        (
            vec![("WAF_ALLOW_COUNTRIES", "DE"), ("WAF_DENY_COUNTRIES", "FR")],
            "expected only one of them",
        ),
        (
            vec![
                ("WAF_LOOKUP_SOURCE", "geojs"),
                ("WAF_LOOKUP_URL", "http://127.0.0.1:9/{ip}"),
                ("WAF_LOOKUP_CA_FILE", missing),
            ],
            "WAF_LOOKUP_CA_FILE=\"/nowhere/db.mmdb\" cannot be used",
        ),
    ] {
        let refused = Weir::refuse(&state_dir(), &settings);
        assert_eq!(refused.code, Some(78), "{settings:?}");
        assert!(
            refused.stderr.contains(&sentence.replace('"', "\\\""))
                || refused.stderr.contains(sentence),
            "{}",
            refused.stderr
        );
    }
}
