//! Parses the times of logs. By hand, because the forms are fixed and a general parser would take
//! half the time of a line.

use weir_shared::units::Time;

const DAY_S: u64 = 86_400;
const MONTHS: [&[u8]; 12] = [
    b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec",
];

/// The number that these digits write; none if any byte is no digit.
fn digits(text: &[u8]) -> Option<u64> {
    let digit = |sum: u64, byte: &u8| {
        let value = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        sum.checked_mul(10)?.checked_add(value)
    };
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0, digit)
}

/// Seconds since 1970 of a date of the Gregorian calendar (Howard Hinnant's `days_from_civil`).
fn seconds(year: u64, month: u64, day: u64, clock: [u64; 3]) -> Option<u64> {
    let [hour, minute, second] = clock;
    let fits = (1970..=9999).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second <= 60;
    if !fits {
        return None;
    }
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year / 400, year % 400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year;
    // Days from 0000-03-01 to 1970-01-01.
    let days = days.checked_sub(719_468)?;
    Some(days * DAY_S + hour * 3600 + minute * 60 + second)
}

fn clock(text: &[u8]) -> Option<[u64; 3]> {
    let mut parts = text.splitn(3, |byte| *byte == b':').map(digits);
    Some([parts.next()??, parts.next()??, parts.next()??])
}

/// Milliseconds from the digits after the decimal point.
fn thousandths(text: &[u8]) -> Option<u64> {
    let known = text.get(..3.min(text.len()))?;
    let scale = [100, 10, 1].get(known.len().checked_sub(1)?)?;
    Some(digits(known)? * scale)
}

/// `2026-11-21T16:00:00.007Z`; other forms of RFC 3339 go to the library's slower parser.
pub fn rfc3339(text: &str) -> Option<u64> {
    let fast = || {
        let bytes = text.as_bytes().strip_suffix(b"Z")?;
        let (date, time) = (bytes.get(..10)?, bytes.get(11..)?);
        if *bytes.get(10)? != b'T' {
            return None;
        }
        let mut date = date.splitn(3, |byte| *byte == b'-').map(digits);
        let (year, month, day) = (date.next()??, date.next()??, date.next()??);
        let millis = match time.get(8) {
            None => 0,
            Some(b'.') => thousandths(time.get(9..)?)?,
            Some(_) => return None,
        };
        let clock = clock(time.get(..8)?)?;
        Some(seconds(year, month, day, clock)? * 1000 + millis)
    };
    fast().or_else(|| text.parse().ok().map(|Time(at_ms)| at_ms))
}

/// `21/Nov/2026:16:00:00 +0100` of nginx, `21/Nov/2026:16:00:00.655` of HAProxy; without an offset
/// it is taken for UTC.
pub fn common(text: &str) -> Option<u64> {
    let bytes = text.as_bytes();
    let mut date = bytes.get(..11)?.splitn(3, |byte| *byte == b'/');
    let day = digits(date.next()?)?;
    let month = date.next()?;
    let month = MONTHS.iter().position(|name| *name == month)? as u64 + 1;
    let year = digits(date.next()?)?;
    if *bytes.get(11)? != b':' {
        return None;
    }
    let at_s = seconds(year, month, day, clock(bytes.get(12..20)?)?)?;
    let rest = bytes.get(20..)?;
    let (millis, offset) = match rest {
        [] => (0, 0),
        [b'.', fraction @ ..] => (thousandths(fraction)?, 0),
        [b' ', sign @ (b'+' | b'-'), zone @ ..] if zone.len() == 4 => {
            let (hours, minutes) = (digits(zone.get(..2)?)?, digits(zone.get(2..)?)?);
            let offset = i64::try_from(hours * 3600 + minutes * 60).ok()?;
            (0, if *sign == b'+' { offset } else { -offset })
        }
        _ => return None,
    };
    Some(at_s.checked_add_signed(-offset)? * 1000 + millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CONTROL-6: the calendar agrees with that of the library, day by day over four centuries.
    #[test]
    fn the_calendar_is_right() {
        let mut at_ms = 0;
        while at_ms < 4 * 365 * 100 * DAY_S * 1000 {
            let text = Time(at_ms).to_string();
            assert_eq!(rfc3339(&text), Some(at_ms), "{text}");
            at_ms += DAY_S * 1000 + 61_007;
        }
        assert_eq!(
            rfc3339("2026-11-21T17:00:00+01:00"),
            Some(1_795_276_800_000)
        );
        assert_eq!(rfc3339("2026-11-21T16:00:00.5Z"), Some(1_795_276_800_500));
        assert_eq!(
            rfc3339("2026-11-21T16:00:00.123456Z"),
            Some(1_795_276_800_123)
        );
    }

    /// CONTROL-6: an invalid time is refused.
    #[test]
    fn what_is_no_time_is_none() {
        for wrong in [
            "",
            "yesterday",
            "2026-13-01T00:00:00Z",
            "2026-11-21 16:00:00x",
        ] {
            assert_eq!(rfc3339(wrong), None, "{wrong}");
        }
        for wrong in [
            "",
            "21/Foo/2026:16:00:00 +0000",
            "21/Nov/2026:16:00:00 0100",
            "21/Nov/2026:16:00",
        ] {
            assert_eq!(common(wrong), None, "{wrong}");
        }
        assert_eq!(
            common("21/Nov/2026:16:00:00 -0130"),
            Some(1_795_276_800_000 + 5_400_000)
        );
    }
}
