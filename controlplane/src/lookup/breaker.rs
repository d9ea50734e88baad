//! When a question may be asked: the circuit breaker for the service as a whole, and the back-off
//! for one client (LOOKUP-3). Pure: time is an argument, nanoseconds of the monotonic clock.

use std::collections::HashMap;

use weir_shared::client::Client;
use weir_shared::table::MAX_CLIENTS;

/// Failures in a row that open the breaker.
const FAILURES: u32 = 5;
/// How long the breaker stays open; also how long a probe may take before another is sent.
const OPEN_NS: u64 = 30 * SECOND_NS;
/// While a probe is under way, clients are asked about again after this.
const PROBING_NS: u64 = SECOND_NS;
/// The first back-off of a client, and the longest.
const BACK_OFF_FIRST_NS: u64 = 10 * SECOND_NS;
const BACK_OFF_LAST_NS: u64 = 600 * SECOND_NS;
const SECOND_NS: u64 = 1_000_000_000;

/// Keeps requests from waiting for a service that does not answer.
#[derive(Debug, Default)]
pub(crate) struct Breaker {
    /// Failures in a row.
    failures: u32,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum State {
    #[default]
    Closed,
    /// Open until this time.
    Open(u64),
    /// One lookup was let through at this time, as a probe.
    Probing(u64),
}

/// Whether a lookup may be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Gate {
    /// Yes.
    Go,
    /// Yes, as the only probe; no request should wait for it.
    Probe,
    /// No, not before this time.
    Shut(u64),
}

impl Breaker {
    /// Whether a lookup may be made now; counts it if so.
    pub(crate) fn ask(&mut self, now_ns: u64) -> Gate {
        match self.state {
            State::Closed => Gate::Go,
            State::Open(until_ns) if now_ns < until_ns => Gate::Shut(until_ns),
            State::Probing(since_ns) if now_ns < since_ns.saturating_add(OPEN_NS) => {
                Gate::Shut(now_ns.saturating_add(PROBING_NS))
            }
            State::Open(_) | State::Probing(_) => {
                self.state = State::Probing(now_ns);
                Gate::Probe
            }
        }
    }

    /// Whether the breaker is open, or a probe is under way.
    pub(crate) fn is_open(&self) -> bool {
        self.state != State::Closed
    }

    /// Until when queued lookups must wait; none if they need not.
    pub(crate) fn shut_until(&self, now_ns: u64) -> Option<u64> {
        match self.state {
            State::Open(until_ns) if now_ns < until_ns => Some(until_ns),
            State::Open(_) | State::Closed | State::Probing(_) => None,
        }
    }

    /// The service answered. Returns true if the breaker was open.
    pub(crate) fn succeed(&mut self) -> bool {
        let was_open = self.state != State::Closed;
        *self = Self::default();
        was_open
    }

    /// The service failed. Returns true if the breaker opens by it.
    pub(crate) fn fail(&mut self, now_ns: u64) -> bool {
        self.failures = self.failures.saturating_add(1);
        let opens = match self.state {
            State::Closed => self.failures >= FAILURES,
            State::Probing(_) => true,
            // A lookup that was under way when the breaker opened says nothing new.
            State::Open(_) => false,
        };
        if opens {
            self.state = State::Open(now_ns.saturating_add(OPEN_NS));
        }
        opens
    }

    /// The service asked for a pause (`Retry-After`). True if the breaker opens by it.
    pub(crate) fn pause(&mut self, until_ns: u64) -> bool {
        self.failures = self.failures.saturating_add(1);
        let was_open = matches!(self.state, State::Open(_));
        self.state = match self.state {
            State::Open(held_ns) => State::Open(held_ns.max(until_ns)),
            State::Closed | State::Probing(_) => State::Open(until_ns),
        };
        !was_open
    }
}

/// When each client whose lookup failed may be looked up again. At most as many entries as there
/// are clients.
#[derive(Debug, Default)]
pub(crate) struct BackOff {
    waits: HashMap<Client, Wait>,
}

#[derive(Clone, Copy, Debug)]
struct Wait {
    tries: u32,
    until_ns: u64,
}

impl BackOff {
    /// Until when the client must not be looked up; none if it may be.
    pub(crate) fn until(&self, client: Client, now_ns: u64) -> Option<u64> {
        let wait = self.waits.get(&client)?;
        (now_ns < wait.until_ns).then_some(wait.until_ns)
    }

