//! Which changes a reload applies, and which need a restart (RELOAD-2).

use std::fmt;

use super::load::{Loaded, Refused, judge};
use super::row::{Setting, Taken};
use super::table::{Settings, all};

/// A setting whose value has changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// `WAF_…`
    pub name: &'static str,
    /// The old value, or its default; none if there is neither, or if it is a token.
    pub old: Option<String>,
    /// The new value.
    pub new: Option<String>,
    /// Whether it is a token, whose value is not shown.
    pub secret: bool,
    /// When the change takes effect.
    pub taken: Taken,
}

impl fmt::Display for Change {
    /// `WAF_RATE_LIMIT_PER_MINUTE 1000 -> 600`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |value: &Option<String>| match value {
            _ if self.secret => "(hidden)".to_owned(),
            Some(value) => value.escape_debug().to_string(),
            None => "(unset)".to_owned(),
        };
        write!(
            f,
            "{} {} -> {}",
            self.name,
            shown(&self.old),
            shown(&self.new)
        )
    }
}

impl Loaded {
    /// The settings after a reload of a service with these settings: the new values, except of
    /// settings that need a restart, which keep their old values. Also returns every change.
    ///
    /// # Errors
    /// The new values conflict with old ones that wait for a restart: every problem at once.
    pub fn reloaded(&self, new: &Self) -> Result<(Self, Vec<Change>), Refused> {
        let mut written = new.written.clone();
        let mut changes = Vec::new();
        for setting in all() {
            let (old_text, new_text) = (self.text(setting), new.text(setting));
            // A test fails on a row without this.
            let taken = setting.taken.unwrap_or(Taken::Restart);
            if taken == Taken::Restart {
                written.take_from(&self.written, &setting.name);
            }
            if old_text != new_text {
                let shown = |text: Option<&str>| text.and_then(|text| setting.shown(text));
                changes.push(Change {
                    name: &setting.name,
                    old: shown(old_text),
                    new: shown(new_text),
                    secret: setting.secret,
                    taken,
                });
            }
        }
        written.take_from(&self.written, "STATE_DIRECTORY");
        let loaded = judge(written, Vec::new()).map_err(|refused| Refused {
            problems: refused
                .problems
                .into_iter()
                .map(|problem| with_waiting(problem, &changes))
                .collect(),
            warnings: refused.warnings,
        })?;
        let warnings = new.warnings.clone();
        Ok((Self { warnings, ..loaded }, changes))
    }

    fn text(&self, setting: &'static Setting<Settings>) -> Option<&str> {
        let default = Some(setting.default).filter(|default| !default.is_empty());
        self.written.get(&setting.name).or(default)
    }
}

/// The new values are valid by themselves, so the conflict is with a setting that waits for a
/// restart.
fn with_waiting(problem: String, changes: &[Change]) -> String {
    let waiting = changes
        .iter()
        .filter(|change| change.taken == Taken::Restart);
    let waiting: Vec<&str> = waiting.map(|change| change.name).collect();
    format!("{problem}; {} needs a restart first", waiting.join(", "))
}

#[cfg(test)]
mod tests {
    use super::super::load;
    use super::*;

    fn loaded(pairs: &[(&str, &str)]) -> Loaded {
        let upstream = ("WAF_UPSTREAM", "http://127.0.0.1:9000");
        let pairs = pairs.iter().chain([&upstream]);
        load(pairs.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))).unwrap()
    }

    fn told(changes: &[Change]) -> Vec<String> {
        changes.iter().map(ToString::to_string).collect()
    }

    /// RELOAD-2: each change is reported, a token's without its value; a setting that needs a
    /// restart keeps its value, and the next reload reports it again.
    #[test]
    fn changes_are_told_and_what_needs_a_restart_waits() {
        let old = loaded(&[
            ("WAF_ADMIN_TOKEN", "an-admin-token-01"),
            ("WAF_WORKERS", "2"),
        ]);
        let new = loaded(&[
            ("WAF_ADMIN_TOKEN", "an-admin-token-02"),
            ("WAF_WORKERS", "3"),
            ("WAF_RATE_LIMIT_PER_MINUTE", "600"),
            ("WAF_DENY_NETS", "192.0.2.0/24"),
        ]);
        let (held, changes) = old.reloaded(&new).unwrap();
        assert_eq!(
            told(&changes),
            [
                "WAF_WORKERS 2 -> 3",
                "WAF_DENY_NETS (unset) -> 192.0.2.0/24",
                "WAF_RATE_LIMIT_PER_MINUTE 1000 -> 600",
                "WAF_ADMIN_TOKEN (hidden) -> (hidden)",
            ]
        );
        assert_eq!(held.settings.workers, 2);
        assert_eq!(held.settings.limits.requests.minute, Some(600));
        let (held, changes) = held.reloaded(&new).unwrap();
        assert_eq!(told(&changes), ["WAF_WORKERS 2 -> 3"]);
        let (_, changes) = held.reloaded(&old).unwrap();
        assert_eq!(changes.len(), 3, "{changes:?}");
        assert!(!format!("{held:?}").contains("admin-token"));
    }

    /// RELOAD-2, RELOAD-3: a new value that contradicts one that waits for a restart is refused,
    /// and the error names both.
    #[test]
    fn what_does_not_go_with_what_waits_is_refused() {
        let old = loaded(&[("WAF_LOOKUP_SOURCE", "off")]);
        let new = loaded(&[("WAF_DENY_COUNTRIES", "DE")]);
        assert_eq!(
            old.reloaded(&new).unwrap_err().problems,
            [
                "WAF_DENY_COUNTRIES=\"DE\" needs lookups and WAF_LOOKUP_SOURCE=\"off\": expected geojs, url or file with it; WAF_LOOKUP_SOURCE needs a restart first"
            ]
        );
    }
}
