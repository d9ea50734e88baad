//! What the rules promise of a connection, asked after each event, from what crossed the sockets,
//! what was logged and what was counted.

use std::sync::atomic::Ordering;

use weir_shared::totals::ConnectionError;
use weir_shared::verdict::{Action, History};

use crate::world::application::{Application, asked};
use crate::world::client::Client;
use crate::world::history::{self, pattern};
use crate::world::seen::{Seen, closes};
use crate::world::service::{Logged, Service};
use crate::world::strict::{Message, Tail};

/// What was seen, and how much of it was found right.
pub struct Check {
    /// What was seen.
    pub seen: Seen,
    /// So many answers were found right.
    right: usize,
}

impl Check {
    /// Nothing has happened.
    pub const fn new(history: &history::History) -> Self {
        Self {
            seen: Seen::new(history),
            right: 0,
        }
    }

    /// A fault, and when it was found.
    pub fn with_time(&self, fault: String) -> String {
        let (now_ms, answered_ms) = (self.seen.now_ms, self.seen.answered_ms);
        format!("{fault}\nafter {now_ms} ms, the last answer after {answered_ms} ms")
    }

    /// Asks everything.
    ///
    /// # Errors
    /// What does not hold.
    pub fn all(
        &mut self,
        client: &Client,
        application: &Application,
        service: &Service,
        is_open: bool,
    ) -> Result<(), String> {
        self.answers_are_whole(client)?;
        self.answers_are_right()?;
        self.application_was_sent(application)?;
        self.each_is_logged_once()?;
        self.counted(service)?;
        self.ends_well(client, is_open)?;
        if is_open {
            self.each_is_answered(client, application)?;
        }
        Ok(())
    }

    /// The client got whole answers one behind the other, never more than it asked for, and nothing
    /// behind the last one.
    fn answers_are_whole(&self, client: &Client) -> Result<(), String> {
        let got = || {
            let from = client.got.get(self.seen.answers.at()..).unwrap_or_default();
            String::from_utf8_lossy(from.get(..from.len().min(300)).unwrap_or_default())
                .into_owned()
        };
        if self.seen.answers.tail == Tail::Unknown {
            return Err(format!("what the client got is no answer: {:?}", got()));
        }
        let count = self.seen.answers.finals();
        let whole = self.seen.requests.messages.len();
        let begun = usize::from(self.seen.requests.tail != Tail::Nothing);
        if self.seen.requests.tail != Tail::Unknown && count > whole + begun {
            let last = self.seen.finals().last();
            let count = format!("{count} answers to {whole} requests and {begun} begun");
            return Err(format!("{count}: {last:?}"));
        }
        let closing = self.seen.finals().position(closes);
        let ends = [Tail::Nothing, Tail::Unjudged].contains(&self.seen.answers.tail);
        let is_last = |at| at + 1 == count && ends;
        if closing.is_some_and(|at| !is_last(at)) {
            let last = self.seen.finals().find(|each| closes(each));
            return Err(format!(
                "something follows the last answer, {last:?}: {:?}",
                got()
            ));
        }
        Ok(())
    }

    /// Each answer is that of its request.
    fn answers_are_right(&mut self) -> Result<(), String> {
        let part = self.seen.answers.part.as_ref();
        for (at, answer) in self.seen.finals().chain(part).enumerate().skip(self.right) {
            let Some(id) = answer.field("x-id") else {
                self.own_answer(at, answer)?;
                continue;
            };
            if self.seen.refused {
                return Err(format!("a refused client got {answer:?}"));
            }
            let Some(request) = self.seen.request(at) else {
                if self.seen.requests.tail == Tail::Unknown {
                    continue;
                }
                return Err(format!("an answer to no request: {answer:?}"));
            };
            let (number, _, size) = asked(request);
            if id != number.to_string() {
                return Err(format!("request {number} got the answer to {id}"));
            }
            let content = pattern(number, size);
            if !content.starts_with(&answer.body) {
                return Err(format!("the answer to {number} holds other bytes"));
            }
            if answer.status() == 101 && !request.asks_for_websocket() {
                return Err(format!("request {number} was not for a WebSocket"));
            }
        }
        self.right = self.seen.answers.finals();
        Ok(())
    }

    /// An answer of the service itself.
    fn own_answer(&self, at: usize, answer: &Message) -> Result<(), String> {
        const REFUSED: [u16; 7] = [400, 403, 408, 414, 429, 431, 501];
        const OWN: [u16; 8] = [404, 405, 413, 500, 502, 503, 504, 505];
        let status = answer.status();
        self.nothing_follows_a_check(at, answer)?;
        if REFUSED.contains(&status) || (!self.seen.refused && OWN.contains(&status)) {
            return Ok(());
        }
        let request = self.seen.request(at);
        let is_health = request.is_none_or(Message::is_health_check);
        let is_own = request.is_none_or(|request| {
            is_health || (!self.seen.refused && request.path().starts_with("/_waf/"))
        });
        // A connection that was just accepted is answered at a stop, too (CONN-14).
        if (status == 200 && is_own) || (status == 503 && is_health) {
            return Ok(());
        }
        Err(format!(
            "the service itself answered {answer:?} to {:?}",
            self.seen.request(at)
        ))
    }