    /// Notes that a lookup of the client failed; returns when it may be looked up again.
    pub(crate) fn fail(&mut self, client: Client, now_ns: u64) -> u64 {
        let tries = self.waits.get(&client).map_or(0, |wait| wait.tries);
        let factor = 1u64.checked_shl(tries).unwrap_or(u64::MAX);
        let wait_ns = BACK_OFF_FIRST_NS
            .saturating_mul(factor)
            .min(BACK_OFF_LAST_NS);
        let until_ns = now_ns.saturating_add(wait_ns);
        if self.waits.len() >= MAX_CLIENTS && !self.waits.contains_key(&client) {
            self.waits.retain(|_, wait| now_ns < wait.until_ns);
        }
        // With so many failures the breaker protects the service, so this client needs no entry.
        if self.waits.len() < MAX_CLIENTS || self.waits.contains_key(&client) {
            let tries = (tries + 1).min(63);
            self.waits.insert(client, Wait { tries, until_ns });
        }
        until_ns
    }

    /// Notes that a lookup of the client was answered.
    pub(crate) fn succeed(&mut self, client: Client) {
        self.waits.remove(&client);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = SECOND_NS;

    /// LOOKUP-3: open after 5 failures in a row, for 30 s, then one probe; its outcome decides.
    #[test]
    fn the_breaker_opens_after_five_failures_and_sends_one_probe() {
        let mut breaker = Breaker::default();
        for _ in 0..4 {
            assert!(!breaker.fail(S));
        }
        assert_eq!(breaker.ask(S), Gate::Go);
        assert!(!breaker.succeed());
        for failure in 1..=5 {
            assert_eq!(breaker.ask(2 * S), Gate::Go);
            assert_eq!(breaker.fail(2 * S), failure == 5);
        }
        assert_eq!(breaker.ask(2 * S), Gate::Shut(32 * S));
        assert_eq!(breaker.shut_until(31 * S), Some(32 * S));
        // What was under way fails too, and does not lengthen it.
        assert!(!breaker.fail(20 * S));
        assert_eq!(breaker.ask(32 * S - 1), Gate::Shut(32 * S));
        assert_eq!(breaker.ask(32 * S), Gate::Probe);
        assert_eq!(breaker.ask(32 * S), Gate::Shut(33 * S));
        assert!(breaker.fail(33 * S));
        assert_eq!(breaker.ask(63 * S - 1), Gate::Shut(63 * S));
        assert_eq!(breaker.ask(63 * S), Gate::Probe);
        assert!(breaker.succeed());
        assert_eq!(breaker.ask(63 * S), Gate::Go);
        assert!(!breaker.fail(64 * S));
    }

    /// A probe that never ends does not keep the breaker open for ever.
    #[test]
    fn a_lost_probe_is_followed_by_another() {
        let mut breaker = Breaker::default();
        for _ in 0..5 {
            breaker.fail(0);
        }
        assert_eq!(breaker.ask(30 * S), Gate::Probe);
        assert_eq!(breaker.ask(59 * S), Gate::Shut(60 * S));
        assert_eq!(breaker.ask(60 * S), Gate::Probe);
    }

    /// A service that says `Retry-After` is left alone until then.
    #[test]
    fn retry_after_is_honoured() {
        let mut breaker = Breaker::default();
        assert!(breaker.pause(120 * S));
        assert!(!breaker.pause(90 * S));
        assert_eq!(breaker.ask(119 * S), Gate::Shut(120 * S));
        assert_eq!(breaker.ask(120 * S), Gate::Probe);
    }

    /// LOOKUP-3: the back-off is 10 s, doubles, and is at most 10 min; an answer resets it.
    #[test]
    fn a_client_is_asked_about_again_with_growing_pauses() {
        let (mut back_off, client) = (BackOff::default(), Client::V4(1));
        for expected in [10, 20, 40, 80, 160, 320, 600, 600] {
            let until_ns = back_off.fail(client, 5 * S);
            assert_eq!(until_ns, (5 + expected) * S);
            assert_eq!(back_off.until(client, until_ns - 1), Some(until_ns));
            assert_eq!(back_off.until(client, until_ns), None);
        }
        assert_eq!(back_off.until(Client::V4(2), 0), None);
        back_off.succeed(client);
        assert_eq!(back_off.fail(client, 0), 10 * S);
    }

    /// The breaker remembers at most as many failed clients as the table keeps.
    #[test]
    fn back_off_is_bounded() {
        let mut back_off = BackOff::default();
        for number in 0..50_000 {
            back_off.fail(Client::V4(number), u64::from(number));
        }
        assert_eq!(back_off.waits.len(), MAX_CLIENTS);
        back_off.fail(Client::V4(60_000), 100 * S);
        assert_eq!(back_off.waits.len(), 1);
    }
}
