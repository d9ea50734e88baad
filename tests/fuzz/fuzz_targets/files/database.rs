//! Any bytes as a lookup database: a fault or answers, and never an endless walk (LOOKUP-5).
#![no_main]

use std::net::IpAddr;

use libfuzzer_sys::fuzz_target;

const ADDRESSES: [&str; 6] = [
    "0.0.0.0",
    "203.0.113.7",
    "255.255.255.255",
    "::",
    "2001:db8::1",
    "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
];

fuzz_target!(|bytes: &[u8]| {
    let addresses = ADDRESSES.map(|text| text.parse::<IpAddr>().expect("an address"));
    match weir_controlplane::lookup::read_database(bytes.to_vec(), &addresses) {
        Ok(answers) => {
            assert_eq!(answers.len(), addresses.len());
            for lookup in answers {
                let country = lookup.country.as_deref().unwrap_or("XX");
                assert!(country.len() == 2 && country.bytes().all(|b| b.is_ascii_uppercase()));
                let asn = lookup.asn.as_deref().unwrap_or("AS1");
                assert!(
                    asn.strip_prefix("AS")
                        .is_some_and(|n| n.parse::<u32>().is_ok())
                );
            }
        }
        Err(fault) => assert!(!fault.is_empty()),
    }
});
