//! Published test vectors, read from beside the project and not copied into it. Ignored unless
//! asked for; skipped, with a sentence on standard error, where the whole folder is absent.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
};

use data_encoding::HEXLOWER;
use serde_json::{Value, json};
use weir_schema::{
    canonical,
    signature::PublicKey,
    strict::{self, Limits},
};

/// One of the vectors; `None`, which is said, without the folder.
fn testdata(name: &str) -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/testdata");
    if !folder.exists() {
        // Not by a macro: what those print is held back where a test passes.
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED: the published vectors of {name} are not in {}",
            folder.display()
        );
        return None;
    }
    let path = folder.join(name);
    assert!(path.exists(), "{} is missing", path.display());
    Some(path)
}

fn hex_bytes(text: &str) -> Vec<u8> {
    HEXLOWER.decode(text.to_lowercase().as_bytes()).unwrap()
}

/// SCHEMA-6: the files that accompany RFC 8785.
#[test]
#[ignore = "needs the published vectors in ../shared/testdata"]
fn the_published_canonical_forms_come_out_byte_for_byte() {
    let Some(jcs) = testdata("jcs") else { return };
    let mut files = 0;
    for entry in fs::read_dir(jcs.join("input")).unwrap() {
        let input = entry.unwrap().path();
        let name = input.file_name().unwrap().to_str().unwrap();
        let value = strict::parse_within(&fs::read(&input).unwrap(), Limits::NONE).unwrap();
        let form = canonical::to_vec(&value).unwrap();
        assert_eq!(
            form,
            fs::read(jcs.join("output").join(name)).unwrap(),
            "{name}"
        );
        let hex =
            fs::read_to_string(jcs.join("outhex").join(name.replace(".json", ".txt"))).unwrap();
        assert_eq!(
            form,
            hex_bytes(&hex.split_whitespace().collect::<String>()),
            "{name}"
        );
        files += 1;
    }
    assert_eq!(files, 6);
}

/// SCHEMA-6: bits of a double, comma, how it is written; the first 10,000 of the published
/// sequence.
#[test]
#[ignore = "needs the published vectors in ../shared/testdata"]
fn the_published_numbers_come_out_as_written() {
    let Some(numbers) = testdata("es6_numbers_10000.txt") else {
        return;
    };
    let text = fs::read_to_string(numbers).unwrap();
    let mut lines = 0;
    for line in text.lines() {
        let (bits, expected) = line.split_once(',').unwrap();
        let number = f64::from_bits(u64::from_str_radix(bits, 16).unwrap());
        assert_eq!(
            canonical::to_string(&json!(number)).unwrap(),
            expected,
            "{bits}"
        );
        // And it is read back exactly.
        let back: Value = serde_json::from_str(expected).unwrap();
        assert_eq!(back.as_f64().unwrap(), number, "{bits}");
        lines += 1;
    }
    assert_eq!(lines, 10_000);
}

/// SCHEMA-7: Wycheproof's Ed25519. A key may be refused as such where the signature is invalid
/// anyway.
#[test]
#[ignore = "needs the published vectors in ../shared/testdata"]
fn the_published_signatures_are_judged_as_they_say() {
    let Some(vectors) = testdata("wycheproof_ed25519_test.json") else {
        return;
    };
    let text = fs::read(vectors).unwrap();
    let file: Value = serde_json::from_slice(&text).unwrap();
    let mut tests = 0;
    let mut accepted = 0;
    for group in file["testGroups"].as_array().unwrap() {
        let key: [u8; 32] = hex_bytes(group["publicKey"]["pk"].as_str().unwrap())
            .try_into()
            .unwrap();
        let key = PublicKey::from_bytes(&key);
        for test in group["tests"].as_array().unwrap() {
            let bytes = hex_bytes(test["msg"].as_str().unwrap());
            let signature = hex_bytes(test["sig"].as_str().unwrap());
            let good = key
                .as_ref()
                .is_ok_and(|key| key.verifies(&bytes, &signature));
            assert_eq!(good, test["result"] == "valid", "{test}");
            tests += 1;
            accepted += usize::from(good);
        }
    }
    assert_eq!(tests, file["numberOfTests"].as_u64().unwrap());
    assert!(accepted > 50);
}
