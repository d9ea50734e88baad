//! `keygen`, `pubkey`, `key-id`, `sign` and `verify`.

use std::fs;

use serde_json::{Value, json};
use weir_schema::pubkey::Announced;

use super::{keys, reports, run, signable, stderr, stdout};

/// SCHEMA-8, SCHEMA-7
#[test]
fn what_sign_signs_verify_verifies() {
    let (_folder, private, public) = keys();
    let input = format!(
        "{}\n{}\n{{\"command\":\"QUIT\"}}\nno json\n",
        signable("1"),
        signable("2")
    );
    let signed = run(&["sign", "--key", &private], &input);
    assert_eq!(signed.status.code(), Some(1));
    assert_eq!(stderr(&signed), "");
    // One answer a line: what was refused stands in its place.
    let answers: Vec<&str> = stdout(&signed).lines().collect();
    assert_eq!(answers.len(), 4);
    for (index, says) in [
        (2, "a signed message needs id, a string"),
        (3, "expected ident"),
    ] {
        let report: Value = serde_json::from_str(answers[index]).unwrap();
        assert_eq!(report["line"], index + 1);
        assert_eq!(
            (&report["valid"], &report["error"]),
            (&json!(false), &json!(says))
        );
    }
    let both = format!("{}\n{}\n", answers[0], answers[1]);
    let valid = run(&["validate", "--family", "c2s"], &both);
    assert!(valid.status.success(), "{}", stdout(&valid));
    // And in a pipe, where the reader refuses it again.
    let in_a_pipe = run(&["verify", "--key", &public], stdout(&signed));
    let verdicts: Vec<Value> = reports(&in_a_pipe)
        .iter()
        .map(|report| report["valid"].clone())
        .collect();
    assert_eq!(verdicts, [true, true, false, false]);
    let signed = both;

    let tampered = signed.replacen("Good", "Bad", 1);
    for key in [&private, &public] {
        let output = run(&["verify", "--key", key], &signed);
        assert!(output.status.success(), "{}", stdout(&output));
        assert_eq!(reports(&output)[1]["from"], "alice");
        let output = run(&["verify", "--key", key], &tampered);
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(reports(&output)[0]["error"], "the signature is wrong");
        assert_eq!(reports(&output)[1]["valid"], true);
    }
    let as_alice = run(&["verify", "--key", &public, "--from", "alice"], &signed);
    assert!(as_alice.status.success());
    let as_bob = run(&["verify", "--key", &public, "--from", "bob"], &signed);
    assert_eq!(
        reports(&as_bob)[0]["error"],
        "the key is not known for this sender"
    );
    let (_other_folder, _, other) = keys();
    let output = run(&["verify", "--key", &other], &signed);
    assert_eq!(reports(&output)[0]["valid"], false);
    let output = run(&["verify", "--key", &other, "--key", &public], &signed);
    assert!(output.status.success());
    // The same key, which may end at another time in the other file.
    let output = run(&["verify", "--key", &public, "--key", &private], &signed);
    assert_eq!(output.status.code(), Some(2));
    let told = stderr(&output);
    assert!(
        told.contains(&private) && told.contains("the key is given twice"),
        "{told}"
    );
}

/// SCHEMA-8, SCHEMA-7
#[test]
fn verify_fresh_refuses_the_old_and_the_repeated() {
    let (_folder, private, public) = keys();
    let old = signable("1");
    let mut fresh = signable("2");
    fresh["ts"] = jiff::Timestamp::now().to_string().into();
    let signed = run(
        &["sign", "--key", &private],
        &format!("{old}\n{fresh}\n{fresh}\n"),
    );
    let output = run(&["verify", "--fresh", "--key", &public], stdout(&signed));
    assert_eq!(output.status.code(), Some(1));
    let reports = reports(&output);
    assert_eq!(reports[0]["error"], "the message is more than 300 s old");
    assert_eq!(reports[1]["valid"], true);
    assert_eq!(reports[2]["error"], "the message came before");
}

/// SCHEMA-8, SCHEMA-7
#[test]
fn keygen_makes_a_new_key_each_time_and_overwrites_none() {
    let (_folder, private, public) = keys();
    let before = fs::read(&private).unwrap();
    let again = run(&["keygen", "--out", &private], "");
    assert_eq!(again.status.code(), Some(2));
    assert_eq!(fs::read(&private).unwrap(), before);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(
            fs::metadata(&private).unwrap().permissions().mode() & 0o777,
            0o600
        );
    }
    let secret: Value = serde_json::from_slice(&before).unwrap();
    let shown: Value = serde_json::from_slice(&fs::read(&public).unwrap()).unwrap();
    assert!(secret["d"].is_string());
    assert!(shown["d"].is_null());
    let public_of = run(&["keygen", "--public-of", &private], "");
    assert_eq!(public_of.stdout, fs::read(&public).unwrap());
    let one = run(&["keygen"], "");
    let two = run(&["keygen"], "");
    assert_ne!(one.stdout, two.stdout);
    assert_ne!(reports(&one)[0]["x"], reports(&two)[0]["x"]);
    assert_eq!(
        run(&["sign", "--key", &public], "").status.code(),
        Some(2),
        "a public key signs nothing"
    );
}

