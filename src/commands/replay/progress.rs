//! The progress of a long command: one line on a terminal, nothing elsewhere.
#![expect(
    clippy::disallowed_methods,
    reason = "what a person sees of the time that passes: no test turns it"
)]

use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

/// How often the line is written.
const PAUSE: Duration = Duration::from_millis(200);
/// The width of the bar, in columns.
const WIDTH: u64 = 30;

/// A progress line.
pub struct Progress {
    whole: Option<u64>,
    done: u64,
    began: Instant,
    /// When the line was last written; none if standard error is not a terminal.
    written: Option<Instant>,
}

impl Progress {
    /// Progress of a work of `whole` bytes, if that is known.
    pub fn new(whole: Option<u64>) -> Self {
        let began = Instant::now();
        Self {
            whole,
            done: 0,
            began,
            written: stderr().is_terminal().then_some(began),
        }
    }

    /// Adds bytes that are done.
    pub fn add(&mut self, bytes: usize) {
        self.done += bytes as u64;
        let Some(written) = &mut self.written else {
            return;
        };
        if written.elapsed() >= PAUSE {
            *written = Instant::now();
            let line = line(self.done, self.whole, self.began.elapsed());
            let _ = write!(stderr(), "\r{line}\x1b[K");
        }
    }

    /// Clears the line.
    pub fn clear(&self) {
        if self.written.is_some() {
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }
}

/// `[#####.....]  50 %  120 MB  30 MB/s`
fn line(done: u64, whole: Option<u64>, took: Duration) -> String {
    let megabytes = done / 1_000_000;
    let millis = u64::try_from(took.as_millis()).unwrap_or(u64::MAX).max(1);
    let rate = done / 1000 / millis;
    let bar = match whole {
        // A file may have grown meanwhile.
        Some(whole) if whole > 0 => {
            let full = (done.saturating_mul(WIDTH) / whole).min(WIDTH);
            let percent = (done.saturating_mul(100) / whole).min(100);
            let (full, empty) = (full as usize, (WIDTH - full) as usize);
            format!(
                "[{}{}] {percent:3} %  ",
                "#".repeat(full),
                ".".repeat(empty)
            )
        }
        _ => String::new(),
    };
    format!("{bar}{megabytes} MB  {rate} MB/s")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CONTROL-3: the line shows the progress, even if the total is unknown.
    #[test]
    fn the_line_says_how_far_it_is() {
        let second = Duration::from_secs(2);
        assert_eq!(
            line(60_000_000, Some(120_000_000), second),
            "[###############...............]  50 %  60 MB  30 MB/s"
        );
        assert_eq!(line(60_000_000, None, second), "60 MB  30 MB/s");
        assert!(line(7, Some(3), Duration::ZERO).contains("100 %"));
    }
}
