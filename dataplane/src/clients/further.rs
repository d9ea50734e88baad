//! What is kept of a client beside its six windows: most clients have nothing of it.

use std::sync::Arc;

use weir_shared::rules::Rule;
use weir_shared::table::{OtherSites, RuleCount};
use weir_shared::window::{RuleSpan, Span, Window};

use super::bucket::Bucket;

/// What is kept of a client that has any of it: most have not, and pay a pointer.
#[derive(Clone, Debug, Default)]
pub struct Further {
    /// What is left of its bucket (RULE-5); none while it is full.
    pub bucket: Option<Bucket>,
    /// What rules have counted: at most one for each window of each rule.
    pub counts: Vec<RuleCount>,
    /// What of the client's windows other sites asked for (RULE-8); none where it is nothing.
    pub other_sites: Option<Box<OtherSites>>,
}

/// Whether a count is of this window of this rule.
fn is_of(count: &RuleCount, rule: &Rule, span: RuleSpan) -> bool {
    count.span == span && (std::ptr::eq(&*count.rule, rule) || *count.rule == *rule)
}

const fn has_counted(window: &Window) -> bool {
    window.current > 0 || window.previous > 0
}

impl Further {
    /// Whether nothing is kept.
    pub const fn is_empty(&self) -> bool {
        self.bucket.is_none() && self.counts.is_empty() && self.other_sites.is_none()
    }

    /// Gives back windows that are past.
    pub fn forget_past(&mut self, wall_ms: u64) {
        self.counts.retain_mut(|count| {
            count.window.roll(count.span, wall_ms);
            count.other_sites.roll(count.span, wall_ms);
            has_counted(&count.window)
        });
        let is_past = |part: &mut Box<OtherSites>| {
            let mut counted = false;
            for span in Span::ALL {
                for windows in [&mut part.requests, &mut part.bytes] {
                    let window = windows.get_mut(span);
                    window.roll(span, wall_ms);
                    counted |= has_counted(window);
                }
            }
            !counted
        };
        self.other_sites.take_if(|part| is_past(part));
    }

    /// The count of a window of a rule, if anything was counted.
    pub fn find(&self, rule: &Rule, span: RuleSpan) -> Option<&RuleCount> {
        let mut counts = self.counts.iter();
        counts.find(|count| is_of(count, rule, span))
    }

    /// The count of a window of a rule, made where nothing was counted yet.
    pub fn count(&mut self, rule: &Arc<Rule>, span: RuleSpan) -> &mut RuleCount {
        let of_rule = |count: &RuleCount| is_of(count, rule, span);
        let at = self.counts.iter().position(of_rule).unwrap_or_else(|| {
            self.counts.push(RuleCount {
                rule: Arc::clone(rule),
                span,
                window: Window::default(),
                other_sites: Window::default(),
            });
            self.counts.len() - 1
        });
        #[expect(clippy::indexing_slicing, reason = "found there, or just put there")]
        &mut self.counts[at]
    }
}
