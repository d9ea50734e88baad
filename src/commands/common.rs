//! What all commands share: exit statuses, failures, output, the current time.

use std::borrow::Cow;
use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::{LazyLock, OnceLock};
use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde_json::Value;
use weir_shared::client::{Client, NotAClient};
use weir_shared::clock::{Clock, Now};
use weir_shared::record::disturbs;
use weir_shared::settings::Refused;

use super::text;

/// No service answers (`EX_UNAVAILABLE` of sysexits).
pub const EXIT_UNAVAILABLE: u8 = 69;
/// Something an operator must mend before a start (`EX_CONFIG` of sysexits; SETTING-1).
pub const EXIT_CONFIG: u8 = 78;
/// A wrong call: the status that clap exits with.
pub const EXIT_USAGE: u8 = 2;
/// The answer is no.
pub const EXIT_NO: u8 = 1;

/// Why a command failed: a sentence for standard error, and the exit status.
pub struct Failure {
    pub sentence: String,
    pub status: u8,
}

impl Failure {
    pub fn new(status: u8, sentence: impl Into<String>) -> Self {
        Self {
            sentence: sentence.into(),
            status,
        }
    }

    /// The settings are not sound.
    pub fn of_settings(refused: &Refused) -> Self {
        Self::new(EXIT_CONFIG, refused.problems.join("\nweir: "))
    }

    /// Writes the sentence to standard error.
    pub fn tell(&self) -> ExitCode {
        // It may quote what somebody wrote.
        let told = format!("weir: {}", self.sentence);
        told.lines()
            .for_each(|line| eprintln!("{}", text::visible(line)));
        ExitCode::from(self.status)
    }
}

/// The exit status of a command. Writes a failure to standard error.
pub fn finish(ended: Result<ExitCode, Failure>) -> ExitCode {
    ended.unwrap_or_else(|failure| failure.tell())
}

/// The most bytes of one write: a pipe that is writable accepts at least so many (POSIX,
/// `PIPE_BUF`).
const AT_ONCE: usize = 512;
/// How long to wait until standard error is writable.
const PATIENCE: Duration = Duration::from_secs(1);

/// Writes why a start failed to standard error, one line for each fault. If nobody reads standard
/// error, the rest is left out: it must not keep the process (ALIVE-1).
pub fn last_words<T: Display>(lines: impl IntoIterator<Item = T>) {
    // They may quote what somebody wrote.
    let said = |line: T| format!("weir: {line}");
    let told: Vec<String> = lines.into_iter().map(said).collect();
    let visible = |line: &str| format!("{}\n", text::visible(line)).into_bytes();
    let text: Vec<u8> = told
        .iter()
        .flat_map(|said| said.lines())
        .flat_map(visible)
        .collect();
    let (error, clock) = (io::stderr(), Clock::system());
    for mut part in text.chunks(AT_ONCE) {
        // A signal ends a wait, and no wait begins anew for it.
        let begun_ns = clock.now().mono_ns;
        while !part.is_empty() {
            let waited = Duration::from_nanos(clock.now().mono_ns.saturating_sub(begun_ns));
            let left = PATIENCE.checked_sub(waited).map(Timespec::try_from);
            let Some(Ok(left)) = left else { return };
            let mut takes = [PollFd::new(&error, PollFlags::OUT)];
            match poll(&mut takes, Some(&left)) {
                Ok(1..) => {}
                Err(Errno::INTR) => continue,
                Ok(0) | Err(_) => return,
            }
            match rustix::io::write(&error, part) {
                Ok(0) => return,
                Ok(written) => part = part.get(written..).unwrap_or_default(),
                Err(Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }
}

/// The first error of a write to standard output.
static UNWRITTEN: OnceLock<io::Error> = OnceLock::new();

/// Writes to standard output. A reader that closes it early (`| head`) has read enough; any other
/// error is reported at the end of the command, see [`written`].
pub fn out(text: &str) {
    let mut output = io::stdout().lock();
    let written = (output.write_all(text.as_bytes())).and_then(|()| output.flush());
    if let Err(error) = written
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        let _ = UNWRITTEN.set(error);
    }
}

/// The exit status of a command; a failure where its output was not written whole.
pub fn written(ended: ExitCode) -> ExitCode {
    match UNWRITTEN.get() {
        Some(error) => {
            eprintln!("weir: standard output cannot be written: {error}");
            ExitCode::FAILURE
        }
        None => ended,
    }
}

/// Writes a document to standard output.
pub fn print_json(document: &Value) -> Result<ExitCode, Failure> {
    out(&format!("{}\n", undisturbing(&format!("{document:#}"))));
    Ok(ExitCode::SUCCESS)
}

/// The same document, safe to show in a terminal (TELL-2): escapes what JSON leaves as it is, the
/// control characters from U+007F on, and characters that break a line or change the direction of
/// writing.
fn undisturbing(json: &str) -> Cow<'_, str> {
    let steers = |letter: char| letter != '\n' && disturbs(letter);
    if !json.contains(steers) {
        return Cow::Borrowed(json);
    }
    let mut escaped = String::with_capacity(json.len() + 64);
    for letter in json.chars() {
        match steers(letter) {
            // All of these occur inside strings only, and each is one unit of UTF-16, so `\u` and
            // four digits are right.
            true => escaped.push_str(&format!("\\u{:04x}", u32::from(letter))),
            false => escaped.push(letter),
        }
    }
    Cow::Owned(escaped)
}

/// The current time. The monotonic part counts from the first call.
pub fn now() -> Now {
    static CLOCK: LazyLock<Clock> = LazyLock::new(Clock::system);
    CLOCK.now()
}

/// An address that was typed. For a client as lists show it (`2001:db8::/64`) this is the address
/// before the `/`.
pub fn address(text: &str) -> Result<&str, Failure> {
    let wrong = |wrong: NotAClient| Failure::new(EXIT_USAGE, wrong.to_string());
    text.parse::<Client>().map_err(wrong)?;
    Ok(text.strip_suffix("/64").unwrap_or(text))
}

/// The text, percent-encoded as one segment of a path.
pub fn percent_encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// TELL-2: the printed document cannot steer a terminal, and its content is unchanged.
    #[test]
    fn a_document_steers_no_terminal() {
        let document = json!({"a\u{9b}31m": "x\u{7f}\u{202e}\u{85}\n\"\\\u{e9}\u{1f600}"});
        let text = format!("{document:#}");
        let shown = undisturbing(&text);
        let steers = |letter: char| letter != '\n' && disturbs(letter);
        assert!(text.contains(steers) && !shown.contains(steers), "{shown}");
        assert_eq!(serde_json::from_str::<Value>(&shown).unwrap(), document);
        assert!(shown.contains("\u{e9}\u{1f600}"), "{shown}");
    }

    /// CONTROL-3: the times of two calls can be compared; otherwise "the last minute" would never
    /// end.
    #[test]
    fn monotonic_time_goes_on_between_two_calls() {
        let pause = std::time::Duration::from_millis(3);
        let first = now().mono_ns;
        std::thread::sleep(pause);
        let second = now().mono_ns;
        assert!(second - first >= 3_000_000, "{first} {second}");
    }
}
