//! Requests: what the parser and the decoder make of the bytes of a connection, however they are
//! cut, and that hyper's server makes the same of them or less for a named reason.

use std::collections::BTreeSet;

use proptest::prelude::*;
use weir_dataplane::http1::{MAX_EXTENSIONS, MAX_FIELDS, MAX_HEAD, MAX_TRAILERS};

use super::agreement::{compare, compare_cut};
use super::requests_read::read;

/// A request that follows another one: it stands alone, or nothing of it is a request.
const NEXT: &str = "GET /next HTTP/1.1\r\nHost: b\r\n\r\n";

/// Bytes of a connection, and what they are read as (`requests_read::Connection`).
type Case = (&'static str, &'static str);

/// Whole requests, one after the other.
const REQUESTS: &[Case] = &[
    ("", ""),
    ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", "GET /"),
    ("GET /a?b=c HTTP/1.1\r\nhost:a\r\n\r\n", "GET /a?b=c"),
    (
        "GET / HTTP/1.1\r\nHost: a\r\n\r\nGET /b HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /; GET /b",
    ),
    (
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhelloGET /b HTTP/1.1\r\nHost: a\r\n\r\n",
        "POST / hello; GET /b",
    ),
    (
        "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi",
        "GET / hi",
    ),
    ("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n", "HEAD /"),
    ("get / HTTP/1.1\r\nHost: a\r\n\r\n", "get /"),
    (
        "!#$%&'*+-.^_`|~09azAZ / HTTP/1.1\r\nHost: a\r\n\r\n",
        "!#$%&'*+-.^_`|~09azAZ /",
    ),
    // Empty lines in front (RFC 9112 §2.2).
    ("\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", "GET /"),
    ("\r\n\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", "GET /"),
    (
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx\r\nGET /b HTTP/1.1\r\nHost: a\r\n\r\n\r\n",
        "POST / x; GET /b",
    ),
    ("\rGET / HTTP/1.1\r\nHost: a\r\n\r\n", "400 Syntax"),
    (" GET / HTTP/1.1\r\nHost: a\r\n\r\n", "400 Syntax"),
    // Not whole.
    ("\r\n", ""),
    ("GET / HTTP/1.1\r\nHost: a\r\n", ""),
    ("GET / HTTP/1.1\r\nHost: a\r\n\r\nGET", "GET /"),
    (
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhell",
        "POST / hell; ...",
    ),
    (
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n",
        "POST /; ...",
    ),
    (
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhe",
        "POST / he; ...",
    ),
    (
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n",
        "POST / hello; ...",
    ),
    // Another protocol.
    ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "400 Syntax"),
    (
        "GET / HTTP/1.1\r\nContent-Length: x\r\n\r\nPRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "400 Framing",
    ),
    ("\x16\x03\x01\x02\0\x01\0\x01", "400 Syntax"),
    (
        "PROXY TCP4 198.51.100.1 198.51.100.2 1 80\r\n",
        "400 Syntax",
    ),
    ("SSH-2.0-OpenSSH\r\n", "400 Syntax"),
    ("nonsense\r\n\r\n", "400 Syntax"),
];

/// Targets, and what goes on of them: behind `GET` and before `HTTP/1.1`, or behind another method.
const TARGETS: &[(&str, &str, &str)] = &[
    ("GET", "/", "GET /"),
    ("GET", "//a/b", "GET //a/b"),
    (
        "GET",
        "/a/../b/./%2e%2E//;x=y?c?d/../",
        "GET /a/../b/./%2e%2E//;x=y?c?d/../",
    ),
    ("GET", "/?", "GET /?"),
    ("GET", "/a%zz%", "GET /a%zz%"),
    ("GET", "/a#b", "GET /a"),
    ("GET", "/a?b#c?d", "GET /a?b"),
    ("GET", "/{a}\"|^", "GET /{a}\"|^"),
    ("GET", "/a?{b}", "GET /a?{b}"),
    ("GET", "/a?\"", "400 Syntax"),
    ("GET", "/a\\..\\b", "GET /a\\..\\b"),
    ("GET", "/<a>", "400 Syntax"),
    ("GET", "/a`b", "400 Syntax"),
    ("GET", "/\u{e9}", "GET /\u{e9}"),
    ("GET", "http://b/c?d", "GET /c?d"),
    ("GET", "http://b", "GET /"),
    ("GET", "http://b?c", "GET /?c"),
    ("GET", "http://b#c", "GET /"),
    ("GET", "HTTP://B/c", "GET /c"),
    ("GET", "https://b:443/c", "GET /c"),
    ("GET", "other+scheme.1://b/c", "GET /c"),
    ("GET", "http://user:secret@b:81/c", "GET /c"),
    ("GET", "http://[2001:db8::1]:81/c", "GET /c"),
    ("GET", "http://b//c/../d", "GET //c/../d"),
    ("GET", "http:///c", "400 Syntax"),
    ("GET", "http://:80/c", "400 Host"),
    ("GET", "http://user@/c", "400 Syntax"),
    ("GET", "http:/c", "400 Syntax"),
    ("GET", "c/d", "400 Syntax"),
    ("GET", "?a", "400 Syntax"),
    ("GET", "#a", "400 Syntax"),
    ("GET", "*", "400 Target"),
    ("GET", "a:80", "400 Target"),
    ("GET", "localhost", "400 Target"),
    ("GET", "*a", "400 Target"),
    ("GET", "/*", "GET /*"),
    ("OPTIONS", "*", "OPTIONS *"),
    ("OPTIONS", "http://b", "OPTIONS *"),
    ("OPTIONS", "http://b#c", "OPTIONS *"),
    ("OPTIONS", "http://b/", "OPTIONS /"),
    ("OPTIONS", "http://b?c", "OPTIONS /?c"),
    ("OPTIONS", "/", "OPTIONS /"),
    ("OPTIONS", "a:80", "400 Target"),
    ("CONNECT", "a:80", "CONNECT "),
    ("CONNECT", "a", "CONNECT "),
    ("CONNECT", "[2001:db8::1]:443", "CONNECT "),
    ("CONNECT", "user@a:80", "CONNECT "),
    ("CONNECT", ":80", "400 Host"),
    ("CONNECT", "/a", "CONNECT /a"),
    ("CONNECT", "http://a/b", "CONNECT /b"),
    ("CONNECT", "*", "400 Target"),
    ("connect", "a:80", "400 Target"),
    ("options", "*", "400 Target"),
];

