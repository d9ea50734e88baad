//! The logs that can be read: our own, nginx's combined format, HAProxy's HTTP format.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use clap::ValueEnum;
use http::header::{HOST, REFERER, USER_AGENT};
use http::{HeaderName, HeaderValue, Method};
use serde::Deserialize;
use weir_shared::lookup::Lookup;
use weir_shared::rules::Told;
use weir_shared::verdict::Action;

use super::request::Request;
use super::stamp;

/// The form of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Format {
    /// Our own: JSON
    Weir,
    /// nginx and Apache: combined or common
    Combined,
    /// HAProxy: option httplog
    Haproxy,
}

/// The content of a line.
#[derive(Debug)]
pub enum Line {
    Request(Box<Request>),
    /// A line that is no request, such as an alert.
    Other,
    /// A number of requests that have no line of their own (LOG-6).
    LeftOut(u64),
}

/// Why a line cannot be read.
pub type Unreadable = &'static str;

impl Format {
    /// The name of the format in the output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Weir => "weir",
            Self::Combined => "combined",
            Self::Haproxy => "haproxy",
        }
    }

    /// The request fields that lines of this format tell. Lines of weir may tell others as well.
    /// The common format lacks the last two, and counts as the combined one here.
    pub const fn fields(self) -> &'static [&'static str] {
        match self {
            Self::Weir => &["host", "referer", "user-agent"],
            Self::Combined => &["referer", "user-agent"],
            Self::Haproxy => &[],
        }
    }

    /// The first format that can read this line. Lines that weir writes between the requests do not
    /// decide: they are the same in all of its formats ([`note`]).
    pub fn of(line: &[u8]) -> Option<Self> {
        let reads = |format: &Self| match format {
            Self::Weir => matches!(weir(line), Ok(Line::Request(_))),
            Self::Combined | Self::Haproxy => format.read(line).is_ok(),
        };
        [Self::Weir, Self::Combined, Self::Haproxy]
            .into_iter()
            .find(reads)
    }

    /// Reads a line.
    pub fn read(self, line: &[u8]) -> Result<Line, Unreadable> {
        match self {
            Self::Weir => weir(line),
            Self::Combined => combined(&String::from_utf8_lossy(line)),
            Self::Haproxy => haproxy(&String::from_utf8_lossy(line)),
        }
    }
}

/// A line that weir writes between the requests, whatever their format: an alert, or a number of
/// requests without a line.
pub fn note(line: &[u8]) -> Option<Line> {
    if !line.starts_with(b"{") {
        return None;
    }
    let is_note = |line: &Line| !matches!(line, Line::Request(_));
    weir(line).ok().filter(is_note)
}

/// The members of a log line of weir that a replay uses.
#[derive(Deserialize)]
struct Ours<'a> {
    #[serde(borrow)]
    event: Option<Cow<'a, str>>,
    /// The level of a line of the process log, which the same file may hold.
    #[serde(borrow)]
    level: Option<Cow<'a, str>>,
    #[serde(borrow)]
    time: Option<Cow<'a, str>>,
    #[serde(borrow)]
    request_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    address: Option<Cow<'a, str>>,
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow)]
    path: Option<Cow<'a, str>>,
    #[serde(borrow)]
    host: Option<Cow<'a, str>>,
    #[serde(borrow)]
    query: Option<Cow<'a, str>>,
    #[serde(borrow)]
    referer: Option<Cow<'a, str>>,
    #[serde(borrow)]
    user_agent: Option<Cow<'a, str>>,
    /// The fields of `WAF_LOG_REQUEST_HEADERS`.
    #[serde(default)]
    headers: BTreeMap<String, String>,
    content_length: Option<u64>,
    #[serde(default)]
    websocket: bool,
    #[serde(default)]
    other_site: bool,
    #[serde(borrow)]
    application: Option<Cow<'a, str>>,
    status: Option<u16>,
    #[serde(borrow)]
    action: Option<Cow<'a, str>>,
    #[serde(borrow)]
    country: Option<Cow<'a, str>>,
    #[serde(borrow)]
    asn: Option<Cow<'a, str>>,
    #[serde(borrow)]
    as_name: Option<Cow<'a, str>>,
    bytes: Option<Bytes>,
    timings: Option<Timings>,
    /// How many requests a line stands for (LOG-6).
    count: Option<u64>,
}

#[derive(Deserialize)]
struct Bytes {
    request: u64,
    response: u64,
}

