use std::mem::MaybeUninit;

use proptest::prelude::*;

use super::*;
use crate::http1::MAX_FIELDS;
use crate::http1::request::{BadRequest, parse};

/// What is found at the front of some bytes: a head's target, or why it is none.
fn look(bytes: &[u8]) -> Looked<Result<String, BadRequest>> {
    let mut space = [const { MaybeUninit::uninit() }; MAX_FIELDS];
    match parse(bytes, &mut space) {
        Ok(Some((head, length))) => Looked::Found(Ok(head.target().to_owned()), length),
        Ok(None) => Looked::Partial,
        Err(bad) => Looked::Found(Err(bad), bytes.len()),
    }
}

/// What is found once these pieces have come, and what is held then.
fn read<'a>(
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> (Option<Result<String, BadRequest>>, Inbound) {
    let mut held = Inbound::default();
    for piece in pieces {
        let found = held.add(piece, look);
        let (length, room) = (held.bytes.len(), held.bytes.capacity());
        assert!(room < length + STEP, "{length} bytes in room for {room}");
        if found.is_some() {
            return (found, held);
        }
    }
    (None, held)
}

fn head() -> impl Strategy<Value = String> {
    let field = prop_oneof![
        Just("Connection: close".to_owned()),
        Just("Content-Length: 3".to_owned()),
        "[A-Z]{1,5}: [ -~]{0,40}",
        (0_usize..12_000).prop_map(|length| format!("X: {}", "x".repeat(length))),
    ];
    let fields = prop::collection::vec(field, 0..5);
    let begin = prop_oneof![Just(""), Just("\r\n"), Just("\n")];
    (begin, "/[a-z]{0,9}", fields, any::<bool>()).prop_map(|(begin, target, fields, is_bare)| {
        let mut head = format!("{begin}GET {target} HTTP/1.1\r\nHost: a\r\n");
        let end = if is_bare { "\n" } else { "\r\n" };
        fields.iter().for_each(|field| head.extend([field, end]));
        head + end
    })
}

/// Pieces of a text, cut at these places.
fn cut<'a>(text: &'a [u8], cuts: &[prop::sample::Index]) -> Vec<&'a [u8]> {
    let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(text.len())).collect();
    cuts.extend([0, text.len()]);
    cuts.sort_unstable();
    let pieces = cuts.windows(2).map(|cut| &text[cut[0]..cut[1]]);
    pieces.filter(|piece| !piece.is_empty()).collect()
}

proptest! {
    /// CONN-1: a head that comes in pieces is read as one that comes whole, and no more room is
    /// held for it than it needs.
    #[test]
    fn pieces_are_read_as_the_whole(
        head in head(),
        behind in "[ -~]{0,20}",
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        prop_assume!(head.len() < MAX_HEAD);
        let whole = head.clone() + &behind;
        // What follows comes with the end.
        let mut pieces = cut(head.as_bytes(), &cuts);
        let last = pieces.pop().expect("a head is not empty").len();
        pieces.push(&whole.as_bytes()[head.len() - last..]);
        let (found, held) = read(pieces);
        let mut twin = Inbound::default();
        let expected = twin.look(whole.as_bytes(), look);
        prop_assert!(found.is_some());
        prop_assert_eq!(found, expected);
        prop_assert_eq!(held.rest(), twin.rest());
    }

    /// RFC 9112 §6: however the bytes come, a body has its own, and what stands behind it is left
    /// for the next head.
    #[test]
    fn a_body_ends_where_it_ends(
        contents in prop::collection::vec("[a-z\r\n]{0,300}", 0..4),
        is_chunked in any::<bool>(),
        has_trailer in any::<bool>(),
        behind in "[ -~]{0,20}",
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let content = contents.concat();
        let (mut text, body) = if is_chunked {
            let chunk = |content: &String| format!("{:x}\r\n{content}\r\n", content.len());
            let chunks: String = contents.iter().filter(|each| !each.is_empty()).map(chunk).collect();
            let trailer = if has_trailer { "x-sum: 7\r\n" } else { "" };
            (format!("{chunks}0\r\n{trailer}\r\n"), Body::Chunked(Box::new(Decoder::of_request(RequestLength::Chunked))))
        } else {
            (content.clone(), Body::Exact(content.len() as u64))
        };
        prop_assume!(!text.is_empty());
        text.push_str(&behind);
        let mut held = Inbound { body, ..Inbound::default() };
        let (mut came, mut trailers, mut framing) = (Vec::new(), None, 0);
        for piece in cut(text.as_bytes(), &cuts) {
            held.bytes.extend_from_slice(piece);
            loop {
                match held.next_piece(&mut framing).unwrap() {
                    Some(Piece::Data(data)) => came.extend_from_slice(&data),
                    Some(Piece::Trailers(fields)) => trailers = Some(fields),
                    None => break,
                }
            }
            trailers = held.take_trailers().or(trailers);
        }
        prop_assert!(matches!(held.body, Body::Ended));
        prop_assert_eq!(String::from_utf8(came).unwrap(), content.clone());
        prop_assert_eq!(held.rest(), behind.as_bytes());
        prop_assert_eq!(trailers.is_some(), is_chunked && has_trailer);
        let expected = if is_chunked { text.len() - content.len() - behind.len() } else { 0 };
        prop_assert_eq!(framing, expected);
    }
}

