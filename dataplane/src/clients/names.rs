//! What is known of the names of a client's address (CRAWL-3). Pure: time is an argument.

use std::net::IpAddr;

use weir_shared::proof::{NamesAnswer, Suffixes};

/// A question that has no answer after this long is lost, nanoseconds: it is asked again. Far
/// beyond what it takes, queue included.
const LOST_NS: u64 = 120_000_000_000;
/// A verified crawler is noted as one so often, nanoseconds.
const NOTED_NS: u64 = 3_600_000_000_000;

/// The names of the address that claimed last: those of an IPv6 client may come from several.
#[derive(Clone, Debug)]
pub struct KnownNames {
    address: IpAddr,
    answer: NamesAnswer,
}

impl KnownNames {
    /// An answer.
    pub const fn new(address: IpAddr, answer: NamesAnswer) -> Self {
        Self { address, answer }
    }

    /// A question that was just asked.
    pub fn asked(address: IpAddr, suffixes: &Suffixes, mono_ns: u64) -> Self {
        let answer = NamesAnswer {
            suffixes: suffixes.id(),
            names: None,
            until_ns: mono_ns.saturating_add(LOST_NS),
        };
        Self { address, answer }
    }

    /// Whether it says something about this address and these suffixes.
    pub fn holds(&self, address: IpAddr, suffixes: &Suffixes, mono_ns: u64) -> bool {
        self.address == address && self.answer.suffixes == suffixes.id() && !self.is_past(mono_ns)
    }

    /// The names; none where they are not known.
    pub fn names(&self) -> Option<&[Box<str>]> {
        self.answer.names.as_deref()
    }

    /// Whether it holds no longer.
    pub const fn is_past(&self, mono_ns: u64) -> bool {
        mono_ns >= self.answer.until_ns
    }
}

/// When a verified crawler was last noted as one, on the monotonic clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct Noted(Option<u64>);

impl Noted {
    /// Notes it, if that was not done within the last hour: true then.
    pub fn anew(&mut self, mono_ns: u64) -> bool {
        let is_due = !self.is_fresh(mono_ns);
        if is_due {
            self.0 = Some(mono_ns);
        }
        is_due
    }

    /// Whether it was noted within the last hour.
    pub fn is_fresh(self, mono_ns: u64) -> bool {
        let Self(noted) = self;
        noted.is_some_and(|at| mono_ns.saturating_sub(at) < NOTED_NS)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// CRAWL-3: names are those of one address, for the suffixes that were asked for, and as long
    /// as the answer says; a question that is lost is asked again.
    #[test]
    fn names_hold_for_their_address_and_their_time() {
        let of = |suffix: &str| Suffixes::new([suffix.to_owned()]);
        let (ours, others) = (of(".a.example"), of(".b.example"));
        let [address, beside] = ["2001:db8::1", "2001:db8::2"].map(|text| text.parse().unwrap());
        let asked = KnownNames::asked(address, &ours, 5);
        assert!(asked.names().is_none() && asked.holds(address, &ours, 5 + LOST_NS - 1));
        assert!(!asked.holds(address, &ours, 5 + LOST_NS));
        let answer = NamesAnswer {
            suffixes: ours.id(),
            names: Some(Arc::from(["x.a.example".into()])),
            until_ns: 100,
        };
        let known = KnownNames::new(address, answer);
        assert!(known.holds(address, &ours, 99) && known.names().is_some());
        assert!(!known.holds(address, &ours, 100));
        assert!(!known.holds(beside, &ours, 99) && !known.holds(address, &others, 99));
    }

    /// CRAWL-4: a verified crawler is noted once an hour.
    #[test]
    fn a_crawler_is_noted_once_an_hour() {
        let mut noted = Noted::default();
        assert!(noted.anew(0) && !noted.anew(NOTED_NS - 1) && noted.anew(NOTED_NS));
    }
}