#[derive(Deserialize)]
struct Timings {
    total: f64,
    first_byte: Option<f64>,
}

fn weir(line: &[u8]) -> Result<Line, Unreadable> {
    let ours: Ours =
        serde_json::from_slice(line).map_err(|_| "no line of a request log in JSON")?;
    match ours.event.as_deref() {
        Some("request") => {}
        Some("requests_left_out") => return Ok(Line::LeftOut(ours.count.unwrap_or(0))),
        None if ours.level.is_none() => return Err("no line of a request log in JSON"),
        _ => return Ok(Line::Other),
    }
    let at_ms = ours.time.as_deref().and_then(stamp::rfc3339);
    let address = ours.address.and_then(|text| text.parse().ok());
    let method = ours.method.and_then(|name| name.parse().ok());
    let path = ours.path;
    let (Some(at_ms), Some(address), Some(method), Some(path)) = (at_ms, address, method, path)
    else {
        return Err("time, address, method or path is missing or wrong");
    };
    let mut request = Request::new(at_ms, address, method, &path);
    request.id = ours.request_id.map(Cow::into_owned);
    request.content_length = ours.content_length;
    request.sent.known = Some(Format::Weir.fields());
    let of_each = [
        (HOST, ours.host),
        (REFERER, ours.referer),
        (USER_AGENT, ours.user_agent),
    ];
    request.sent.fields.extend(fields(of_each, ours.headers));
    request.sent.query = Told::Known(ours.query.map(Cow::into_owned));
    let took = ours.timings.as_ref().map_or(0.0, |timings| timings.total);
    // The cast saturates, and turns NaN into 0.
    request.took_ms = took as u64;
    let first_byte = ours.timings.and_then(|timings| timings.first_byte);
    request.first_byte_ms = first_byte.map(|first_byte| first_byte as u64);
    request.end.websocket = ours.websocket;
    request.other_site = ours.other_site;
    request.application = ours.application.map(Cow::into_owned);
    if let Some(Bytes {
        request: up,
        response: down,
    }) = ours.bytes
    {
        (request.end.request_bytes, request.end.response_bytes) = (up, down);
    }
    let action = ours.action.as_deref().unwrap_or_default();
    request.was_refused = Some(is_refusal(action));
    if let (Some(status), "passed" | "client_aborted") = (ours.status, action) {
        request.answered(status);
    }
    if ours.country.is_some() || ours.asn.is_some() {
        request.lookup = Some(Arc::new(Lookup {
            country: ours.country.map(Cow::into_owned),
            asn: ours.asn.map(Cow::into_owned),
            as_name: ours.as_name.map(Cow::into_owned),
        }));
    }
    Ok(Line::Request(Box::new(request)))
}

