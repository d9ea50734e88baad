//! The settings: environment variables, read and checked.
//!
//! `kind.rs` says how one value is written, `row.rs` what a row of the table is. Each subject has a
//! file with the group of fields that the program reads and the rows that fill them; `table.rs`
//! puts them together. `load.rs` turns what was written into [`Settings`], or into every problem at
//! once (SETTING-1); `cross_checks.rs` knows what settings mean together. `docs.rs` renders the
//! documents (SETTING-3).

mod address;
mod anomalies;
mod bans;
mod clients;
mod connections;
mod cross_checks;
mod docs;
mod endpoints;
mod kind;
mod limits;
mod listing;
mod load;
mod log;
mod lookup;
mod row;
mod state;
mod table;

#[cfg(test)]
mod tests;

pub use address::Upstream;
pub use anomalies::{Anomalies, Thresholds, WatchNet};
pub use bans::{BanResponse, BanSettings};
pub use clients::{IdentitySettings, ListSettings};
pub use connections::{ConnectionSettings, TimeoutSettings};
pub use docs::{readme_block, settings_page};
pub use endpoints::{AdminToken, ControlSocket, EndpointSettings, Secret};
pub use limits::{BytesCount, LimitSettings, OnLimit, RateLimitHeaders};
pub use listing::{Listed, Origin};
pub use load::{Loaded, Refused, load};
pub use log::{LogFormat, LogRequests, LogSettings};
pub use lookup::{Countries, CountryList, LookupSettings, LookupSource, LookupUrl, Percents};
pub use row::{Row, Setting};
pub use state::StateSettings;
pub use table::{Settings, Theme, all, table};