    /// The answer to a health check that announces a body is the last (CHECK-7).
    fn nothing_follows_a_check(&self, at: usize, answer: &Message) -> Result<(), String> {
        let request = self.seen.request(at);
        let is_followed = |request: &&Message| {
            request.is_health_check() && request.announces_body() && !closes(answer)
        };
        match request.filter(is_followed) {
            Some(request) => Err(format!("the connection goes on behind {request:?}")),
            None => Ok(()),
        }
    }

    /// What the application was sent is what the client has sent, in its order, once; and nothing
    /// of a refused client.
    fn application_was_sent(&self, application: &Application) -> Result<(), String> {
        let mut seen = std::collections::BTreeMap::new();
        for call in &application.calls {
            if self.seen.refused && !call.heard.is_empty() {
                return Err("something of a refused client got to the application".to_owned());
            }
            if call.reader.tail == Tail::Unknown {
                let heard = String::from_utf8_lossy(&call.heard);
                return Err(format!("the application was sent no request: {heard:?}"));
            }
            let mut last = 0;
            for (is_whole, sent) in (call.reader.messages.iter().map(|sent| (true, sent)))
                .chain(call.reader.part.iter().map(|sent| (false, sent)))
            {
                let (number, ..) = asked(sent);
                if number == 0 {
                    continue;
                }
                if number <= last {
                    return Err(format!("request {number} was sent behind {last}"));
                }
                last = number;
                let times = seen.entry(number).or_insert(0);
                *times += 1;
                let is_repeatable = sent.body.is_empty() && sent.first[0] != "POST";
                if *times > if is_repeatable { 2 } else { 1 } {
                    return Err(format!("request {number} was sent {times} times"));
                }
                self.is_what_was_sent(number, sent, is_whole)?;
            }
        }
        Ok(())
    }

    fn is_what_was_sent(
        &self,
        number: usize,
        sent: &Message,
        is_whole: bool,
    ) -> Result<(), String> {
        let all = self.seen.requests.messages.iter();
        let mut all = all.chain(self.seen.requests.part.as_ref());
        let Some(request) = all.find(|each| asked(each).0 == number) else {
            if self.seen.requests.tail == Tail::Unknown {
                return Ok(());
            }
            return Err(format!("nobody has sent {sent:?}"));
        };
        let of_head = |each: &Message| (each.first[0].clone(), each.path().to_owned());
        if of_head(request) != of_head(sent) {
            return Err(format!("{sent:?} was made of {request:?}"));
        }
        let is_same = if is_whole {
            request.is_whole && request.body == sent.body
        } else {
            request.body.starts_with(&sent.body)
        };
        if !is_same {
            let lengths = (request.body.len(), sent.body.len());
            return Err(format!(
                "the body of {number} is another: {lengths:?}, {is_whole}"
            ));
        }
        Ok(())
    }

    /// One record for each request, in order, with its answer and what crossed.
    fn each_is_logged_once(&self) -> Result<(), String> {
        let answers: Vec<_> = self
            .seen
            .finals()
            .chain(self.seen.answers.part.as_ref())
            .collect();
        let whole = self.seen.answers.finals();
        let mut records = self.seen.logged.iter().peekable();
        let mut at = 0;
        while let Some(request) = self.seen.request(at) {
            let answer = answers.get(at).copied();
            let is_own = |logged: &&&Logged| {
                logged.method == request.first[0] && logged.path == request.path()
            };
            let is_unlogged = request.is_health_check()
                || answer.is_some_and(|answer| matches!(answer.status(), 400 | 408));
            match records.peek().filter(is_own) {
                Some(logged) if !request.is_health_check() => {
                    if let Some(answer) = answer {
                        self.is_logged_as(logged, answer, request, at < whole)?;
                    }
                    records.next();
                }
                _ if is_unlogged => {}
                // It is logged once it ends.
                _ if answer.is_some_and(|answer| answer.status() == 101) => break,
                _ if at < whole => {
                    let next = records.next();
                    return Err(format!("no record of {:?}, but {next:?}", request.first));
                }
                _ => break,
            }
            at += 1;
        }
        match records.next() {
            Some(logged) if self.seen.requests.tail != Tail::Unknown => Err(format!(
                "a record of no request, or a second one: {logged:?}"
            )),
            _ => Ok(()),
        }
    }