/// Request lines that are none.
const REQUEST_LINES: &[&str] = &[
    "GET  / HTTP/1.1",
    "GET /  HTTP/1.1",
    "GET / HTTP/1.1 ",
    "GET /\tHTTP/1.1",
    "GET\t/ HTTP/1.1",
    "GET / a HTTP/1.1",
    "GET /",
    "GET / ",
    "GET",
    "GET HTTP/1.1",
    "/ HTTP/1.1",
    "GET / HTTP/0.9",
    "GET / HTTP/1.2",
    "GET / HTTP/1.10",
    "GET / HTTP/1.",
    "GET / HTTP/1",
    "GET / HTTP/2",
    "GET / HTTP/2.0",
    "GET / HTTP/3.0",
    "GET / HTTP/+1.1",
    "GET / HTTP /1.1",
    "GET / http/1.1",
    "GET / HTTPS/1.1",
    "GET / ICAP/1.0",
    "G(T / HTTP/1.1",
    "GET: / HTTP/1.1",
    "G\0T / HTTP/1.1",
    "GET /\0 HTTP/1.1",
    "GET /\x7f HTTP/1.1",
    "GET /\x0b HTTP/1.1",
    "GET /\rHTTP/1.1",
    "GET / HTTP/1.1\r",
    "GET / HTTP/1.1\rX: y",
    "GET http://a:80:80/ HTTP/1.1",
    "GET http://a b/ HTTP/1.1",
];

/// Fields, behind the line `GET / HTTP/1.1` and, but in those of `HOSTS`, a `Host: a`.
const FIELDS: &[Case] = &[
    ("X:y\r\n", "GET /"),
    ("X: \t y \t \r\n", "GET /"),
    ("X:\r\n", "GET /"),
    ("X: \u{e9}\u{ff}\r\n", "GET /"),
    ("x_under.score!: y\r\n", "GET /"),
    ("X: a\tb\r\n", "GET /"),
    ("X : y\r\n", "400 Syntax"),
    ("X\t: y\r\n", "400 Syntax"),
    ("X Y: z\r\n", "400 Syntax"),
    (" X: y\r\n", "400 Syntax"),
    ("\tX: y\r\n", "400 Syntax"),
    (": y\r\n", "400 Syntax"),
    ("nonsense\r\n", "400 Syntax"),
    ("X\0: y\r\n", "400 Syntax"),
    ("X\u{e9}: y\r\n", "400 Syntax"),
    ("\"X\": y\r\n", "400 Syntax"),
    ("X: a\0b\r\n", "400 Syntax"),
    ("X: a\x0bb\r\n", "400 Syntax"),
    ("X: a\x1b[31m\r\n", "400 Syntax"),
    ("X: a\x7f\r\n", "400 Syntax"),
    ("X: a\rb\r\n", "400 Syntax"),
    ("X: a\r\r\n", "400 Syntax"),
    ("X: a\r\n\r", "400 Syntax"),
    // Folded lines (RFC 9112 §5.2).
    ("X: a\r\n b\r\n", "400 Syntax"),
    ("X: a\r\n\tb\r\n", "400 Syntax"),
    ("X: a\r\n \r\n", "400 Syntax"),
    ("X:\r\n a\r\n", "400 Syntax"),
    // As many readers do, hyper among them: LF alone ends a line (RFC 9112 §2.2).
    ("X: a\n", "GET /"),
    ("X: a\nContent-Length: 0\n", "GET /"),
    // Whether the connection is kept (RFC 9112 §9.3).
    ("Connection: close\r\n", "GET / close"),
    ("Connection: CLOSE\r\n", "GET / close"),
    ("Connection: keep-alive\r\n", "GET /"),
    ("Connection: keep-alive, close\r\n", "GET / close"),
    ("Connection: close, keep-alive\r\n", "GET / close"),
    (
        "Connection: keep-alive\r\nConnection: close\r\n",
        "GET / close",
    ),
    (
        "Connection: close\r\nConnection: keep-alive\r\n",
        "GET / close",
    ),
    ("Connection: x,\tclose\t,y\r\n", "GET / close"),
    ("Connection: ,,close\r\n", "GET / close"),
    ("Connection: closed\r\n", "GET /"),
    ("Connection: \"close\"\r\n", "GET /"),
    ("Connection: close;x\r\n", "GET /"),
    ("Connection:\r\n", "GET /"),
    ("Connection: upgrade\r\nUpgrade: websocket\r\n", "GET /"),
    // hyper does not read such a line.
    ("Connection: close, \u{e9}\r\n", "GET / close"),
    ("Connection: \u{e9}\r\nConnection: close\r\n", "GET / close"),
    ("Proxy-Connection: close\r\n", "GET /"),
    // Expectations.
    ("Expect: 100-continue\r\n", "GET /"),
    (
        "Expect: 100-Continue\r\nContent-Length: 2\r\n",
        "GET /; ...",
    ),
    ("Expect: nonsense\r\n", "GET /"),
    (
        "Expect: 100-continue\r\nExpect: x\r\nContent-Length: 2\r\n",
        "GET /; ...",
    ),
    (
        "Sec-Fetch-Site: cross-site\r\nX-Forwarded-For: b\r\nX-Forwarded-Proto: https\r\nX-Request-ID: c\r\nTE: trailers\r\n",
        "GET /",
    ),
];

/// What stands where `Host` does.
const HOSTS: &[Case] = &[
    ("Host:\r\n", "GET /"),
    ("hOsT: a\r\n", "GET /"),
    ("Host: [2001:db8::1]:80\r\n", "GET /"),
    ("Host: a.b-c_d~e:80\r\n", "GET /"),
    ("Host: %61\r\n", "GET /"),
    ("", "400 Host"),
    ("Host: a\r\nHost: a\r\n", "400 Host"),
    ("Host: a\r\nHost: b\r\n", "400 Host"),
    ("Host: a\r\nHost:\r\n", "400 Host"),
    ("Host: a/b\r\n", "400 Host"),
    ("Host: user@a\r\n", "400 Host"),
    ("Host: a b\r\n", "400 Host"),
    ("Host: a\tb\r\n", "400 Host"),
    ("Host: a?b\r\n", "400 Host"),
    ("Host: a#b\r\n", "400 Host"),
    ("Host: a\\b\r\n", "400 Host"),
    ("Host: http://a\r\n", "400 Host"),
    ("Host: \u{e9}\r\n", "400 Host"),
    ("Host: \"a\"\r\n", "400 Host"),
    ("Host : a\r\n", "400 Syntax"),
    ("Host\r\n: a\r\n", "400 Syntax"),
    ("X-Host: a\r\n", "400 Host"),
];

