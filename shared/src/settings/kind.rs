//! Kinds of values: a [`Kind`] owns the bounds of a value, the sentence that says what is expected,
//! and the reader that holds to both. Nothing of it is written a second time.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use http::HeaderName;

use crate::client::fold;
use crate::netblock::{NetSet, Netblock, NotANetblock};
use crate::units::{format_duration, parse_duration, parse_size};

/// What is wrong with a value: one predicate (`is not a whole number`) for each problem, so that a
/// list names all its bad entries at once.
#[derive(Debug)]
pub(super) struct Fault(pub(super) Vec<String>);

impl Fault {
    pub(super) fn unless_empty(faults: Vec<String>) -> Result<(), Self> {
        if faults.is_empty() {
            Ok(())
        } else {
            Err(Self(faults))
        }
    }
}

impl From<String> for Fault {
    fn from(predicate: String) -> Self {
        Self(vec![predicate])
    }
}

impl From<&str> for Fault {
    fn from(predicate: &str) -> Self {
        predicate.to_owned().into()
    }
}

/// What to warn of in a value that is taken: predicates as in [`Fault`].
pub(super) type Remarks = Vec<String>;

type Read<T> = Box<dyn Fn(&str, &mut Remarks) -> Result<T, Fault> + Send + Sync>;

/// How values of one sort are written.
pub(super) struct Kind<T> {
    /// Follows the word "expected".
    pub(super) expected: String,
    pub(super) read: Read<T>,
}

impl<T: 'static> Kind<T> {
    /// A kind that needs a reader of its own.
    pub(super) fn new<F: Into<Fault>>(
        expected: impl Into<String>,
        read: impl Fn(&str) -> Result<T, F> + Send + Sync + 'static,
    ) -> Self {
        Self {
            expected: expected.into(),
            read: Box::new(move |text, _| read(text).map_err(Into::into)),
        }
    }

    /// The same values, held as something else.
    pub(super) fn map<U: 'static>(self, hold: fn(T) -> U) -> Kind<U> {
        Kind {
            expected: self.expected,
            read: Box::new(move |text, remarks| (self.read)(text, remarks).map(hold)),
        }
    }

    /// The same, or the word `off`.
    pub(super) fn or_off(self) -> Kind<Option<T>> {
        Kind {
            expected: format!("{}, or off", self.expected),
            read: Box::new(move |text, remarks| {
                if text == "off" {
                    return Ok(None);
                }
                (self.read)(text, remarks).map(Some)
            }),
        }
    }
}

/// A whole number, digits only.
pub(super) fn whole<N: TryFrom<u64> + 'static>(bounds: RangeInclusive<u64>) -> Kind<N> {
    let expected = if *bounds.end() == u64::MAX {
        format!("a whole number from {}", bounds.start())
    } else {
        format!("a whole number from {} to {}", bounds.start(), bounds.end())
    };
    Kind::new(expected, move |text| parse_whole(text, &bounds))
}

/// A number of something that is limited: from 1, or off.
pub(super) fn count() -> Kind<Option<u64>> {
    whole(1..=u64::MAX).or_off()
}

pub(super) fn parse_whole<N: TryFrom<u64>>(
    text: &str,
    bounds: &RangeInclusive<u64>,
) -> Result<N, &'static str> {
    if text == "off" {
        return Err("cannot be off");
    }
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("is not a whole number");
    }
    text.parse()
        .ok()
        .filter(|number| bounds.contains(number))
        .and_then(|number| N::try_from(number).ok())
        .ok_or("is out of range")
}

const MS: Duration = Duration::from_millis(1);
/// A time-out beyond this is a slip of the unit, and further on timers overflow.
const YEAR: Duration = Duration::from_secs(365 * 86_400);
const CENTURY: Duration = Duration::from_secs(36_500 * 86_400);

/// A time-out or an interval, which cannot be nothing.
pub(super) fn timeout() -> Kind<Duration> {
    duration(MS..=YEAR)
}

/// The same, from nothing.
pub(super) fn timeout_or_zero() -> Kind<Duration> {
    duration(Duration::ZERO..=YEAR)
}

/// The length of a ban, or what is compared with one.
pub(super) fn ban_time() -> Kind<Duration> {
    duration(MS..=CENTURY)
}

