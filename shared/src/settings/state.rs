//! The state files.

use std::path::PathBuf;
use std::time::Duration;

use super::kind::{directory, file, timeout, timeout_or_zero};
use super::row::{Row, row};

/// The state files.
#[derive(Clone, Debug, Default)]
pub struct StateSettings {
    /// `WAF_STATE_DIR`
    pub dir: PathBuf,
    /// `WAF_RULES_FILE`; none is `rules.json` in the directory
    pub rules_file: Option<PathBuf>,
    /// `WAF_FEED_CA_FILE`
    pub feed_ca_file: Option<PathBuf>,
    /// `WAF_STATE_WRITE_DELAY`
    pub write_delay: Duration,
    /// `WAF_STATE_COUNTER_INTERVAL`
    pub counter_interval: Duration,
}

pub(super) fn rows() -> Vec<Row<StateSettings>> {
    vec![
        row(
            "WAF_STATE_DIR",
            "",
            directory(),
            |state: &mut StateSettings| &mut state.dir,
            "Where the state files are.",
        )
        .restart()
        .unset("`$STATE_DIRECTORY`, else `./state`")
        .essential(),
        row(
            "WAF_RULES_FILE",
            "",
            file(),
            |state: &mut StateSettings| &mut state.rules_file,
            "Lists and rules, read again when they are saved; the file may be absent.",
        )
        .restart()
        .unset("`rules.json` in the state directory"),
        row(
            "WAF_FEED_CA_FILE",
            "",
            file(),
            |state: &mut StateSettings| &mut state.feed_ca_file,
            "PEM certificates that are trusted besides Mozilla's roots, for feeds of rules.json.",
        )
        .live()
        .unset("Mozilla's roots"),
        row(
            "WAF_STATE_WRITE_DELAY",
            "1s",
            timeout_or_zero(),
            |state: &mut StateSettings| &mut state.write_delay,
            "From a ban to its write, and between two of bans.json; with more than 1,000 bans bans.json is written every five such delays at most, with more than 10,000 more rarely.",
        )
        .live(),
        row(
            "WAF_STATE_COUNTER_INTERVAL",
            "60s",
            timeout(),
            |state: &mut StateSettings| &mut state.counter_interval,
            "Between two writes of every state file.",
        )
        .live(),
    ]
}
