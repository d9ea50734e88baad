//! When a client connection must have moved on, and how fast (CONN-7). Pure: time is an argument,
//! and nothing here wakes anybody. All times are on the monotonic clock, nanoseconds.
//!
//! A timer costs a boxed sleep a request. Here a connection notes its deadlines as it goes on, and
//! the worker's sweeper asks all of them on its tick.

use weir_shared::settings::TimeoutSettings;

use crate::conn::pace::{NEVER, Pace};
use crate::worker::clock::nanos;

/// Time-outs of a client connection, nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// `WAF_HEADER_TIMEOUT`
    pub head_ns: u64,
    /// `WAF_BODY_TIMEOUT`
    pub body_ns: u64,
    /// `WAF_KEEPALIVE_TIMEOUT`
    pub idle_ns: u64,
    /// `WAF_SEND_TIMEOUT`
    pub send_ns: u64,
    /// `WAF_MIN_RATE`, bytes a second; with none `send_ns` ends the reading of a response.
    pub min_rate: Option<u64>,
}

impl Timeouts {
    /// Those among the settings.
    pub fn of(settings: &TimeoutSettings) -> Self {
        Self {
            head_ns: nanos(settings.header),
            body_ns: nanos(settings.body),
            idle_ns: nanos(settings.keepalive),
            send_ns: nanos(settings.send),
            min_rate: settings.min_rate,
        }
    }
}

/// How long a connection may be idle at most after a refusal or a health check (CONN-3).
const SHORT_IDLE_NS: u64 = 5_000_000_000;

/// From so long on a head that is not finished counts as idle, and a request whose body does not
/// come (CONN-16): who has something to ask has mostly asked it by then, and a request costs
/// nothing to leave unfinished.
const UNFINISHED_NS: u64 = 1_000_000_000;

/// How long a connection that was just accepted may take for its first request once the service
/// stops (CONN-14).
const LAST_FIRST_NS: u64 = 1_000_000_000;

/// How often a write that waits is tried again: the system says that there is room where a third
/// of its buffer is free, which a slow reader may need minutes for.
const RETRY_NS: u64 = 1_000_000_000;

/// The state of a connection; decides which time-out ends it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Nothing was ever sent on it: `WAF_HEADER_TIMEOUT`, but it is no head that took too long
    /// (CONN-8).
    Unused,
    /// Between two requests: `WAF_KEEPALIVE_TIMEOUT`.
    Idle,
    /// A head is being read: `WAF_HEADER_TIMEOUT`, then 408.
    Head,
    /// A request is being answered, or the connection is a tunnel. The time-outs of the body and of
    /// the application apply where the request waits for them.
    Busy,
    /// The same, and the beginning of its body is waited for: the application knows nothing of the
    /// request yet (CONN-13). Of a connection of HTTP/2: so for every stream.
    Gathering,
}

/// A deadline that was missed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Missed {
    /// The head took too long: 408.
    Head,
    /// The connection was idle for too long.
    Next,
    /// The client took nothing for too long, or its tunnel carried nothing.
    Client,
    /// The client sent nothing of a body for too long: 408.
    Body,
    /// The client sends or takes less than `WAF_MIN_RATE`.
    TooSlow,
    /// The application sent nothing for too long; said once a request.
    Upstream,
}

/// The deadlines of one client connection.
#[derive(Debug)]
pub struct Deadlines {
    timeouts: Timeouts,
    phase: Phase,
    /// When the phase must have ended.
    phase_end: u64,
    /// Since when it is idle, if it is; or since when its head has been coming. While the beginning
    /// of a body comes: the end of the time for which enough of it has come.
    idle_since: u64,
    /// It may be idle for a short time only after this response.
    short: bool,
    /// When a write that is waiting must have gone on.
    write: u64,
    /// When it is tried again.
    retry: u64,
    /// How fast the client takes what is written.
    reading: Pace,
    /// When the client must have sent more of the body.
    body: u64,
    /// How fast the client sends its body.
    sending: Pace,
    /// It is a tunnel: no pace is asked of it.
    is_tunnel: bool,
    /// When the application must have sent something.
    upstream: u64,
    /// How long the application was given.
    upstream_wait_ns: u64,
    /// The deadline of the application has passed.
    upstream_late: bool,
}