/// The request fields of a line of weir: those of every line, and those of
/// `WAF_LOG_REQUEST_HEADERS`.
fn fields(
    of_each: [(HeaderName, Option<Cow<'_, str>>); 3],
    further: BTreeMap<String, String>,
) -> impl Iterator<Item = (HeaderName, HeaderValue)> {
    let of_each = of_each.into_iter();
    let of_each = of_each.filter_map(|(name, value)| Some((name, value?)));
    let is_further = |name: &HeaderName| !Format::Weir.fields().contains(&name.as_str());
    let further = further.into_iter().filter_map(move |(name, value)| {
        let name = name.parse().ok().filter(is_further)?;
        Some((name, Cow::Owned(value)))
    });
    let all = of_each.chain(further);
    all.filter_map(|(name, value)| Some((name, HeaderValue::from_str(&value).ok()?)))
}

/// `client - user [time] "request line" status bytes …`
fn combined(line: &str) -> Result<Line, Unreadable> {
    const WRONG: Unreadable = "no line of the combined format";
    let (address, rest) = line.split_once(' ').ok_or(WRONG)?;
    let address: IpAddr = address.parse().map_err(|_| WRONG)?;
    let (_, rest) = rest.split_once(" [").ok_or(WRONG)?;
    let (time, rest) = rest.split_once("] \"").ok_or(WRONG)?;
    let at_ms = stamp::common(time).ok_or("the time cannot be read")?;
    let (asked, rest) = rest.split_once("\" ").ok_or(WRONG)?;
    let mut numbers = rest.split(' ');
    let status: u16 = number(numbers.next()).ok_or(WRONG)?;
    let bytes = numbers.next().ok_or(WRONG)?;
    let bytes = if bytes == "-" {
        0
    } else {
        number(Some(bytes)).ok_or(WRONG)?
    };
    let Some((method, target)) = request_line(asked) else {
        // A malformed request line that nginx refused.
        return Ok(Line::Other);
    };
    let mut request = Request::new(at_ms, address, method, &unescaped(target));
    request.end.response_bytes = bytes;
    request.answered(status);
    // The common format ends before these fields.
    let rest: String = numbers.map(|word| format!("{word} ")).collect();
    let mut quoted = rest.split('"').skip(1).step_by(2);
    if let (Some(referer), Some(agent)) = (quoted.next(), quoted.next()) {
        for (name, value) in [(REFERER, referer), (USER_AGENT, agent)] {
            let value = HeaderValue::from_bytes(unescaped(value).as_bytes());
            let value = value.ok().filter(|value| value != "-");
            request.sent.fields.extend(value.map(|value| (name, value)));
        }
        request.sent.known = Some(Format::Combined.fields());
    }
    Ok(Line::Request(Box::new(request)))
}

/// `client:port [time] frontend backend/server timers status bytes … "request line"`, with or
/// without the prefix of syslog.
fn haproxy(line: &str) -> Result<Line, Unreadable> {
    const WRONG: Unreadable = "no line of HAProxy's HTTP format";
    let (before, rest) = line.split_once(" [").ok_or(WRONG)?;
    // Syslog writes `haproxy[pid]:` without a blank before the bracket.
    let peer = before.rsplit(' ').next().unwrap_or_default();
    let (address, _) = peer.rsplit_once(':').ok_or(WRONG)?;
    let address = address.trim_start_matches('[').trim_end_matches(']');
    let address: IpAddr = address.parse().map_err(|_| WRONG)?;
    let (time, rest) = rest.split_once("] ").ok_or(WRONG)?;
    let at_ms = stamp::common(time).ok_or("the time cannot be read")?;
    let mut fields = rest.split(' ').skip(2);
    let timers = fields.next().ok_or(WRONG)?;
    // The last timer is the total time, with a `+` if the line was written before the end.
    let took = timers.rsplit('/').next().unwrap_or_default();
    let took: i64 = number(Some(took.trim_start_matches('+'))).ok_or(WRONG)?;
    let status: i32 = number(fields.next()).ok_or(WRONG)?;
    let bytes = fields.next().unwrap_or_default();
    let bytes = number(Some(bytes.trim_start_matches('+'))).ok_or(WRONG)?;
    let (_, asked) = rest.split_once('"').ok_or(WRONG)?;
    let asked = asked.trim_end().trim_end_matches('"');
    let Some((method, target)) = request_line(asked) else {
        // `<BADREQ>`
        return Ok(Line::Other);
    };
    let mut request = Request::new(at_ms, address, method, target);
    request.took_ms = u64::try_from(took).unwrap_or(0);
    request.end.response_bytes = bytes;
    if let Ok(status) = u16::try_from(status) {
        request.answered(status);
    }
    Ok(Line::Request(Box::new(request)))
}

fn number<T: std::str::FromStr>(text: Option<&str>) -> Option<T> {
    text?.parse().ok()
}

fn request_line(text: &str) -> Option<(Method, &str)> {
    let mut parts = text.split(' ');
    let method = parts.next()?.parse().ok()?;
    let target = parts.next().filter(|target| !target.is_empty())?;
    let version = parts.next()?;
    version.starts_with("HTTP/").then_some((method, target))
}

/// Decodes `\xHH`.
fn unescaped(text: &str) -> Cow<'_, str> {
    if !text.contains("\\x") {
        return Cow::Borrowed(text);
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("\\x") {
        bytes.extend_from_slice(before.as_bytes());
        let byte = after
            .get(..2)
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        rest = match (byte, after.get(2..)) {
            (Some(byte), Some(after)) => {
                bytes.push(byte);
                after
            }
            _ => {
                bytes.extend_from_slice(b"\\x");
                after
            }
        };
    }
    bytes.extend_from_slice(rest.as_bytes());
    Cow::Owned(String::from_utf8_lossy(&bytes).into_owned())
}

/// Whether the action of this name in a log of weir refuses.
fn is_refusal(name: &str) -> bool {
    let mut all = Action::ALL.into_iter();
    all.any(|action| action.name() == name && action.is_refusal())
}

#[cfg(test)]
mod tests;
