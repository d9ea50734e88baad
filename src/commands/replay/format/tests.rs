use super::*;

#[track_caller]
fn request(format: Format, line: &str) -> Box<Request> {
    assert_eq!(Format::of(line.as_bytes()), Some(format));
    match format.read(line.as_bytes()) {
        Ok(Line::Request(request)) => request,
        other => panic!("{other:?}"),
    }
}

/// CONTROL-6: a line of our own log.
#[test]
fn our_own_log_is_read() {
    let line = r#"{"time":"2026-11-21T16:00:00.007Z","event":"request","request_id":"7","client":"2001:db8::/64","address":"2001:db8::7","netblock":"2001:db8::/56","client_group":"default","scheme":"http","method":"POST","host":"shop.example","path":"/a\"b","query":"x=1","protocol":"HTTP/1.1","content_length":12,"has_authorization":false,"has_cookie":false,"websocket":false,"status":404,"action":"passed","enforced":true,"country":"DE","asn":"AS64496","as_name":"Example","bytes":{"request":12,"response":345},"timings":{"total":41.927}}"#;
    let request = request(Format::Weir, line);
    assert_eq!(request.at_ms, 1_795_276_800_007);
    assert_eq!(request.took_ms, 41);
    assert_eq!(request.address.to_string(), "2001:db8::7");
    assert_eq!((request.method.as_str(), &*request.path), ("POST", "/a\"b"));
    assert_eq!(request.sent.fields[HOST], "shop.example");
    assert_eq!(request.past().content_length, Some(12));
    let end = (request.end.request_bytes, request.end.response_bytes);
    assert_eq!(end, (12, 345));
    assert_eq!(request.end.status.map(|status| status.as_u16()), Some(404));
    assert_eq!(request.was_refused, Some(false));
    let lookup = request.lookup.unwrap();
    assert_eq!(lookup.country.as_deref(), Some("DE"));
    assert_eq!(lookup.asn.as_deref(), Some("AS64496"));
    let refused = line.replace("\"passed\"", "\"banned\"");
    let Ok(Line::Request(refused)) = Format::Weir.read(refused.as_bytes()) else {
        panic!("it is a request");
    };
    // The status is ours then, and tells nothing of the application.
    assert_eq!(
        (refused.was_refused, refused.end.status),
        (Some(true), None)
    );
    let alert = r#"{"time":"2026-11-21T16:00:00.007Z","event":"alert","kind":"ban"}"#;
    assert!(matches!(
        Format::Weir.read(alert.as_bytes()),
        Ok(Line::Other)
    ));
}

/// MATCH-1, CONTROL-6: logged fields of `WAF_LOG_REQUEST_HEADERS` are fields of the request; a
/// field that every line has anyway is there once.
#[test]
fn logged_fields_are_read() {
    let line = r#"{"time":"2026-11-21T16:00:00.007Z","event":"request","address":"192.0.2.7","method":"GET","path":"/","user_agent":"curl","headers":{"x-a":"a needle, two","user-agent":"curl","no name":"x"},"action":"passed"}"#;
    let sent = request(Format::Weir, line).sent;
    assert_eq!(sent.fields["x-a"], "a needle, two");
    assert_eq!(sent.fields.get_all(USER_AGENT).iter().count(), 1);
    assert_eq!(sent.fields.len(), 2);
}

