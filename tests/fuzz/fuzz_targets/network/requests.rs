//! Requests of one connection, with their bodies, as the service cuts and frames them for hyper:
//! they are the ones that hyper finds in the same bytes, or fewer, and the same however the bytes
//! are cut into reads (CONN-9).
//!
//! The first byte says how many of the next ones choose the cuts.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_dataplane::fuzzing::by_hyper::{Message, Through, read};

fuzz_target!(|input: &[u8]| {
    let Some((count, rest)) = input.split_first() else {
        return;
    };
    let Some((choice, bytes)) = rest.split_at_checked(usize::from(*count % 16)) else {
        return;
    };
    let theirs = read(bytes, &[], Through::Nothing).messages;
    let ours = read(bytes, &[], Through::Inbound).messages;
    assert!(ours.len() <= theirs.len());
    for (ours, theirs) in ours.iter().zip(&theirs) {
        assert_eq!(head(ours), head(theirs));
        assert!(theirs.content.starts_with(&ours.content));
        if ours.is_whole {
            assert_eq!(whole(ours), whole(theirs));
        }
    }
    let cut = read(
        bytes,
        &weir_fuzz::cuts(choice, bytes.len()),
        Through::Inbound,
    )
    .messages;
    assert_eq!(cut.len(), ours.len());
    for (cut, ours) in cut.iter().zip(&ours) {
        assert_eq!(head(cut), head(ours));
        assert_eq!(cut.is_whole, ours.is_whole);
        assert!(!ours.is_whole || whole(cut) == whole(ours));
    }
});

fn head(message: &Message) -> String {
    let head = &message.head;
    format!(
        "{} {} {:?} {:?}",
        head.method, head.uri, head.version, head.headers
    )
}

fn whole(message: &Message) -> (&[u8], String, bool) {
    let trailers = format!("{:?}", message.trailers);
    (&message.content, trailers, message.is_whole)
}