/// CONN-1: what has no end is refused once it is as long as a head may be.
#[test]
fn a_head_without_an_end_is_held_to_its_bound() {
    let field = [b"X: ".as_slice(), &[b'x'; 995], b"\r\n"].concat();
    let begin = b"GET / HTTP/1.1\r\n".as_slice();
    let (found, held) = read([begin].into_iter().chain(std::iter::repeat_n(&*field, 40)));
    assert_eq!(found, Some(Err(BadRequest::TooLarge)));
    assert!(held.rest().is_empty());
}

/// RFC 9112 §7.1: a body whose chunks are none has no end. Asked again, it is what it was, whatever
/// follows: none of that is read as a chunk or as a head.
#[test]
fn a_broken_body_stays_broken() {
    let body = Body::Chunked(Box::new(Decoder::of_request(RequestLength::Chunked)));
    let mut held = Inbound {
        body,
        bytes: b"2\r\nhixx".to_vec(),
        ..Inbound::default()
    };
    let mut framing = 0;
    let fault = held.next_piece(&mut framing).unwrap_err();
    for behind in [&b""[..], b"\r\n0\r\n\r\n", b"GET / HTTP/1.1\r\n"] {
        held.bytes.extend_from_slice(behind);
        assert_eq!(held.next_piece(&mut framing).unwrap_err(), fault);
        assert!(held.take_trailers().is_none());
        assert!(!matches!(held.body, Body::Ended));
    }
}

/// What a read brings in turn; an empty piece is the end.
fn gathered(room: usize, pieces: &[Poll<io::Result<&str>>]) -> (Poll<Option<String>>, usize) {
    let (mut buffer, mut looks) = (vec![0; room], 0);
    let mut read = ReadBuf::new(&mut buffer);
    let outcome = gather(&mut read, |read| {
        let piece = pieces.get(looks).expect("it does not look again");
        looks += 1;
        match piece {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Err(error)) => Poll::Ready(Err(error.kind().into())),
            Poll::Ready(Ok(piece)) => {
                let fits = piece.len().min(read.remaining());
                read.put_slice(&piece.as_bytes()[..fits]);
                Poll::Ready(Ok(()))
            }
        }
    });
    let text = |length| String::from_utf8(buffer[..length].to_vec()).unwrap();
    (outcome.map(|read| read.ok().map(text)), looks)
}

/// CONN-9: small pieces are one read while more is ready and there is room; what is no piece
/// keeps nothing back.
#[test]
fn small_pieces_are_one_read() {
    let piece = |text| Poll::Ready(Ok(text));
    let failed = || Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
    let read = |text: &str| Poll::Ready(Some(text.to_owned()));
    for (pieces, expected) in [
        (vec![piece("a"), piece("b"), Poll::Pending], (read("ab"), 3)),
        (vec![piece("a"), piece("bcd")], (read("abcd"), 2)),
        (vec![piece("abcdef")], (read("abcd"), 1)),
        (vec![piece("a"), piece("")], (read("a"), 2)),
        (vec![piece("a"), failed()], (read("a"), 2)),
        (vec![piece("")], (read(""), 1)),
        (vec![failed()], (Poll::Ready(None), 1)),
        (vec![Poll::Pending], (Poll::Pending, 1)),
    ] {
        assert_eq!(gathered(4, &pieces), expected, "{pieces:?}");
    }
}
