//! How a connection ends: what its client is told, and that nothing of an answer is lost (CONN-14).

use crate::worker::Stop;
use crate::world::check::Check;
use crate::world::client::{Client, End};
use crate::world::late::{FIRST_USE_MS, LINGER_MOST_MS, LINGER_MS};
use crate::world::seen::closes;
use crate::world::strict::Tail;

/// A lingering close ends after so many bytes.
const LINGER_BYTES: usize = 1024 * 1024;

impl Check {
    /// Asks what is asked of an end, or of what leads to it.
    pub(super) fn ends_well(&self, client: &Client, is_open: bool) -> Result<(), String> {
        self.no_answer_is_lost(client)?;
        self.answers_behind_a_stop_are_last()?;
        self.half_a_head_is_answered(client)?;
        self.first_use_is_waited_for(client)?;
        if is_open {
            self.end_is_told(client)?;
        }
        Ok(())
    }

    /// A client is not reset while it may not have read its last answer: for as long as it has
    /// something to send, up to a bound.
    fn no_answer_is_lost(&self, client: &Client) -> Result<(), String> {
        let seen = &self.seen;
        let is_last = seen.finals().last().is_some_and(closes);
        let lingers_ms = seen.now_ms - seen.answered_ms;
        let is_quiet = seen.now_ms - seen.answered_ms.max(seen.sent_ms) >= LINGER_MS;
        let is_over = is_quiet || lingers_ms >= LINGER_MOST_MS || seen.stop == Stop::Abort;
        let is_much = client.sent.len() > LINGER_BYTES;
        if client.end == Some(End::Reset) && is_last && !is_over && !is_much {
            return Err("a reset behind the last answer".to_owned());
        }
        Ok(())
    }

    /// An answer that begins once the service is told to stop says that it is the last one
    /// (RESTART-1).
    fn answers_behind_a_stop_are_last(&self) -> Result<(), String> {
        let Some(before) = self.seen.before_stop else {
            return Ok(());
        };
        let part = self.seen.answers.part.as_ref();
        let mut behind = self.seen.finals().chain(part).skip(before);
        match behind.find(|answer| answer.status() != 101 && !closes(answer)) {
            Some(answer) => Err(format!("behind the stop an answer keeps: {answer:?}")),
            None => Ok(()),
        }
    }

    /// Whoever began a head, was waited for, and reads what comes, is told so where the connection
    /// ends (CONN-10).
    fn half_a_head_is_answered(&self, client: &Client) -> Result<(), String> {
        let seen = &self.seen;
        let is_waited_for = seen.requests.tail == Tail::Head
            && seen.answers.finals() == seen.requests.messages.len()
            && seen.answers.part.is_none();
        let is_last = seen.finals().last().is_some_and(closes);
        let may_be_silent = seen.is_ended || seen.was_unread || is_last;
        if client.end.is_some() && is_waited_for && !may_be_silent {
            return Err("the connection ends without a word in the middle of a head".to_owned());
        }
        Ok(())
    }

    /// A connection on which nothing was sent yet has its time for a first request at a stop.
    fn first_use_is_waited_for(&self, client: &Client) -> Result<(), String> {
        let seen = &self.seen;
        let is_unused = client.got.is_empty() && client.sent.is_empty();
        // Its time for a head may be over by then.
        let is_due = seen.now_ms - seen.stop_ms < FIRST_USE_MS && seen.now_ms < FIRST_USE_MS;
        let is_stopped = matches!(seen.stop, Stop::Drain | Stop::HandOver);
        if client.end.is_some() && !client.ends() && is_stopped && is_unused && is_due {
            return Err("a connection ends at a stop before its first request".to_owned());
        }
        Ok(())
    }

    /// The end of a connection comes with its last answer.
    fn end_is_told(&self, client: &Client) -> Result<(), String> {
        let is_last = self.seen.finals().last().is_some_and(closes);
        if is_last && client.reads() && client.end.is_none() && !client.is_gone() {
            return Err("the last answer is there, and the end is not told".to_owned());
        }
        Ok(())
    }
}
