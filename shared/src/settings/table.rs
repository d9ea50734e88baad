//! The one table of settings.

/// One row of the table.
#[derive(Debug)]
pub struct Setting {
    /// `WAF_…`
    pub name: &'static str,
    /// As it would be written; empty where there is none.
    pub default: &'static str,
    /// What is allowed.
    pub allowed: &'static str,
    /// What it does, one sentence for the README.
    pub help: &'static str,
}

/// Every setting.
pub const TABLE: &[Setting] = &[];

/// The README's table, in Markdown (SETTING-3).
pub fn readme_table() -> String {
    String::new()
}