/// SCHEMA-8, SCHEMA-7: a key is announced, its id read, and its end kept.
#[test]
fn a_pubkey_message_is_made_and_trusted_until_it_ends() {
    let (folder, private, public) = keys();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let kid = "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k";
    let made = run(
        &[
            "pubkey",
            "--key",
            &private,
            "--not-after",
            "2026-03-01T12:00:00Z",
            "--replaces",
            kid,
        ],
        "",
    );
    assert!(made.status.success(), "{}", stderr(&made));
    let valid = run(&["validate", "--schema", "c2s/pubkey"], stdout(&made));
    assert!(valid.status.success(), "{}", stdout(&valid));
    let message = reports(&made)[0].clone();
    let announced = Announced::from_message(&message).unwrap();
    assert_eq!(announced.not_after.as_deref(), Some("2026-03-01T12:00:00Z"));
    assert_eq!(announced.replaces.as_deref(), Some(kid));
    assert!(!stdout(&made).contains("\"d\""), "the private half stays");

    // The id of the key, whatever form it comes in.
    let (announcement, body) = (path("announcement"), path("body"));
    fs::write(&announcement, &made.stdout).unwrap();
    fs::write(&body, message["body"].to_string()).unwrap();
    for file in [&private, &public, &announcement, &body] {
        let output = run(&["key-id", file], "");
        assert_eq!(stdout(&output), format!("{}\n", announced.key.kid()));
    }
    let piped = run(&["key-id"], stdout(&made));
    assert_eq!(stdout(&piped), format!("{}\n", announced.key.kid()));

    // `not_after` is compared with the time of the message.
    let in_time = signable("1");
    let mut late = signable("2");
    late["ts"] = "2026-03-01T12:00:00.001Z".into();
    let (messages, signed) = (path("messages"), path("signed"));
    fs::write(&messages, format!("{in_time}\n{late}\n")).unwrap();
    let output = run(&["sign", "--key", &private, &messages], "");
    assert!(output.status.success());
    fs::write(&signed, &output.stdout).unwrap();
    for key in [&announcement, &body] {
        let output = run(&["verify", "--key", key, &signed], "");
        assert_eq!(output.status.code(), Some(1));
        let reports = reports(&output);
        assert_eq!(reports[0]["valid"], true);
        assert_eq!(
            reports[1]["error"],
            "the key ended before the message was made"
        );
    }
    let endless = run(&["verify", "--key", &public, &signed], "");
    assert!(endless.status.success(), "{}", stdout(&endless));

    // A key without an end has not ended.
    let mut timeless = signable("3");
    timeless["ts"] = "2026-03-01T13:00:00+01:00".into();
    let signed = run(&["sign", "--key", &private], &timeless.to_string());
    for key in [&public, &announcement] {
        let output = run(&["verify", "--key", key], stdout(&signed));
        assert_eq!(
            reports(&output)[0]["error"],
            "ts is \"2026-03-01T13:00:00+01:00\", which is no time in UTC"
        );
    }
}

/// SCHEMA-8, SCHEMA-7
#[test]
fn what_announces_no_key_is_refused_in_one_sentence() {
    let (_folder, private, _public) = keys();
    for (arguments, input, says) in [
        (
            &["pubkey", "--key", &private, "--not-after", "tomorrow"][..],
            "",
            "/body/not_after",
        ),
        (
            &["pubkey", "--key", &private, "--replaces", "x"],
            "",
            "/body/replaces",
        ),
        (&["key-id"], "{}", "the algorithm is not ed25519"),
        (&["key-id"], "{", "standard input: EOF"),
        (
            &["key-id"],
            r#"{"command":"QUIT"}"#,
            "the message is no PUBKEY",
        ),
        (&["key-id", "/nowhere"], "", "/nowhere: No such file"),
    ] {
        let output = run(arguments, input);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert_eq!(stdout(&output), "");
        assert!(stderr(&output).contains(says), "{}", stderr(&output));
        assert_eq!(stderr(&output).lines().count(), 1);
    }
}
