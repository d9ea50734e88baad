use proptest::prelude::*;

use std::fs::File;
use std::path::Path;

use super::*;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/fixtures")
        .join(name)
}

fn open(names: &[&str]) -> Databases {
    let paths: Vec<_> = names.iter().map(|name| fixture(name)).collect();
    Databases::open(&paths, &Clock::manual(7).0).unwrap()
}

fn found(databases: &Databases, address: &str) -> [Option<String>; 3] {
    let lookup = databases.look_up(address.parse().unwrap()).unwrap();
    [&lookup.country, &lookup.asn, &lookup.as_name].map(Clone::clone)
}

fn known(country: &str, asn: &str, name: &str) -> [Option<String>; 3] {
    [country, asn, name].map(|text| (!text.is_empty()).then(|| text.to_owned()))
}

/// LOOKUP-5, LOOKUP-4: country and AS in two files, IPv4 in the IPv6 tree, IPv6, a record without a
/// country, 64512, and addresses that no file knows; in either order of the files.
#[test]
fn the_layout_of_two_files_is_read() {
    for names in [["country.mmdb", "asn.mmdb"], ["asn.mmdb", "country.mmdb"]] {
        let databases = open(&names);
        for (address, expected) in [
            ("81.2.69.1", known("GB", "AS20712", "Andrews & Arnold Ltd")),
            (
                "81.2.69.255",
                known("GB", "AS20712", "Andrews & Arnold Ltd"),
            ),
            ("81.2.70.0", known("", "", "")),
            ("89.160.20.128", known("SE", "AS29518", "Bredband2 AB")),
            ("89.160.21.1", known("", "AS29518", "Bredband2 AB")),
            ("67.43.156.1", known("", "AS35908", "VPLS")),
            ("2a02:d0c0:1:2::", known("DE", "", "")),
            ("2a02:d0c1::", known("", "", "")),
        ] {
            assert_eq!(found(&databases, address), expected, "{address}");
        }
    }
}

/// LOOKUP-5: the layout of one file with texts, and a file of IPv4 alone.
#[test]
fn the_layout_of_one_file_is_read() {
    let databases = open(&["lite.mmdb"]);
    assert_eq!(
        found(&databases, "81.2.69.7"),
        known("GB", "AS20712", "Andrews & Arnold Ltd")
    );
    assert_eq!(
        found(&databases, "2a02:d0c0::"),
        known("DE", "AS64496", "Example")
    );
    let v4 = open(&["country-v4.mmdb"]);
    assert_eq!(found(&v4, "81.2.69.7"), known("GB", "", ""));
    assert_eq!(found(&v4, "2a02:d0c0::"), known("", "", ""));
}

/// LOOKUP-5: addresses of one record share its answer; another record of either file makes another.
/// With more files than answers are kept for, the answers are the same.
#[test]
fn addresses_of_one_record_share_an_answer() {
    let databases = open(&["country.mmdb", "asn.mmdb"]);
    let found = |text: &str| databases.look_up(text.parse().unwrap()).unwrap();
    assert!(Arc::ptr_eq(&found("81.2.69.1"), &found("81.2.69.255")));
    assert!(Arc::ptr_eq(&found("81.2.70.0"), &found("9.9.9.9")));
    assert_ne!(found("89.160.20.1"), found("89.160.21.1"));

    let many = open(&[
        "country.mmdb",
        "asn.mmdb",
        "asn.mmdb",
        "asn.mmdb",
        "asn.mmdb",
    ]);
    for text in ["81.2.69.1", "89.160.21.1", "2a02:d0c0::", "9.9.9.9"] {
        assert_eq!(many.look_up(text.parse().unwrap()).unwrap(), found(text));
    }
}

