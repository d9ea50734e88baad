use super::*;

fn key(list: List, netblock: &str) -> ListKey {
    let netblock = netblock.parse().unwrap();
    ListKey { list, netblock }
}

fn put(list: List, netblock: &str, expected: Expected) -> FileChange {
    let comment = Some("said so".to_owned());
    FileChange {
        key: key(list, netblock),
        expected,
        entry: Some(Entry {
            comment,
            ..Entry::default()
        }),
    }
}

fn by_hand(entries: &Entries) -> Held<'_> {
    let sets_aside = false;
    Held {
        entries,
        sets_aside,
    }
}

fn by_service(entries: &Entries) -> Held<'_> {
    let sets_aside = true;
    Held {
        entries,
        sets_aside,
    }
}

/// FLEET-18, STATE-5: an invalid member is reported with line and pointer.
#[test]
fn what_does_not_fit_is_told_with_its_place() {
    for (text, line, pointer, says) in [
        ("{\n\"version\":2}", 2, "/version", "unknown version 2"),
        (
            "{\"version\":1,\n\"alow\":[]}",
            2,
            "/alow",
            "did you mean \"allow\"",
        ),
        (
            "{\"version\":1,\n\"deny\":[{\"netblock\":\"x\"}]}",
            2,
            "/deny/0/netblock",
            "",
        ),
        (
            "{\"version\":1,\n\"deny\":[{\"file\":\"x\"}]}",
            2,
            "/deny/0/file",
            "is no member here",
        ),
        (
            "{\"version\":1,\"deny\":[\n{\"netblock\":\"0.0.0.0/0\"}]}",
            2,
            "/deny/0/netblock",
            "every client",
        ),
        (
            "{\"version\":1,\"allow\":[{\"netblock\":\"192.0.2.1\"},\n{\"netblock\":\"192.0.2.1/32\"}]}",
            2,
            "/allow/1/netblock",
            "twice",
        ),
    ] {
        let fault = read(text.as_bytes()).unwrap_err();
        assert_eq!((fault.line, &*fault.pointer), (line, pointer), "{fault}");
        assert!(fault.to_string().contains(says), "{fault}");
    }
}

/// FLEET-18: a change adds and removes its entries, and keeps everything that somebody else has
/// just saved.
#[test]
fn a_change_leaves_what_was_just_saved() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(LISTS);
    let none = Expected::Is(None);
    let [one, other] = ["192.0.2.1", "192.0.2.2"].map(|net| put(List::Deny, net, none.clone()));
    change(
        &path,
        by_hand(&Entries::new()),
        std::slice::from_ref(&one),
        5,
    )
    .unwrap();
    let held = read_at(&path).unwrap().unwrap();
    assert_eq!(held.get(&one.key), one.entry.as_ref());
    // It has an entry of the first by now.
    let edited = FileChange {
        entry: None,
        ..one.clone()
    };
    change(&path, by_hand(&Entries::new()), &[edited, other.clone()], 5).unwrap();
    let held = read_at(&path).unwrap().unwrap();
    assert!(held.contains_key(&one.key) && held.contains_key(&other.key));
    let text = fs::read_to_string(&path).unwrap();
    assert!(
        text.contains("\"written\": \"1970-01-01T00:00:00.005Z\""),
        "{text}"
    );
}

/// FLEET-18, STATE-5: the next change sets an invalid edit aside, and writes the entries in force
/// again; a command sets nothing aside.
#[test]
fn a_bad_edit_is_set_aside() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(LISTS);
    fs::write(&path, "{\"version\":1,").unwrap();
    let one = put(List::Deny, "192.0.2.1", Expected::Any);
    let refused = change(
        &path,
        by_hand(&Entries::new()),
        std::slice::from_ref(&one),
        5,
    );
    assert!(matches!(refused, Err(NotChanged::DoesNotFit { .. })));
    let held = Entries::from([(key(List::Allow, "192.0.2.9"), Entry::default())]);
    change(&path, by_service(&held), std::slice::from_ref(&one), 5).unwrap();
    let now = read_at(&path).unwrap().unwrap();
    assert_eq!(now.len(), 2);
    let aside = dir.path().join("lists.json.bad");
    assert_eq!(fs::read_to_string(aside).unwrap(), "{\"version\":1,");
}

/// FLEET-18: a missing file removes no entry: the next change writes all entries in force.
#[test]
fn a_file_that_is_gone_is_written_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(LISTS);
    let held = Entries::from([(key(List::Allow, "192.0.2.9"), Entry::default())]);
    let one = put(List::Deny, "192.0.2.1", Expected::Is(None));
    change(&path, by_service(&held), &[one], 5).unwrap();
    assert_eq!(read_at(&path).unwrap().unwrap().len(), 2);
}
