//! A service whose clocks a test moves.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use super::application::Application;
use super::clocks::{Clocks, patient};
use super::weir::{StateDir, Weir, state_dir};

/// A service whose clocks a test moves.
pub(crate) struct Moved {
    pub(crate) weir: Weir,
    pub(crate) state: StateDir,
    clocks: Clocks,
    settings: Vec<(String, String)>,
}

impl Moved {
    #[track_caller]
    pub(crate) fn start(
        application: &Application,
        rules: &Value,
        settings: &[(&str, &str)],
    ) -> Self {
        let state = state_dir();
        let text = rules.to_string();
        std::fs::write(state.path().join("rules.json"), text).expect("writes rules.json");
        let clocks = Clocks::new(state.path());
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let mut settings: Vec<_> = settings.iter().map(owned).collect();
        settings.push(clocks.setting());
        settings.extend(patient());
        let mut moved = Self {
            weir: start(application, &state, &settings),
            state,
            clocks,
            settings,
        };
        // From the beginning of a minute on: what a test counts in one is not split in two.
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now_ms = now.expect("after 1970").as_millis() as u64;
        moved.move_on(60_000 - now_ms % 60_000);
        moved
    }

    #[track_caller]
    pub(crate) fn restart(&mut self, application: &Application) {
        self.weir.stop();
        self.weir = start(application, &self.state, &self.settings);
    }

    /// Moves its clocks ahead by this.
    #[track_caller]
    pub(crate) fn move_on(&mut self, milliseconds: u64) {
        self.clocks.move_on(milliseconds);
    }

    #[track_caller]
    pub(crate) fn ask(&self, path: &str, client: &str) -> u16 {
        self.weir.get(path, client).status
    }
}

#[track_caller]
fn start(application: &Application, state: &StateDir, settings: &[(String, String)]) -> Weir {
    let settings: Vec<(&str, &str)> = (settings.iter())
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    Weir::start_at(application.address(), state, &settings)
}
