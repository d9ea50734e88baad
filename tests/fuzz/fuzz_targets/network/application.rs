//! What the application says of a client in its field (APP-1): understood as a whole or not at all,
//! the same in one line and in several, and again when it is read from the log.
#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use weir_dataplane::fuzzing::application::read;

fuzz_target!(|bytes: &[u8]| {
    let lines = || bytes.split(|byte| *byte == b'\n');
    let said = read(lines());
    let joined = bytes
        .iter()
        .map(|byte| if *byte == b'\n' { b',' } else { *byte });
    let joined: Vec<u8> = joined.collect();
    assert_eq!(
        read([joined.as_slice()].into_iter()).ok(),
        said.clone().ok()
    );
    if bytes.len() > 256 {
        assert!(said.is_err());
    }
    let Ok(Some(said)) = said else {
        return;
    };
    let again = read([said.text().as_bytes()].into_iter());
    assert_eq!(again.as_ref(), Ok(&Some(said.clone())));
    let day = Duration::from_secs(86_400);
    assert!(
        said.trust
            .is_none_or(|trust| !trust.is_zero() && trust <= day)
    );
    if let Some(ban) = said.ban {
        assert!(ban.plain || ban.duration.is_some_and(|duration| !duration.is_zero()));
    }
    for name in said.counts() {
        assert!((1..=32).contains(&name.len()) && name.is_ascii());
    }
    let mut words = 0;
    said.each_word(|_| words += 1);
    assert!(words > 0);
});
