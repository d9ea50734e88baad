//! Rows of the table of settings. A row describes one setting, or a family of settings whose names
//! differ in one word (`WAF_RATE_LIMIT_PER_{MINUTE,HOUR,DAY}`).
//!
//! `G` is the group of settings that a row writes into. Each group has its own rows beside it; the
//! table puts all of them together.

use super::kind::{Fault, Kind, Remarks};

type Read<G> = Box<dyn Fn(&mut G, &str, &mut Remarks) -> Result<(), Fault> + Send + Sync>;

/// One row of the table.
pub struct Row<G> {
    /// The name, with braces for a family.
    pub name: &'static str,
    /// What it does, in one sentence.
    pub help: &'static str,
    /// Whether the README shows it.
    pub essential: bool,
    /// The settings of the row: one, or the family in the order of the name's braces.
    pub settings: Vec<Setting<G>>,
}

/// One setting, an environment variable.
pub struct Setting<G> {
    /// `WAF_…`
    pub name: String,
    /// The default in its written form; empty if there is none.
    pub default: &'static str,
    /// The effect of neither a value nor a default, in words.
    pub unset: &'static str,
    /// Follows the word "expected".
    pub expected: String,
    /// Whether the value is a token, which no message may show (LOG-1).
    pub secret: bool,
    /// Hides the parts of the value that may be secrets, where there are any.
    masked: Option<fn(&str) -> String>,
    /// When a change takes effect; a test fails on a row without this.
    pub taken: Option<Taken>,
    read: Read<G>,
}

/// When a change of a setting takes effect (RELOAD-2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taken {
    /// With a reload.
    Live,
    /// With the next start.
    Restart,
}

impl Taken {
    /// The word in answers and documents.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Live => "reload",
            Self::Restart => "restart",
        }
    }
}

/// A kind of value and the field that holds it.
pub(super) struct Cell<G> {
    expected: String,
    read: Read<G>,
}

pub(super) fn cell<G: 'static, T: 'static>(
    kind: Kind<T>,
    field: impl Fn(&mut G) -> &mut T + Send + Sync + 'static,
) -> Cell<G> {
    Cell {
        expected: kind.expected,
        read: Box::new(move |group, text, remarks| {
            *field(group) = (kind.read)(text, remarks)?;
            Ok(())
        }),
    }
}

/// A row of one setting. `default` is empty where there is none.
pub(super) fn row<G: 'static, T: 'static>(
    name: &'static str,
    default: &'static str,
    kind: Kind<T>,
    field: fn(&mut G) -> &mut T,
    help: &'static str,
) -> Row<G> {
    family(name, [(default, cell(kind, field))], help)
}

/// A row of several settings: a default, a kind and a field for each name, in the order of the
/// braces.
pub(super) fn family<G>(
    name: &'static str,
    members: impl IntoIterator<Item = (&'static str, Cell<G>)>,
    help: &'static str,
) -> Row<G> {
    let settings = expand(name)
        .into_iter()
        .zip(members)
        .map(|(name, (default, Cell { expected, read }))| Setting {
            name,
            default,
            unset: "–",
            expected,
            secret: false,
            masked: None,
            taken: None,
            read,
        })
        .collect();
    Row {
        name,
        help,
        essential: false,
        settings,
    }
}

/// Every name that a pattern stands for: `A_{B,C}` is `A_B` and `A_C`. The last brace changes
/// fastest.
pub(super) fn expand(pattern: &str) -> Vec<String> {
    let parts = pattern
        .split_once('{')
        .and_then(|(before, rest)| Some((before, rest.split_once('}')?)));
    let Some((before, (words, after))) = parts else {
        return vec![pattern.to_owned()];
    };
    let tails = expand(after);
    words
        .split(',')
        .flat_map(|word| {
            tails
                .iter()
                .map(move |tail| format!("{before}{word}{tail}"))
        })
        .collect()
}

impl<G: 'static> Row<G> {
    /// Marks a row that the README shows.
    pub(super) fn essential(mut self) -> Self {
        self.essential = true;
        self
    }

    /// Marks a row whose value is a token.
    pub(super) fn secret(mut self) -> Self {
        for setting in &mut self.settings {
            setting.secret = true;
        }
        self
    }

    /// Sets how secrets in the value are hidden.
    pub(super) fn masked(mut self, mask: fn(&str) -> String) -> Self {
        for setting in &mut self.settings {
            setting.masked = Some(mask);
        }
        self
    }

    /// Marks a row whose changes a reload applies.
    pub(super) fn live(self) -> Self {
        self.taken(Taken::Live)
    }

    /// Marks a row whose changes need a restart.
    pub(super) fn restart(self) -> Self {
        self.taken(Taken::Restart)
    }

    fn taken(mut self, taken: Taken) -> Self {
        for setting in &mut self.settings {
            setting.taken = Some(taken);
        }
        self
    }

    /// Sets the effect of no value, in words.
    pub(super) fn unset(mut self, words: &'static str) -> Self {
        for setting in &mut self.settings {
            setting.unset = words;
        }
        self
    }

    /// The row of the whole that the group is a part of.
    pub(super) fn within<W: 'static>(self, group: fn(&mut W) -> &mut G) -> Row<W> {
        let lift = |setting: Setting<G>| Setting {
            name: setting.name,
            default: setting.default,
            unset: setting.unset,
            expected: setting.expected,
            secret: setting.secret,
            masked: setting.masked,
            taken: setting.taken,
            read: Box::new(move |whole: &mut W, text: &str, remarks: &mut Remarks| {
                (setting.read)(group(whole), text, remarks)
            }),
        };
        Row {
            name: self.name,
            help: self.help,
            essential: self.essential,
            settings: self.settings.into_iter().map(lift).collect(),
        }
    }
}

impl<G> Setting<G> {
    /// A value as it may be shown (LOG-1, FORWARD-8); none if it is a token.
    pub(super) fn shown(&self, value: &str) -> Option<String> {
        if self.secret {
            return None;
        }
        Some(
            self.masked
                .map_or_else(|| value.to_owned(), |mask| mask(value)),
        )
    }

    /// Reads a value into its field. A wrong value leaves the field unchanged.
    pub(super) fn read(
        &self,
        group: &mut G,
        text: &str,
        remarks: &mut Remarks,
    ) -> Result<(), Fault> {
        (self.read)(group, text, remarks)
    }
}
