//! The one reader of lists of netblocks, in every form in which they are published (FEED-2): a text
//! with one a line, one JSON document, or JSON lines.
//!
//! In a text each line must be an address, a netblock or a range, with comments after `#` and `;`;
//! other lines are reported to the caller. In JSON every string of one of these forms counts, at
//! any place, and other strings are ignored.

use std::fmt::{self, Write as _};
use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Subnets, Ipv6Subnets};
use serde::Deserializer;
use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use weir_shared::client::fold;
use weir_shared::netblock::Netblock;

use crate::json;
use crate::state::fault::Fault;

/// The most netblocks of one list, whoever reads it: one line can be a range of 254.
pub(crate) const MAX_LISTED: usize = 1_000_000;
/// The most malformed lines whose numbers are reported.
const MAX_TOLD: usize = 5;
/// How many characters of a malformed line are quoted.
const MAX_QUOTED: usize = 40;
/// The longest range of two IPv6 addresses has 93 bytes.
const LONGEST: usize = 128;

/// An item of a list.
#[derive(Debug)]
pub(crate) struct Found<'a> {
    /// The line that has it, from 1; none in a JSON document.
    pub(crate) line: Option<usize>,
    /// JSON Pointer (RFC 6901) in the document, or in the line's; empty in a text.
    pub(crate) pointer: &'a str,
    /// The text of the item. A range yields one item for each of its netblocks.
    pub(crate) text: &'a str,
    /// None for a malformed line of a text.
    pub(crate) netblock: Option<Netblock>,
}

/// Why a list cannot be used at all.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum Unusable {
    /// It begins as JSON, and is malformed.
    #[error("{0}")]
    NotJson(Fault),
    /// It has more netblocks than fit.
    #[error("more than {0} netblocks")]
    TooMany(usize),
}

/// The sentence about a malformed line: its beginning, and what is expected.
pub(crate) fn expected(text: &str) -> String {
    let end = text.char_indices().nth(MAX_QUOTED).map(|(end, _)| end);
    let text = match end.and_then(|end| text.get(..end)) {
        Some(begin) => &format!("{begin}…"),
        None => text,
    };
    format!(
        "{text:?} is not a netblock: expected an address, a prefix such as 192.0.2.0/24 or \
         2001:db8::/32, or a range such as 192.0.2.1-192.0.2.9"
    )
}

/// A parsed list.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ListText {
    pub(crate) netblocks: Vec<Netblock>,
    /// The number of malformed lines.
    pub(crate) skipped: usize,
    /// The numbers of the first malformed lines, from 1.
    pub(crate) first_skipped: Vec<usize>,
}

impl ListText {
    /// Whether it has at most so many netblocks.
    pub(crate) fn fits(&self, room: usize) -> bool {
        self.netblocks.len() <= room
    }
}

/// Parses a list of at most `room` netblocks.
///
/// # Errors
/// [`Unusable`]. Malformed lines are counted.
pub(crate) fn parse(bytes: &[u8], room: usize) -> Result<ListText, Unusable> {
    let mut list = ListText::default();
    each(bytes, room, &mut |found| match found.netblock {
        Some(netblock) => list.netblocks.push(netblock),
        None => {
            list.skipped += 1;
            if list.first_skipped.len() < MAX_TOLD {
                list.first_skipped.extend(found.line);
            }
        }
    })?;
    Ok(list)
}

/// Parses a list of at most `room` netblocks, and passes its items on in order.
///
/// # Errors
/// [`Unusable`]. Items before the fault were passed on.
pub(crate) fn each(
    bytes: &[u8],
    room: usize,
    give: &mut dyn FnMut(Found<'_>),
) -> Result<(), Unusable> {
    let mut reading = Reading {
        room,
        left: room,
        is_full: false,
        line: None,
        pointer: String::new(),
        give,
    };
    let bytes = without_mark(bytes);
    match bytes.trim_ascii_start().first() {
        Some(b'{' | b'[' | b'"') => reading.json(bytes),
        _ => reading.text(bytes),
    }
}

/// The non-empty lines of a text without comments, with their numbers from 1.
pub(crate) fn lines(bytes: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let lines = without_mark(bytes).split(|byte| *byte == b'\n').zip(1..);
    lines.filter_map(|(line, number)| {
        let end = line.iter().position(|byte| matches!(byte, b'#' | b';'));
        let line = line.get(..end.unwrap_or(line.len())).unwrap_or(line);
        let line = line.trim_ascii();
        (!line.is_empty()).then_some((number, line))
    })
}

/// The bytes without a byte order mark, which some editors write.
fn without_mark(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes)
}

/// One reading of a list.
struct Reading<'a> {
    room: usize,
    left: usize,
    is_full: bool,
    line: Option<usize>,
    pointer: String,
    give: &'a mut dyn FnMut(Found<'_>),
}