/// What frames a body, behind the line `POST / HTTP/1.1` and `Host: a`, and what follows the head.
const FRAMING: &[(&str, &str, &str)] = &[
    ("Content-Length: 5\r\n", "hello", "POST / hello"),
    ("Content-Length: 0\r\n", "", "POST /"),
    ("Content-Length: 0005\r\n", "hello", "POST / hello"),
    ("Content-Length:\t5 \r\n", "hello", "POST / hello"),
    (
        "Content-Length: 5\r\nContent-Length: 5\r\n",
        "hello",
        "POST / hello",
    ),
    (
        "Content-Length: 5\r\nContent-Length: 05\r\n",
        "hello",
        "POST / hello",
    ),
    (
        "Transfer-Encoding: chunked\r\n",
        "5\r\nhello\r\n0\r\n\r\n",
        "POST / hello",
    ),
    (
        "tRANSFER-eNCODING: cHUNKED\r\n",
        "5\r\nhello\r\n0\r\n\r\n",
        "POST / hello",
    ),
    (
        "Transfer-Encoding: \t chunked \t\r\n",
        "0\r\n\r\n",
        "POST /",
    ),
    (
        "X: y\nTransfer-Encoding: chunked\r\n",
        "0\r\n\r\n",
        "POST /",
    ),
    (
        "Transfer-Encoding: chunked\nX: y\r\n",
        "0\r\n\r\n",
        "POST /",
    ),
    // CL.CL
    (
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "hello!",
        "400 Framing",
    ),
    (
        "Content-Length: 6\r\nContent-Length: 5\r\n",
        "hello!",
        "400 Framing",
    ),
    (
        "Content-Length: 5\r\nX: y\r\nContent-Length: 0\r\n",
        "hello",
        "400 Framing",
    ),
    ("Content-Length: 5, 5\r\n", "hello", "400 Framing"),
    ("Content-Length: 5,6\r\n", "hello", "400 Framing"),
    (
        "Content-Length: 5\r\nContent-Length:\r\n",
        "hello",
        "400 Framing",
    ),
    // Lengths that are none.
    ("Content-Length:\r\n", "hello", "400 Framing"),
    ("Content-Length: +5\r\n", "hello", "400 Framing"),
    ("Content-Length: -5\r\n", "hello", "400 Framing"),
    ("Content-Length: -0\r\n", "", "400 Framing"),
    ("Content-Length: 0x5\r\n", "hello", "400 Framing"),
    ("Content-Length: 5 5\r\n", "hello", "400 Framing"),
    ("Content-Length: 5;\r\n", "hello", "400 Framing"),
    ("Content-Length: 5.0\r\n", "hello", "400 Framing"),
    ("Content-Length: 1e1\r\n", "hello", "400 Framing"),
    ("Content-Length: 1_0\r\n", "hello", "400 Framing"),
    ("Content-Length: \"5\"\r\n", "hello", "400 Framing"),
    ("Content-Length: \u{665}\r\n", "hello", "400 Framing"),
    ("Content-Length: x\r\n", "hello", "400 Framing"),
    ("Content-Length: 5\0\r\n", "hello", "400 Syntax"),
    ("Content-Length: \x0b5\r\n", "hello", "400 Syntax"),
    ("Content-Length : 5\r\n", "hello", "400 Syntax"),
    ("Content-Length: 5\r\n ,6\r\n", "hello", "400 Syntax"),
    (
        "Content-Length: 9223372036854775807\r\n",
        "x",
        "POST / x; ...",
    ),
    (
        "Content-Length: 9223372036854775808\r\n",
        "x",
        "400 Framing",
    ),
    (
        "Content-Length: 18446744073709551613\r\n",
        "x",
        "400 Framing",
    ),
    (
        "Content-Length: 18446744073709551615\r\n",
        "x",
        "400 Framing",
    ),
    (
        "Content-Length: 18446744073709551616\r\n",
        "x",
        "400 Framing",
    ),
    (
        "Content-Length: 18446744073709551621\r\n",
        "hello",
        "400 Framing",
    ),
    (
        "Content-Length: 99999999999999999999999\r\n",
        "x",
        "400 Framing",
    ),
    // CL.TE and TE.CL
    (
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "0\r\n\r\n",
        "400 Framing",
    ),
    (
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        "0\r\n\r\n",
        "400 Framing",
    ),
    (
        "Content-Length: 0\r\nTransfer-Encoding: chunked\r\n",
        "0\r\n\r\n",
        "400 Framing",
    ),
    (
        "Transfer-Encoding: chunked\r\nContent-Length: x\r\n",
        "0\r\n\r\n",
        "400 Framing",
    ),
    (
        "Content-Length: x\r\nTransfer-Encoding: chunked\r\n",
        "0\r\n\r\n",
        "400 Framing",
    ),
    (
        "Transfer-Encoding: chunked\nContent-Length: 5\r\n",
        "0\r\n\r\n",
        "400 Framing",
    ),
    (
        "Content-Length: 5\r\nTransfer-Encoding: identity\r\n",
        "hello",
        "400 Framing",
    ),
    (
        "Content-Length: 5\r\nTransfer-Encoding:\r\n",
        "hello",
        "400 Framing",
    ),
    // Names that other readers take for these: a length alone is a length.
    (
        "Content-Length: 5\r\nTransfer_Encoding: chunked\r\n",
        "hello",
        "POST / hello",
    ),
    (
        "Content-Length: 5\r\nTransfer.Encoding: chunked\r\n",
        "hello",
        "POST / hello",
    ),
    (
        "Content-Length: 5\r\nX-Transfer-Encoding: chunked\r\n",
        "hello",
        "POST / hello",
    ),
    (
        "Content-Length: 5\r\nTransfer-Encodings: chunked\r\n",
        "hello",
        "POST / hello",
    ),
    (
        "Content-Length: 5\r\nContent_Length: 6\r\n",
        "hello",
        "POST / hello",
    ),
    (
        "Content-Length: 5\r\nX: Transfer-Encoding: chunked\r\n",
        "hello",
        "POST / hello",
    ),
    (
        "Content-Length: 5\r\nTransfer-Encoding : chunked\r\n",
        "0\r\n\r\n",
        "400 Syntax",
    ),
    (
        "Content-Length: 5\r\nTransfer-Encoding\t: chunked\r\n",
        "0\r\n\r\n",
        "400 Syntax",
    ),
    (
        "Content-Length: 5\r\nTransfer-Encoding\0: chunked\r\n",
        "0\r\n\r\n",
        "400 Syntax",
    ),
    (
        "Content-Length: 5\r\n Transfer-Encoding: chunked\r\n",
        "0\r\n\r\n",
        "400 Syntax",
    ),
    (
        "Content-Length: 5\r\nTransfer-Encoding\r\n: chunked\r\n",
        "0\r\n\r\n",
        "400 Syntax",
    ),
    (
        "Content-Length: 5\r\nX: y\rTransfer-Encoding: chunked\r\n",
        "0\r\n\r\n",
        "400 Syntax",
    ),
    (
        "Content-Length: 5\r\nX: y\n\rTransfer-Encoding: chunked\r\n",
        "0\r\n\r\n",
        "400 Syntax",
    ),
    (
        "Content-Length: 5\r\nTransfer-Encoding chunked\r\n",
        "0\r\n\r\n",
        "400 Syntax",
    ),
    // TE.TE
    (
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "0\r\n\r\n",
        "400 Framing",
    ),
    (
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        "0\r\n\r\n",
        "400 Framing",
    ),
    (
        "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n",
        "0\r\n\r\n",
        "400 Framing",
    ),
    (
        "Transfer-Encoding: chunked\r\nTransfer-Encoding:\r\n",
        "0\r\n\r\n",
        "400 Framing",
    ),
    (
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n",
        "0\r\n\r\n",
        "400 Framing",
    ),
    (
        "Transfer-Encoding: chunked, chunked\r\n",
        "0\r\n\r\n",
        "400 Framing",
    ),
    (
        "Transfer-Encoding: chunked, identity\r\n",
        "0\r\n\r\n",
        "400 Framing",
    ),
    (
        "Transfer-Encoding: identity, chunked\r\n",
        "0\r\n\r\n",
        "400 Framing",
    ),
    (
        "Transfer-Encoding: gzip, chunked\r\n",
        "0\r\n\r\n",
        "400 Framing",
    ),
    (
        "Transfer-Encoding: ,chunked\r\n",
        "0\r\n\r\n",
        "400 Framing",
    ),
    (
        "Transfer-Encoding: chunked,\r\n",
        "0\r\n\r\n",
        "400 Framing",
    ),
    ("Transfer-Encoding: identity\r\n", "hello", "400 Framing"),
    ("Transfer-Encoding: gzip\r\n", "hello", "400 Framing"),
    (
        "Transfer-Encoding: xchunked\r\n",
        "0\r\n\r\n",
        "400 Framing",
    ),
    (
        "Transfer-Encoding: x chunked\r\n",
        "0\r\n\r\n",
        "400 Framing",
    ),
    (
        "Transfer-Encoding: chunkedx\r\n",
        "0\r\n\r\n",
        "400 Framing",
    ),
    ("Transfer-Encoding: chunk\r\n", "0\r\n\r\n", "400 Framing"),
    (
        "Transfer-Encoding: \"chunked\"\r\n",
        "0\r\n\r\n",
        "400 Framing",
    ),
    (
        "Transfer-Encoding: 'chunked'\r\n",
        "0\r\n\r\n",
        "400 Framing",
    ),
    (
        "Transfer-Encoding: chunked;q=1\r\n",
        "0\r\n\r\n",
        "400 Framing",
    ),
    (
        "Transfer-Encoding: chun\u{212a}ed\r\n",
        "0\r\n\r\n",
        "400 Framing",
    ),
    ("Transfer-Encoding:\r\n", "0\r\n\r\n", "400 Framing"),
    (
        "Transfer-Encoding: \x0bchunked\r\n",
        "0\r\n\r\n",
        "400 Syntax",
    ),
    (
        "Transfer-Encoding: chunked\x0b\r\n",
        "0\r\n\r\n",
        "400 Syntax",
    ),
    (
        "Transfer-Encoding: \x0cchunked\r\n",
        "0\r\n\r\n",
        "400 Syntax",
    ),
    (
        "Transfer-Encoding: chunked\0\r\n",
        "0\r\n\r\n",
        "400 Syntax",
    ),
    (
        "Transfer-Encoding:\r\n chunked\r\n",
        "0\r\n\r\n",
        "400 Syntax",
    ),
    (
        "Transfer-Encoding: \u{a0}chunked\r\n",
        "0\r\n\r\n",
        "400 Framing",
    ),
];

