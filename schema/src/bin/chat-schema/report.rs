//! Reports on messages: as JSON for programs, as text for people.
//!
//! A report is one line of JSON. As text it is one line, too, and each violation one more below it.

use std::io::{self, IsTerminal, Write};

use serde_json::{Value, json};
use weir_schema::{Violation, signature::Verified, strict::StrictError};

use crate::{arguments::How, failure::Failure};

/// Prints reports, and remembers whether one of them refused something.
pub(crate) struct Reporter<'a, W> {
    pub(crate) out: &'a mut W,
    text: bool,
    pub(crate) refused: bool,
}

impl<'a, W: Write> Reporter<'a, W> {
    /// Text where `how` says so, or says nothing and standard output is a terminal.
    pub(crate) fn new(out: &'a mut W, how: Option<How>) -> Self {
        let text = how.map_or_else(|| io::stdout().is_terminal(), |how| how == How::Text);
        Self {
            out,
            text,
            refused: false,
        }
    }

    /// A message that fits its schema.
    pub(crate) fn valid(&mut self, line: u64) -> Result<(), Failure> {
        if self.text {
            return Ok(writeln!(self.out, "line {line}: valid")?);
        }
        self.print(&json!({ "line": line, "valid": true }))
    }

    /// A message whose signature counts.
    pub(crate) fn verified(&mut self, line: u64, verified: &Verified) -> Result<(), Failure> {
        let Verified {
            kid, id, from, ts, ..
        } = verified;
        if self.text {
            let (from, id) = (printable(from), printable(id));
            let (ts, kid) = (printable(ts), printable(kid));
            return Ok(writeln!(
                self.out,
                "line {line}: valid: from {from} at {ts}, id {id}, key {kid}"
            )?);
        }
        self.print(&json!({
            "line": line, "valid": true, "kid": kid, "id": id, "from": from, "ts": ts,
        }))
    }

    /// A message that does not fit its schema.
    pub(crate) fn violations(
        &mut self,
        line: u64,
        violations: &[Violation],
    ) -> Result<(), Failure> {
        self.refused = true;
        if !self.text {
            let report = json!({ "line": line, "valid": false, "violations": violations });
            return self.print(&report);
        }
        writeln!(self.out, "line {line}: refused")?;
        for violation in violations {
            // The path repeats names of members, which come from outside.
            writeln!(self.out, "    {}", printable(&violation.to_string()))?;
        }
        Ok(())
    }

    /// A line that is no text of a message.
    pub(crate) fn unreadable(&mut self, line: u64, error: &StrictError) -> Result<(), Failure> {
        self.refused = true;
        // The line of the error is that of the text, which is one line; the number of the line is
        // ours.
        let (fault, column) = (error.fault.to_string(), error.column);
        if self.text {
            let fault = printable(&fault);
            return Ok(writeln!(
                self.out,
                "line {line}: refused: {fault} at column {column}"
            )?);
        }
        self.print(&json!({ "line": line, "valid": false, "error": fault, "column": column }))
    }

    /// A line that is refused for another reason.
    pub(crate) fn error(&mut self, line: u64, error: &str) -> Result<(), Failure> {
        self.refused = true;
        if self.text {
            return Ok(writeln!(
                self.out,
                "line {line}: refused: {}",
                printable(error)
            )?);
        }
        self.print(&json!({ "line": line, "valid": false, "error": error }))
    }

    /// The same report, whatever it is read in: JSON itself leaves the control characters from
    /// U+007F on as they are, and what turns the direction of writing.
    fn print(&mut self, report: &Value) -> Result<(), Failure> {
        let line = escaped(&report.to_string(), |letter| {
            format!("\\u{:04x}", u32::from(letter))
        });
        Ok(writeln!(self.out, "{line}")?)
    }
}

/// `text` with every character escaped that steers a terminal or breaks or turns a line: what comes
/// from outside does neither.
fn printable(text: &str) -> String {
    escaped(text, |letter| letter.escape_default().to_string())
}

/// `text` with what [`steers`] in the form that `escape` gives it.
fn escaped(text: &str, escape: impl Fn(char) -> String) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        if steers(letter) {
            out.push_str(&escape(letter));
        } else {
            out.push(letter);
        }
    }
    out
}

/// Control characters, the separators of lines, and what turns the direction of writing. Each is
/// one unit of UTF-16.
fn steers(letter: char) -> bool {
    letter.is_control()
        || matches!(
            letter,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}