/// LOOKUP-5: after any earlier questions the answer belongs to the requested records; the number of
/// kept answers is bounded, and a failure is not kept.
#[test]
fn kept_answers_are_bounded_and_never_mixed_up() {
    let (answers, mut made) = (Answers::default(), 0);
    let (most, few) = (4 * GROUPS * GROUP, GROUP);
    for number in (0..most).chain((0..few).cycle().take(1000)) {
        let records = [number as u32, 0, 7, 0];
        let lookup = || {
            made += 1;
            let as_name = Some(number.to_string());
            Ok::<_, ()>(Arc::new(Lookup {
                as_name,
                ..Lookup::default()
            }))
        };
        let answer = answers.of(records, lookup).unwrap();
        assert_eq!(answer.as_name, Some(number.to_string()));
    }
    assert!(made <= most + few, "{made}");
    let kept = answers
        .groups
        .iter()
        .map(|group| group.lock().unwrap().iter().flatten().count());
    assert!(kept.sum::<usize>() <= GROUPS * GROUP);

    let never = [u32::MAX; MAX_KEPT_FILES];
    assert_eq!(answers.of(never, || Err("no")), Err("no"));
    assert!(answers.of(never, || Ok::<_, ()>(Arc::default())).is_ok());
}

/// LOOKUP-5: the error about an unusable file is one sentence with the reason.
#[test]
fn what_cannot_be_used_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let fault = |path: &Path| {
        let error = Databases::open(&[path.to_owned()], &Clock::manual(0).0).err();
        error.unwrap().to_string()
    };
    let missing = dir.path().join("none.mmdb");
    assert_eq!(
        fault(&missing),
        format!(
            "the lookup database {} cannot be read: No such file or directory (os error 2)",
            missing.display()
        )
    );
    assert!(fault(dir.path()).contains("cannot be read"));
    assert!(fault(&fixture("other.mmdb")).contains("holds neither countries nor AS numbers"));
    assert!(fault(&fixture("make_mmdb.py")).contains("is damaged or no MaxMind DB file"));
    let sparse = dir.path().join("sparse.mmdb");
    File::create(&sparse).unwrap().set_len(2 << 30).unwrap();
    assert!(fault(&sparse).contains("it is larger than 1 GiB"));
}

/// LOOKUP-5: a file that is cut anywhere is refused, and one that is cut while in use stops
/// nothing.
#[test]
fn a_truncated_file_is_never_taken() {
    for name in ["country.mmdb", "lite.mmdb"] {
        let whole = std::fs::read(fixture(name)).unwrap();
        assert!(Database::check(whole.clone()).is_ok());
        for length in 0..whole.len() {
            assert!(
                Database::check(whole[..length].to_vec()).is_err(),
                "{name} cut at {length}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    /// A damaged file is refused or read; it is never a panic, neither at the check nor at a lookup
    /// after it.
    #[test]
    fn damage_never_panics(name in prop::sample::select(vec!["country.mmdb", "lite.mmdb", "asn.mmdb"]), hits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
        let mut bytes = std::fs::read(fixture(name)).unwrap();
        for (at, byte) in hits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(database) = Database::check(bytes) {
            for address in ["81.2.69.1", "89.160.20.1", "2a02:d0c0::", "8.8.8.8"] {
                let _ = database.record(address.parse().unwrap());
            }
        }
    }
}
/// LOOKUP-5: a bad replacement is counted and changes nothing; a good one is applied, even an
/// earlier build.
#[test]
fn a_bad_replacement_leaves_what_is_in_use() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db.mmdb");
    std::fs::copy(fixture("lite.mmdb"), &path).unwrap();
    let (clock, manual) = Clock::manual(1000);
    let databases = Databases::open(std::slice::from_ref(&path), &clock).unwrap();
    manual.advance_ms(500);
    let faults = Faults::default();
    let numbers = || {
        let read_ms = databases.read_ms.load(Ordering::Relaxed);
        (read_ms, databases.errors.load(Ordering::Relaxed))
    };
    std::fs::write(&path, b"garbage").unwrap();
    assert!(!databases.replace(&clock, &faults));
    std::fs::remove_file(&path).unwrap();
    assert!(!databases.replace(&clock, &faults));
    assert_eq!(numbers(), (1000, 2));
    let mut told = std::iter::from_fn(|| faults.next());
    assert!(told.all(|fault| fault.of == path.display().to_string()));
    assert_eq!(found(&databases, "81.2.69.7")[0].as_deref(), Some("GB"));
    for (name, country) in [("lite-later.mmdb", "FR"), ("lite-earlier.mmdb", "IT")] {
        std::fs::copy(fixture(name), &path).unwrap();
        assert!(databases.replace(&clock, &faults));
        assert_eq!(found(&databases, "81.2.69.7")[0].as_deref(), Some(country));
    }
    assert_eq!(numbers(), (1500, 2));
}