/// Chunks, behind a head that says that they follow.
const CHUNKS: &[Case] = &[
    ("0\r\n\r\n", "POST /"),
    ("5\r\nhello\r\n0\r\n\r\n", "POST / hello"),
    ("2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n", "POST / hello"),
    ("A\r\n0123456789\r\n0\r\n\r\n", "POST / 0123456789"),
    (
        "a\r\n0\r\n\r\n\r\n\r\nx\r\n0\r\n\r\n",
        "POST / 0\\r\\n\\r\\n\\r\\n\\r\\nx",
    ),
    ("5;a=b\r\nhello\r\n0;c\r\n\r\n", "POST / hello"),
    ("5 \t\r\nhello\r\n0\t\r\n\r\n", "POST / hello"),
    ("5 ;a\r\nhello\r\n0\r\n\r\n", "POST / hello"),
    ("5;a=\"b;\u{e9}\"\r\nhello\r\n0\r\n\r\n", "POST / hello"),
    ("0000000000000005\r\nhello\r\n0\r\n\r\n", "POST / hello"),
    ("5\r\nhello\r\n0\r\nX: y\r\n\r\n", "POST / hello"),
    (
        "0\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\nHost: b\r\n\r\n",
        "POST /",
    ),
    ("0\r\n\r\n\r\n", "POST /"),
    // Sizes that are none.
    ("\r\nhello\r\n0\r\n\r\n", "POST /; ChunkSize"),
    (" 5\r\nhello\r\n0\r\n\r\n", "POST /; ChunkSize"),
    ("+5\r\nhello\r\n0\r\n\r\n", "POST /; ChunkSize"),
    ("-5\r\nhello\r\n0\r\n\r\n", "POST /; ChunkSize"),
    ("0x5\r\nhello\r\n0\r\n\r\n", "POST /; ChunkSize"),
    ("5_0\r\nhello\r\n0\r\n\r\n", "POST /; ChunkSize"),
    ("5 5\r\nhello\r\n0\r\n\r\n", "POST /; ChunkSize"),
    ("5,5\r\nhello\r\n0\r\n\r\n", "POST /; ChunkSize"),
    ("5.\r\nhello\r\n0\r\n\r\n", "POST /; ChunkSize"),
    ("g\r\nhello\r\n0\r\n\r\n", "POST /; ChunkSize"),
    (";a\r\nhello\r\n0\r\n\r\n", "POST /; ChunkSize"),
    ("\u{665}\r\nhello\r\n0\r\n\r\n", "POST /; ChunkSize"),
    ("5\0\r\nhello\r\n0\r\n\r\n", "POST /; ChunkSize"),
    ("5\x0b\r\nhello\r\n0\r\n\r\n", "POST /; ChunkSize"),
    ("100000005\r\nhello", "POST / hello; ..."),
    ("7fffffffffffffff\r\nhello", "POST / hello; ..."),
    (
        "8000000000000000\r\nhello\r\n0\r\n\r\n",
        "POST /; ChunkSize",
    ),
    (
        "fffffffffffffffe\r\nhello\r\n0\r\n\r\n",
        "POST /; ChunkSize",
    ),
    (
        "ffffffffffffffff\r\nhello\r\n0\r\n\r\n",
        "POST /; ChunkSize",
    ),
    (
        "10000000000000005\r\nhello\r\n0\r\n\r\n",
        "POST /; ChunkSize",
    ),
    (
        "00000000000000005\r\nhello\r\n0\r\n\r\n",
        "POST /; ChunkSize",
    ),
    ("00000000000000000\r\n\r\n", "POST /; ChunkSize"),
    // Ends of lines and of chunks.
    ("5\nhello\r\n0\r\n\r\n", "POST /; ChunkSize"),
    ("5\rhello\r\n0\r\n\r\n", "POST /; LineEnd"),
    ("5\r\rhello\r\n0\r\n\r\n", "POST /; LineEnd"),
    ("5;a\nhello\r\n0\r\n\r\n", "POST /; LineEnd"),
    ("5;a=b\nX\r\nhello\r\n0\r\n\r\n", "POST /; LineEnd"),
    ("5;a\rX\r\nhello\r\n0\r\n\r\n", "POST /; LineEnd"),
    ("5;\0\r\nhello\r\n0\r\n\r\n", "POST /; ChunkExtension"),
    ("5\r\nhello0\r\n\r\n", "POST /; ChunkEnd"),
    ("5\r\nhello\n0\r\n\r\n", "POST /; ChunkEnd"),
    ("5\r\nhello\r0\r\n\r\n", "POST /; ChunkEnd"),
    ("5\r\nhello!\r\n0\r\n\r\n", "POST /; ChunkEnd"),
    ("5\r\nhello\r\n\r\n0\r\n\r\n", "POST /; ChunkSize"),
    ("0\r\n\n", "POST /; LineEnd"),
    ("0\n\r\n", "POST /; ChunkSize"),
    ("0\n\n", "POST /; ChunkSize"),
    ("0\r\r\n", "POST /; LineEnd"),
    ("0\r\n\r\r\n", "POST /; LineEnd"),
    // Trailers.
    ("0\r\nX: y\n\r\n", "POST /; LineEnd"),
    ("0\r\nX: y\r\r\n", "POST /; LineEnd"),
    ("0\r\nX: y\r\n z\r\n\r\n", "POST /; Field"),
    ("0\r\n X: y\r\n\r\n", "POST /; Field"),
    ("0\r\nX : y\r\n\r\n", "POST /; Field"),
    ("0\r\nnonsense\r\n\r\n", "POST /; Field"),
    ("0\r\nX: \0\r\n\r\n", "POST /; Field"),
    ("0\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", "POST /; Field"),
];

