//! Long answers, which a thread of their own writes: lists of bans and clients, the status, the
//! metrics page.
//!
//! The control loop gathers their content, a bounded piece in each turn, and the data plane gets
//! the finished body. So a list of 100,000 bans, some 20 MiB, delays neither the next ban (BAN-8)
//! nor a worker's requests.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use http::StatusCode;
use weir_shared::api::alerts::Alert;
use weir_shared::api::clients::Held;
use weir_shared::handover::{OwnResponse, Respond};
use weir_shared::verdict::Action;

use crate::history::{self, Last};
use crate::metrics::{CONTENT_TYPE, Facts, Metrics};

use super::bans::{self, Listed};
use super::clients::{self, Most};
use super::explain::{self, Explained};
use super::groups::{self, By};
use super::problem::{self, Problem, of_metrics};
use super::status::{self, Service, Status};

/// Answers that may wait to be written; a further request is answered 503.
const QUEUE: usize = 64;

/// The control loop's handle of the thread. Dropping it ends the thread.
pub(crate) struct Answers {
    queue: Sender<Answer>,
}

/// One answer.
struct Answer {
    page: Page,
    respond: Respond,
}

/// The content of an answer.
pub(crate) enum Page {
    /// `GET /_waf/bans`
    Bans(Listed),
    /// `GET /_waf/metrics`
    Metrics(Box<Facts>),
    /// `GET /v1/status`
    Status(Box<Status>),
    /// `GET /v1/history`
    History(Last),
    /// `GET /v1/alerts`
    Alerts(Vec<Arc<Alert>>),
    /// `GET clients/<address>`
    Client(Box<Held>),
    /// `GET /v1/explain`
    Explain(Box<Explained>),
    /// `GET /v1/clients` or `/v1/groups`, at this time in milliseconds since 1970
    Clients(Option<By>, Most, u64),
}

impl Answers {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system refused it.
    pub(crate) fn start(service: Service) -> io::Result<Self> {
        let (queue, queued) = bounded(QUEUE);
        weir_shared::threads::spawn("weir-answers", move || {
            write_all(&queued, &Metrics::new(service.version), &service);
        })?;
        Ok(Self { queue })
    }

    /// Queues the answer to be written. Never blocks.
    pub(crate) fn write(&self, page: Page, request_id: &str, respond: Respond) {
        let answer = Answer { page, respond };
        if let Err(TrySendError::Full(answer) | TrySendError::Disconnected(answer)) =
            self.queue.try_send(answer)
        {
            let busy = Problem::Busy.answer(request_id);
            (answer.respond)(match answer.page {
                Page::Bans(_)
                | Page::Status(_)
                | Page::History(_)
                | Page::Clients(..)
                | Page::Alerts(_)
                | Page::Client(_)
                | Page::Explain(_) => busy,
                Page::Metrics(_) => of_metrics(busy),
            });
        }
    }
}

fn write_all(queued: &Receiver<Answer>, metrics: &Metrics, service: &Service) {
    for Answer { page, respond } in queued {
        let written = catch_unwind(AssertUnwindSafe(|| respond(write(page, metrics, service))));
        if written.is_err() {
            // The request is answered 503, because its `respond` is dropped.
            tracing::error!("an answer panicked; please report this");
        }
    }
}

fn write(page: Page, metrics: &Metrics, service: &Service) -> OwnResponse {
    match page {
        Page::Bans(bans) => bans::list(bans),
        Page::Status(status) => status::answer(&status, service),
        Page::History(last) => history::answer(&last),
        Page::Alerts(alerts) => status::alerts(alerts),
        Page::Client(held) => clients::answer(&held),
        Page::Explain(explained) => explain::answer(&explained),
        Page::Clients(None, most, now_ms) => clients::list(most, service, now_ms),
        Page::Clients(Some(by), most, now_ms) => groups::list(by, most, service, now_ms),
        Page::Metrics(facts) => {
            let page = metrics.render(&facts, metrics.process().as_ref());
            let answered = Action::Answered;
            let answer = problem::answer(StatusCode::OK, CONTENT_TYPE, page.into(), answered);
            of_metrics(answer)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crossbeam_channel::unbounded;

    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    /// BAN-8: no caller waits for the thread. While the thread hangs, a bounded number of answers
    /// waits, and one more is 503 at once; afterwards the thread sends the waiting ones. A panic
    /// costs one answer.
    #[test]
    fn answers_that_wait_are_bounded_and_a_panic_costs_one() {
        let answers = Answers::start(Service::of_test()).unwrap();
        let (send, receive) = unbounded();
        let none = || Page::Bans(Listed::default());
        let respond = || {
            let send = send.clone();
            Box::new(move |answer: OwnResponse| send.send(answer.status).unwrap()) as Respond
        };
        answers.write(none(), "id", Box::new(|_| panic!("a bug")));
        let (begun, holds) = bounded(0);
        let (go, held) = bounded::<()>(0);
        let hold = move |_: OwnResponse| {
            begun.send(()).unwrap();
            let _ = held.recv();
        };
        answers.write(none(), "id", Box::new(hold));
        holds.recv_timeout(LONG).unwrap();
        for _ in 0..QUEUE {
            answers.write(none(), "id", respond());
        }
        assert!(receive.try_recv().is_err());
        answers.write(none(), "id", respond());
        assert_eq!(receive.try_recv().unwrap(), 503);
        drop(go);
        for _ in 0..QUEUE {
            assert_eq!(receive.recv_timeout(LONG).unwrap(), 200);
        }
    }
}
