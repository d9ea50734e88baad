//! The state of the engine: whether it answers and works, and since when it does not (FLEET-2).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use weir_shared::clock::Now;

/// After so long without an answer, or with refusals, the instance is alone.
const ALONE_NS: u64 = 3_000_000_000;
/// After so long alone, an alert is raised.
const ALERT_NS: u64 = 30_000_000_000;
/// An engine that works for less than this has not recovered: it may answer hello, do some work,
/// and fail again.
const LASTED_NS: u64 = 2_000_000_000;

/// Since when the engine does not do its work, and why.
struct Trouble {
    since_ns: u64,
    why: String,
}

/// A kind of work of the engine. An engine that answers hello may refuse any of these: it is full,
/// or its ACL is too narrow.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    /// It returns the log.
    Read,
    /// It takes batches.
    Append,
    /// It takes beats.
    Beat,
}

/// The state of the engine.
pub(super) struct Standing {
    is_open: bool,
    /// The kinds of work done over the open link.
    done: [bool; 3],
    /// None while the engine does all of its work.
    trouble: Option<Trouble>,
    /// The last trouble, and when it ended; it continues if the engine fails again at once.
    ended: Option<(Trouble, u64)>,
    /// When the engine last answered, on the monotonic clock; set by the thread of the link.
    contact_ns: Arc<AtomicU64>,
    alone_told: bool,
    alert_raised: bool,
}

impl Standing {
    /// The state before any question.
    pub(super) fn new(contact_ns: Arc<AtomicU64>, now: Now) -> Self {
        Self {
            is_open: false,
            done: [false; 3],
            trouble: Some(Trouble {
                since_ns: now.mono_ns,
                why: "it was not asked yet".to_owned(),
            }),
            ended: None,
            contact_ns,
            alone_told: false,
            alert_raised: false,
        }
    }

    /// Whether a link is open.
    pub(super) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Notes that a new link is open. Which work the engine does is not known yet.
    pub(super) fn open(&mut self) {
        self.is_open = true;
        self.done = [false; 3];
    }

    /// Notes work done over the open link. Returns whether that ends a trouble.
    pub(super) fn has_done(&mut self, work: Work, now: Now) -> bool {
        for (done, of) in self
            .done
            .iter_mut()
            .zip([Work::Read, Work::Append, Work::Beat])
        {
            *done |= of == work;
        }
        if self.done.contains(&false) {
            return false;
        }
        let Some(trouble) = self.trouble.take() else {
            return false;
        };
        self.ended = Some((trouble, now.mono_ns));
        true
    }

    /// Whether the engine does all of its work.
    pub(super) fn works(&self) -> bool {
        self.is_open && self.trouble.is_none()
    }

    /// Notes that the link has ended, or could not be opened.
    pub(super) fn close(&mut self, why: String, now: Now) {
        self.is_open = false;
        self.note_lasted(now);
        let before =
            (self.trouble.take()).or_else(|| self.ended.take().map(|(trouble, _)| trouble));
        let since_ns = match before {
            Some(trouble) => trouble.since_ns,
            None => self.contact_ns().min(now.mono_ns),
        };
        self.trouble = Some(Trouble { since_ns, why });
    }

    /// Logs that the engine works again, once that has lasted.
    fn note_lasted(&mut self, now: Now) {
        let has_lasted = |ended_ns: &u64| now.mono_ns.saturating_sub(*ended_ns) >= LASTED_NS;
        let Some((trouble, ended_ns)) = self.ended.take_if(|(_, ended_ns)| has_lasted(ended_ns))
        else {
            return;
        };
        if std::mem::take(&mut self.alone_told) {
            let seconds = ended_ns.saturating_sub(trouble.since_ns) / 1_000_000_000;
            tracing::info!("the engine of the fleet answers again, after {seconds} s");
        }
        self.alert_raised = false;
    }

    fn contact_ns(&self) -> u64 {
        // Relaxed: it is only compared with a time.
        self.contact_ns.load(Ordering::Relaxed)
    }

    /// How long no engine has worked, if that is a while, and why.
    pub(super) fn alone(&self, now: Now) -> Option<(u64, &str)> {
        let (since_ns, why) = match &self.trouble {
            Some(trouble) => (trouble.since_ns, trouble.why.as_str()),
            None => (self.contact_ns(), "it does not answer"),
        };
        let alone_ns = now.mono_ns.saturating_sub(since_ns);
        (alone_ns >= ALONE_NS).then_some((alone_ns, why))
    }

