//! How it stands with the engine: whether it answers, and since when it does not (FLEET-2).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use weir_shared::clock::Now;

/// Who was not answered for so long is alone.
const ALONE_NS: u64 = 3_000_000_000;
/// And for so long: an alert.
const ALERT_NS: u64 = 30_000_000_000;

/// Whether a link is open.
enum Link {
    /// Since when it is not, and why.
    Away {
        since_ns: u64,
        why: String,
    },
    Open,
}

/// How it stands.
pub(super) struct Standing {
    link: Link,
    /// When the engine has answered last, on the monotonic clock; the thread of the link says so.
    contact_ns: Arc<AtomicU64>,
    alone_told: bool,
    alert_raised: bool,
}

impl Standing {
    /// Nothing was asked yet.
    pub(super) fn new(contact_ns: Arc<AtomicU64>, now: Now) -> Self {
        Self {
            link: Link::Away {
                since_ns: now.mono_ns,
                why: "it was not asked yet".to_owned(),
            },
            contact_ns,
            alone_told: false,
            alert_raised: false,
        }
    }

    /// Whether a link is open.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.link, Link::Open)
    }

    /// The engine has answered over a new link.
    pub(super) fn open(&mut self, now: Now) {
        if let Link::Away { since_ns, .. } = self.link
            && self.alone_told
        {
            let seconds = now.mono_ns.saturating_sub(since_ns) / 1_000_000_000;
            tracing::info!("the engine of the fleet answers again, after {seconds} s");
        }
        self.link = Link::Open;
        self.alone_told = false;
        self.alert_raised = false;
    }

    /// The link has ended, or could not be opened.
    pub(super) fn close(&mut self, why: String, now: Now) {
        match &mut self.link {
            Link::Away { why: known, .. } => *known = why,
            Link::Open => {
                let since_ns = self.contact_ns().min(now.mono_ns);
                self.link = Link::Away { since_ns, why };
            }
        }
    }

    fn contact_ns(&self) -> u64 {
        // Relaxed: it is only compared with a time.
        self.contact_ns.load(Ordering::Relaxed)
    }

    /// How long no engine has answered, where that is a while, and why.
    pub(super) fn alone(&self, now: Now) -> Option<(u64, &str)> {
        let (since_ns, why) = match &self.link {
            Link::Away { since_ns, why } => (*since_ns, why.as_str()),
            Link::Open => (self.contact_ns(), "it does not answer"),
        };
        let alone_ns = now.mono_ns.saturating_sub(since_ns);
        (alone_ns >= ALONE_NS).then_some((alone_ns, why))
    }

    /// Logs once that the instance is alone. Returns what is to be an alert, once.
    pub(super) fn tell(&mut self, engine: &str, now: Now) -> Option<String> {
        let (alone_ns, why) = self.alone(now)?;
        let why = why.to_owned();
        if !self.alone_told {
            tracing::warn!(
                engine,
                "the engine of the fleet does not answer, this instance decides alone: {why}"
            );
            self.alone_told = true;
        }
        if alone_ns < ALERT_NS || self.alert_raised {
            return None;
        }
        self.alert_raised = true;
        Some(format!(
            "the engine of the fleet has not answered for 30 s: {why}"
        ))
    }
}
