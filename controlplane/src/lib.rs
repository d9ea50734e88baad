//! The control plane: bans, lookups, anomalies and alerts, state files, admin and metrics answers,
//! the request log.
//!
//! It never blocks a request: events come in over channels, and snapshots go out through arc-swap.
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::disallowed_methods
    )
)]

mod admin;
mod alert;
mod anomaly;
mod bans;
mod beside;
pub mod certificates;
pub mod check;
mod clients;
pub mod control;
mod control_loop;
pub mod crawlers;
mod edits;
mod events;
mod faults;
mod feeds;
mod files;
pub mod fleet;
mod giving;
pub mod guarded;
mod history;
mod json;
mod line_limit;
pub mod lookup;
mod memory;
mod metrics;
mod netblock_list;
pub mod offline;
mod offline_lists;
mod order;
mod origins;
mod outgoing;
pub mod process;
mod recent;
pub mod refusal_page;
mod refusals;
mod reload;
pub mod replay;
pub mod request_log;
mod rules;
mod shared_state;
mod state;
#[cfg(test)]
mod testing;
mod top;
mod watching;
mod wiring;

/// Entry points for the fuzz targets.
#[cfg(fuzzing)]
pub mod fuzzing {
    use std::sync::Arc;

    use weir_shared::netblock::{NetSet, Netblock, PrefixLengths};
    use weir_shared::spared::Spared;

    use crate::admin::bans::OrderReader;
    use crate::admin::problem::Problem;
    use crate::netblock_list::{self, MAX_LISTED};

    pub use crate::files::reread;
    pub use crate::rules::fuzzing::Rules;

    pub use crate::feeds::decisions::fuzzing::decisions;

    /// The netblocks of a list, with the number of malformed lines; or why it cannot be used.
    pub fn list(bytes: &[u8]) -> Result<(Vec<Netblock>, usize), String> {
        let list = netblock_list::parse(bytes, MAX_LISTED).map_err(|why| why.to_string())?;
        Ok((list.netblocks, list.skipped))
    }

    /// Reads bodies of `POST /_waf/bans`.
    pub struct Bodies(OrderReader);

    impl Bodies {
        /// A reader with these trusted proxies.
        pub fn new(trusted: NetSet) -> Self {
            let spared = Arc::new(Spared::new(trusted));
            Self(OrderReader::new(spared, PrefixLengths::default()))
        }

        /// The netblock to ban; or pointers and details of the faults, none if the body is no JSON.
        pub fn read(&self, body: &[u8]) -> Result<String, Option<Vec<(String, String)>>> {
            self.0.read(body, None).map_or_else(
                |problem| match problem {
                    Problem::DoesNotFit(faults) => Err(Some(
                        faults
                            .into_iter()
                            .map(|fault| (fault.pointer, fault.detail))
                            .collect(),
                    )),
                    _ => Err(None),
                },
                |order| Ok(order.netblock.to_string()),
            )
        }
    }
}

/// Changes of the lists allow and deny (CONTROL-8, FLEET-18).
pub mod lists {
    pub use crate::offline_lists::ListFiles;
    pub use crate::rules::{Change, Changed, Entry, List, NotChanged};
}

pub use control_loop::{Control, THREAD as CONTROL_THREAD};
pub use events::{DECISIONS_A_SECOND, Events};
pub use faults::Faults;
pub use files::{KnownFiles, StartState, StateFiles};
pub use giving::{Giving, Saving};
pub use rules::{LiveRules, RulesError};
pub use state::{StateError, StateLock};
pub use watching::FileThread;
pub use wiring::{About, ControlError, ControlHandle, Feeds, Wiring};
