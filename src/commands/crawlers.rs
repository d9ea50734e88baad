//! `weir crawlers`: crawlers that can prove who they are, ready to be pasted into rules.json
//! (CRAWL-1). None of them is in force by itself.

use std::process::ExitCode;

use super::common::out;

/// The names and netblocks that the crawlers' operators publish.
const TABLE: &str = include_str!("crawlers.json");

/// `weir crawlers`
pub fn run() -> ExitCode {
    out(TABLE);
    ExitCode::SUCCESS
}