/// Heads of HTTP/1.0, and others whose line is their own.
const OTHERS: &[Case] = &[
    ("GET / HTTP/1.0\r\n\r\n", "GET / close"),
    ("GET / HTTP/1.0\r\nHost: a\r\n\r\n", "GET / close"),
    ("GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n", "400 Host"),
    ("GET / HTTP/1.0\r\nHost: a/b\r\n\r\n", "400 Host"),
    ("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", "GET /"),
    (
        "GET / HTTP/1.0\r\nConnection: Keep-Alive, x\r\n\r\n",
        "GET /",
    ),
    (
        "GET / HTTP/1.0\r\nConnection: keep-alive, close\r\n\r\n",
        "GET / close",
    ),
    (
        "GET / HTTP/1.0\r\nConnection: keep-alive\r\nConnection: close\r\n\r\n",
        "GET / close",
    ),
    (
        "GET / HTTP/1.0\r\nConnection: close\r\nConnection: keep-alive\r\n\r\n",
        "GET / close",
    ),
    // Neither reads a `keep-alive` in such a line.
    (
        "GET / HTTP/1.0\r\nConnection: keep-alive, \u{e9}\r\n\r\n",
        "GET / close",
    ),
    (
        "POST / HTTP/1.0\r\nContent-Length: 5\r\n\r\nhello",
        "POST / hello close",
    ),
    (
        "POST / HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nhi",
        "POST / hi",
    ),
    ("POST / HTTP/1.0\r\n\r\nhello", "POST / close"),
    (
        "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "400 Framing",
    ),
    (
        "POST / HTTP/1.0\r\nTransfer-Encoding: identity\r\n\r\n",
        "400 Framing",
    ),
    (
        "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\nhello",
        "400 Framing",
    ),
    (
        "POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\nx",
        "POST / x close",
    ),
    ("GET http://b/c HTTP/1.0\r\n\r\n", "GET /c close"),
    // Every line ends with LF alone.
    ("GET / HTTP/1.1\nHost: a\n\n", "GET /"),
    (
        "POST / HTTP/1.1\nHost: a\nContent-Length: 2\n\nhi",
        "POST / hi",
    ),
    ("GET / HTTP/1.1\r\nHost: a\r\n\n", "GET /"),
    ("GET / HTTP/1.1\r\nHost: a\n\r\n", "GET /"),
    ("GET / HTTP/1.1\rHost: a\r\r", "400 Syntax"),
    // An absolute target names the host, whatever `Host` says (RFC 9112 §3.2.2); but there is one.
    ("GET http://b/c HTTP/1.1\r\nHost: a\r\n\r\n", "GET /c"),
    ("GET http://b/c HTTP/1.1\r\nHost:\r\n\r\n", "GET /c"),
    (
        "GET http://b/c HTTP/1.1\r\nHost: b\r\nHost: b\r\n\r\n",
        "400 Host",
    ),
    (
        "GET http://b/c HTTP/1.0\r\nHost: b\r\nHost: b\r\n\r\n",
        "400 Host",
    ),
    ("GET http://b/c HTTP/1.1\r\nHost: a b\r\n\r\n", "400 Host"),
    ("GET http://b/c HTTP/1.1\r\n\r\n", "400 Host"),
    (
        "CONNECT b:80 HTTP/1.1\r\nHost: b\r\nHost: a\r\n\r\n",
        "400 Host",
    ),
    // Behind the last request nothing is read.
    (
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\nnonsense\0",
        "GET / close",
    ),
    (
        "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 1\r\n\r\nxGET",
        "POST / x close",
    ),
    // HTTP/0.9
    ("GET /\r\n\r\n", "400 Syntax"),
    ("GET /\n", "400 Syntax"),
];

