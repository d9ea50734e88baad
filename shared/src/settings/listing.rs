//! Every setting as it was written, for `weir settings` (CONTROL-2): its value, and where that
//! comes from. Tokens are not in it.

use super::table::{Settings, table};
use super::written::{Origin, Written};

/// One setting as it was written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed {
    /// `WAF_…`
    pub name: String,
    /// The heading it stands under.
    pub theme: &'static str,
    /// Its value as written, or its default; none where it is a token, or there is neither.
    pub value: Option<String>,
    /// What holds without a value, in words; empty where there is a default.
    pub unset: &'static str,
    /// Where the value comes from.
    pub origin: Origin,
    /// Whether it is a token, whose value is not shown.
    pub secret: bool,
}

/// The whole list, in the order of the table. What is the default of the machine or of another
/// setting is shown as it came out.
pub(super) fn of(written: &Written, settings: &Settings) -> Vec<Listed> {
    let rows = table().iter().flat_map(|theme| {
        let settings = theme.rows.iter().flat_map(|row| &row.settings);
        settings.map(move |setting| (theme.title, setting))
    });
    rows.map(|(theme, setting)| {
        let shown = match written.get(&setting.name) {
            Some(value) => Some(value.to_owned()),
            None if !setting.default.is_empty() => Some(setting.default.to_owned()),
            None => derived(&setting.name, settings),
        };
        Listed {
            name: setting.name.clone(),
            theme,
            value: shown.and_then(|value| setting.shown(&value)),
            unset: setting.unset,
            origin: written.origin(&setting.name),
            secret: setting.secret,
        }
    })
    .collect()
}

/// The defaults that depend on something.
fn derived(name: &str, settings: &Settings) -> Option<String> {
    match name {
        "WAF_WORKERS" => Some(settings.workers.to_string()),
        "WAF_STATE_DIR" => Some(settings.state.dir.display().to_string()),
        "WAF_CONTROL_SOCKET" => {
            let path = settings.control_socket()?;
            Some(path.display().to_string())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::load;
    use super::*;

    fn listed(pairs: &[(&str, &str)]) -> Vec<Listed> {
        let pairs = pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        load(pairs).unwrap().listing
    }

    /// CONTROL-2: each setting with its value and where it comes from; a token is never shown.
    #[test]
    fn values_and_origins_are_listed_and_tokens_are_not() {
        let list = listed(&[
            ("WAF_UPSTREAM", "http://127.0.0.1:3000"),
            ("WAF_STATE_DIR", "/var/lib/weir"),
            ("WAF_ADMIN_TOKEN", "a-long-admin-token"),
        ]);
        let of = |name: &str| list.iter().find(|one| one.name == name).unwrap();
        let told = |name: &str| (of(name).value.as_deref(), of(name).origin);
        assert_eq!(list.len(), super::super::all().count());
        assert_eq!(
            told("WAF_UPSTREAM"),
            (Some("http://127.0.0.1:3000"), Origin::Environment)
        );
        assert_eq!(told("WAF_MODE"), (Some("enforce"), Origin::Default));
        assert_eq!(
            told("WAF_CONTROL_SOCKET"),
            (Some("/var/lib/weir/weir.sock"), Origin::Default)
        );
        assert_eq!(told("WAF_ADMIN_TOKEN"), (None, Origin::Environment));
        assert!(of("WAF_ADMIN_TOKEN").secret);
        assert_eq!(told("WAF_METRICS_TOKEN"), (None, Origin::Default));
        assert!(!format!("{list:?}").contains("a-long-admin-token"));
    }
}