impl Reading<'_> {
    fn text(&mut self, bytes: &[u8]) -> Result<(), Unusable> {
        for (number, line) in lines(bytes) {
            self.line = Some(number);
            let text = String::from_utf8_lossy(line);
            match Netblocks::of(&text) {
                Some(netblocks) => self.give(&text, netblocks)?,
                None => (self.give)(Found {
                    line: self.line,
                    pointer: "",
                    text: &text,
                    netblock: None,
                }),
            }
        }
        Ok(())
    }

    /// Reads one JSON document, or JSON lines if the first line is a value of its own.
    fn json(&mut self, bytes: &[u8]) -> Result<(), Unusable> {
        let mut lines = bytes.split(|byte| *byte == b'\n');
        let first = lines.find(|line| !line.trim_ascii().is_empty());
        let is_value = |line: &[u8]| serde_json::from_slice::<IgnoredAny>(line).is_ok();
        let is_more = lines.any(|line| !line.trim_ascii().is_empty());
        if !is_more || !first.is_some_and(is_value) {
            // Blank lines may have blanks that JSON does not know.
            let blank = bytes.len() - bytes.trim_ascii_start().len();
            let (blank, _) = bytes.split_at(blank);
            let start = blank.iter().rposition(|byte| *byte == b'\n');
            let before = blank.iter().filter(|byte| **byte == b'\n').count();
            let (_, document) = bytes.split_at(start.map_or(0, |end| end + 1));
            return self.value(document.trim_ascii_end(), before);
        }
        let lines = bytes.split(|byte| *byte == b'\n').enumerate();
        for (before, line) in lines.filter(|(_, line)| !line.trim_ascii().is_empty()) {
            self.line = Some(before + 1);
            self.value(line, before)?;
        }
        Ok(())
    }

    /// Reads a whole value; `before` is the number of lines before it.
    fn value(&mut self, text: &[u8], before: usize) -> Result<(), Unusable> {
        self.pointer.clear();
        let mut json = serde_json::Deserializer::from_slice(text);
        let read = Strings(self).deserialize(&mut json);
        read.and_then(|()| json.end()).map_err(|error| {
            if self.is_full {
                return Unusable::TooMany(self.room);
            }
            let (line, column) = (before + error.line(), error.column());
            let why = json::sentence(&error);
            let message = format!("{why}: expected one whole JSON document, or one a line");
            Unusable::NotJson(Fault::new(line, column, &self.pointer, &message))
        })
    }

    /// Passes the netblocks of a text on, while there is room.
    fn give(&mut self, text: &str, netblocks: Netblocks) -> Result<(), Unusable> {
        for netblock in netblocks {
            self.is_full = self.left == 0;
            self.left = (self.left.checked_sub(1)).ok_or(Unusable::TooMany(self.room))?;
            (self.give)(Found {
                line: self.line,
                pointer: &self.pointer,
                text,
                netblock: Some(netblock),
            });
        }
        Ok(())
    }
}

/// Passes on every string of a JSON value that is a netblock. After an error the pointer stays at
/// the place.
struct Strings<'r, 'a>(&'r mut Reading<'a>);

impl<'de> DeserializeSeed<'de> for Strings<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strings<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        match Netblocks::of(text) {
            Some(netblocks) => self.0.give(text, netblocks).map_err(E::custom),
            None => Ok(()),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let above = self.0.pointer.len();
        for index in 0_usize.. {
            self.0.pointer.truncate(above);
            let _ = write!(self.0.pointer, "/{index}");
            if list.next_element_seed(Strings(self.0))?.is_none() {
                break;
            }
        }
        self.0.pointer.truncate(above);
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let above = self.0.pointer.len();
        while map.next_key_seed(Name(&mut self.0.pointer))?.is_some() {
            map.next_value_seed(Strings(self.0))?;
            self.0.pointer.truncate(above);
        }
        Ok(())
    }
}

/// A member's name, which is appended to the pointer.
struct Name<'a>(&'a mut String);

impl<'de> DeserializeSeed<'de> for Name<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Name<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a member")
    }

    fn visit_str<E>(self, name: &str) -> Result<(), E> {
        self.0.push_str(&json::member(name));
        Ok(())
    }
}

/// The netblocks of a text: one, or those of a range.
enum Netblocks {
    One(Option<Netblock>),
    V4(Ipv4Subnets),
    V6(Ipv6Subnets),
}

impl Netblocks {
    fn of(text: &str) -> Option<Self> {
        let text = text.trim_ascii();
        let may_be = |first: &u8| first.is_ascii_hexdigit() || *first == b':';
        if text.len() > LONGEST || !text.as_bytes().first().is_some_and(may_be) {
            return None;
        }
        let Some((first, last)) = text.split_once('-') else {
            return Some(Self::One(Some(text.parse().ok()?)));
        };
        let address = |text: &str| text.trim_ascii().parse::<IpAddr>().ok().map(fold);
        match (address(first)?, address(last)?) {
            (IpAddr::V4(first), IpAddr::V4(last)) if first <= last => {
                Some(Self::V4(Ipv4Subnets::new(first, last, 0)))
            }
            (IpAddr::V6(first), IpAddr::V6(last)) if first <= last => {
                Some(Self::V6(Ipv6Subnets::new(first, last, 0)))
            }
            _ => None,
        }
    }
}

impl Iterator for Netblocks {
    type Item = Netblock;

    fn next(&mut self) -> Option<Netblock> {
        let net = match self {
            Self::One(netblock) => return netblock.take(),
            Self::V4(nets) => IpNet::V4(nets.next()?),
            Self::V6(nets) => IpNet::V6(nets.next()?),
        };
        Some(Netblock::masked(net.addr(), net.prefix_len()))
    }
}

#[cfg(test)]
mod tests;
