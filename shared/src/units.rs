//! Units as they are written in settings, files and answers: times, durations, sizes.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{Error as _, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A moment of the wall clock, milliseconds since 1970, written as RFC 3339 in UTC.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Time(pub u64);

impl Time {
    /// The moment, or the last one that RFC 3339 can write (the end of the year 9999).
    pub fn plus(self, duration: Duration) -> Self {
        let added = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(added).min(LAST.0))
    }
}

/// The last moment that can be written: the end of the year 9999, less the widest offset.
const LAST: Time = Time(253_402_207_199_999);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stamp = i64::try_from(self.0)
            .ok()
            .and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok())
            .unwrap_or(jiff::Timestamp::MAX);
        stamp.fmt(f)
    }
}

impl FromStr for Time {
    type Err = String;

    /// Reads any RFC 3339 time; offsets are turned into UTC, times before 1970 become 1970, and
    /// those at the very end of the year 9999 the last that can be written.
    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse::<jiff::Timestamp>() {
            Ok(stamp) => Ok(Self(u64::try_from(stamp.as_millisecond()).unwrap_or(0))),
            Err(_) if is_at_the_end(text) => Ok(LAST),
            Err(_) => Err(format!(
                "{text:?} is not a time: expected RFC 3339 such as 2026-11-21T16:00:00Z"
            )),
        }
    }
}

/// Whether a time that is no timestamp is one beyond the last, such as 9999-12-31T23:59:59Z.
fn is_at_the_end(text: &str) -> bool {
    jiff::fmt::temporal::Pieces::parse(text).is_ok_and(|pieces| {
        pieces.date().year() == 9999 && pieces.time().is_some() && pieces.offset().is_some()
    })
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

/// A whole number from 0 to 2^64 − 1 in a file. `3.0` is one too: JSON Schema does not tell it from
/// `3`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Count(pub u64);

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_u64(CountVisitor)
    }
}

struct CountVisitor;

impl Visitor<'_> for CountVisitor {
    type Value = Count;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number from 0")
    }

    fn visit_u64<E>(self, count: u64) -> Result<Count, E> {
        Ok(Count(count))
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is whole, and from 0 to below 2^64"
    )]
    fn visit_f64<E: serde::de::Error>(self, count: f64) -> Result<Count, E> {
        const END: f64 = 18_446_744_073_709_551_616.0;
        if count.fract() == 0.0 && (0.0..END).contains(&count) {
            return Ok(Count(count as u64));
        }
        Err(E::invalid_value(Unexpected::Float(count), &self))
    }
}

/// Reads an optional [`Count`] into a smaller number.
///
/// # Errors
/// No count, or too large.
pub fn optional_count<'de, D: Deserializer<'de>, N: TryFrom<u64>>(
    deserializer: D,
) -> Result<Option<N>, D::Error> {
    let too_large =
        |count| D::Error::invalid_value(Unexpected::Unsigned(count), &"a smaller number");
    Option::<Count>::deserialize(deserializer)?
        .map(|Count(count)| N::try_from(count).map_err(|_| too_large(count)))
        .transpose()
}

/// What [`parse_duration`] allows, for error messages.
pub const DURATION_FORM: &str = "expected a duration such as 500ms, 90s, 1h30m or 7d";

/// Reads a duration: numbers with `ms`, `s`, `m`, `h` or `d`, one after the other; the unit is
/// required.
///
/// # Errors
/// The text that was found instead, without what is expected; see [`DURATION_FORM`].
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a duration");
    let mut rest = text.trim();
    let mut total: u64 = 0;
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let (number, tail) = rest.split_at(digits);
        let units = tail
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(units);
        let scale = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err(wrong()),
        };
        let number: u64 = number.parse().map_err(|_| wrong())?;
        total = number
            .checked_mul(scale)
            .and_then(|ms| total.checked_add(ms))
            .ok_or_else(wrong)?;
        rest = tail;
    }
    Ok(Duration::from_millis(total))
}

/// Writes a duration as [`parse_duration`] reads it, largest units first.
pub fn format_duration(duration: Duration) -> String {
    let mut rest = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    if rest == 0 {
        return "0s".to_owned();
    }
    let mut text = String::new();
    for (scale, unit) in [
        (86_400_000, "d"),
        (3_600_000, "h"),
        (60_000, "m"),
        (1_000, "s"),
        (1, "ms"),
    ] {
        if rest >= scale {
            text.push_str(&format!("{}{unit}", rest / scale));
            rest %= scale;
        }
    }
    text
}

/// Reads a size in bytes. `K`, `M`, `G`, `T` are powers of 1024 as in nginx and HAProxy, and so are
/// `KiB` …; `KB` … are powers of 1000.
///
/// # Errors
/// The text that was found instead, without what is allowed.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not a size");
    let text = text.trim();
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let (base, power) = match unit {
        "" => (1, 0),
        "K" | "KiB" => (1024, 1),
        "M" | "MiB" => (1024, 2),
        "G" | "GiB" => (1024, 3),
        "T" | "TiB" => (1024, 4),
        "KB" => (1000, 1),
        "MB" => (1000, 2),
        "GB" => (1000, 3),
        "TB" => (1000, 4),
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    number.checked_mul(u64::pow(base, power)).ok_or_else(wrong)
}

