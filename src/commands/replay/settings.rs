//! The settings to try: those of the environment and the settings file, else those of the service
//! that runs here, with the changes of each trial.

use http::Method;
use weir_shared::api::settings::SettingList;
use weir_shared::settings::Loaded;

use crate::commands::ask::{Asked, Place, typed};
use crate::commands::common::{EXIT_USAGE, Failure};
use crate::sources::{Sources, environment};

/// A setting that a service requires; its value does not matter here.
const UPSTREAM: &str = "WAF_UPSTREAM";

/// Names and values, the later above the earlier.
pub type Pairs = Vec<(String, String)>;

/// The settings as they are.
pub struct Base {
    /// Where they come from, in words.
    pub from: &'static str,
    /// Settings that win over the settings file.
    variables: Pairs,
}

impl Base {
    /// Finds the settings. A shell without `WAF_UPSTREAM` does not have a service's settings, so
    /// the running service is asked.
    pub fn find(place: &Place) -> Result<Self, Failure> {
        let refused = |refused| Failure::of_settings(&refused);
        let own: Pairs = environment()
            .filter(|(_, value)| !value.is_empty())
            .collect();
        let named = Sources::of_process().some(&[UPSTREAM]).map_err(refused)?;
        if !named.is_empty() {
            return Ok(Self {
                from: "of this environment",
                variables: own,
            });
        }
        let mut variables = vec![(UPSTREAM.to_owned(), "http://localhost:1".to_owned())];
        let mut from = "of this environment";
        if let Asked::Answered(answer) = place.ask(Method::GET, "/v1/settings", None)? {
            from = "of the running service";
            let SettingList { settings } = typed(answer.good()?)?;
            let set = settings
                .into_iter()
                .filter(|one| one.origin != "default" && one.name != "WAF_SETTINGS_FILE");
            variables.extend(set.filter_map(|one| Some((one.name, one.value?))));
        }
        variables.extend(own);
        Ok(Self { from, variables })
    }

    /// The settings with these above them.
    pub fn with(&self, set: &Pairs) -> Result<Loaded, Failure> {
        let variables = self.variables.iter().chain(set).cloned();
        let loaded = Sources::of(variables).load();
        loaded.map_err(|refused| Failure::of_settings(&refused))
    }

    /// Parses the `NAME=value` arguments of a trial.
    pub fn changes(&self, set: &[String]) -> Result<Pairs, Failure> {
        let known = self.with(&Pairs::new())?.listing;
        let wrong = |sentence| Failure::new(EXIT_USAGE, sentence);
        set.iter()
            .map(|pair| {
                let Some((name, value)) = pair.split_once('=') else {
                    let sentence = format!(
                        "--set {pair:?}: expected NAME=value, such as WAF_RATE_LIMIT_PER_MINUTE=300"
                    );
                    return Err(wrong(sentence));
                };
                if known.iter().all(|one| one.name != name) {
                    let sentence =
                        format!("--set {name}: there is no such setting (weir settings)");
                    return Err(wrong(sentence));
                }
                Ok((name.to_owned(), value.to_owned()))
            })
            .collect()
    }
}