impl Deadlines {
    /// A connection that was just accepted: its first head is awaited.
    pub const fn new(timeouts: Timeouts, now_ns: u64) -> Self {
        Self {
            timeouts,
            phase: Phase::Unused,
            phase_end: now_ns.saturating_add(timeouts.head_ns),
            idle_since: now_ns,
            short: false,
            write: NEVER,
            retry: NEVER,
            reading: Pace::new(),
            body: NEVER,
            sending: Pace::new(),
            is_tunnel: false,
            upstream: NEVER,
            upstream_wait_ns: NEVER,
            upstream_late: false,
        }
    }

    /// From the next deadline on these time-outs hold.
    pub fn set_timeouts(&mut self, timeouts: Timeouts) {
        self.timeouts = timeouts;
    }

    /// What had to come before the first head has come: the head is awaited from now on.
    pub fn begin_connection(&mut self, now_ns: u64) {
        let head_ns = self.timeouts.head_ns;
        self.phase_end = now_ns.saturating_add(head_ns);
    }

    /// The service stops: what was never used has a short time for its first request.
    pub fn begin_drain(&mut self, now_ns: u64) {
        if self.is_unused() {
            let end = now_ns.saturating_add(LAST_FIRST_NS);
            self.phase_end = self.phase_end.min(end);
        }
    }

    /// Whether nothing was ever sent on it.
    pub fn is_unused(&self) -> bool {
        self.phase == Phase::Unused
    }

    /// A head was read: its request is being answered.
    pub fn begin_request(&mut self) {
        self.phase = Phase::Busy;
        self.phase_end = NEVER;
        self.body = NEVER;
        self.sending.reset();
        // The end of the response before may still wait to be written.
        if self.write == NEVER {
            self.reading.reset();
        }
        self.upstream = NEVER;
        self.upstream_late = false;
        self.short = false;
    }

    /// The response to this request is a refusal, or that of a health check: the connection is not
    /// kept for long behind it (CONN-3).
    pub fn shorten_idle(&mut self) {
        self.short = true;
    }

    /// Whether the connection is not to be kept for long behind this response.
    pub fn is_short(&self) -> bool {
        self.short
    }

    /// Whether a write waits for the client to take more.
    pub fn is_write_waiting(&self) -> bool {
        self.write != NEVER
    }

    /// Since when nothing has been under way, if nothing is. What was never used has been idle
    /// since it was accepted.
    pub fn idle_since(&self) -> Option<u64> {
        let is_idle = matches!(self.phase, Phase::Idle | Phase::Unused);
        (is_idle && self.write == NEVER).then_some(self.idle_since)
    }

    /// Since when the connection may be closed for another, if it may: it is idle, a head has been
    /// coming for a second, or the beginning of a body has not come for as long (CONN-16).
    pub fn gives_way_since(&self, now_ns: u64) -> Option<u64> {
        let since = self.idle_since;
        let is_slow = now_ns.saturating_sub(since) >= UNFINISHED_NS;
        let is_unfinished = self.phase == Phase::Head || self.gathers_since().is_some();
        (self.idle_since()).or_else(|| (is_unfinished && is_slow).then_some(since))
    }

    /// Where the beginning of a body is waited for, and nothing else: the end of the time for which
    /// enough of it has come.
    pub fn gathers_since(&self) -> Option<u64> {
        let gathers = self.phase == Phase::Gathering && self.write == NEVER;
        gathers.then_some(self.idle_since)
    }

    /// The response has ended: the next request is awaited.
    pub fn end_request(&mut self, now_ns: u64) {
        self.phase = Phase::Idle;
        self.begin_idle(now_ns);
        self.pause_body(now_ns);
        self.upstream = NEVER;
    }

    fn begin_idle(&mut self, now_ns: u64) {
        let mut idle_ns = self.timeouts.idle_ns;
        if self.short {
            idle_ns = idle_ns.min(SHORT_IDLE_NS);
        }
        self.idle_since = now_ns;
        self.phase_end = now_ns.saturating_add(idle_ns);
    }

    /// Nothing more is answered or read: the client is to end its side.
    pub fn begin_linger(&mut self, now_ns: u64) {
        self.write = NEVER;
        self.retry = NEVER;
        self.reading.reset();
        self.sending.reset();
        self.end_request(now_ns);
    }

