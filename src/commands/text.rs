//! How commands write for people: tables, times, numbers. Plain text, no colour.

use std::fmt::Display;
use std::time::Duration;

use serde_json::Value;
use weir_shared::ban::Expiry;
use weir_shared::record::disturbs;
use weir_shared::units::Time;
pub use weir_shared::units::count;

/// A table whose columns are as wide as their widest cell, with two blanks between them. `right`
/// has the positions of right-aligned columns, those of numbers.
pub struct Table {
    right: &'static [usize],
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table with these headings.
    pub fn new(headings: &[&str], right: &'static [usize]) -> Self {
        let headings = headings.iter().map(|heading| (*heading).to_owned());
        Self {
            right,
            rows: vec![headings.collect()],
        }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The whole table, each line with its end.
    pub fn text(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns)
            .map(|column| {
                let cells = self.rows.iter().filter_map(|row| row.get(column));
                cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
            })
            .collect();
        let mut text = String::new();
        for row in &self.rows {
            let cells = row.iter().zip(&widths).enumerate();
            let cells = cells.map(|(column, (cell, width))| {
                if self.right.contains(&column) {
                    format!("{cell:>width$}")
                } else {
                    format!("{cell:<width$}")
                }
            });
            let line = cells.collect::<Vec<_>>().join("  ");
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// A line for a program: cells between tabs. A tab, a line end and a backslash of a cell are
/// written `\t`, `\n` or `\r`, and `\\`; a control character is left out.
pub fn tsv<'a>(cells: impl IntoIterator<Item = &'a str>) -> String {
    let escaped = |cell: &str| {
        let mut text = String::with_capacity(cell.len());
        for letter in cell.chars() {
            match letter {
                '\t' => text.push_str("\\t"),
                '\n' => text.push_str("\\n"),
                '\r' => text.push_str("\\r"),
                '\\' => text.push_str("\\\\"),
                _ if !disturbs(letter) => text.push(letter),
                _ => {}
            }
        }
        text
    };
    let cells: Vec<String> = cells.into_iter().map(escaped).collect();
    cells.join("\t") + "\n"
}

/// A member of an open document, for one cell.
pub fn cell(value: &Value) -> String {
    match value {
        Value::Null => NOTHING.to_owned(),
        Value::String(text) => plain(text),
        other => plain(&other.to_string()),
    }
}

/// A member of an open document, for the last cell of a row: as long as it is.
pub fn last_cell(value: &Value) -> String {
    match value {
        Value::String(text) => visible(text),
        other => cell(other),
    }
}

/// The cell of a missing value.
const NOTHING: &str = "–";

/// A value for one cell, or a dash if there is none.
pub fn maybe<T: Display>(value: Option<T>) -> String {
    value.map_or(NOTHING.to_owned(), |value| plain(&value.to_string()))
}

/// A text from outside, for one cell: without control characters, cut at 60.
pub fn plain(text: &str) -> String {
    const MOST: usize = 60;
    let text = visible(text);
    if text.chars().count() > MOST {
        text.chars().take(MOST - 1).chain(['…']).collect()
    } else {
        text
    }
}

/// A text from outside, made safe to show on one line.
pub fn visible(text: &str) -> String {
    let letters = text.chars();
    letters
        .map(|letter| if disturbs(letter) { '�' } else { letter })
        .collect()
}

/// The two largest units: `3 d 4 h`.
pub fn span(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let units = [("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)];
    let first = units.iter().position(|(_, length)| seconds >= *length);
    let parts: Vec<String> = units
        .iter()
        .scan(seconds, |rest, (unit, length)| {
            let count = *rest / length;
            *rest %= length;
            Some((count, unit))
        })
        .skip(first.unwrap_or(units.len() - 1))
        .take(2)
        .filter(|(count, _)| *count > 0)
        .map(|(count, unit)| format!("{count} {unit}"))
        .collect();
    if parts.is_empty() {
        "0 s".to_owned()
    } else {
        parts.join(" ")
    }
}

/// The time until a ban ends; `permanent` for a permanent one.
pub fn until_end(end: Expiry, now_ms: u64) -> String {
    match end {
        // Rounded up, as Retry-After is.
        Expiry::At(Time(end)) => span(Duration::from_secs(
            end.saturating_sub(now_ms).div_ceil(1000),
        )),
        Expiry::Permanent => end.to_string(),
    }
}

/// When a ban ends, and how long that is: `until 2026-11-21T16:00:00Z (1 h)`, or `permanent`.
pub fn end_in_words(end: Expiry, now_ms: u64) -> String {
    match end {
        Expiry::At(_) => format!("until {end} ({})", until_end(end, now_ms)),
        Expiry::Permanent => end.to_string(),
    }
}

/// The time since a moment.
pub fn since_time(Time(then): Time, now_ms: u64) -> String {
    span(Duration::from_millis(now_ms.saturating_sub(then)))
}

/// The member's time, in milliseconds since 1970.
pub fn time(value: &Value) -> Option<u64> {
    value.as_str()?.parse::<Time>().ok().map(|time| time.0)
}

/// Bytes in the largest unit that leaves at least one: `34 B`, `1.5 MiB`, `10 GiB`.
pub fn bytes(number: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut unit = "B";
    let (mut whole, mut tenth) = (number, 0);
    for larger in UNITS {
        if whole < 1024 {
            break;
        }
        tenth = whole % 1024 * 10 / 1024;
        whole /= 1024;
        unit = larger;
    }
    match tenth {
        0 => format!("{whole} {unit}"),
        _ => format!("{whole}.{tenth} {unit}"),
    }
}

/// The text, quoted so that a shell reads it as one word.
pub fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-:@%+=,".contains(c);
    match !text.is_empty() && text.chars().all(plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

/// `98.1 %`; a dash if `whole` is 0.
pub fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "–".to_owned();
    }
    // In tenths, rounded.
    let tenths = (u128::from(part) * 2000 / u128::from(whole)).div_ceil(2);
    format!("{}.{} %", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// CONTROL-3: columns are aligned and lines end without blanks.
    #[test]
    fn tables_are_aligned() {
        let mut table = Table::new(&["A", "NUMBER", "B"], &[1]);
        table.row(["long".to_owned(), "7".to_owned(), String::new()]);
        assert_eq!(table.text(), "A     NUMBER  B\nlong       7\n");
    }

    /// CONTROL-3: texts of clients cannot steer a terminal.
    #[test]
    fn cells_are_plain() {
        assert_eq!(cell(&json!("a\u{1b}[31mb\n\u{202e}c")), "a�[31mb��c");
        assert_eq!(cell(&json!("x".repeat(70))).chars().count(), 60);
        assert_eq!(cell(&Value::Null), "–");
    }

    /// CONTROL-3: a line for a program has as many cells as there are headings, whatever the cells
    /// contain.
    #[test]
    fn a_cell_of_a_program_is_one() {
        assert_eq!(
            tsv(["a\tb", "", "c\nd\\", "\u{1b}[31m\r"]),
            "a\\tb\t\tc\\nd\\\\\t[31m\\r\n"
        );
    }

    /// CONTROL-3: a count of one has the singular; bytes have a readable unit.
    #[test]
    fn numbers_are_told_as_people_say_them() {
        assert_eq!(
            [0, 1, 2].map(|n| count(n, "ban")),
            ["0 bans", "1 ban", "2 bans"]
        );
        let of = [
            0,
            34,
            1023,
            1024,
            1536,
            10 << 30,
            (10 << 30) + (1 << 29),
            u64::MAX,
        ];
        assert_eq!(
            of.map(bytes),
            [
                "0 B",
                "34 B",
                "1023 B",
                "1 KiB",
                "1.5 KiB",
                "10 GiB",
                "10.5 GiB",
                "16383.9 PiB"
            ]
        );
    }

    /// CONTROL-5: a text for pasting into a shell is one word there.
    #[test]
    fn words_for_a_shell_are_quoted() {
        let of = ["/var/lib/weir/weir.sock", "a b", "it's", ""];
        assert_eq!(
            of.map(quoted),
            ["/var/lib/weir/weir.sock", "'a b'", "'it'\\''s'", "''"]
        );
    }

    /// CONTROL-3: two units at most.
    #[test]
    fn spans_and_shares_are_short() {
        let of = |seconds| span(Duration::from_secs(seconds));
        assert_eq!(
            [0, 59, 60, 3_599, 3_600, 90_061].map(of),
            ["0 s", "59 s", "1 min", "59 min 59 s", "1 h", "1 d 1 h"]
        );
        assert_eq!(percent(0, 0), "–");
        assert_eq!(
            [percent(1, 3), percent(2, 3), percent(3, 3)],
            ["33.3 %", "66.7 %", "100.0 %"]
        );
    }
}
