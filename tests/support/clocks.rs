//! The clocks of a service that a test moves.

use std::path::PathBuf;

use super::wait_until;

/// Settings under which a connection that is accepted while the clocks move is not late for that.
pub(crate) fn patient() -> [(String, String); 3] {
    let names = [
        "WAF_HEADER_TIMEOUT",
        "WAF_KEEPALIVE_TIMEOUT",
        "WAF_BODY_TIMEOUT",
    ];
    names.map(|name| (name.to_owned(), "1d".to_owned()))
}

/// How far they are ahead of the system's.
pub(crate) struct Clocks {
    file: PathBuf,
    ahead_ms: u64,
}

impl Clocks {
    /// By a file in this directory.
    pub(crate) fn new(directory: &std::path::Path) -> Self {
        Self {
            file: directory.join("ahead"),
            ahead_ms: 0,
        }
    }

    /// The setting of the service that has them.
    pub(crate) fn setting(&self) -> (String, String) {
        let place = self.file.to_str().expect("a path").to_owned();
        ("WEIR_TEST_CLOCK".to_owned(), place)
    }

    pub(crate) fn ahead_ms(&self) -> u64 {
        self.ahead_ms
    }

    /// Moves them ahead by this.
    #[track_caller]
    pub(crate) fn move_on(&mut self, milliseconds: u64) {
        self.ahead_ms += milliseconds;
        let text = self.ahead_ms.to_string();
        let new = self.file.with_extension("new");
        std::fs::write(&new, &text).expect("writes");
        std::fs::rename(new, &self.file).expect("renames");
        let seen = self.file.with_extension("seen");
        wait_until("the clocks", || {
            std::fs::read_to_string(&seen).is_ok_and(|seen| seen == text)
        });
    }
}