    /// The client sent something.
    pub fn client_sent(&mut self, now_ns: u64) {
        match self.phase {
            Phase::Idle => {
                self.phase = Phase::Head;
                self.idle_since = now_ns;
                let end = now_ns.saturating_add(self.timeouts.head_ns);
                self.phase_end = end;
            }
            // The first head is timed from the accept on.
            Phase::Unused => {
                self.phase = Phase::Head;
                self.idle_since = now_ns;
            }
            Phase::Head | Phase::Busy | Phase::Gathering => {}
        }
    }

    /// A write waits for the client to take more.
    pub fn await_write(&mut self, now_ns: u64) {
        if self.write == NEVER {
            self.write = now_ns.saturating_add(self.timeouts.send_ns);
            self.retry = now_ns.saturating_add(RETRY_NS);
            self.reading.wait_again(now_ns);
        }
    }

    /// The socket buffer is full. From here on, bytes that it accepts count as read by the client
    /// (CONN-7). Before that they fill the system's buffers, which are megabytes.
    pub fn has_no_room(&mut self, now_ns: u64) {
        self.reading.wait(now_ns);
    }

    /// Whether a write that waits is to be tried again, which is said once.
    pub fn is_retry_due(&mut self, now_ns: u64) -> bool {
        let is_due = self.retry <= now_ns;
        if is_due {
            self.retry = now_ns.saturating_add(RETRY_NS);
        }
        is_due
    }

    /// A write went on, by so many bytes. A response may have ended for the request before its last
    /// bytes were written: the time to be idle begins with them (CONN-5).
    pub fn wrote(&mut self, now_ns: u64, bytes: u64) {
        self.write = NEVER;
        self.retry = NEVER;
        self.reading.moved(now_ns, bytes);
        if self.phase == Phase::Idle {
            self.begin_idle(now_ns);
        }
    }

    /// The request waits for more of the body.
    pub fn await_body(&mut self, now_ns: u64) {
        if self.body == NEVER {
            self.body = now_ns.saturating_add(self.timeouts.body_ns);
            self.sending.wait(now_ns);
        }
    }

    /// The request waits for more of the beginning of its body (CONN-13).
    pub fn await_beginning(&mut self, now_ns: u64) {
        if self.phase == Phase::Busy {
            self.phase = Phase::Gathering;
            self.idle_since = now_ns;
        }
    }

    /// The beginning has come; whether it was waited for.
    pub fn end_beginning(&mut self) -> bool {
        let was_awaited = self.phase == Phase::Gathering;
        if was_awaited {
            self.phase = Phase::Busy;
        }
        was_awaited
    }

    /// Whether every stream of this connection waits for the beginning of a body; for one of them
    /// enough has come up to `since_ns`.
    pub fn streams_gather(&mut self, all: bool, since_ns: u64) {
        if matches!(self.phase, Phase::Busy | Phase::Gathering) {
            self.phase = if all { Phase::Gathering } else { Phase::Busy };
            self.idle_since = self.idle_since.max(since_ns);
        }
    }

    /// So many bytes more of the body came, or its end.
    pub fn got_body(&mut self, now_ns: u64, bytes: u64) {
        if self.phase == Phase::Gathering {
            // A byte now and then holds no place: each stands for the time that it may take.
            let rate = self.timeouts.min_rate.unwrap_or(0).max(1);
            let time = bytes.saturating_mul(1_000_000_000) / rate;
            self.idle_since = self.idle_since.saturating_add(time).min(now_ns);
        }
        self.body = NEVER;
        self.sending.moved(now_ns, bytes);
    }

    /// The body is not waited for meanwhile: the application takes none.
    pub fn pause_body(&mut self, now_ns: u64) {
        self.body = NEVER;
        self.sending.pause(now_ns);
    }

    /// The request waits for the application, at most this long from now.
    pub fn await_upstream(&mut self, now_ns: u64, at_most_ns: u64) {
        self.upstream_wait_ns = at_most_ns;
        self.upstream = now_ns.saturating_add(at_most_ns);
    }

    /// The application was sent more of the body: its time to answer starts again.
    pub fn renew_upstream(&mut self, now_ns: u64) {
        if self.is_awaiting_upstream() {
            let end = now_ns.saturating_add(self.upstream_wait_ns);
            self.upstream = end;
        }
    }

    /// Something came from the application.
    pub fn got_upstream(&mut self) {
        self.upstream = NEVER;
        // It may have come at the moment that it was too late: what follows has its own time.
        self.upstream_late = false;
    }

