//! A record as one line of the NCSA combined format, which log analysers read (TELL-2). It has only
//! a part of the JSON form: client, time, request and response.

use std::io::Write as _;

use http::Version;
use weir_shared::record::{Batch, Record, Text};
use weir_shared::units::Time;
use weir_shared::verdict::Action;

use super::line::{address, number};

const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];

/// One line for each record.
pub(super) fn lines(batch: &Batch, out: &mut Vec<u8>) {
    for (record, ..) in batch.records() {
        line(record, batch, out);
    }
}

/// `client - - [time] "request line" status bytes "referer" "user agent"`
fn line(record: &Record, batch: &Batch, out: &mut Vec<u8>) {
    address(record.address, out);
    out.extend_from_slice(b" - - [");
    time(record.at_ms, out);
    out.extend_from_slice(b"] \"");
    text(batch.text(record.method), out);
    out.push(b' ');
    text(batch.text(record.path), out);
    if let Some(query) = batch.text(record.query) {
        out.push(b'?');
        text(Some(query), out);
    }
    out.extend_from_slice(match record.version {
        Version::HTTP_10 => b" HTTP/1.0\" ",
        Version::HTTP_2 => b" HTTP/2.0\" ",
        _ => b" HTTP/1.1\" ",
    });
    number(status(record), out);
    out.push(b' ');
    number(record.response_bytes, out);
    for field in [record.referer, record.user_agent] {
        out.extend_from_slice(b" \"");
        quoted(batch, field, out);
        out.push(b'"');
    }
    out.push(b'\n');
}

/// The status. Without a response, the number that nginx writes: 499 if the client went away, 444
/// if the connection was closed unanswered.
fn status(record: &Record) -> u64 {
    match (record.status, record.action) {
        (Some(status), _) => status.as_u16().into(),
        (None, Action::ClientAborted) => 499,
        (None, _) => 444,
    }
}

fn quoted(batch: &Batch, field: Text, out: &mut Vec<u8>) {
    text(batch.text(field).or(Some(b"-")), out);
}

/// Writes visible ASCII and blanks as they are; everything else, and characters that would end a
/// field, as `\xHH`.
fn text(bytes: Option<&[u8]>, out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    for byte in bytes.unwrap_or_default() {
        match byte {
            b'"' | b'\\' | ..b' ' | 0x7f.. => {
                let digits = [byte >> 4, byte & 15];
                out.extend_from_slice(b"\\x");
                out.extend(
                    digits
                        .iter()
                        .filter_map(|digit| DIGITS.get(usize::from(*digit))),
                );
            }
            _ => out.push(*byte),
        }
    }
}

/// `21/Nov/2026:16:00:00 +0000`
fn time(at_ms: u64, out: &mut Vec<u8>) {
    let rfc3339 = Time(at_ms / 1000 * 1000).to_string();
    let (date, clock) = rfc3339
        .trim_end_matches('Z')
        .split_once('T')
        .unwrap_or_default();
    let mut parts = date.split('-');
    let (year, month, day) = (parts.next(), parts.next(), parts.next());
    let month = month
        .and_then(|month| month.parse::<usize>().ok())
        .and_then(|month| MONTHS.get(month.checked_sub(1)?))
        .unwrap_or(&"-");
    let (year, day) = (year.unwrap_or_default(), day.unwrap_or_default());
    // Writing to a Vec cannot fail.
    drop(write!(out, "{day}/{month}/{year}:{clock} +0000"));
}
