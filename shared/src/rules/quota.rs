//! How many fit into a window of a rule.

use crate::window::RuleSpan;

/// A number of requests or answers in a window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Quota {
    /// The window's length.
    pub span: RuleSpan,
    /// The most that fit.
    pub limit: u64,
}