    /// Whether the request waits for the application.
    pub fn is_awaiting_upstream(&self) -> bool {
        self.upstream != NEVER
    }

    /// Whether the application's deadline has passed.
    pub fn is_upstream_late(&self) -> bool {
        self.upstream_late
    }

    /// The connection is a tunnel from now on.
    pub fn begin_tunnel(&mut self) {
        self.is_tunnel = true;
    }

    /// The connection is a tunnel and carried something: only silence for `idle_ns` ends it.
    pub fn tunnel_carried(&mut self, now_ns: u64, idle_ns: Option<u64>) {
        self.phase = Phase::Busy;
        let end = idle_ns.map_or(NEVER, |idle| now_ns.saturating_add(idle));
        self.phase_end = end;
    }

    /// The application closed its side of the tunnel: the client has this long to follow, whatever
    /// it still sends.
    pub fn tunnel_ends(&mut self, now_ns: u64, grace_ns: u64) {
        let end = now_ns.saturating_add(grace_ns);
        self.body = self.body.min(end);
    }

    /// The worker has stood still for so long, and nobody has read what came meanwhile: everything
    /// that is waited for has its time as if that time had not been.
    pub fn put_off(&mut self, by_ns: u64) {
        for time in [
            &mut self.phase_end,
            &mut self.idle_since,
            &mut self.write,
            &mut self.retry,
            &mut self.body,
            &mut self.upstream,
        ] {
            // That of no time stays.
            *time = time.saturating_add(by_ns);
        }
        self.reading.put_off(by_ns);
        self.sending.put_off(by_ns);
    }