/// Whole seconds, rounded up, at least 1: the form of `Retry-After` (LIMIT-8, RFC 9110 §10.2.3).
pub fn retry_after_seconds(milliseconds: u64) -> u64 {
    milliseconds.div_ceil(1000).max(1)
}

/// A moment as HTTP writes it (RFC 9110 §5.6.7), in whole seconds.
pub fn http_date(ms: u64) -> String {
    let seconds = i64::try_from(ms / 1000).ok();
    let moment = seconds.and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
    let printer = jiff::fmt::rfc2822::DateTimePrinter::new();
    // Every moment of the years 1 to 9999 can be written.
    moment
        .and_then(|moment| printer.timestamp_to_rfc9110_string(&moment).ok())
        .unwrap_or_default()
}

/// A time to wait as people say it, rounded up: `41 minutes`. The larger unit begins at two of it.
pub fn in_words(seconds: u64) -> String {
    let (number, unit) = match seconds {
        0..120 => (seconds, "second"),
        120..7_200 => (seconds.div_ceil(60), "minute"),
        7_200..172_800 => (seconds.div_ceil(3_600), "hour"),
        _ => (seconds.div_ceil(86_400), "day"),
    };
    count(number, unit)
}

/// A number of things whose name takes an `s` in the plural: `1 ban`, `2 bans`.
pub fn count(number: u64, one: &str) -> String {
    match number {
        1 => format!("1 {one}"),
        _ => format!("{number} {one}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 9110: the fixed form of a date.
    #[test]
    fn a_date_of_http_is_fixed_in_form() {
        assert_eq!(
            http_date(1_795_276_800_999),
            "Sat, 21 Nov 2026 16:00:00 GMT"
        );
    }

    /// TELL-1: a time to wait is rounded up, in the unit that a person would use.
    #[test]
    fn times_to_wait_are_said_in_words() {
        for (seconds, words) in [
            (1, "1 second"),
            (119, "119 seconds"),
            (120, "2 minutes"),
            (2_401, "41 minutes"),
            (3_600, "60 minutes"),
            (7_200, "2 hours"),
            (97_200, "27 hours"),
            (172_801, "3 days"),
        ] {
            assert_eq!(in_words(seconds), words);
        }
    }

    /// STATE-8: every time that its schema allows is read, even beyond the end of the calendar.
    #[test]
    fn times_at_the_ends_are_read() {
        for (text, time) in [
            ("9999-12-31T23:59:59Z", Ok(LAST)),
            ("9999-12-30T21:59:59.999Z", Ok(LAST)),
            ("9999-12-31T23:59:59.9-23:59", Ok(LAST)),
            ("0000-01-01T00:00:00+23:59", Ok(Time(0))),
            ("1970-01-01T00:00:01+00:00", Ok(Time(1000))),
            ("9999-12-31", Err(())),
            ("9999-12-31T23:59:59", Err(())),
            ("9999-13-31T23:59:59Z", Err(())),
        ] {
            assert_eq!(text.parse::<Time>().map_err(drop), time, "{text}");
        }
        assert_eq!(LAST.to_string().parse(), Ok(LAST));
    }

    /// STATE-8: a count is what JSON Schema calls an integer: `3.0` is one.
    #[test]
    fn counts_are_whole_numbers() {
        for (text, count) in [
            ("3", Some(3)),
            ("3.0", Some(3)),
            ("-0", Some(0)),
            ("1e3", Some(1000)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("1e400", None),
            ("-1", None),
            ("-1.0", None),
            ("3.5", None),
            ("\"3\"", None),
            ("null", None),
            ("[]", None),
        ] {
            let read = serde_json::from_str::<Count>(text);
            assert_eq!(read.ok(), count.map(Count), "{text}");
        }
    }

    #[test]
    fn durations_need_a_unit_and_survive_their_text() {
        assert_eq!(parse_duration("1h30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("7d"), Ok(Duration::from_secs(604_800)));
        for wrong in [
            "",
            "90",
            "s",
            "1w",
            "-1s",
            "1.5h",
            "99999999999999999999d",
            "1h 30m x",
        ] {
            assert!(parse_duration(wrong).is_err(), "{wrong:?}");
        }
        for text in ["0s", "1s", "1h30m", "7d", "1d2h3m4s5ms"] {
            assert_eq!(format_duration(parse_duration(text).unwrap()), text);
        }
    }

    #[test]
    fn sizes_are_powers_of_1024_unless_they_say_b() {
        assert_eq!(parse_size("10G"), Ok(10 << 30));
        assert_eq!(parse_size("10GiB"), Ok(10 << 30));
        assert_eq!(parse_size("10GB"), Ok(10_000_000_000));
        assert_eq!(parse_size("7"), Ok(7));
        for wrong in [
            "",
            "G",
            "1g",
            "-1",
            "1 G",
            "99999999999999999999",
            "99999999999T",
        ] {
            assert!(parse_size(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn times_are_rfc_3339_in_utc() {
        assert_eq!(Time(1_795_276_800_000).to_string(), "2026-11-21T16:00:00Z");
        assert_eq!(
            "2026-11-21T17:00:00+01:00".parse(),
            Ok(Time(1_795_276_800_000))
        );
        assert!("yesterday".parse::<Time>().is_err());
    }

    /// LIMIT-8: rounded up, at least 1.
    #[test]
    fn retry_after_is_rounded_up() {
        assert_eq!([0, 1, 1000, 1001].map(retry_after_seconds), [1, 1, 1, 2]);
    }
}
