//! A plain request's head, which is answered before hyper: it is the one that hyper's server reads
//! in the same bytes, is not there before its last byte, and says the same as a text of its own
//! (CONN-3).
#![no_main]

use std::mem::MaybeUninit;

use libfuzzer_sys::fuzz_target;
use weir_dataplane::fuzzing::plain::{MAX_FIELDS, Parsed, Plain, PlainHead};
use weir_dataplane::fuzzing::{Fields as _, Head as _, by_hyper};

fuzz_target!(|bytes: &[u8]| {
    let mut space = [const { MaybeUninit::uninit() }; MAX_FIELDS];
    let Parsed::Whole(plain, length) = Plain::parse(bytes, &mut space) else {
        return;
    };
    assert_eq!(by_hyper::compare_plain(bytes), Ok(()));
    let mut space = [const { MaybeUninit::uninit() }; MAX_FIELDS];
    let before = Plain::parse(&bytes[..length - 1], &mut space);
    assert!(matches!(before, Parsed::Partial));
    let Some(text) = PlainHead::of(&plain, bytes, length) else {
        assert!(std::str::from_utf8(&bytes[..length]).is_err());
        return;
    };
    assert_eq!(
        (text.method(), text.path(), text.query()),
        (plain.method(), plain.path(), plain.query())
    );
    assert!(text.fields().eq(plain.fields()));
});
