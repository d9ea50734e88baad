//! The origin of a client: the code of its country and the number of its AS, as types (LOOKUP-4).

use std::fmt;
use std::num::{NonZeroU8, NonZeroU32};
use std::str::FromStr;

/// A known AS number: neither 0 nor 64512, which stand for unknown (LOOKUP-4).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct AsNumber(NonZeroU32);

/// The number that stands for an unknown AS (LOOKUP-4).
const UNKNOWN_AS: u32 = 64_512;

impl AsNumber {
    /// The number; none for those that stand for unknown.
    pub const fn new(number: u32) -> Option<Self> {
        match NonZeroU32::new(number) {
            Some(number) if number.get() != UNKNOWN_AS => Some(Self(number)),
            _ => None,
        }
    }

    /// The number.
    pub const fn number(self) -> u32 {
        self.0.get()
    }

    /// Reads `15169`, `AS15169` or `AS15169 Name`, and gives the name too. None inside stands for
    /// unknown.
    ///
    /// # Errors
    /// [`NotAnAsNumber`] if it is none of these.
    pub fn parse_named(text: &str) -> Result<(Option<Self>, Option<&str>), NotAnAsNumber> {
        let text = text.trim();
        let (word, name) = match text.split_once(char::is_whitespace) {
            Some((word, name)) => (word, Some(name.trim())),
            None => (text, None),
        };
        let prefixed = word.get(..2).is_some_and(|p| p.eq_ignore_ascii_case("as"));
        let bare = if prefixed {
            word.get(2..).unwrap_or_default()
        } else {
            word
        };
        let number = digits(bare).ok_or(NotAnAsNumber)?;
        Ok((Self::new(number), name.filter(|name| !name.is_empty())))
    }
}

/// Parses digits only; the standard library would accept a sign.
pub(crate) fn digits(text: &str) -> Option<u32> {
    if text.is_empty() {
        return None;
    }
    text.bytes().try_fold(0u32, |number, byte| {
        let digit = char::from(byte).to_digit(10)?;
        number.checked_mul(10)?.checked_add(digit)
    })
}

/// Neither `15169` nor `AS15169` nor `AS15169 Name`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not an AS number")]
pub struct NotAnAsNumber;

impl fmt::Display for AsNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AS{}", self.0)
    }
}

/// A country code, two letters (ISO 3166-1 alpha-2, user-assigned ones such as `XK` included). No
/// letter is 0, so that `Option` needs no further byte: every client of the table has one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Country(NonZeroU8, NonZeroU8);

/// Not two letters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not a country code")]
pub struct NotACountry;

impl FromStr for Country {
    type Err = NotACountry;

    fn from_str(text: &str) -> Result<Self, NotACountry> {
        match text.as_bytes() {
            [a, b] if a.is_ascii_alphabetic() && b.is_ascii_alphabetic() => {
                let letter = |byte: &u8| NonZeroU8::new(byte.to_ascii_uppercase());
                letter(a)
                    .zip(letter(b))
                    .map(|(a, b)| Self(a, b))
                    .ok_or(NotACountry)
            }
            _ => Err(NotACountry),
        }
    }
}

impl fmt::Display for Country {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}{}",
            char::from(self.0.get()),
            char::from(self.1.get())
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// LOOKUP-4: `15169`, `AS15169` and `AS15169 Name` are understood; 64512 is unknown.
    #[test]
    fn as_numbers_are_understood_in_every_form() {
        let google = AsNumber::new(15_169);
        for (text, number, name) in [
            ("15169", google, None),
            ("AS15169", google, None),
            (" as15169 ", google, None),
            ("AS15169 Google LLC", google, Some("Google LLC")),
            ("64512", None, None),
            ("AS64512 Unknown", None, Some("Unknown")),
            ("0", None, None),
        ] {
            assert_eq!(AsNumber::parse_named(text), Ok((number, name)), "{text}");
        }
        for wrong in ["", "AS", "Google", "AS-1", "15169.0", "AS4294967296", "ÄS1"] {
            assert_eq!(AsNumber::parse_named(wrong), Err(NotAnAsNumber), "{wrong}");
        }
        assert_eq!(google.unwrap().to_string(), "AS15169");
    }
}
