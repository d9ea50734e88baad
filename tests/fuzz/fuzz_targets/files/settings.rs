//! The environment: every problem names a setting, and what a token or a misspelt name holds is
//! shown nowhere (SETTING-1).
//!
//! A line is `NAME=value`; without an equals sign its first byte chooses the setting. A `?` in
//! front of all lets an unknown name in.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_shared::settings::{Refused, all, load};

/// Stands in every value that must not be shown.
const CANARY: &str = "Zq7canary7qZ";

fuzz_target!(|bytes: &[u8]| {
    let text = weir_fuzz::text(bytes);
    if text.contains(CANARY) {
        return;
    }
    let mut variables: Vec<(String, String)> = text.lines().filter_map(variable).collect();
    // To find the known name that is nearest to an unknown one takes longer than all the rest.
    let mut room = usize::from(text.starts_with('?'));
    variables.retain(|(name, _)| {
        let known = !name.starts_with("WAF_") || all().any(|setting| setting.name == *name);
        let stays = known || (room > 0 && name.len() < 24);
        room -= usize::from(stays && !known);
        stays
    });
    let (sentences, settings) = match load(variables.clone()) {
        Ok(loaded) => (loaded.warnings, Some(loaded.settings)),
        Err(refused) => {
            assert!(!refused.problems.is_empty());
            (told(refused), None)
        }
    };
    for sentence in &sentences {
        assert!(!sentence.contains(CANARY), "{sentence}");
        assert!(!sentence.contains(char::is_control), "{sentence:?}");
        // One that is like no other is named by itself.
        let named = sentence.starts_with("WAF_WATCH_* ")
            || sentence.ends_with(": unknown setting, ignored")
            || all().any(|setting| sentence.contains(&setting.name));
        assert!(named, "{sentence}");
    }
    if let Some(settings) = settings {
        assert!(!format!("{settings:?}").contains(CANARY));
        assert!(settings.workers > 0 && !settings.listen.is_empty());
    }
    // The order of the environment says nothing.
    let again = match load(variables.into_iter().rev()) {
        Ok(loaded) => loaded.warnings,
        Err(refused) => told(refused),
    };
    assert!(
        again == sentences || has_twice(&text),
        "{sentences:?} {again:?}"
    );
});

fn told(refused: Refused) -> Vec<String> {
    [refused.problems, refused.warnings].concat()
}

fn variable(line: &str) -> Option<(String, String)> {
    let (name, value) = match line.split_once('=') {
        Some((name, value)) => (name, value),
        None => {
            let (choice, value) = line.split_at_checked(1)?;
            let setting = all().nth(usize::from(choice.as_bytes()[0]) % all().count())?;
            (setting.name.as_str(), value)
        }
    };
    let shown =
        all().any(|setting| setting.name == name && !setting.secret) || name == "STATE_DIRECTORY";
    let canary = if shown { "" } else { CANARY };
    Some((name.to_owned(), format!("{value}{canary}")))
}

/// Whether a setting is given twice, which an environment cannot.
fn has_twice(text: &str) -> bool {
    let mut names: Vec<String> = text
        .lines()
        .filter_map(|line| Some(variable(line)?.0))
        .collect();
    let before = names.len();
    names.sort();
    names.dedup();
    names.len() < before
}
