//! The documents that are rendered from the table (SETTING-3): the page with every setting, and the
//! block of the README with those that are needed first.

use super::row::Row;
use super::table::{Settings, table};

const PAGE: &str = "# Settings

Every setting is an environment variable, or a line of the file that `WAF_SETTINGS_FILE` names. All problems are told together at the start, each with the
setting, its value and what is expected; `weir check` tells them without starting. An empty value is
an unset one. weir warns about unknown names that begin with `WAF_`.

- **Durations** need a unit: `500ms`, `90s`, `1h30m`, `7d`.
- **Sizes** are bytes, or `K`, `M`, `G`, `T` (also `KiB` and so on) for powers of 1024; `KB`, `MB` and
  so on are powers of 1000.
- **Lists** are separated by commas; blanks do not matter.
- **On and off** are also `true` and `false`, `1` and `0`.
- **Change**: a change of a setting counts with a *reload* (`weir reload`, SIGHUP) or with the next
  *restart* (or `weir upgrade`). What needs a restart is told by a reload, and waits.
- A name with braces stands for several: `WAF_RATE_LIMIT_PER_{MINUTE,HOUR,DAY}` are three settings.

<!-- Generated from shared/src/settings; `WEIR_BLESS=1 cargo test -p weir-shared settings` writes it. -->
";

/// `docs/settings.md`
pub fn settings_page() -> String {
    let mut page = PAGE.to_owned();
    for theme in table() {
        page.push_str(&format!(
            "\n## {}\n\n| Name | Default | Expected | Change | Meaning |\n|---|---|---|---|---|\n",
            theme.title
        ));
        for row in &theme.rows {
            page.push_str(&format!(
                "| `{}` | {} | {} | {} | {} |\n",
                row.name,
                default_of(row),
                expected_of(row),
                taken_of(row),
                row.help
            ));
        }
    }
    page
}

/// The settings of the README, without the markers around them.
pub fn readme_block() -> String {
    let mut block = String::from("| | Setting | Default | Meaning |\n|---|---|---|---|\n");
    for theme in table() {
        let mut title = theme.title;
        for row in theme.rows.iter().filter(|row| row.essential) {
            block.push_str(&format!(
                "| {title} | `{}` | {} | {} |\n",
                row.name,
                default_of(row),
                row.help
            ));
            title = "";
        }
    }
    block
}

/// The defaults of a row; one where all are the same.
fn default_of(row: &Row<Settings>) -> String {
    let written = row.settings.iter().map(|setting| match setting.default {
        "" => setting.unset.to_owned(),
        default => format!("`{default}`"),
    });
    distinct(written).join(", ")
}

fn expected_of(row: &Row<Settings>) -> String {
    distinct(row.settings.iter().map(|setting| setting.expected.clone())).join("; ")
}

fn taken_of(row: &Row<Settings>) -> String {
    let taken = row.settings.iter().filter_map(|setting| setting.taken);
    distinct(taken.map(|taken| taken.name().to_owned())).join(", ")
}

fn distinct(texts: impl Iterator<Item = String>) -> Vec<String> {
    let mut seen = Vec::new();
    for text in texts {
        if !seen.contains(&text) {
            seen.push(text);
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Renews `file` where `WEIR_BLESS` is set; otherwise it has to be as rendered.
    fn check(file: &str, render: impl Fn(&str) -> String) {
        let path = format!("{}/../{file}", env!("CARGO_MANIFEST_DIR"));
        let written = std::fs::read_to_string(&path).unwrap_or_default();
        let rendered = render(&written);
        if std::env::var_os("WEIR_BLESS").is_some() {
            std::fs::write(&path, rendered).expect("it can be written");
        } else {
            assert!(
                written == rendered,
                "{file} is stale: renew it with WEIR_BLESS=1 cargo test -p weir-shared settings"
            );
        }
    }

    /// SETTING-3: the page has every row of the table, as it is.
    #[test]
    fn the_page_of_the_settings_is_this_table() {
        check("docs/settings.md", |_| settings_page());
    }

    /// SETTING-3: the README's block has the rows that are needed first.
    #[test]
    fn the_readme_has_the_first_settings() {
        const START: &str = "<!-- settings: start -->\n";
        const END: &str = "<!-- settings: end -->";
        check("README.md", |readme| {
            let (before, rest) = readme.split_once(START).expect("the start marker");
            let (_, after) = rest.split_once(END).expect("the end marker");
            format!("{before}{START}{}{END}{after}", readme_block())
        });
    }

    /// SETTING-3: every row can be read by an operator and breaks no table.
    #[test]
    fn every_row_is_whole() {
        let mut names = std::collections::HashSet::new();
        let mut essential = 0;
        for row in table().iter().flat_map(|theme| &theme.rows) {
            assert!(row.help.ends_with('.'), "{}", row.name);
            essential += usize::from(row.essential);
            assert_eq!(
                row.settings
                    .iter()
                    .map(|setting| &setting.name)
                    .collect::<Vec<_>>(),
                crate::settings::row::expand(row.name)
                    .iter()
                    .collect::<Vec<_>>(),
                "a member for each name"
            );
            for setting in &row.settings {
                assert!(names.insert(&setting.name), "{} stands twice", setting.name);
                assert!(setting.name.starts_with("WAF_"), "{}", setting.name);
                assert!(!setting.expected.is_empty(), "{}", setting.name);
                let says = "it says whether a reload takes it";
                assert!(setting.taken.is_some(), "{}: {says}", setting.name);
                let texts = [setting.default, setting.unset, &setting.expected, row.help];
                for text in texts {
                    assert!(!text.contains(['|', '\n']), "{}", setting.name);
                }
            }
        }
        assert!((12..=18).contains(&essential), "{essential} in the README");
    }
}
