//! Database files in memory instead of a service, replaced while the service runs (LOOKUP-5).

use std::time::{Duration, Instant};

use crate::support::application::Application;
use crate::support::{wait_for, wait_until};

use super::{CLIENT, fixture, start};

/// LOOKUP-5: both layouts and a list of two files; nobody waits.
#[test]
fn database_files_tell_who_a_client_is() {
    let application = Application::ok();
    let two = format!(
        "{}, {}",
        fixture("country.mmdb").display(),
        fixture("asn.mmdb").display()
    );
    let one = fixture("lite.mmdb").display().to_string();
    for (paths, german_as) in [(two, None), (one, Some("AS64496"))] {
        let settings = [
            ("WAF_LOOKUP_SOURCE", "file".to_owned()),
            ("WAF_LOOKUP_DB_PATH", paths),
            ("WAF_ADD_LOOKUP_HEADERS", "on".to_owned()),
            ("WAF_DENY_COUNTRIES", "SE".to_owned()),
        ];
        let weir = start(&application, &settings);
        for (client, country, asn) in [
            ("81.2.69.7", Some("GB"), Some("AS20712")),
            ("::ffff:81.2.69.8", Some("GB"), Some("AS20712")),
            ("2a02:d0c0:7::9", Some("DE"), german_as),
            ("8.8.8.8", None, None),
            ("10.0.0.1", None, None),
        ] {
            let path = format!("/{}-{client}", german_as.unwrap_or("two"));
            weir.get(&path, client).expect(200);
            let seen = application.request(&path);
            assert_eq!(
                (seen.header("x-client-country"), seen.header("x-client-asn")),
                (country, asn),
                "{path}"
            );
            assert!(weir.line_of(&path)["timings"].get("lookup_wait").is_none());
        }
        assert!(
            weir.metric("waf_lookup_file_read_timestamp_seconds")
                .unwrap()
                > 1.7e9
        );
    }
}

/// LOOKUP-5, METRIC: a replacement is read 2 seconds after its last change, atomically or in place,
/// also one of an earlier build, and clients that are known already get the new answer; garbage and
/// a truncated file are logged and counted, and what was read before stays in use.
#[test]
fn a_database_file_is_replaced_while_the_service_runs() {
    let application = Application::ok();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("db.mmdb");
    std::fs::copy(fixture("lite.mmdb"), &file).unwrap();
    let settings = [
        ("WAF_LOOKUP_SOURCE", "file".to_owned()),
        ("WAF_LOOKUP_DB_PATH", file.display().to_string()),
        ("WAF_ADD_LOOKUP_HEADERS", "on".to_owned()),
        // The test asks until the answer is there.
        ("WAF_RATE_LIMIT_PER_MINUTE", "off".to_owned()),
        ("WAF_RATE_LIMIT_PER_HOUR", "off".to_owned()),
    ];
    let weir = start(&application, &settings);
    let mut number = 0;
    let mut country = || {
        number += 1;
        let path = format!("/{number}");
        weir.get(&path, CLIENT).expect(200);
        application
            .request(&path)
            .header("x-client-country")
            .map(str::to_owned)
    };
    assert_eq!(country().as_deref(), Some("GB"));
    let read_at = || {
        weir.metric("waf_lookup_file_read_timestamp_seconds")
            .unwrap()
    };
    let started = read_at();

    let whole = std::fs::read(fixture("lite-later.mmdb")).unwrap();
    for (count, bad) in [(1.0, &b"garbage"[..]), (2.0, &whole[..whole.len() / 2])] {
        std::fs::write(&file, bad).unwrap();
        wait_for("the count of a bad replacement", || {
            (weir.metric("waf_lookup_file_errors_total")? == count).then_some(())
        });
        assert_eq!(country().as_deref(), Some("GB"));
        assert_eq!(read_at(), started);
    }
    weir.wait_for_process_log(&["file_error", "db.mmdb", "stays in use"]);
    // ALERT-4: each is an alert on the log.
    let alerts = wait_for("two alerts", || {
        let lines = weir.log_lines().into_iter();
        let alerts: Vec<_> = lines.filter(|line| line["kind"] == "file_error").collect();
        (alerts.len() == 2).then_some(alerts)
    });
    assert_eq!(alerts[0]["event"], "alert");
    assert_eq!(alerts[0]["file"], file.to_str().unwrap());
    assert_eq!(
        weir.metric("waf_alerts_total{kind=\"file_error\"}"),
        Some(2.0)
    );

    let changed = Instant::now();
    std::fs::write(&file, &whole).unwrap();
    wait_until("the file written in place", || {
        country().as_deref() == Some("FR")
    });
    assert!(
        changed.elapsed() >= Duration::from_secs(2),
        "read before it had settled"
    );
    let next = directory.path().join("next.mmdb");
    std::fs::copy(fixture("lite-earlier.mmdb"), &next).unwrap();
    std::fs::rename(&next, &file).unwrap();
    wait_until("the file renamed into place", || {
        country().as_deref() == Some("IT")
    });
    weir.wait_for_process_log(&["built earlier"]);
    assert!(read_at() > started);
    assert_eq!(weir.metric("waf_lookup_file_errors_total"), Some(2.0));
}
