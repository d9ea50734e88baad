//! Any bytes to the strict parser: no panic, nothing accepted that serde_json reads otherwise,
//! nothing refused without a reason, and a canonical form that reads back (SCHEMA-5, SCHEMA-6).
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use weir_schema::{
    Catalog, Family, canonical,
    strict::{self, Fault},
};

thread_local! {
    static CATALOG: Catalog = Catalog::new().expect("the built-in schemas compile");
}

fuzz_target!(|bytes: &[u8]| {
    let theirs = serde_json::from_slice::<Value>(bytes);
    match strict::parse(bytes) {
        Ok(value) => {
            assert_eq!(value, theirs.expect("serde_json reads it too"));
            let form = canonical::to_vec(&value).expect("what was accepted has a canonical form");
            if form.len() <= 65_536 {
                let back = strict::parse(&form).expect("the canonical form is accepted");
                assert_eq!(canonical::to_vec(&back).expect("and has one itself"), form);
            }
            CATALOG.with(|catalog| {
                for family in Family::ALL {
                    if let Err(violations) = catalog.validate(family, &value) {
                        assert!(!violations.is_empty());
                    }
                }
            });
        }
        Err(error) => {
            assert!(error.line >= 1);
            if let Fault::Syntax(_) = error.fault {
                let theirs = theirs.expect_err("serde_json refuses it too");
                assert_eq!((error.line, error.column), (theirs.line(), theirs.column()));
            }
        }
    }
});
