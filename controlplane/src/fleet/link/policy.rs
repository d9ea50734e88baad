//! Asks for the engine's eviction policy, over the link.

use super::{Link, fault, text};
use crate::fleet::engine::Fault;

impl Link {
    /// `maxmemory_policy`; empty if the engine does not tell it to this user.
    ///
    /// # Errors
    /// [`Fault`]
    pub fn policy(&mut self) -> Result<String, Fault> {
        let command = redis::cmd("INFO").arg("memory").to_owned();
        let told = match command.query(&mut self.connection) {
            Err(error) if error.is_io_error() => return Err(fault(error)),
            told => told.ok(),
        };
        let told = told.and_then(|told| text(&told).ok()).unwrap_or_default();
        let mut lines = told.lines();
        let policy = lines.find_map(|line| line.strip_prefix("maxmemory_policy:"));
        let policy = policy.unwrap_or_default().trim();
        Ok(policy.chars().take(LONGEST).collect())
    }
}

/// The longest name of a policy.
const LONGEST: usize = 64;