    /// The deadline that was missed, if any. The application's is named once.
    pub fn sweep(&mut self, now_ns: u64) -> Option<Missed> {
        // While the end of a response waits to be written, the connection is not idle yet.
        let is_written = self.phase != Phase::Idle || self.write == NEVER;
        if self.phase_end <= now_ns && is_written {
            return Some(match self.phase {
                Phase::Head => Missed::Head,
                Phase::Unused | Phase::Idle => Missed::Next,
                Phase::Busy | Phase::Gathering => Missed::Client,
            });
        }
        let paced = self.timeouts.min_rate.filter(|_| !self.is_tunnel);
        let (reading, sending) = (&mut self.reading, &mut self.sending);
        if paced.is_some_and(|least| {
            reading.is_too_slow(now_ns, least) || sending.is_too_slow(now_ns, least)
        }) {
            return Some(Missed::TooSlow);
        }
        let is_unread = paced.is_none() && self.write <= now_ns;
        let is_body_late = self.body <= now_ns;
        if is_unread || is_body_late && self.is_tunnel {
            return Some(Missed::Client);
        }
        if is_body_late {
            return Some(Missed::Body);
        }
        // While the client holds its body back, the application is not to blame.
        let late = self.upstream <= now_ns && self.body == NEVER;
        (late && !std::mem::replace(&mut self.upstream_late, true)).then_some(Missed::Upstream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conn::pace::WINDOW_NS;

    const TIMEOUTS: Timeouts = Timeouts {
        head_ns: 10,
        body_ns: 30,
        idle_ns: 75,
        send_ns: 40,
        min_rate: None,
    };

    /// Nothing is due at `last`, and `passed` is one later.
    #[track_caller]
    fn passes_after(deadlines: &mut Deadlines, last: u64, passed: Missed) {
        assert_eq!(deadlines.sweep(last), None);
        assert_eq!(deadlines.sweep(last + 1), Some(passed));
    }

    /// CONN: the first head is timed from the accept on, and what comes of it renews nothing.
    #[test]
    fn the_first_head_is_timed_from_the_accept_on() {
        let mut deadlines = Deadlines::new(TIMEOUTS, 100);
        deadlines.client_sent(105);
        passes_after(&mut deadlines, 109, Missed::Head);
    }

    /// CONN-8: what was never used is idle, and no head that took too long.
    #[test]
    fn an_unused_connection_is_idle() {
        let mut deadlines = Deadlines::new(TIMEOUTS, 100);
        assert_eq!(deadlines.idle_since(), Some(100));
        passes_after(&mut deadlines, 109, Missed::Next);
        deadlines.client_sent(105);
        assert_eq!(deadlines.idle_since(), None);
    }

    /// CONN-16: a head that has been coming for a second gives way, however slowly it goes on; one
    /// that was finished does not, and the next one has a second of its own.
    #[test]
    fn a_head_that_is_not_finished_gives_way() {
        let endless = Timeouts {
            head_ns: NEVER,
            idle_ns: NEVER,
            ..TIMEOUTS
        };
        let mut deadlines = Deadlines::new(endless, 100);
        assert_eq!(deadlines.gives_way_since(100), Some(100));
        for next in [0, 7 * UNFINISHED_NS] {
            let begun = 200 + next;
            let at = |of: &Deadlines, after: u64| of.gives_way_since(begun + after);
            deadlines.client_sent(begun);
            deadlines.client_sent(begun + UNFINISHED_NS - 1);
            assert_eq!(at(&deadlines, UNFINISHED_NS - 1), None);
            assert_eq!(at(&deadlines, UNFINISHED_NS), Some(begun));
            assert_eq!(deadlines.idle_since(), None, "it is not idle yet");
            deadlines.begin_request();
            assert_eq!(at(&deadlines, 2 * UNFINISHED_NS), None);
            deadlines.end_request(begun + 2 * UNFINISHED_NS);
            let idle = Some(begun + 2 * UNFINISHED_NS);
            assert_eq!(at(&deadlines, 2 * UNFINISHED_NS), idle);
        }
    }

    /// CONN-16, CONN-13: a request gives way where the beginning of its body has not come for a
    /// second, and nothing else is waited for; one that is at the application does not.
    #[test]
    fn a_body_that_does_not_begin_gives_way() {
        let mut deadlines = Deadlines::new(TIMEOUTS, 0);
        deadlines.begin_request();
        let at = |of: &Deadlines, now: u64| of.gives_way_since(now);
        deadlines.await_beginning(200);
        deadlines.await_beginning(201);
        assert_eq!(at(&deadlines, 199 + UNFINISHED_NS), None);
        assert_eq!(at(&deadlines, 200 + UNFINISHED_NS), Some(200));
        assert_eq!(deadlines.idle_since(), None, "it is not idle");
        deadlines.await_write(300);
        assert_eq!(at(&deadlines, 200 + UNFINISHED_NS), None);
        deadlines.wrote(300, 1);
        assert_eq!(at(&deadlines, 200 + UNFINISHED_NS), Some(200));
        deadlines.got_body(400, 1);
        deadlines.await_beginning(400);
        assert_eq!(at(&deadlines, 399 + UNFINISHED_NS), None);
        assert_eq!(at(&deadlines, 400 + UNFINISHED_NS), Some(400));
        assert!(deadlines.end_beginning() && !deadlines.end_beginning());
        deadlines.await_body(500);
        assert_eq!(at(&deadlines, 9 * UNFINISHED_NS), None);
    }

    /// CONN-16, CONN-7: a byte now and then holds no place. As much as the least rate asks does,
    /// and what came at once counts for no time to come.
    #[test]
    fn a_body_that_trickles_gives_way() {
        let timeouts = Timeouts {
            min_rate: Some(500),
            ..TIMEOUTS
        };
        let tenth = UNFINISHED_NS / 10;
        for (bytes, first) in [(1, Some(11)), (44, Some(76)), (50, None), (5000, None)] {
            let mut deadlines = Deadlines::new(timeouts, 0);
            deadlines.begin_request();
            deadlines.await_beginning(0);
            let gives_way = (1..1000).find(|at| {
                let is_slow = deadlines.gives_way_since(at * tenth).is_some();
                deadlines.got_body(at * tenth, bytes);
                is_slow
            });
            assert_eq!(gives_way, first, "{bytes}");
            deadlines.got_body(1000 * tenth, 1_000_000);
            assert_eq!(deadlines.gathers_since(), Some(1000 * tenth), "{bytes}");
        }
    }

    /// CONN-16: a connection of HTTP/2 gives way where every stream waits for the beginning of a
    /// body, a second after the last of them has had enough.
    #[test]
    fn streams_whose_bodies_do_not_come_give_way() {
        let mut deadlines = Deadlines::new(TIMEOUTS, 0);
        deadlines.streams_gather(true, 0);
        assert_eq!(deadlines.gathers_since(), None, "no stream was opened");
        deadlines.begin_request();
        for (all, since, expected) in [
            (false, 100, None),
            (true, 200, Some(200)),
            (true, 150, Some(200)),
            (false, 300, None),
            (true, 0, Some(300)),
        ] {
            deadlines.streams_gather(all, since);
            assert_eq!(deadlines.gathers_since(), expected);
        }
        assert_eq!(deadlines.gives_way_since(299 + UNFINISHED_NS), None);
        assert_eq!(deadlines.gives_way_since(300 + UNFINISHED_NS), Some(300));
        deadlines.end_request(400);
        deadlines.streams_gather(true, 500);
        assert_eq!(deadlines.idle_since(), Some(400));
    }

    /// CONN-5: the time to be idle begins with the last byte that was written.
    #[test]
    fn a_response_that_is_being_written_is_not_idle() {
        let mut deadlines = Deadlines::new(TIMEOUTS, 0);
        deadlines.begin_request();
        deadlines.await_write(90);
        deadlines.end_request(100);
        assert_eq!(deadlines.idle_since(), None);
        passes_after(&mut deadlines, 129, Missed::Client);
        deadlines.wrote(120, 1);
        deadlines.await_write(121);
        deadlines.wrote(150, 1);
        assert_eq!(deadlines.idle_since(), Some(150));
        passes_after(&mut deadlines, 224, Missed::Next);
    }

    /// CONN-3: behind a refusal a connection is idle for five seconds at most, and only then.
    #[test]
    fn a_refusal_shortens_the_time_to_be_idle() {
        let timeouts = Timeouts {
            idle_ns: 10 * SHORT_IDLE_NS,
            ..TIMEOUTS
        };
        let mut deadlines = Deadlines::new(timeouts, 0);
        deadlines.begin_request();
        deadlines.shorten_idle();
        deadlines.end_request(0);
        passes_after(&mut deadlines, SHORT_IDLE_NS - 1, Missed::Next);
        deadlines.begin_request();
        deadlines.end_request(0);
        passes_after(&mut deadlines, 10 * SHORT_IDLE_NS - 1, Missed::Next);
    }

    /// CONN: between requests the keep-alive time-out runs; with the first byte the head's does.
    #[test]
    fn an_idle_connection_ends_unless_a_head_begins() {
        let mut deadlines = Deadlines::new(TIMEOUTS, 0);
        deadlines.begin_request();
        assert_eq!(deadlines.sweep(1_000), None);
        deadlines.end_request(1_000);
        passes_after(&mut deadlines, 1_074, Missed::Next);
        deadlines.client_sent(1_074);
        deadlines.client_sent(1_080);
        passes_after(&mut deadlines, 1_083, Missed::Head);
    }

    /// CONN: a body is timed from its last byte on, and a write from when it first waited.
    #[test]
    fn a_client_that_neither_sends_nor_takes_is_cut() {
        let mut deadlines = Deadlines::new(TIMEOUTS, 0);
        deadlines.begin_request();
        deadlines.await_body(5);
        deadlines.await_body(20);
        passes_after(&mut deadlines, 34, Missed::Body);
        deadlines.got_body(35, 1);
        assert_eq!(deadlines.sweep(35), None);
        deadlines.await_body(40);
        passes_after(&mut deadlines, 69, Missed::Body);
        deadlines.got_body(70, 1);
        deadlines.await_write(100);
        deadlines.await_write(120);
        passes_after(&mut deadlines, 139, Missed::Client);
        deadlines.wrote(120, 1);
        assert_eq!(deadlines.sweep(130), None);
    }

    /// CONN: the application is late once, and never while the client holds its body back; a body
    /// that goes on gives it its whole time again.
    #[test]
    fn the_application_is_late_once_and_not_for_the_clients_delay() {
        let mut deadlines = Deadlines::new(TIMEOUTS, 0);
        deadlines.begin_request();
        deadlines.await_upstream(0, 20);
        deadlines.await_body(0);
        assert_eq!(deadlines.sweep(29), None);
        deadlines.got_body(29, 1);
        deadlines.renew_upstream(29);
        passes_after(&mut deadlines, 48, Missed::Upstream);
        assert!(deadlines.is_upstream_late() && deadlines.is_awaiting_upstream());
        assert_eq!(deadlines.sweep(50), None);
        deadlines.got_upstream();
        deadlines.renew_upstream(60);
        assert!(!deadlines.is_awaiting_upstream());
    }

    const SECOND: u64 = 1_000_000_000;

    /// No time-out but the least rate.
    fn paced() -> Deadlines {
        let timeouts = Timeouts {
            head_ns: NEVER,
            body_ns: NEVER,
            idle_ns: NEVER,
            send_ns: 40 * SECOND,
            min_rate: Some(500),
        };
        let mut deadlines = Deadlines::new(timeouts, 0);
        deadlines.begin_request();
        deadlines
    }

    /// CONN-7: a body that comes too slowly ends, and one of another request has its own time.
    #[test]
    fn a_body_below_the_least_rate_ends() {
        let mut deadlines = paced();
        deadlines.await_body(0);
        deadlines.got_body(20 * SECOND, 14_999);
        deadlines.await_body(20 * SECOND);
        passes_after(&mut deadlines, 30 * SECOND - 1, Missed::TooSlow);
        deadlines.end_request(31 * SECOND);
        deadlines.begin_request();
        deadlines.await_body(40 * SECOND);
        deadlines.got_body(41 * SECOND, 15_000);
        deadlines.await_body(41 * SECOND);
        assert_eq!(deadlines.sweep(70 * SECOND), None);
        passes_after(&mut deadlines, 100 * SECOND - 1, Missed::TooSlow);
    }

    /// CONN-7: a slow application does not make its client too slow: neither while it takes nothing
    /// of the body, nor while it sends nothing.
    #[test]
    fn the_applications_time_is_not_the_clients() {
        let mut deadlines = paced();
        deadlines.await_body(0);
        deadlines.pause_body(29 * SECOND);
        assert_eq!(deadlines.sweep(600 * SECOND), None);
        deadlines.await_body(600 * SECOND);
        passes_after(&mut deadlines, 601 * SECOND - 1, Missed::TooSlow);
        let mut deadlines = paced();
        deadlines.await_write(0);
        deadlines.has_no_room(0);
        deadlines.wrote(20 * SECOND, 1);
        assert_eq!(deadlines.sweep(600 * SECOND), None);
        deadlines.await_write(600 * SECOND);
        passes_after(&mut deadlines, 610 * SECOND - 1, Missed::TooSlow);
    }

    /// CONN-5, CONN-7: with a least rate it alone ends the reading of a response, also of its end;
    /// a new request behind it gives no new time. Of a tunnel no rate is asked.
    #[test]
    fn a_response_that_is_read_too_slowly_ends() {
        let mut deadlines = paced();
        deadlines.await_write(0);
        deadlines.has_no_room(0);
        deadlines.end_request(SECOND);
        deadlines.begin_request();
        passes_after(&mut deadlines, 30 * SECOND - 1, Missed::TooSlow);
        let mut deadlines = paced();
        for now in 0..10 {
            deadlines.await_write(now * 29 * SECOND);
            deadlines.has_no_room(now * 29 * SECOND);
            assert_eq!(deadlines.sweep((now + 1) * 29 * SECOND), None);
            deadlines.wrote((now + 1) * 29 * SECOND, 16_000);
        }
        let mut deadlines = paced();
        deadlines.begin_tunnel();
        deadlines.await_write(0);
        deadlines.await_body(0);
        passes_after(&mut deadlines, 40 * SECOND - 1, Missed::Client);
    }

    /// CONN-7: what the system takes into its own buffers, however late it says that it has room,
    /// is no reason to wait longer for a client that reads nothing.
    #[test]
    fn what_the_system_takes_is_not_read() {
        let mut deadlines = paced();
        for now in 0..100 {
            deadlines.await_write(now * SECOND);
            deadlines.wrote(now * SECOND + SECOND / 2, 1 << 20);
        }
        deadlines.await_write(100 * SECOND);
        deadlines.has_no_room(101 * SECOND);
        passes_after(&mut deadlines, 131 * SECOND - 1, Missed::TooSlow);
    }

    /// CONN-7: a write that waits is tried again once a second, and only while it waits.
    #[test]
    fn a_write_that_waits_is_tried_again() {
        let mut deadlines = paced();
        assert!(!deadlines.is_retry_due(SECOND));
        deadlines.await_write(SECOND);
        let due: Vec<_> = (0..50)
            .filter(|tenth| deadlines.is_retry_due(SECOND + tenth * SECOND / 10))
            .collect();
        assert_eq!(due, [10, 20, 30, 40]);
        deadlines.wrote(6 * SECOND, 1);
        assert!(!deadlines.is_retry_due(9 * SECOND));
    }

    /// CONN-10: an application whose answer is read at the moment that it is late has its whole
    /// time for what follows.
    #[test]
    fn an_application_that_answered_is_not_late() {
        let mut deadlines = Deadlines::new(TIMEOUTS, 0);
        deadlines.begin_request();
        deadlines.await_upstream(0, 20);
        assert_eq!(deadlines.sweep(20), Some(Missed::Upstream));
        deadlines.got_upstream();
        deadlines.await_upstream(20, 20);
        assert!(!deadlines.is_upstream_late());
        passes_after(&mut deadlines, 39, Missed::Upstream);
    }

    /// CONN-10: whatever is waited for is waited for as if the time had not been that the worker
    /// stood still.
    #[test]
    fn time_in_which_the_worker_stood_still_does_not_count() {
        type Begin = fn(&mut Deadlines);
        let idle: Begin = |deadlines| deadlines.end_request(0);
        let head: Begin = |deadlines| {
            deadlines.end_request(0);
            deadlines.client_sent(0);
        };
        let body: Begin = |deadlines| deadlines.await_body(0);
        let write: Begin = |deadlines| deadlines.await_write(0);
        let upstream: Begin = |deadlines| deadlines.await_upstream(0, 20);
        for (begin, last, missed) in [
            (idle, 74, Missed::Next),
            (head, 9, Missed::Head),
            (body, 29, Missed::Body),
            (write, 39, Missed::Client),
            (upstream, 19, Missed::Upstream),
        ] {
            let mut deadlines = Deadlines::new(TIMEOUTS, 0);
            deadlines.begin_request();
            begin(&mut deadlines);
            deadlines.put_off(1_000);
            passes_after(&mut deadlines, 1_000 + last, missed);
        }
        let min_rate = Some(500);
        let mut paced = Deadlines::new(
            Timeouts {
                min_rate,
                body_ns: NEVER,
                ..TIMEOUTS
            },
            0,
        );
        paced.begin_request();
        paced.await_body(0);
        paced.await_write(0);
        paced.has_no_room(0);
        paced.put_off(2 * WINDOW_NS);
        passes_after(&mut paced, 3 * WINDOW_NS - 1, Missed::TooSlow);
    }

    /// CONN: what one request waited for is forgotten with it.
    #[test]
    fn a_request_inherits_no_deadline() {
        let mut deadlines = Deadlines::new(TIMEOUTS, 0);
        deadlines.begin_request();
        deadlines.await_body(0);
        deadlines.await_upstream(0, 20);
        deadlines.end_request(10);
        assert_eq!(deadlines.sweep(84), None);
        deadlines.await_upstream(0, 20);
        assert_eq!(deadlines.sweep(80), Some(Missed::Upstream));
        deadlines.begin_request();
        assert!(!deadlines.is_upstream_late() && !deadlines.is_awaiting_upstream());
        assert_eq!(deadlines.sweep(NEVER - 1), None);
    }

    /// FORWARD: a tunnel ends after silence alone; once the application has closed, whatever the
    /// client still sends does not lengthen its grace.
    #[test]
    fn a_tunnel_ends_after_silence_or_after_its_grace() {
        let mut deadlines = Deadlines::new(TIMEOUTS, 0);
        deadlines.begin_request();
        deadlines.begin_tunnel();
        deadlines.tunnel_carried(0, Some(50));
        deadlines.tunnel_carried(40, Some(50));
        passes_after(&mut deadlines, 89, Missed::Client);
        deadlines.tunnel_carried(90, None);
        assert_eq!(deadlines.sweep(NEVER - 1), None);
        deadlines.tunnel_ends(100, 20);
        deadlines.tunnel_carried(115, None);
        deadlines.tunnel_ends(115, 20);
        passes_after(&mut deadlines, 119, Missed::Client);
    }

    /// A time-out beyond the end of the clock is never reached, and nothing overflows.
    #[test]
    fn an_endless_timeout_never_passes() {
        let endless = Timeouts {
            head_ns: NEVER,
            body_ns: NEVER,
            idle_ns: NEVER,
            send_ns: NEVER,
            min_rate: None,
        };
        let mut deadlines = Deadlines::new(endless, 5);
        assert_eq!(deadlines.sweep(NEVER - 1), None);
        deadlines.begin_request();
        deadlines.await_body(7);
        deadlines.await_write(7);
        deadlines.await_upstream(7, NEVER);
        assert_eq!(deadlines.sweep(NEVER - 1), None);
    }
}