    fn is_logged_as(
        &self,
        logged: &Logged,
        answer: &Message,
        request: &Message,
        is_whole: bool,
    ) -> Result<(), String> {
        if logged.status != Some(answer.status()) && answer.status() != 408 {
            let status = answer.status();
            return Err(format!("an answer of {status} is logged as {logged:?}"));
        }
        let content = answer.body.len() as u64;
        let switched = answer.status() == 101;
        if is_whole && !switched && logged.response_bytes != content {
            return Err(format!(
                "{content} bytes of an answer are logged as {logged:?}"
            ));
        }
        let sent = request.body.len() as u64;
        if logged.request_bytes > sent && !switched {
            return Err(format!(
                "{sent} bytes of a request are logged as {logged:?}"
            ));
        }
        Ok(())
    }

    /// What is counted is what was logged.
    fn counted(&self, service: &Service) -> Result<(), String> {
        let totals = service.totals();
        for action in Action::ALL {
            let logged = self.seen.logged.iter().filter(|each| each.action == action);
            let (logged, counted) = (logged.count() as u64, totals.requests[action.index()]);
            if logged != counted {
                return Err(format!("{counted} requests {action:?}, {logged} logged"));
            }
        }
        let sum = |of: fn(&Logged) -> u64| self.seen.logged.iter().map(of).sum::<u64>();
        let logged = (
            sum(|each| each.request_bytes),
            sum(|each| each.response_bytes),
        );
        if logged != (totals.request_bytes, totals.response_bytes) {
            let counted = (totals.request_bytes, totals.response_bytes);
            return Err(format!("{counted:?} bytes are counted, {logged:?} logged"));
        }
        if (totals.records_dropped, totals.records_left_out) != (0, 0) {
            return Err("records were lost".to_owned());
        }
        let (found, made) = (
            totals.connection_errors[ConnectionError::Panic.index()],
            service.panics.load(Ordering::Relaxed),
        );
        if found != made {
            return Err(format!("{found} panics are counted, {made} were made"));
        }
        Ok(())
    }

    /// Each request that passed is in the history of its client, and its bytes are charged
    /// (LIMIT-5); so may be those of a request that failed behind the ladder.
    ///
    /// # Errors
    /// It is not.
    pub fn charged(&self, passed: u64, bytes: u64) -> Result<(), String> {
        let logged = &self.seen.logged;
        let of = |logged: &Logged| logged.request_bytes + logged.response_bytes;
        let is_passed = |logged: &&Logged| logged.action == Action::Passed;
        let least: u64 = logged.iter().filter(is_passed).map(of).sum();
        let may_be = |logged: &&Logged| {
            matches!(
                logged.action,
                Action::Passed
                    | Action::UpstreamError
                    | Action::ClientAborted
                    | Action::TooSlow
                    | Action::BodyTooLarge
            )
        };
        let most: u64 = logged.iter().filter(may_be).map(of).sum();
        if !(least..=most).contains(&bytes) && !self.seen.observes {
            return Err(format!("{bytes} bytes are charged, not {least} to {most}"));
        }
        // Who is refused is not kept for that (LIMIT-9), also where such a request is broken off.
        let may_pass = |logged: &&Logged| logged.action.history() == History::Passed;
        let is_certain = |logged: &&Logged| logged.action != Action::ClientAborted;
        let most = logged.iter().filter(may_pass).count() as u64;
        let least = logged.iter().filter(may_pass).filter(is_certain).count() as u64;
        if !(least..=most).contains(&passed) && !self.seen.observes {
            return Err(format!(
                "{passed} requests have passed, not {least} to {most}"
            ));
        }
        Ok(())
    }

    /// Whoever reads what comes has its answers, unless the application holds them back.
    fn each_is_answered(&self, client: &Client, application: &Application) -> Result<(), String> {
        let waits = !client.reads() || client.end.is_some() || client.ends() || client.is_gone();
        if waits || application.holds() || self.seen.answers.tail == Tail::Tunnel {
            return Ok(());
        }
        let is_last = self.seen.finals().last().is_some_and(closes);
        let (asked, answered) = (
            self.seen.requests.messages.len(),
            self.seen.answers.finals(),
        );
        if answered < asked && !is_last {
            return Err(format!(
                "{answered} answers to {asked} requests, and nothing goes on"
            ));
        }
        Ok(())
    }

    /// Asks what is asked once all is over.
    ///
    /// # Errors
    /// What does not hold.
    pub fn end(&self, client: &Client) -> Result<(), String> {
        if client.is_gone() {
            return Ok(());
        }
        if client.end.is_none() {
            return Err("the client was not told of the end".to_owned());
        }
        Ok(())
    }
}