/// All of the above, and what each is read as with another request behind it.
fn cases() -> Vec<(Vec<u8>, String)> {
    let head = |line: &str, fields: &str| format!("{line}\r\nHost: a\r\n{fields}\r\n");
    let own = |(bytes, found): &Case| ((*bytes).to_owned(), (*found).to_owned());
    let targets = TARGETS
        .iter()
        .map(|(method, target, found)| (head(&format!("{method} {target} HTTP/1.1"), ""), *found));
    let lines = REQUEST_LINES
        .iter()
        .map(|line| (head(line, ""), "400 Syntax"));
    let fields = FIELDS
        .iter()
        .map(|(fields, found)| (head("GET / HTTP/1.1", fields), *found));
    let hosts = HOSTS
        .iter()
        .map(|(host, found)| (format!("GET / HTTP/1.1\r\n{host}\r\n"), *found));
    let framing = FRAMING
        .iter()
        .map(|(fields, body, found)| (head("POST / HTTP/1.1", fields) + body, *found));
    let chunks = CHUNKS.iter().map(|(body, found)| {
        let fields = "Transfer-Encoding: chunked\r\n";
        (head("POST / HTTP/1.1", fields) + body, *found)
    });
    let built = (targets.chain(lines).chain(fields).chain(hosts))
        .chain(framing)
        .chain(chunks)
        .map(|(bytes, found)| (bytes, found.to_owned()));
    let own = REQUESTS.iter().chain(OTHERS).map(own);
    own.chain(built)
        .map(|(bytes, found)| (bytes.into_bytes(), found))
        .collect()
}

