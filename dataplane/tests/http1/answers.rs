//! Answers: what the codec makes of them, however they are split, and what hyper's client makes of
//! them.

use http::Method;
use proptest::prelude::*;
use weir_dataplane::http1::{
    MAX_EXTENSIONS, MAX_FIELDS, MAX_HEAD, MAX_INTERIM, MAX_TRAILERS, Malformed,
};

use super::oracle::{self, Answer, NoAnswer};

/// What is expected of an answer: its body and whether the connection is used again, or the fault.
type Expected = Result<(&'static [u8], bool), Malformed>;

const OK: &str = "HTTP/1.1 200 OK\r\n";

/// Answers to a GET whose connection stays open, without the status line `HTTP/1.1 200 OK`.
const ANSWERS: &[(&str, Expected)] = &[
    ("content-length: 5\r\n\r\nhello", Ok((b"hello", true))),
    ("Content-Length:\t5 \r\n\r\nhello", Ok((b"hello", true))),
    ("content-length: 0\r\n\r\n", Ok((b"", true))),
    ("content-length: 0005\r\n\r\nhello", Ok((b"hello", true))),
    // More than was announced: the connection is in a state that nobody knows.
    ("content-length: 5\r\n\r\nhello!", Ok((b"hello", false))),
    (
        "content-length: 0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
        Ok((b"", false)),
    ),
    // Lengths that two readers could read differently.
    (
        "content-length: 5, 5\r\n\r\nhello",
        Err(Malformed::ContentLength),
    ),
    (
        "content-length: 5\r\ncontent-length: 5\r\n\r\nhello",
        Err(Malformed::ContentLength),
    ),
    (
        "content-length: 5\r\ncontent-length: 6\r\n\r\nhello",
        Err(Malformed::ContentLength),
    ),
    (
        "content-length: +5\r\n\r\nhello",
        Err(Malformed::ContentLength),
    ),
    (
        "content-length: -5\r\n\r\nhello",
        Err(Malformed::ContentLength),
    ),
    (
        "content-length: 0x5\r\n\r\nhello",
        Err(Malformed::ContentLength),
    ),
    (
        "content-length: 5 5\r\n\r\nhello",
        Err(Malformed::ContentLength),
    ),
    (
        "content-length: 5;\r\n\r\nhello",
        Err(Malformed::ContentLength),
    ),
    ("content-length: \r\n\r\n", Err(Malformed::ContentLength)),
    (
        "content-length: \u{665}\r\n\r\nhello",
        Err(Malformed::ContentLength),
    ),
    (
        "content-length: 9223372036854775808\r\n\r\n",
        Err(Malformed::ContentLength),
    ),
    (
        "content-length: 18446744073709551621\r\n\r\nhello",
        Err(Malformed::ContentLength),
    ),
    // Chunks.
    (
        "transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        Ok((b"hello", true)),
    ),
    (
        "Transfer-Encoding: Chunked\r\n\r\n0005\r\nhello\r\n00\r\n\r\n",
        Ok((b"hello", true)),
    ),
    (
        "transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        Ok((b"", true)),
    ),
    (
        "transfer-encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
        Ok((b"hello", true)),
    ),
    (
        "transfer-encoding: chunked\r\n\r\nA\r\n0123456789\r\n0\r\n\r\n",
        Ok((b"0123456789", true)),
    ),
    (
        "transfer-encoding: chunked\r\n\r\na\r\n0123456789\r\n0\r\n\r\n",
        Ok((b"0123456789", true)),
    ),
    (
        "transfer-encoding: chunked\r\n\r\n5 \r\nhello\r\n0\t\r\n\r\n",
        Ok((b"hello", true)),
    ),
    (
        "transfer-encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n0;c=\"d e\"\r\n\r\n",
        Ok((b"hello", true)),
    ),
    (
        "transfer-encoding: chunked\r\n\r\n5 ; a\r\nhello\r\n0;\r\n\r\n",
        Ok((b"hello", true)),
    ),
    (
        "transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nx-sum: 7\r\n\r\n",
        Ok((b"hello", true)),
    ),
    (
        "transfer-encoding: chunked\r\n\r\n0\r\n\r\nx",
        Ok((b"", false)),
    ),
    (
        "transfer-encoding: chunked\r\n\r\n0\r\n\r\n\r\n",
        Ok((b"", false)),
    ),
    (
        "transfer-encoding: chunked\r\n\r\n\r\n",
        Err(Malformed::ChunkSize),
    ),
    (
        "transfer-encoding: chunked\r\n\r\n;a\r\n",
        Err(Malformed::ChunkSize),
    ),
    (
        "transfer-encoding: chunked\r\n\r\n 5\r\nhello",
        Err(Malformed::ChunkSize),
    ),
    (
        "transfer-encoding: chunked\r\n\r\n-5\r\nhello",
        Err(Malformed::ChunkSize),
    ),
    (
        "transfer-encoding: chunked\r\n\r\n+5\r\nhello",
        Err(Malformed::ChunkSize),
    ),
    (
        "transfer-encoding: chunked\r\n\r\n0x5\r\nhello",
        Err(Malformed::ChunkSize),
    ),
    (
        "transfer-encoding: chunked\r\n\r\n5 5\r\nhello",
        Err(Malformed::ChunkSize),
    ),
    (
        "transfer-encoding: chunked\r\n\r\n8000000000000000\r\n",
        Err(Malformed::ChunkSize),
    ),
    (
        "transfer-encoding: chunked\r\n\r\n10000000000000005\r\nhello",
        Err(Malformed::ChunkSize),
    ),
    (
        "transfer-encoding: chunked\r\n\r\n5\nhello",
        Err(Malformed::ChunkSize),
    ),
    (
        "transfer-encoding: chunked\r\n\r\n5\r\rhello",
        Err(Malformed::LineEnd),
    ),
    (
        "transfer-encoding: chunked\r\n\r\n5;a\nhello",
        Err(Malformed::LineEnd),
    ),
    (
        "transfer-encoding: chunked\r\n\r\n5;a\0b\r\nhello",
        Err(Malformed::ChunkExtension),
    ),
    (
        "transfer-encoding: chunked\r\n\r\n5\r\nhello0\r\n\r\n",
        Err(Malformed::ChunkEnd),
    ),
    (
        "transfer-encoding: chunked\r\n\r\n5\r\nhello\n0\r\n\r\n",
        Err(Malformed::ChunkEnd),
    ),
    (
        "transfer-encoding: chunked\r\n\r\n5\r\nhello\r0\r\n\r\n",
        Err(Malformed::ChunkEnd),
    ),
    (
        "transfer-encoding: chunked\r\n\r\n0\r\n\rx",
        Err(Malformed::LineEnd),
    ),
    (
        "transfer-encoding: chunked\r\n\r\n0\r\nx-sum: 7\n\r\n",
        Err(Malformed::LineEnd),
    ),
    (
        "transfer-encoding: chunked\r\n\r\n0\r\nx-sum: 7\r\r\n",
        Err(Malformed::LineEnd),
    ),
    (
        "transfer-encoding: chunked\r\n\r\n0\r\nx-sum : 7\r\n\r\n",
        Err(Malformed::Field),
    ),
    (
        "transfer-encoding: chunked\r\n\r\n0\r\nx-sum\r\n\r\n",
        Err(Malformed::Field),
    ),
    (
        "transfer-encoding: chunked\r\n\r\n0\r\na: b\r\n c: d\r\n\r\n",
        Err(Malformed::Field),
    ),
    // Codings that are not one `chunked`.
    (
        "transfer-encoding: gzip\r\n\r\n0\r\n\r\n",
        Err(Malformed::TransferEncoding),
    ),
    (
        "transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        Err(Malformed::TransferEncoding),
    ),
    (
        "transfer-encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
        Err(Malformed::TransferEncoding),
    ),
    (
        "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        Err(Malformed::TransferEncoding),
    ),
    (
        "transfer-encoding: identity\r\ncontent-length: 0\r\n\r\n",
        Err(Malformed::TransferEncoding),
    ),
    (
        "transfer-encoding: \"chunked\"\r\n\r\n0\r\n\r\n",
        Err(Malformed::TransferEncoding),
    ),
    (
        "transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
        Err(Malformed::TransferEncoding),
    ),
    (
        "transfer-encoding: \r\n\r\n",
        Err(Malformed::TransferEncoding),
    ),
    (
        "transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n",
        Err(Malformed::TwoLengths),
    ),
    (
        "content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        Err(Malformed::TwoLengths),
    ),
    // Another name is another field: nobody takes it for the coding.
    (
        "transfer_encoding: chunked\r\ncontent-length: 5\r\n\r\nhello",
        Ok((b"hello", true)),
    ),
    // Lines.
    ("a: b\ncontent-length: 0\r\n\r\n", Err(Malformed::LineEnd)),
    ("content-length: 0\n\r\n", Err(Malformed::LineEnd)),
    ("content-length: 0\r\n\n", Err(Malformed::LineEnd)),
    ("content-length: 0\n\n", Err(Malformed::LineEnd)),
    (
        "a: b\r\n c\r\ncontent-length: 0\r\n\r\n",
        Err(Malformed::Field),
    ),
    (
        "a: b\r\n\tc\r\ncontent-length: 0\r\n\r\n",
        Err(Malformed::Field),
    ),
    (" a: b\r\ncontent-length: 0\r\n\r\n", Err(Malformed::Field)),
    ("content-length : 0\r\n\r\n", Err(Malformed::Field)),
    ("content-length\t: 0\r\n\r\n", Err(Malformed::Field)),
    ("content-length\r\n\r\n", Err(Malformed::Field)),
    (": 0\r\n\r\n", Err(Malformed::Field)),
    ("a: b\0c\r\n\r\n", Err(Malformed::Field)),
    ("a: b\rc\r\n\r\n", Err(Malformed::Field)),
    ("a: b\u{7f}\r\n\r\n", Err(Malformed::Field)),
    ("a\0: b\r\n\r\n", Err(Malformed::Field)),
    ("\u{e4}: b\r\n\r\n", Err(Malformed::Field)),
    ("a: \u{e4}\r\ncontent-length: 0\r\n\r\n", Ok((b"", true))),
    ("a:\r\nb: \t \r\ncontent-length: 0\r\n\r\n", Ok((b"", true))),
    // The connection.
    (
        "connection: close\r\ncontent-length: 0\r\n\r\n",
        Ok((b"", false)),
    ),
    (
        "Connection: foo , CLOSE\r\ncontent-length: 0\r\n\r\n",
        Ok((b"", false)),
    ),
    (
        "connection: close\r\nconnection: keep-alive\r\ncontent-length: 0\r\n\r\n",
        Ok((b"", false)),
    ),
    (
        "connection: keep-alive\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
        Ok((b"", false)),
    ),
    (
        "connection: closed\r\ncontent-length: 0\r\n\r\n",
        Ok((b"", true)),
    ),
    (
        "connection: keep-alive\r\nn: x\r\nconnection: y\r\ncontent-length: 0\r\n\r\n",
        Ok((b"", true)),
    ),
];

/// Whole answers, with the method that was asked.
const WHOLE: &[(&str, &str, Expected)] = &[
    (
        "GET",
        "HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\nhello",
        Ok((b"hello", false)),
    ),
    (
        "GET",
        "HTTP/1.0 200 OK\r\nconnection: Keep-Alive\r\ncontent-length: 5\r\n\r\nhello",
        Ok((b"hello", true)),
    ),
    (
        "GET",
        "HTTP/1.0 200 OK\r\nconnection: keep-alive, \u{e4}\r\ncontent-length: 0\r\n\r\n",
        Ok((b"", false)),
    ),
    (
        "GET",
        "HTTP/1.0 200 OK\r\nconnection: keep-alive, close\r\ncontent-length: 0\r\n\r\n",
        Ok((b"", false)),
    ),
    (
        "GET",
        "HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        Err(Malformed::TransferEncoding),
    ),
    // No body, whatever is announced.
    (
        "HEAD",
        "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n",
        Ok((b"", true)),
    ),
    (
        "HEAD",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
        Ok((b"", true)),
    ),
    ("HEAD", "HTTP/1.1 200 OK\r\n\r\n", Ok((b"", true))),
    (
        "HEAD",
        "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
        Ok((b"", false)),
    ),
    (
        "HEAD",
        "HTTP/1.1 200 OK\r\ncontent-length: 5, 5\r\n\r\n",
        Err(Malformed::ContentLength),
    ),
    ("GET", "HTTP/1.1 204 No Content\r\n\r\n", Ok((b"", true))),
    (
        "GET",
        "HTTP/1.1 204 No Content\r\ncontent-length: 0\r\n\r\n",
        Ok((b"", true)),
    ),
    (
        "GET",
        "HTTP/1.1 204 No Content\r\ncontent-length: 5\r\n\r\n",
        Ok((b"", false)),
    ),
    (
        "GET",
        "HTTP/1.1 204 No Content\r\ntransfer-encoding: chunked\r\n\r\n",
        Ok((b"", false)),
    ),
    (
        "GET",
        "HTTP/1.1 204 No Content\r\n\r\n0\r\n\r\n",
        Ok((b"", false)),
    ),
    (
        "GET",
        "HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n",
        Ok((b"", true)),
    ),
    (
        "GET",
        "HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\nhello",
        Ok((b"", false)),
    ),
    (
        "GET",
        "HTTP/1.1 304 Not Modified\r\ntransfer-encoding: chunked\r\n\r\n",
        Ok((b"", false)),
    ),
    (
        "CONNECT",
        "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n",
        Ok((b"", false)),
    ),
    (
        "CONNECT",
        "HTTP/1.1 403 No\r\ncontent-length: 5\r\n\r\nhello",
        Ok((b"hello", true)),
    ),
    // Interim answers.
    (
        "GET",
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi",
        Ok((b"hi", true)),
    ),
    (
        "GET",
        "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\nHTTP/1.1 102 x\r\n\r\nHTTP/1.1 204 x\r\n\r\n",
        Ok((b"", true)),
    ),
    (
        "GET",
        "HTTP/1.1 100 Continue\r\ncontent-length: 0\r\n\r\nHTTP/1.1 204 x\r\n\r\n",
        Ok((b"", true)),
    ),
    (
        "GET",
        "HTTP/1.1 100 Continue\r\ncontent-length: 2\r\n\r\nhiHTTP/1.1 204 x\r\n\r\n",
        Err(Malformed::InterimBody),
    ),
    (
        "GET",
        "HTTP/1.1 103 x\r\ntransfer-encoding: chunked\r\n\r\n",
        Err(Malformed::InterimBody),
    ),
    // What follows is no longer HTTP.
    (
        "GET",
        "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\n\r\n\u{1}\u{2}",
        Ok((b"", false)),
    ),
    // Status lines.
    (
        "GET",
        "HTTP/1.1 200\r\ncontent-length: 0\r\n\r\n",
        Ok((b"", true)),
    ),
    (
        "GET",
        "HTTP/1.1 200 \r\ncontent-length: 0\r\n\r\n",
        Ok((b"", true)),
    ),
    (
        "GET",
        "HTTP/1.1 200 Very \u{e4}hnlich\r\ncontent-length: 0\r\n\r\n",
        Ok((b"", true)),
    ),
    (
        "GET",
        "HTTP/1.1 999 What\r\ncontent-length: 0\r\n\r\n",
        Ok((b"", true)),
    ),
    (
        "GET",
        "HTTP/1.1 099 What\r\n\r\n",
        Err(Malformed::StatusLine),
    ),
    ("GET", "HTTP/1.1 20 OK\r\n\r\n", Err(Malformed::StatusLine)),
    (
        "GET",
        "HTTP/1.1 2000 OK\r\n\r\n",
        Err(Malformed::StatusLine),
    ),
    (
        "GET",
        "HTTP/1.1  200 OK\r\n\r\n",
        Err(Malformed::StatusLine),
    ),
    (
        "GET",
        "HTTP/1.1\t200 OK\r\n\r\n",
        Err(Malformed::StatusLine),
    ),
    (
        "GET",
        "HTTP/1.1 200 O\0K\r\n\r\n",
        Err(Malformed::StatusLine),
    ),
    ("GET", "HTTP/1.1 200 OK\n\r\n", Err(Malformed::LineEnd)),
    (
        "GET",
        "HTTP/1.1 200 OK\r \n\r\n",
        Err(Malformed::StatusLine),
    ),
    ("GET", "HTTP/1.2 200 OK\r\n\r\n", Err(Malformed::StatusLine)),
    ("GET", "HTTP/2 200\r\n\r\n", Err(Malformed::StatusLine)),
    ("GET", "http/1.1 200 OK\r\n\r\n", Err(Malformed::StatusLine)),
    ("GET", "ICY 200 OK\r\n\r\n", Err(Malformed::StatusLine)),
    (
        "GET",
        "\r\nHTTP/1.1 204 x\r\n\r\n",
        Err(Malformed::StatusLine),
    ),
    (
        "GET",
        "\nHTTP/1.1 204 x\r\n\r\n",
        Err(Malformed::StatusLine),
    ),
    ("GET", "<html>", Err(Malformed::StatusLine)),
    ("GET", "SSH-2.0-OpenSSH\r\n", Err(Malformed::StatusLine)),
];

/// Answers whose connection ends behind them.
const CLOSED: &[(&str, Expected)] = &[
    ("HTTP/1.1 200 OK\r\n\r\nhello", Ok((b"hello", false))),
    ("HTTP/1.0 200 OK\r\n\r\nhello", Ok((b"hello", false))),
    ("HTTP/1.1 200 OK\r\n\r\n", Ok((b"", false))),
    (
        "HTTP/1.1 200 OK\r\nconnection: keep-alive\r\n\r\nhello",
        Ok((b"hello", false)),
    ),
    (
        "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
        Ok((b"hello", false)),
    ),
    ("", Err(Malformed::Truncated)),
    ("HTTP/1.1 200 O", Err(Malformed::Truncated)),
    (
        "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n",
        Err(Malformed::Truncated),
    ),
    ("HTTP/1.1 100 Continue\r\n\r\n", Err(Malformed::Truncated)),
    (
        "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhell",
        Err(Malformed::Truncated),
    ),
    (
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
        Err(Malformed::Truncated),
    ),
    (
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhel",
        Err(Malformed::Truncated),
    ),
    (
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n",
        Err(Malformed::Truncated),
    ),
    (
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\na: b\r\n",
        Err(Malformed::Truncated),
    ),
];

/// All of the above: the method, the bytes, whether the connection ends behind them, what is
/// expected.
fn cases() -> Vec<(Method, Vec<u8>, bool, Expected)> {
    let answers = ANSWERS
        .iter()
        .map(|(rest, expected)| (Method::GET, format!("{OK}{rest}"), false, *expected));
    let whole = WHOLE.iter().map(|(method, answer, expected)| {
        let method = method.parse().unwrap();
        (method, (*answer).to_owned(), false, *expected)
    });
    let closed = CLOSED
        .iter()
        .map(|(answer, expected)| (Method::GET, (*answer).to_owned(), true, *expected));
    answers
        .chain(whole)
        .chain(closed)
        .map(|(method, answer, closed, expected)| (method, answer.into_bytes(), closed, expected))
        .collect()
}

fn verdict(answer: &Result<Answer, NoAnswer>) -> Result<(&[u8], bool), Malformed> {
    match answer {
        Ok(answer) => Ok((&answer.body, answer.reusable)),
        Err(NoAnswer::Malformed(Some(fault))) => Err(*fault),
        Err(other) => panic!("{other:?}"),
    }
}

/// Each answer is the body and the verdict on the connection that the table says, or the fault.
#[test]
fn answers_are_read_as_the_table_says() {
    for (method, answer, closed, expected) in cases() {
        let read = oracle::ours(&answer, &[], &method, closed);
        let text = String::from_utf8_lossy(&answer);
        assert_eq!(verdict(&read), expected, "{method} {text:?}");
    }
}

/// However the bytes are split into reads, the answer is the same: in two parts at every byte, in
/// three around it, and byte by byte.
#[test]
fn no_split_of_the_bytes_changes_an_answer() {
    for (method, answer, closed, _) in cases() {
        let whole = oracle::ours(&answer, &[], &method, closed);
        let every_byte: Vec<usize> = (1..answer.len()).collect();
        let pairs = (1..answer.len()).map(|cut| vec![cut]);
        let triples = (2..answer.len()).map(|cut| vec![cut - 1, cut]);
        for cuts in pairs.chain(triples).chain([every_byte]) {
            oracle::compare_split(&answer, &cuts, &method, closed, &whole);
        }
    }
}

/// hyper's client reads the same answer, and would use the connection again where the codec would;
/// where it is more lenient, the reason is listed (`oracle::compare`).
#[test]
fn hyper_reads_the_same_or_is_more_lenient_for_a_listed_reason() {
    for (method, answer, closed, _) in cases() {
        oracle::compare(&answer, &method, closed);
        oracle::compare(&answer, &method, !closed);
    }
}

/// The head arrives as it was: names, values, order of equal names, reason, and lengths in plain
/// digits (FORWARD-4).
#[test]
fn a_head_is_kept_as_it_came() {
    let answer = b"HTTP/1.1 200 Fine\r\nSet-Cookie: a=1\r\nX: \xe4 \xff\t;\r\nset-cookie: b=2\r\n\
        Content-Length: 0002\r\nempty:\r\n\r\nhi";
    let answer = oracle::ours(answer, &[], &Method::GET, false).unwrap();
    assert_eq!(answer.reason.as_deref(), Some(b"Fine".as_slice()));
    let expected: [(&str, &[u8]); 5] = [
        ("set-cookie", b"a=1"),
        ("set-cookie", b"b=2"),
        ("x", b"\xe4 \xff\t;"),
        ("content-length", b"2"),
        ("empty", b""),
    ];
    let expected = expected.map(|(name, value)| (name.to_owned(), value.to_vec()));
    assert_eq!(answer.fields, expected);
}

/// Trailers come with their names and values; interim answers are told one by one.
#[test]
fn trailers_and_interim_answers_are_given() {
    let answer = b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n\
        HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\nX-Sum: 7\r\nx-sum: 8\r\n\r\n";
    let answer = oracle::ours(answer, &[], &Method::GET, false).unwrap();
    assert_eq!(answer.interim, [103, 100]);
    let expected = [("x-sum", b"7"), ("x-sum", b"8")];
    let expected = expected.map(|(name, value)| (name.to_owned(), value.to_vec()));
    assert_eq!(answer.trailers, expected);
}

/// Each bound holds at its exact size: what just fits is read, one more is a fault, and no reader
/// waits for the rest of it.
#[test]
fn every_bound_is_exact() {
    let read = |answer: &str| {
        let method = Method::GET;
        let whole = oracle::ours(answer.as_bytes(), &[], &method, false);
        let cuts: Vec<usize> = (1..answer.len()).step_by(1 + answer.len() / 97).collect();
        let split = oracle::ours(answer.as_bytes(), &cuts, &method, false);
        assert_eq!(split.is_ok(), whole.is_ok());
        verdict(&whole).map(|_| ())
    };
    let head = |bytes: usize| {
        let empty = format!("{OK}content-length: 0\r\na: \r\n\r\n").len();
        format!(
            "{OK}content-length: 0\r\na: {}\r\n\r\n",
            "x".repeat(bytes - empty)
        )
    };
    assert_eq!(read(&head(MAX_HEAD)), Ok(()));
    assert_eq!(read(&head(MAX_HEAD + 1)), Err(Malformed::HeadTooLarge));
    let endless = format!("{OK}a: {}", "x".repeat(MAX_HEAD));
    assert_eq!(read(&endless), Err(Malformed::HeadTooLarge));

    let fields = |count: usize| {
        format!(
            "{OK}{}content-length: 0\r\n\r\n",
            "a: b\r\n".repeat(count - 1)
        )
    };
    assert_eq!(read(&fields(MAX_FIELDS)), Ok(()));
    assert_eq!(read(&fields(MAX_FIELDS + 1)), Err(Malformed::TooManyFields));

    let interim = |count: u8| {
        let interim = "HTTP/1.1 100 Continue\r\n\r\n".repeat(count.into());
        format!("{interim}HTTP/1.1 204 No Content\r\n\r\n")
    };
    assert_eq!(read(&interim(MAX_INTERIM)), Ok(()));
    assert_eq!(
        read(&interim(MAX_INTERIM + 1)),
        Err(Malformed::TooManyInterim)
    );

    let chunked = |rest: &str| format!("{OK}transfer-encoding: chunked\r\n\r\n{rest}");
    let extension = |bytes: usize| chunked(&format!("1;{}\r\na\r\n0;\r\n\r\n", "x".repeat(bytes)));
    assert_eq!(read(&extension(MAX_EXTENSIONS)), Ok(()));
    assert_eq!(
        read(&extension(MAX_EXTENSIONS + 1)),
        Err(Malformed::ChunkExtension)
    );
    let many = |chunks: usize| chunked(&format!("{}0\r\n\r\n", "1;xx\r\na\r\n".repeat(chunks)));
    assert_eq!(read(&many(MAX_EXTENSIONS / 2)), Ok(()));
    assert_eq!(
        read(&many(MAX_EXTENSIONS / 2 + 1)),
        Err(Malformed::ChunkExtension)
    );
    let blank = chunked(&format!("0{}\r\n\r\n", " ".repeat(MAX_EXTENSIONS + 1)));
    assert_eq!(read(&blank), Err(Malformed::ChunkExtension));

    let trailers = |bytes: usize| {
        chunked(&format!(
            "0\r\na: {}\r\n\r\n",
            "x".repeat(bytes - "a: \r\n\r\n".len())
        ))
    };
    assert_eq!(read(&trailers(MAX_TRAILERS)), Ok(()));
    assert_eq!(
        read(&trailers(MAX_TRAILERS + 1)),
        Err(Malformed::TrailersTooLarge)
    );
    let lines = |count: usize| chunked(&format!("0\r\n{}\r\n", "a: b\r\n".repeat(count)));
    assert_eq!(read(&lines(MAX_FIELDS)), Ok(()));
    assert_eq!(read(&lines(MAX_FIELDS + 1)), Err(Malformed::TooManyFields));
}

/// Pieces of answers, good and bad, to be put together at random.
fn piece() -> impl Strategy<Value = Vec<u8>> {
    let known = prop::sample::select(vec![
        "HTTP/1.1 200 OK\r\n",
        "HTTP/1.0 200 OK\r\n",
        "HTTP/1.1 100 Continue\r\n\r\n",
        "HTTP/1.1 204 No Content\r\n",
        "HTTP/1.1 101 x\r\n",
        "content-length: 5\r\n",
        "Content-Length: 05\r\n",
        "transfer-encoding: chunked\r\n",
        "transfer-encoding: gzip\r\n",
        "connection: close\r\n",
        "connection: keep-alive\r\n",
        "x: y\r\n",
        "\r\n",
        "\n",
        "\r",
        " ",
        "\t",
        ":",
        ";",
        "hello",
        "5\r\nhello\r\n",
        "1;a=b\r\nx\r\n",
        "0\r\n",
        "0\r\n\r\n",
        "ffffffffffffffff\r\n",
    ]);
    prop_oneof![
        8 => known.prop_map(|piece: &str| piece.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 1..4),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    /// Of whatever bytes: every split gives the same, and hyper reads the same or is more lenient
    /// for a listed reason.
    #[test]
    fn any_bytes_are_read_as_hyper_reads_them(
        pieces in prop::collection::vec(piece(), 0..12),
        starts_well in any::<bool>(),
        method in prop::sample::select(vec![Method::GET, Method::HEAD, Method::POST]),
        closed in any::<bool>(),
        cuts in prop::collection::btree_set(0..200usize, 0..6),
    ) {
        let mut answer = pieces.concat();
        if starts_well {
            answer.splice(0..0, OK.bytes());
        }
        oracle::compare(&answer, &method, closed);
        let cuts: Vec<usize> = cuts.into_iter().filter(|cut| *cut < answer.len()).collect();
        let whole = oracle::ours(&answer, &[], &method, closed);
        oracle::compare_split(&answer, &cuts, &method, closed, &whole);
    }

    /// A body in any chunks, with any cuts, comes out as it went in, and the connection is used
    /// again.
    #[test]
    fn any_chunks_come_out_whole(
        chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 0..12),
        cuts in prop::collection::btree_set(0..600usize, 0..12),
    ) {
        let mut answer = format!("{OK}transfer-encoding: chunked\r\n\r\n").into_bytes();
        for chunk in &chunks {
            answer.extend(format!("{:X};n\r\n", chunk.len()).bytes());
            answer.extend(chunk);
            answer.extend(b"\r\n");
        }
        answer.extend(b"0\r\n\r\n");
        let cuts: Vec<usize> = cuts.into_iter().filter(|cut| *cut < answer.len()).collect();
        let read = oracle::ours(&answer, &cuts, &Method::GET, false).unwrap();
        prop_assert_eq!(read.body, chunks.concat());
        prop_assert!(read.reusable);
    }
}
