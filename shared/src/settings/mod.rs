//! The settings: environment variables, read and checked.
//!
//! `kind.rs` defines the forms of values, `row.rs` the rows of the table. Each subject has a file
//! with the fields that the program reads and the rows that fill them; `table.rs` puts them
//! together. `load.rs` turns written values into [`Settings`], or into every problem at once
//! (SETTING-1); `cross_checks.rs` checks settings in combination. `docs.rs` renders the documents
//! (SETTING-3), `file.rs` reads the settings file, `written.rs` holds the set values and their
//! sources, `change.rs` computes what a reload changes.

mod address;
mod anomalies;
mod bans;
mod change;
mod clients;
mod connections;
mod cross_checks;
mod docs;
mod edge;
mod endpoints;
mod engine_place;
mod file;
mod fleet;
mod kind;
mod limits;
mod listen;
mod listing;
mod load;
mod log;
mod lookup;
mod places;
mod row;
mod state;
mod table;
mod written;

#[cfg(test)]
mod tests;

pub use address::Upstream;
pub use anomalies::{Anomalies, Thresholds, WatchNet};
pub use bans::{BanResponse, BanSettings};
pub use change::Change;
pub use clients::{IdentitySettings, ListSettings};
pub use connections::{ConnectionSettings, TimeoutSettings};
pub use docs::{readme_block, settings_page};
pub use edge::{EdgeSettings, LocalIs};
pub use endpoints::{ControlSocket, EndpointSettings, Secret, TokenSource};
pub use engine_place::{EnginePlace, is_loopback};
pub use file::{MAX_FILE_BYTES, SettingsFile};
pub use fleet::{FleetSettings, FleetShare};
pub use limits::{BytesCount, LimitSettings, OnLimit, RateLimitHeaders};
pub use listen::{Listen, Place};
pub use listing::Listed;
pub use load::{Loaded, Refused, load, load_with};
pub use log::{LogFormat, LogRequests, LogSettings};
pub use lookup::{CountryList, LookupSettings, LookupSource, LookupUrl, Percents};
pub use places::{Asns, Countries};
pub use row::{Row, Setting, Taken};
pub use state::StateSettings;
pub use table::{Settings, Theme, all, table};
pub use written::Origin;