/// FORWARD-3, FORWARD-4: each connection is read as the table says; and where a whole request
/// stands alone, one that follows is read as itself.
#[test]
fn requests_are_read_as_the_table_says() {
    let mut wrong = Vec::new();
    let mut check = |bytes: &[u8], expected: &str| {
        let found = read(bytes, &[]);
        if found.to_string() != expected {
            wrong.push(format!(
                "{}\n  {found}, expected {expected}",
                bytes.escape_ascii()
            ));
        }
        found
    };
    for (bytes, expected) in cases() {
        let found = check(&bytes, &expected);
        let last = found.messages.last();
        if last.is_some_and(|last| last.keeps && last.end == Some(bytes.len())) {
            let both = [&bytes, NEXT.as_bytes()].concat();
            check(&both, &format!("{expected}; GET /next"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// FORWARD-4: hyper's server reads the same requests, each to the same byte; where it accepts more,
/// the reason is named (`agreement.rs`).
#[test]
fn hyper_reads_the_same_or_accepts_more_for_a_named_reason() {
    for (bytes, _) in cases() {
        compare(&bytes);
        compare(&[&bytes, NEXT.as_bytes()].concat());
        compare(&[NEXT.as_bytes(), &bytes].concat());
    }
}

/// However the bytes are cut into reads, they say the same: in two parts at every byte, in three
/// around it, and byte by byte.
#[test]
fn no_cut_of_the_bytes_changes_what_they_say() {
    for (bytes, _) in cases() {
        let bytes = [&bytes, NEXT.as_bytes()].concat();
        let whole = read(&bytes, &[]);
        let every_byte: Vec<usize> = (1..bytes.len()).collect();
        let pairs = (1..bytes.len()).map(|cut| vec![cut]);
        let triples = (2..bytes.len()).map(|cut| vec![cut - 1, cut]);
        for cuts in pairs.chain(triples).chain([every_byte]) {
            compare_cut(&bytes, &cuts, &whole);
        }
    }
}

/// Each byte in a method, a target, a version, a name, a value, a host, a length, a coding, a size
/// of a chunk, an extension and a trailer.
#[test]
fn each_byte_is_read_as_hyper_reads_it_or_refused_for_a_named_reason() {
    let places = [
        ("G", "T / HTTP/1.1\r\nHost: a\r\n\r\n"),
        ("", "GET / HTTP/1.1\r\nHost: a\r\n\r\n"),
        ("GET", " / HTTP/1.1\r\nHost: a\r\n\r\n"),
        ("GET /a", "b HTTP/1.1\r\nHost: a\r\n\r\n"),
        ("GET /a?b", "c HTTP/1.1\r\nHost: a\r\n\r\n"),
        ("GET ", "a HTTP/1.1\r\nHost: a\r\n\r\n"),
        ("GET http://a", "b/ HTTP/1.1\r\nHost: a\r\n\r\n"),
        ("CONNECT a", "b HTTP/1.1\r\nHost: a\r\n\r\n"),
        ("GET / HTTP/1.", "\r\nHost: a\r\n\r\n"),
        ("GET / HTTP/", ".1\r\nHost: a\r\n\r\n"),
        ("GET / HTTP/1.1", "\r\nHost: a\r\n\r\n"),
        ("GET / HTTP/1.1\r", "\nHost: a\r\n\r\n"),
        ("GET / HTTP/1.1\r\n", "Host: a\r\n\r\n"),
        ("GET / HTTP/1.1\r\nHost: a\r\nX", "Y: z\r\n\r\n"),
        ("GET / HTTP/1.1\r\nHost: a\r\nX", ": z\r\n\r\n"),
        ("GET / HTTP/1.1\r\nHost: a\r\nX:", "z\r\n\r\n"),
        ("GET / HTTP/1.1\r\nHost: a\r\nX: a", "b\r\n\r\n"),
        ("GET / HTTP/1.1\r\nHost: a\r\nX: a", "\r\n\r\n"),
        ("GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n", "\r\n"),
        ("GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n\r", "\n"),
        ("GET / HTTP/1.1\r\nHost: a", "b\r\n\r\n"),
        ("GET / HTTP/1.1\r\nHost: a\r\nConnection: ", "close\r\n\r\n"),
        ("GET / HTTP/1.0\r\nConnection: keep-alive", "\r\n\r\n"),
        ("GET / HTTP/1.0\r\nConnection: keep-alive,", "\r\n\r\n"),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: ",
            "1\r\n\r\nx",
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1",
            "\r\n\r\nx",
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length",
            ": 1\r\n\r\nx",
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: ",
            "chunked\r\n\r\n0\r\n\r\n",
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked",
            "\r\n\r\n0\r\n\r\n",
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding",
            ": chunked\r\n\r\n0\r\n\r\n",
        ),
    ];
    let chunks = [
        ("", "1\r\nx\r\n0\r\n\r\n"),
        ("1", "\r\nx\r\n0\r\n\r\n"),
        ("1 ", "\r\nx\r\n0\r\n\r\n"),
        ("1;a", "b\r\nx\r\n0\r\n\r\n"),
        ("1\r", "\nx\r\n0\r\n\r\n"),
        ("1\r\nx", "\r\n0\r\n\r\n"),
        ("1\r\nx\r", "\n0\r\n\r\n"),
        ("1\r\n", "\r\n0\r\n\r\n"),
        ("1\r\nx\r\n0\r\n", "\r\n"),
        ("1\r\nx\r\n0\r\n\r", "\n"),
        ("1\r\nx\r\n0\r\nX", ": y\r\n\r\n"),
        ("1\r\nx\r\n0\r\nX: y", "\r\n\r\n"),
        ("1\r\nx\r\n0\r\nX: y\r\n", "\r\n"),
        ("1\r\nx\r\n0\r\nX: y\r\n\r", "\n"),
    ];
    let chunked = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    let chunks = chunks.map(|(before, behind)| (chunked.to_owned() + before, behind));
    let places = places.map(|(before, behind)| (before.to_owned(), behind));
    for (before, behind) in places.into_iter().chain(chunks) {
        for byte in 0..=255 {
            let next = NEXT.as_bytes();
            compare(&[before.as_bytes(), &[byte], behind.as_bytes(), next].concat());
        }
    }
}

/// CONN-1, CONN-9: each bound holds at its exact size: what just fits is read, one more is refused,
/// and nobody waits for the rest of it.
#[test]
fn every_bound_is_exact() {
    let check = |bytes: &str, expected: &str| {
        let bytes = bytes.as_bytes();
        assert_eq!(read(bytes, &[]).to_string(), expected);
        let found = compare(bytes);
        let cuts: Vec<usize> = (1..bytes.len()).step_by(1 + bytes.len() / 23).collect();
        compare_cut(bytes, &cuts, &found);
    };
    let head = |size: usize| {
        let empty = "GET / HTTP/1.1\r\nHost: a\r\nX: \r\n\r\n".len();
        format!(
            "GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n",
            "y".repeat(size - empty)
        )
    };
    check(&(head(MAX_HEAD) + NEXT), "GET /; GET /next");
    check(&head(MAX_HEAD - 1), "GET /");
    check(&(head(MAX_HEAD + 1) + NEXT), "431 TooLarge");
    check(&head(MAX_HEAD + 1)[..MAX_HEAD], "431 TooLarge");
    check(&head(MAX_HEAD)[..MAX_HEAD - 1], "");
    check(&(NEXT.to_owned() + &head(MAX_HEAD)), "GET /next; GET /");
    check(
        &(NEXT.to_owned() + &head(MAX_HEAD + 1)),
        "GET /next; 431 TooLarge",
    );
    // Empty lines in front are of the head; what follows it is not.
    check(&("\r\n".to_owned() + &head(MAX_HEAD - 2)), "GET /");
    check(&("\r\n".to_owned() + &head(MAX_HEAD - 1)), "431 TooLarge");
    check(&"\r\n".repeat(MAX_HEAD / 2 - 1), "");
    check(&"\r\n".repeat(MAX_HEAD / 2), "431 TooLarge");
    let target = |size: usize| format!("GET /{} HTTP/1.1\r\n", "a".repeat(size));
    check(&target(MAX_HEAD), "414 TargetTooLong");
    check(
        &("\r\n".to_owned() + &target(MAX_HEAD)),
        "414 TargetTooLong",
    );
    // The target ends, and its line does not.
    check(&target(MAX_HEAD - 10), "431 TooLarge");
    // What lies behind the bound is not looked at.
    check(
        &(head(MAX_HEAD + 10).replace("y\r\n\r\n", "y\0\r\n\r\n")),
        "431 TooLarge",
    );

    let fields = |count: usize, field: &str| {
        format!(
            "GET / HTTP/1.1\r\nHost: a\r\n{}\r\n",
            field.repeat(count - 1)
        )
    };
    check(&(fields(MAX_FIELDS, "X: y\r\n") + NEXT), "GET /; GET /next");
    check(&(fields(MAX_FIELDS + 1, "X: y\r\n") + NEXT), "431 TooLarge");
    let long = format!("X: {}\r\n", "y".repeat(200));
    check(&fields(MAX_FIELDS, &long), "GET /");
    check(&fields(MAX_FIELDS + 1, &long), "431 TooLarge");

    let chunked = |rest: &str| {
        format!("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{rest}")
    };
    let extension = |size: usize| chunked(&format!("0;{}\r\n\r\n", "x".repeat(size)));
    check(&extension(MAX_EXTENSIONS), "POST /");
    check(&extension(MAX_EXTENSIONS + 1), "POST /; ChunkExtension");
    let trailers = |size: usize| {
        let empty = "X: \r\n\r\n".len();
        chunked(&format!("0\r\nX: {}\r\n\r\n", "y".repeat(size - empty)))
    };
    check(&trailers(MAX_TRAILERS), "POST /");
    check(&trailers(MAX_TRAILERS + 1), "POST /; TrailersTooLarge");
    let lines = |count: usize| chunked(&format!("0\r\n{}\r\n", "X: y\r\n".repeat(count)));
    check(&lines(MAX_FIELDS), "POST /");
    check(&lines(MAX_FIELDS + 1), "POST /; TooManyFields");
}

/// A large body, in any reads, comes out as it went in, and the next request begins behind it.
#[test]
fn a_large_body_ends_where_it_says() {
    let body: Vec<u8> = (0..100_000_u32).map(|at| (at % 251) as u8).collect();
    let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n";
    let bytes = [head.as_bytes(), &body, NEXT.as_bytes()].concat();
    compare(&bytes);
    for step in [1000, 4096, 65_535] {
        let cuts: Vec<usize> = (step..bytes.len()).step_by(step).collect();
        let found = read(&bytes, &cuts);
        assert_eq!(found.messages[0].content, body);
        assert_eq!(found.messages.len(), 2);
    }
}

/// Pieces of requests, good and bad, to be put together at random.
fn piece() -> impl Strategy<Value = Vec<u8>> {
    let lines = prop::sample::select(vec![
        "GET / HTTP/1.1\r\n",
        "POST /a?b HTTP/1.1\r\n",
        "POST /a HTTP/1.0\r\n",
        "GET http://b/c HTTP/1.1\r\n",
        "OPTIONS * HTTP/1.1\n",
        "CONNECT a:80 HTTP/1.1\r\n",
        "Host: a\r\n",
        "Content-Length: 5\r\n",
        "content-length: 05\n",
        "Content-Length: 6\r\n",
        "Transfer-Encoding: chunked\r\n",
        "transfer-encoding: gzip, chunked\r\n",
        "Connection: close\r\n",
        "Connection: keep-alive, x\r\n",
        "Expect: 100-continue\r\n",
        "Upgrade: websocket\r\n",
        "X: y\r\n",
    ]);
    let bodies = prop::sample::select(vec![
        "hello",
        "5\r\nhello\r\n",
        "1;a=b\r\nx\r\n",
        "0\r\n\r\n",
        "0\r\n",
        "ffffffffffffffff\r\n",
    ]);
    let marks = prop::sample::select(vec![
        "\r\n", "\r\n", "\n", "\r", " ", "\t", ":", ";", ",", "\0",
    ]);
    let bytes = |text: &str| text.as_bytes().to_vec();
    prop_oneof![
        6 => lines.prop_map(bytes),
        3 => bodies.prop_map(bytes),
        3 => marks.prop_map(bytes),
        1 => prop::collection::vec(any::<u8>(), 1..4),
    ]
}

/// A request that is whole, or nearly.
fn request() -> impl Strategy<Value = Vec<u8>> {
    let method = prop::sample::select(vec![
        "GET", "POST", "HEAD", "OPTIONS", "PUT", "CONNECT", "x",
    ]);
    let target = prop_oneof![
        4 => Just("/a?b".to_owned()),
        1 => Just("*".to_owned()),
        1 => Just("http://b/c".to_owned()),
        1 => Just("b:80".to_owned()),
        2 => "/[ -~\u{e9}]{0,6}",
        1 => "[!-~]{1,6}://[!-~]{1,6}",
    ];
    let version = prop::sample::select(vec![
        "HTTP/1.1\r\n",
        "HTTP/1.1\r\n",
        "HTTP/1.0\r\n",
        "HTTP/1.1\n",
    ]);
    let fields = prop::collection::vec(field(), 0..5);
    let content = prop::collection::vec(any::<u8>(), 0..12);
    let framing = 0..4_u8;
    (method, target, version, fields, content, framing).prop_map(
        |(method, target, version, fields, content, framing)| {
            let mut bytes =
                format!("{method} {target} {version}Host: a\r\n{}", fields.concat()).into_bytes();
            let length = content.len();
            match framing {
                0 => bytes.extend(b"\r\n"),
                1 => {
                    bytes.extend(format!("Content-Length: {length}\r\n\r\n").bytes());
                    bytes.extend(content);
                }
                _ => {
                    bytes.extend(b"Transfer-Encoding: chunked\r\n\r\n");
                    for part in content.chunks(5) {
                        bytes.extend(format!("{:x};a\r\n", part.len()).bytes());
                        bytes.extend(part);
                        bytes.extend(b"\r\n");
                    }
                    bytes.extend(if framing == 2 {
                        &b"0\r\n\r\n"[..]
                    } else {
                        b"0\r\nX: y\r\n\r\n"
                    });
                }
            }
            bytes
        },
    )
}

fn field() -> impl Strategy<Value = String> {
    let name = prop::sample::select(vec![
        "Connection",
        "X",
        "te",
        "HOST",
        "Content-Length",
        "Transfer-Encoding",
        "Expect",
        "Upgrade",
        "x_under",
        "X-Forwarded-For",
        "X-Request-ID",
        "Sec-Fetch-Site",
        "a b",
    ]);
    let value = prop_oneof![
        3 => prop::sample::select(vec!["close", "keep-alive", "Close, x", "0", "5", "chunked", "100-continue", "same-site"])
            .prop_map(str::to_owned),
        1 => "[ -~\t\u{80}-\u{ff}]{0,8}",
    ];
    let colon = prop_oneof![8 => Just(": "), 1 => Just(":"), 1 => Just(" :")];
    let end = prop_oneof![12 => Just("\r\n"), 1 => Just("\n"), 1 => Just("\r\n "), 1 => Just("\r")];
    (name, colon, value, end)
        .prop_map(|(name, colon, value, end)| format!("{name}{colon}{value}{end}"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    /// Of requests behind each other, cut anywhere: hyper reads the same, or more for a named
    /// reason, and each ends at the same byte.
    #[test]
    fn any_requests_are_read_as_hyper_reads_them(
        requests in prop::collection::vec(request(), 1..6),
        cuts in prop::collection::btree_set(0..600usize, 0..6),
    ) {
        judge(&requests.concat(), cuts);
    }

    /// The same of whatever bytes.
    #[test]
    fn any_bytes_are_read_as_hyper_reads_them(
        pieces in prop::collection::vec(piece(), 0..16),
        cuts in prop::collection::btree_set(0..200usize, 0..6),
    ) {
        judge(&pieces.concat(), cuts);
    }
}

fn judge(bytes: &[u8], cuts: BTreeSet<usize>) {
    let found = compare(bytes);
    let cuts: Vec<usize> = cuts.into_iter().filter(|cut| *cut < bytes.len()).collect();
    compare_cut(bytes, &cuts, &found);
}
