//! What the headers of HTTP/2 frames cost: the same however the bytes are cut, heads and streams
//! are those that a naive reader counts, and whoever repeats frames that carry nothing is stopped
//! (EDGE-3).
//!
//! The first byte says how many of the next ones choose the cuts.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_dataplane::fuzzing::http2::{Budget, Fault, PREFACE, Scanner};

/// More frames than a budget has room for, whatever they cost.
const FRAMES: usize = 2_001;

fuzz_target!(|input: &[u8]| {
    let Some((count, rest)) = input.split_first() else {
        return;
    };
    let Some((choice, frames)) = rest.split_at_checked(usize::from(*count % 16)) else {
        return;
    };
    // SETTINGS, or nothing else is looked at.
    let bytes = [PREFACE, &[0, 0, 0, 4, 0, 0, 0, 0, 0][..], frames].concat();
    let whole = scan(&bytes, &[]);
    let cuts = weir_fuzz::cuts(choice, bytes.len());
    assert_eq!(scan(&bytes, &cuts), whole, "{cuts:?}");
    let Walked {
        heads,
        last_stream,
        costly,
        ends_whole,
    } = walk(frames);
    if let Ok((scanned, last, _)) = whole {
        assert_eq!((scanned, last), (heads, last_stream));
    }
    if costly == 0 || !ends_whole {
        return;
    }
    let (budget, mut scanner) = (Budget::new(0), Scanner::new());
    let mut scanned = scanner.scan(&bytes, &budget, 0);
    for _ in 0..FRAMES.div_ceil(costly) {
        scanned = scanned.and_then(|()| scanner.scan(frames, &budget, 0));
    }
    assert_eq!(scanned, Err(Fault::Flood));
});

/// Heads, the last stream, and whether a head is coming; or why the connection ends.
fn scan(bytes: &[u8], cuts: &[usize]) -> Result<(u64, u32, bool), Fault> {
    let (budget, mut scanner) = (Budget::new(0), Scanner::new());
    let mut from = 0;
    for end in cuts.iter().copied().chain([bytes.len()]) {
        scanner.scan(&bytes[from..end], &budget, 0)?;
        from = end;
    }
    let coming = scanner.head_since().is_some();
    Ok((scanner.heads(), scanner.last_stream(), coming))
}

/// What frames are, one after the other.
#[derive(Default)]
struct Walked {
    heads: u64,
    last_stream: u32,
    /// All but DATA with content.
    costly: usize,
    ends_whole: bool,
}

fn walk(mut bytes: &[u8]) -> Walked {
    let mut walked = Walked::default();
    let mut opens = false;
    while let [high, middle, low, kind, flags, a, b, c, d, rest @ ..] = bytes {
        let length = u32::from_be_bytes([0, *high, *middle, *low]);
        let stream = u32::from_be_bytes([*a, *b, *c, *d]) & 0x7fff_ffff;
        if *kind == 1 {
            opens = stream > walked.last_stream;
            walked.last_stream = walked.last_stream.max(stream);
        }
        // Data behind padding may be none.
        walked.costly += usize::from(*kind != 0);
        let payload = usize::try_from(length).expect("24 bits");
        let Some(behind) = rest.get(payload..) else {
            return walked;
        };
        let ends_head = (*kind == 1 || *kind == 9) && flags & 4 != 0;
        walked.heads += u64::from(ends_head && std::mem::take(&mut opens));
        bytes = behind;
    }
    walked.ends_whole = bytes.is_empty();
    walked
}
