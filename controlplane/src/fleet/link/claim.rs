//! Claims of alerts, over the link.

use std::time::Duration;

use redis::Value;

use super::{Link, fault, is_of_another_type};
use crate::fleet::engine::Fault;

impl Link {
    /// Stores a text under a name for `length`, unless there is one. Returns the text that is there
    /// already; a value that is no text counts as an empty one.
    ///
    /// # Errors
    /// [`Fault`]
    pub fn claim(
        &mut self,
        name: &str,
        text: &[u8],
        length: Duration,
    ) -> Result<Option<Vec<u8>>, Fault> {
        let key = self.key(&format!("cd:{name}"));
        let length_ms = u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
        let put = self.ask(
            redis::cmd("SET")
                .arg(&key)
                .arg(text)
                .arg("NX")
                .arg("PX")
                .arg(length_ms.clamp(1, MOST_MS)),
        )?;
        if put == Value::Okay {
            return Ok(None);
        }
        let command = redis::cmd("GET").arg(&key).to_owned();
        match command.query(&mut self.connection) {
            Ok(Value::BulkString(held)) => Ok(Some(held)),
            Ok(_) => Ok(Some(Vec::new())),
            Err(error) if is_of_another_type(&error) => Ok(Some(Vec::new())),
            Err(error) => Err(fault(error)),
        }
    }
}

impl Link {
    /// Stores a text under a name for `length`, whatever is there.
    ///
    /// # Errors
    /// [`Fault`]
    pub fn told(&mut self, name: &str, text: &[u8], length: Duration) -> Result<(), Fault> {
        let key = self.key(&format!("cd:{name}"));
        let length_ms = u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
        let mut command = redis::cmd("SET");
        command.arg(key).arg(text).arg("PX");
        self.ask(command.arg(length_ms.clamp(1, MOST_MS))).map(drop)
    }
}

/// The longest time, a year: the engine refuses expiries that overflow.
const MOST_MS: u64 = 365 * 86_400_000;