    /// Logs once that the instance is alone, and once that it no longer is. Returns the sentence of
    /// an alert, once.
    pub(super) fn tell(&mut self, engine: &str, now: Now) -> Option<String> {
        self.note_lasted(now);
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

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn at(mono_ns: u64) -> Now {
        Now {
            mono_ns,
            wall_ms: 0,
        }
    }

    fn standing() -> (Standing, Arc<AtomicU64>) {
        let contact_ns = Arc::new(AtomicU64::new(0));
        (Standing::new(Arc::clone(&contact_ns), at(0)), contact_ns)
    }

    fn does_all(standing: &mut Standing, now: Now) -> bool {
        [Work::Read, Work::Append, Work::Beat]
            .map(|work| standing.has_done(work, now))
            .contains(&true)
    }

    /// FLEET-2: without an answer the instance is alone after 3 s, and raises one alert after 30 s;
    /// it raises another only if the engine has answered in between.
    #[test]
    fn alone_after_3_s_and_an_alert_after_30_s() {
        let (mut standing, contact_ns) = standing();
        standing.open();
        assert!(does_all(&mut standing, at(SECOND)));
        for begun in [SECOND, 100 * SECOND] {
            contact_ns.store(begun, Ordering::Relaxed);
            let alone = |standing: &Standing, ns| standing.alone(at(begun + ns)).is_some();
            assert!(!alone(&standing, 3 * SECOND - 1));
            assert!(alone(&standing, 3 * SECOND));
            let tell = |standing: &mut Standing, ns| standing.tell("", at(begun + ns));
            assert_eq!(tell(&mut standing, 30 * SECOND - 1), None);
            let told = tell(&mut standing, 30 * SECOND).unwrap();
            assert!(told.contains("it does not answer"), "{told}");
            standing.close("no answer within 1 s".to_owned(), at(begun + 31 * SECOND));
            assert_eq!(tell(&mut standing, 90 * SECOND), None);
            standing.open();
            assert!(does_all(&mut standing, at(begun + 91 * SECOND)));
        }
    }

    /// FLEET-2: an engine that answers first and then refuses everything, each time again, counts
    /// as one that does not answer: the time runs on, and the alert has the reason.
    #[test]
    fn an_engine_that_refuses_its_work_is_none() {
        for refused in [Work::Read, Work::Append, Work::Beat] {
            let (mut standing, contact_ns) = standing();
            let mut told = Vec::new();
            for now in (1..=32).map(|seconds| at(seconds * SECOND)) {
                contact_ns.store(now.mono_ns, Ordering::Relaxed);
                standing.open();
                for work in [Work::Read, Work::Append, Work::Beat] {
                    assert!(work == refused || !standing.has_done(work, now));
                }
                assert!(!standing.works());
                told.extend(standing.tell("", now));
                standing.close("no permission".to_owned(), now);
                assert_eq!(standing.alone(now).is_some(), now.mono_ns >= 3 * SECOND);
            }
            assert_eq!(told.len(), 1);
            assert!(told.iter().all(|told| told.contains("no permission")));
            standing.open();
            assert!(does_all(&mut standing, at(33 * SECOND)));
            assert_eq!(standing.alone(at(33 * SECOND)), None);
        }
    }

    /// FLEET-2: an engine that answers everything and fails again at once, each time again, counts
    /// as one that does not answer; the time starts again once it has worked for two seconds.
    #[test]
    fn an_engine_that_fails_again_at_once_is_none() {
        let (mut standing, contact_ns) = standing();
        let mut told = Vec::new();
        let mut turn = |standing: &mut Standing, second: u64, length_ns: u64| {
            let begun = at(second * SECOND);
            let end = at(begun.mono_ns + length_ns);
            standing.open();
            assert!(does_all(standing, begun));
            assert_eq!(standing.alone(begun), None);
            contact_ns.store(end.mono_ns, Ordering::Relaxed);
            standing.close("it lies".to_owned(), end);
            told.extend(standing.tell("", end));
            standing.alone(end).is_some()
        };
        for second in 1..=40 {
            let is_alone = turn(&mut standing, second, SECOND / 2);
            assert_eq!(is_alone, second >= 3, "{second}");
        }
        assert!(!turn(&mut standing, 41, 2 * SECOND));
        assert_eq!(told.len(), 1);
    }
}
