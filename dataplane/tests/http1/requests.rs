//! Requests: what is written, and that a strict reader finds in it what was meant.

use http::{HeaderMap, HeaderName, HeaderValue, Method};
use weir_dataplane::http1::{Encoder, WrongLength, end_of_fields, field, request_line};

/// A head is written line by line; the framing says itself in plain digits (FORWARD-4).
#[test]
fn a_head_is_written_as_it_is_meant() {
    let mut out = Vec::new();
    request_line(&mut out, &Method::POST, "/a?b=%20");
    field(&mut out, "Host", b"a.example");
    field(&mut out, "x", b"\xe4 ;");
    Encoder::Exact(10).announce(&mut out);
    end_of_fields(&mut out);
    assert_eq!(
        out,
        b"POST /a?b=%20 HTTP/1.1\r\nhost: a.example\r\nx: \xe4 ;\r\ncontent-length: 10\r\n\r\n"
    );
    out.clear();
    Encoder::Chunked.announce(&mut out);
    Encoder::Empty.announce(&mut out);
    assert_eq!(out, b"transfer-encoding: chunked\r\n");
}

fn written(encoder: &mut Encoder, pieces: &[&[u8]]) -> Result<Vec<u8>, WrongLength> {
    let mut out = Vec::new();
    for piece in pieces {
        let behind = encoder.begin_piece(&mut out, piece.len())?;
        out.extend_from_slice(piece);
        out.extend_from_slice(behind);
    }
    encoder.end(&mut out, None, |_| true)?;
    assert!(encoder.is_end());
    Ok(out)
}

/// Pieces become chunks; an empty piece does not end the body.
#[test]
fn pieces_become_chunks() {
    let pieces: [&[u8]; 3] = [b"hello", b"", b"0123456789abcdef"];
    assert_eq!(
        written(&mut Encoder::Chunked, &pieces).unwrap(),
        b"5\r\nhello\r\n10\r\n0123456789abcdef\r\n0\r\n\r\n"
    );
    assert_eq!(written(&mut Encoder::Chunked, &[]).unwrap(), b"0\r\n\r\n");
}

/// A body that is not as long as its head said is a fault, before a byte too many is written.
#[test]
fn a_body_is_as_long_as_announced() {
    assert_eq!(
        written(&mut Encoder::Exact(7), &[b"hello", b"", b"!!"]).unwrap(),
        b"hello!!"
    );
    assert_eq!(
        written(&mut Encoder::Exact(7), &[b"hello"]),
        Err(WrongLength)
    );
    assert_eq!(
        written(&mut Encoder::Exact(7), &[b"hello", b"!!!"]),
        Err(WrongLength)
    );
    assert_eq!(written(&mut Encoder::Empty, &[b"x"]), Err(WrongLength));
    assert_eq!(written(&mut Encoder::Empty, &[]).unwrap(), b"");
}

/// FORWARD-1: trailers go with chunks only, and only those that pass.
#[test]
fn trailers_go_with_chunks_and_those_that_pass() {
    let mut trailers = HeaderMap::new();
    trailers.append("x-sum", HeaderValue::from_static("7"));
    trailers.append("x-sum", HeaderValue::from_static("8"));
    trailers.append("content-length", HeaderValue::from_static("5"));
    let passes = |name: &HeaderName| *name != http::header::CONTENT_LENGTH;
    let mut out = Vec::new();
    Encoder::Chunked
        .end(&mut out, Some(&trailers), passes)
        .unwrap();
    assert_eq!(out, b"0\r\nx-sum: 7\r\nx-sum: 8\r\n\r\n");
    out.clear();
    Encoder::Exact(0)
        .end(&mut out, Some(&trailers), passes)
        .unwrap();
    assert_eq!(out, b"");
}