/// LOG-6, CONTROL-6: notes between the requests are read in every format, and do not decide the
/// format.
#[test]
fn notes_between_the_requests_are_read_in_every_format() {
    let left_out = br#"{"time":"2026-11-21T16:00:00.007Z","event":"requests_left_out","netblock":"198.51.100.0/24","action":"banned","count":61000}"#;
    for line in [&left_out[..], br#"{"event":"alert"}"#] {
        assert!(Format::of(line).is_none());
        assert!(Format::Weir.read(line).is_ok());
    }
    assert!(matches!(note(left_out), Some(Line::LeftOut(61_000))));
    assert!(matches!(note(br#"{"event":"alert"}"#), Some(Line::Other)));
    // The process log in the same file, as of a service whose two outputs go to one.
    let process =
        br#"{"timestamp":"2026-11-21T16:00:00.007Z","level":"INFO","message":"listening"}"#;
    assert!(matches!(note(process), Some(Line::Other)));
    assert!(note(b"{}").is_none());
    assert!(
        note(br#"203.0.113.7 - - [21/Nov/2026:16:00:00 +0000] "GET / HTTP/1.1" 200 1"#).is_none()
    );
}

/// CONTROL-6: a line of nginx's combined format, which `WAF_LOG_FORMAT=combined` writes too.
#[test]
fn the_combined_format_is_read() {
    let line = r#"203.0.113.7 - frank [21/Nov/2026:17:00:00 +0100] "GET /a\x22%20b?q=\x5C HTTP/1.1" 200 2326 "http://example.com/start" "Mozilla/5.0 (a \x22b\x22)""#;
    let request = request(Format::Combined, line);
    assert_eq!(request.at_ms, 1_795_276_800_000);
    assert_eq!(&*request.path, "/a\"%20b");
    assert_eq!(request.end.response_bytes, 2326);
    assert_eq!(request.end.status.map(|status| status.as_u16()), Some(200));
    assert_eq!(request.was_refused, None);
    let bad = r#"203.0.113.7 - - [21/Nov/2026:16:00:00 +0000] "\x16\x03\x01" 400 157 "-" "-""#;
    assert!(matches!(
        Format::Combined.read(bad.as_bytes()),
        Ok(Line::Other)
    ));
    let absolute = line.replace("/a\\x22%20b?q=", "http://example.com/x?q=");
    let Ok(Line::Request(request)) = Format::Combined.read(absolute.as_bytes()) else {
        panic!("it is a request");
    };
    assert_eq!(&*request.path, "/x");
}

/// CONTROL-6: a line of HAProxy's HTTP format, bare and after the prefix of syslog.
#[test]
fn haproxys_format_is_read() {
    let bare = r#"10.0.1.2:33317 [21/Nov/2026:16:00:00.655] http-in static/srv1 10/0/30/69/109 200 2750 - - ---- 1/1/1/1/0 0/0 {1wt.eu} {} "GET /index.html?a HTTP/1.1""#;
    let syslog = format!("Nov 21 16:00:00 localhost haproxy[14389]: {bare}");
    for line in [bare, &syslog] {
        let request = request(Format::Haproxy, line);
        assert_eq!(request.at_ms, 1_795_276_800_655);
        assert_eq!(request.took_ms, 109);
        assert_eq!(request.address.to_string(), "10.0.1.2");
        assert_eq!(&*request.path, "/index.html");
        assert_eq!(request.end.response_bytes, 2750);
        assert_eq!(request.end.status.map(|status| status.as_u16()), Some(200));
    }
    let six = bare.replace("10.0.1.2:33317", "2001:db8::7:33317");
    let Ok(Line::Request(six)) = Format::Haproxy.read(six.as_bytes()) else {
        panic!("it is a request");
    };
    assert_eq!(six.address.to_string(), "2001:db8::7");
    let unanswered = bare
        .replace(" 200 2750 ", " -1 +0 ")
        .replace("/109 ", "/+109 ");
    let Ok(Line::Request(unanswered)) = Format::Haproxy.read(unanswered.as_bytes()) else {
        panic!("it is a request");
    };
    assert_eq!((unanswered.end.status, unanswered.took_ms), (None, 109));
}

/// CONTROL-6: a line in none of the formats is reported as such, and pieces of a line cause no
/// panic.
#[test]
fn what_cannot_be_read_is_told() {
    for line in [
        "",
        "{",
        "{}",
        "a b c",
        "203.0.113.7 - - [x] \"",
        "a:1 [21/Nov/2026:16:00:00.1] x",
    ] {
        assert_eq!(Format::of(line.as_bytes()), None, "{line:?}");
    }
    let whole = r#"203.0.113.7:1 [21/Nov/2026:16:00:00.655] f b/s 10/0/30/69/109 200 2750 - - ---- 1/1/1/1/0 0/0 "GET /\x2 HTTP/1.1""#;
    for end in 0..whole.len() {
        for format in [Format::Weir, Format::Combined, Format::Haproxy] {
            drop(format.read(&whole.as_bytes()[..end]));
        }
    }
    assert_eq!(unescaped("a\\x2"), "a\\x2");
    assert_eq!(unescaped("\\xC3\\xA4\\xzz"), "ä\\xzz");
}