/// A duration within bounds.
pub(super) fn duration(bounds: RangeInclusive<Duration>) -> Kind<Duration> {
    let expected = format!(
        "a duration such as 500ms, 90s, 1h30m or 7d, from {} to {}",
        format_duration(*bounds.start()),
        format_duration(*bounds.end())
    );
    Kind::new(expected, move |text| {
        if text == "off" {
            return Err("cannot be off");
        }
        let duration = parse_duration(text).map_err(|_| "is not a duration")?;
        if bounds.contains(&duration) {
            Ok(duration)
        } else {
            Err("is out of range")
        }
    })
}

/// A size of at least one byte, or off. What 0 would mean differs from one proxy to the next, so it
/// has to be said.
pub(super) fn size() -> Kind<Option<u64>> {
    Kind::new(
        "a size from 1 byte such as 64K, 100M or 10GiB (powers of 1024) or 100MB (powers of 1000)",
        |text| match parse_size(text) {
            Ok(0) => Err("is out of range"),
            Ok(bytes) => Ok(bytes),
            Err(_) => Err("is not a size"),
        },
    )
    .or_off()
}

/// One of a few words.
pub(super) fn word<T: Copy + Send + Sync + 'static>(
    words: impl IntoIterator<Item = (&'static str, T)>,
) -> Kind<T> {
    let words: Vec<_> = words.into_iter().collect();
    let names: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
    Kind::new(either(&names), move |text| {
        let known = words.iter().find(|(word, _)| *word == text);
        known.map(|(_, value)| *value).ok_or("is not known")
    })
}

/// `a, b or c`
fn either(words: &[&str]) -> String {
    match words {
        [all @ .., last] if !all.is_empty() => format!("{} or {last}", all.join(", ")),
        _ => words.concat(),
    }
}

/// `on|off`; `true|false` and `1|0` are read as well.
pub(super) fn boolean() -> Kind<bool> {
    Kind::new("on or off", |text| match text {
        "on" | "true" | "1" => Ok(true),
        "off" | "false" | "0" => Ok(false),
        _ => Err("is not known"),
    })
}

/// A file that is read or written.
pub(super) fn file() -> Kind<Option<PathBuf>> {
    Kind::new("a file", |text| {
        if text.ends_with('/') {
            return Err("is a directory");
        }
        Ok(Some(PathBuf::from(text)))
    })
}

pub(super) fn directory() -> Kind<PathBuf> {
    Kind::new("a directory", |text| Ok::<_, Fault>(PathBuf::from(text)))
}

/// The entries of a list; blanks and empty entries are ignored.
pub(super) fn entries(text: &str) -> impl Iterator<Item = &str> {
    text.split(',')
        .map(str::trim)
        .filter(|entry| !entry.is_empty())
}

/// Hands every entry of a list to `take`, which says what is wrong with it.
pub(super) fn each_entry(
    text: &str,
    take: impl FnMut(&str) -> Result<(), String>,
) -> Result<(), Fault> {
    let faults = entries(text).map(take).filter_map(Result::err).collect();
    Fault::unless_empty(faults)
}

/// A list of netblocks. `everything` is what it means if one of them is all addresses there are,
/// which is warned of.
pub(super) fn nets(everything: &'static str) -> Kind<NetSet> {
    Kind {
        expected:
            "a list of addresses and prefixes without zones, such as 192.0.2.0/24,2001:db8::/32"
                .to_owned(),
        read: Box::new(move |text, remarks| {
            let mut blocks = Vec::new();
            each_entry(text, |entry| {
                let block = netblock(entry, entry, remarks)?;
                if block.net().prefix_len() == 0 {
                    remarks.push(format!("has {entry:?}: {everything}"));
                }
                blocks.push(block);
                Ok(())
            })?;
            Ok(blocks.into_iter().collect())
        }),
    }
}

/// Reads `text`, a part of `entry`; host bits are masked off with a remark.
pub(super) fn netblock(text: &str, entry: &str, remarks: &mut Remarks) -> Result<Netblock, String> {
    let block: Netblock = text.parse().map_err(|error| match error {
        NotANetblock::Zone(_) => format!("has {entry:?}, which carries a zone"),
        NotANetblock::Syntax(_) => format!("has {entry:?}, which is not a netblock"),
    })?;
    let written = text
        .split_once('/')
        .and_then(|(address, _)| address.parse().ok());
    let network = block.net().network();
    if written.is_some_and(|written: IpAddr| written != network && fold(written) != network) {
        remarks.push(format!(
            "has {entry:?}, whose host bits are set: it is taken as {block}"
        ));
    }
    Ok(block)
}

pub(super) fn parse_header_name(text: &str) -> Option<HeaderName> {
    HeaderName::from_bytes(text.as_bytes()).ok()
}
