//! The control loop's end of the queue of admin requests, and the lists of bans that it gathers, a
//! piece in each turn. A thread of its own writes the answers.

use std::collections::VecDeque;

use crossbeam_channel::{Receiver, Select, TryRecvError, never};
use weir_shared::handover::Respond;

use super::answers::{Answers, Page};
use super::bans::{Filter, Listing};
use super::problem::{Problem, of_metrics};
use super::{Ask, Request};
use crate::bans::feed::Cursor;
use crate::bans::ledger::Ledger;

/// The most bans that one turn looks at for lists, which takes a fraction of a millisecond; then
/// the loop looks at exceeded limits again.
pub(crate) const MAX_LISTED_A_TURN: usize = 4096;

/// Lists of bans that may be under way; a further request is answered 503.
pub(crate) const MAX_LISTINGS: usize = 64;

/// The admin requests that are not answered yet.
pub(crate) struct Requests {
    /// Filled by the data plane's threads, which answer 503 if it is full.
    queue: Receiver<Request>,
    /// Lists that are being gathered, in the order they were asked for; at most [`MAX_LISTINGS`].
    listings: VecDeque<(Listing, String, Respond)>,
    /// Writes long answers; its queue is bounded.
    answers: Answers,
}

impl Requests {
    pub(crate) fn new(queue: Receiver<Request>, answers: Answers) -> Self {
        Self {
            queue,
            listings: VecDeque::new(),
            answers,
        }
    }

    /// Adds the queue to the loop's select.
    pub(crate) fn select<'a>(&'a self, select: &mut Select<'a>) {
        select.recv(&self.queue);
    }

    /// The next request, if one waits.
    pub(crate) fn next(&mut self) -> Option<Request> {
        match self.queue.try_recv() {
            Ok(request) => Some(request),
            Err(TryRecvError::Empty) => None,
            // A disconnected channel is always ready: it would wake the loop without a pause.
            Err(TryRecvError::Disconnected) => {
                self.queue = never();
                None
            }
        }
    }

    /// Answers the waiting requests 503, because another process takes over (RESTART-4).
    pub(crate) fn refuse(&mut self) {
        while let Some(request) = self.next() {
            let answer = Problem::HandingOver.answer(&request.request_id);
            (request.respond)(match request.ask {
                Ask::Metrics => of_metrics(answer),
                _ => answer,
            });
        }
    }

    /// Begins a list of bans.
    pub(crate) fn list(
        &mut self,
        filter: Filter,
        cursor: Cursor,
        request_id: String,
        respond: Respond,
    ) {
        if self.listings.len() >= MAX_LISTINGS {
            respond(Problem::Busy.answer(&request_id));
        } else {
            let listing = Listing::new(filter, cursor);
            self.listings.push_back((listing, request_id, respond));
        }
    }

    /// Whether lists are under way.
    pub(crate) fn is_listing(&self) -> bool {
        !self.listings.is_empty()
    }

    /// Gathers a piece of the lists under way. Another thread writes their answers.
    pub(crate) fn go_on_listing(&mut self, ledger: &Ledger, now_ms: u64) {
        let mut rest = MAX_LISTED_A_TURN;
        // The list is taken out of the queue meanwhile: if a panic interrupts it, it is dropped and
        // not tried again.
        while let Some((mut listing, request_id, respond)) = self.listings.pop_front() {
            rest -= listing.look_at(rest, ledger, now_ms);
            if rest == 0 {
                self.listings.push_front((listing, request_id, respond));
                return;
            }
            let bans = Page::Bans(listing.into_listed());
            self.answers.write(bans, &request_id, respond);
        }
    }

    /// Queues a long answer to be written.
    pub(crate) fn write(&self, page: Page, request_id: &str, respond: Respond) {
        self.answers.write(page, request_id, respond);
    }
}

#[cfg(test)]
impl Requests {
    pub(crate) fn listings(&self) -> &VecDeque<(Listing, String, Respond)> {
        &self.listings
    }
}
