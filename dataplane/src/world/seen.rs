//! What was seen of a history so far: what crossed the sockets, as a strict reader finds it, and
//! what was logged.

use crate::worker::Stop;
use crate::world::client::{Client, End};
use crate::world::history::{Event, History, Who};
use crate::world::service::{self, Logged, OBSERVES, VARIANTS};
use crate::world::strict::{Message, Reader, Side, Tail};

/// What a client saw of an answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answered {
    /// Its status.
    pub status: u16,
    /// Its content.
    pub body: Vec<u8>,
    /// Nothing follows it.
    pub closes: bool,
}

/// All that was seen.
pub struct Seen {
    /// What the client has sent.
    pub requests: Reader,
    /// What it has read.
    pub answers: Reader,
    /// The records.
    pub logged: Vec<Logged>,
    /// Nobody is answered otherwise than by a refusal, but for the health check.
    pub refused: bool,
    /// Somebody may be refused, and is not (CHECK-3).
    pub observes: bool,
    /// The service was told to end, or the client went.
    pub is_ended: bool,
    /// The client once left something unread: there may be no room for a last word.
    pub was_unread: bool,
    /// Milliseconds that passed.
    pub now_ms: u64,
    /// When the last answer was whole.
    pub answered_ms: u64,
    /// When the client has sent something last.
    pub sent_ms: u64,
    /// How many bytes it had sent by then.
    sent: usize,
    /// How it was told to stop.
    pub stop: Stop,
    /// When it was first told.
    pub stop_ms: u64,
    /// So many answers had begun when it was told to, if that is known.
    pub before_stop: Option<usize>,
    /// The peer speaks for itself, and is banned by now; since when.
    pub banned_ms: Option<u64>,
    /// The peer speaks for itself.
    pub is_alone: bool,
}

impl Seen {
    /// Nothing has happened.
    pub const fn new(history: &History) -> Self {
        let settings = history.settings as usize % VARIANTS.len();
        let is_refused = matches!(history.who, Who::Banned | Who::Denied);
        Self {
            requests: Reader::new(Side::Requests),
            answers: Reader::new(Side::Answers),
            logged: Vec::new(),
            refused: is_refused && settings != OBSERVES,
            observes: settings == OBSERVES,
            is_ended: false,
            was_unread: false,
            now_ms: 0,
            answered_ms: 0,
            sent_ms: 0,
            sent: 0,
            stop: Stop::No,
            stop_ms: 0,
            before_stop: None,
            banned_ms: None,
            is_alone: !matches!(history.who, Who::Proxy),
        }
    }

    /// Notes an event; the client has read all that was written to it by then, or has not.
    pub fn note(&mut self, event: &Event, has_read_all: bool) {
        match event {
            Event::Drain => self.note_stop(Stop::Drain, has_read_all),
            Event::HandOver => self.note_stop(Stop::HandOver, has_read_all),
            Event::Abort => self.note_stop(Stop::Abort, has_read_all),
            Event::Ban if self.is_alone && !self.observes => {
                self.banned_ms.get_or_insert(self.now_ms);
            }
            Event::Lift => (self.refused, self.banned_ms) = (false, None),
            Event::Reload(_) => {
                (self.refused, self.observes, self.banned_ms) = (false, true, None);
            }
            Event::Reset | Event::CloseWrite => self.is_ended = true,
            _ => {}
        }
    }

    fn note_stop(&mut self, stop: Stop, has_read_all: bool) {
        if self.stop == Stop::No {
            self.stop_ms = self.now_ms;
        }
        // What it has not read yet hides how many answers have begun.
        if self.stop == Stop::No && has_read_all {
            let begun = usize::from(self.answers.part.is_some());
            self.before_stop = Some(self.answers.finals() + begun);
        }
        self.stop = service::harder(self.stop, stop);
        self.is_ended = true;
    }

    /// Notes that time has passed.
    pub const fn passed(&mut self, milliseconds: u64) {
        self.now_ms += milliseconds;
    }

    /// Takes what has come since.
    pub fn take(&mut self, client: &Client, logged: Vec<Logged>) {
        self.logged.extend(logged);
        if self.sent != client.sent.len() {
            (self.sent, self.sent_ms) = (client.sent.len(), self.now_ms);
        }
        self.requests.read(&client.sent, false, |_| Some(false));
        let (requests, part) = (&self.requests.messages, self.requests.part.as_ref());
        let is_known = self.requests.tail != Tail::Unknown;
        let is_head = |at: usize| {
            let request = requests.get(at).or(part.filter(|_| at == requests.len()));
            let is_head = request.map(|request| request.first[0] == "HEAD");
            is_head.or(is_known.then_some(false))
        };
        let before = self.answers.finals();
        // A reset tells that an answer without a length is cut off.
        let has_ended = client.end == Some(End::Fin);
        self.answers.read(&client.got, has_ended, is_head);
        if self.answers.finals() != before {
            self.answered_ms = self.now_ms;
        }
        if self.answers.tail == Tail::Tunnel && self.requests.tail != Tail::Unknown {
            // What was sent behind it is no request.
            self.requests.become_tunnel(self.answers.finals());
        }
    }

    /// What the client saw.
    pub fn answered(&self) -> Vec<Answered> {
        let known = match self.requests.tail {
            Tail::Unknown => self.requests.messages.len(),
            _ => usize::MAX,
        };
        let answered = self.finals().take(known).map(|each| Answered {
            status: each.status(),
            body: each.body.clone(),
            closes: closes(each),
        });
        answered.collect()
    }

    /// The request with this number in order, also one whose body is not whole.
    pub fn request(&self, at: usize) -> Option<&Message> {
        let messages = &self.requests.messages;
        let part = self.requests.part.as_ref();
        messages.get(at).or(part.filter(|_| at == messages.len()))
    }

    /// The whole answers, interim ones left out.
    pub fn finals(&self) -> impl Iterator<Item = &Message> {
        let is_final = |each: &&Message| self.answers.is_final(each);
        self.answers.messages.iter().filter(is_final)
    }
}

/// Whether an answer is the last of its connection.
pub fn closes(answer: &Message) -> bool {
    // That of a tunnel has no next one.
    answer.status() != 101 && (answer.connection("close") || answer.until_close)
}
