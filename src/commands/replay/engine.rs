//! Replays the requests of a log in the order in which they began, although a log has them in the
//! order in which they ended. Each request is judged, answered and ended at the times that the log
//! tells.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::io::{self, Write};

use serde_json::json;
use weir_dataplane::replay::Decided;
use weir_shared::client::Client;
use weir_shared::netblock::{Netblock, PrefixLengths};
use weir_shared::units::Time;

use super::request::Request;
use super::tally::{TRIALS, Tally};
use super::trial::Trial;

/// The most requests that wait to be sorted, and the most that are under way.
const WINDOW: usize = 16_384;
/// The most bytes of their paths.
const WINDOW_BYTES: usize = 16 << 20;

/// The counts by client, netblock, AS, country and path.
#[derive(Default)]
pub struct Tallies {
    pub clients: Tally<Client>,
    pub netblocks: Tally<Netblock>,
    pub ases: Tally<String>,
    pub countries: Tally<String>,
    pub paths: Tally<String>,
}

/// Where each refusal is written.
pub type Refusals = Option<Box<dyn Write>>;

/// All trials, and the requests on their way through them.
pub struct Engine {
    pub trials: Vec<Trial>,
    pub tallies: Tallies,
    /// Requests that were judged.
    pub requests: u64,
    /// Requests that were refused according to the log; none if the log does not tell.
    pub were_refused: Option<u64>,
    /// The times of the first and of the last request.
    pub times: Option<(u64, u64)>,
    prefixes: PrefixLengths,
    refusals: Refusals,
    /// Requests that an earlier one may still precede.
    waiting: Queue<Box<Request>>,
    waiting_bytes: usize,
    under_way: Queue<UnderWay>,
    taken: u64,
    now_ms: u64,
}

/// The earliest first; of two at the same moment, the one that was read first.
type Queue<T> = BinaryHeap<Reverse<At<T>>>;

/// An item with its place in a queue: a time and a number. Only these two are compared.
struct At<T> {
    order: (u64, u64),
    is: T,
}

/// A judged request whose answer or end is still to come.
struct UnderWay {
    request: Box<Request>,
    decided: Vec<Decided>,
    is_answered: bool,
}

impl Engine {
    /// `prefixes` are those of the settings without the changes on trial.
    pub fn new(trials: Vec<Trial>, prefixes: PrefixLengths, refusals: Refusals) -> Self {
        Self {
            trials,
            tallies: Tallies::default(),
            requests: 0,
            were_refused: None,
            times: None,
            prefixes,
            refusals,
            waiting: BinaryHeap::new(),
            waiting_bytes: 0,
            under_way: BinaryHeap::new(),
            taken: 0,
            now_ms: 0,
        }
    }

    /// Takes in the request of the next line.
    pub fn take(&mut self, request: Box<Request>) -> io::Result<()> {
        self.taken += 1;
        self.waiting_bytes += request.path.len();
        let order = (request.at_ms, self.taken);
        self.waiting.push(Reverse(At { order, is: request }));
        while self.waiting.len() > WINDOW || self.waiting_bytes > WINDOW_BYTES {
            self.next()?;
        }
        Ok(())
    }

    /// Judges all waiting requests, at the end of the logs.
    pub fn finish(&mut self) -> io::Result<()> {
        while !self.waiting.is_empty() {
            self.next()?;
        }
        self.end_until(u64::MAX);
        match &mut self.refusals {
            Some(file) => file.flush(),
            None => Ok(()),
        }
    }

    fn next(&mut self) -> io::Result<()> {
        let Some(Reverse(At { order, is: request })) = self.waiting.pop() else {
            return Ok(());
        };
        self.waiting_bytes -= request.path.len();
        self.end_until(request.at_ms);
        // Time never goes back, even where a log does.
        self.now_ms = self.now_ms.max(request.at_ms);
        let now_ms = self.now_ms;
        let trials = self.trials.iter_mut();
        let decided: Vec<Decided> = trials.map(|trial| trial.decide(&request, now_ms)).collect();
        self.count(&request, &decided);
        self.write(&request, &decided)?;
        if request.took_ms == 0 {
            self.answer(&request, &decided, now_ms);
            self.end(&request, &decided, now_ms);
            return Ok(());
        }
        let order = (request.answered_ms(), order.1);
        let is = UnderWay {
            request,
            decided,
            is_answered: false,
        };
        self.under_way.push(Reverse(At { order, is }));
        while self.under_way.len() > WINDOW {
            self.go_on();
        }
        Ok(())
    }

    /// Does all answers and ends up to this moment.
    fn end_until(&mut self, at_ms: u64) {
        let is_over = |first: &Reverse<At<UnderWay>>| first.0.order.0 <= at_ms;
        while self.under_way.peek().is_some_and(is_over) {
            self.go_on();
        }
    }

    /// Does the next answer or end of a request under way.
    fn go_on(&mut self) {
        let Some(Reverse(At {
            order,
            is: mut first,
        })) = self.under_way.pop()
        else {
            return;
        };
        // Never before the request that was judged last. The time may lie after requests that are
        // judged next: windows accept times out of order.
        let at_ms = order.0.max(self.now_ms);
        if first.is_answered {
            return self.end(&first.request, &first.decided, at_ms);
        }
        self.answer(&first.request, &first.decided, at_ms);
        first.is_answered = true;
        let end_ms = first.request.at_ms.saturating_add(first.request.took_ms);
        let order = (end_ms, order.1);
        self.under_way.push(Reverse(At { order, is: first }));
    }

    fn answer(&mut self, request: &Request, decided: &[Decided], now_ms: u64) {
        for (trial, decided) in self.trials.iter_mut().zip(decided) {
            trial.answer(request, decided, now_ms);
        }
    }

    fn end(&mut self, request: &Request, decided: &[Decided], now_ms: u64) {
        for (trial, decided) in self.trials.iter_mut().zip(decided) {
            trial.end(request, decided, now_ms);
        }
    }

    fn count(&mut self, request: &Request, decided: &[Decided]) {
        self.requests += 1;
        if let Some(was_refused) = request.was_refused {
            *self.were_refused.get_or_insert(0) += u64::from(was_refused);
        }
        let (first, last) = self.times.unwrap_or((request.at_ms, request.at_ms));
        self.times = Some((first.min(request.at_ms), last.max(request.at_ms)));
        let mut refused = [false; TRIALS];
        for (refused, decided) in refused.iter_mut().zip(decided) {
            *refused = decided.refusal.is_some();
        }
        let client = Client::of(request.address);
        let lookup = self
            .trials
            .first()
            .and_then(|trial| trial.lookup_of(request));
        let of = |member: Option<&String>| member.map_or("unknown", String::as_str).to_owned();
        let lookup = lookup.as_deref();
        let country = of(lookup.and_then(|lookup| lookup.country.as_ref()));
        let number = of(lookup.and_then(|lookup| lookup.asn.as_ref()));
        let name = lookup.and_then(|lookup| lookup.as_name.as_deref());
        let name = name.map_or(String::new(), |name| format!(" {name}"));
        let tallies = &mut self.tallies;
        tallies.clients.add(&client, refused);
        let netblock = Netblock::of(client, self.prefixes);
        tallies.netblocks.add(&netblock, refused);
        tallies.countries.add(country.as_str(), refused);
        tallies.ases.add((number + &name).as_str(), refused);
        tallies.paths.add(request.path.as_str(), refused);
    }

    /// Writes the refusals of a request, one line for each trial.
    fn write(&mut self, request: &Request, decided: &[Decided]) -> io::Result<()> {
        let Some(file) = &mut self.refusals else {
            return Ok(());
        };
        for (trial, decided) in decided.iter().enumerate() {
            let Some(action) = decided.refusal else {
                continue;
            };
            let mut line = json!({
                "trial": trial,
                "line": request.number,
                "time": Time(request.at_ms),
                "client": Client::of(request.address),
                "method": request.method.as_str(),
                "path": request.path,
                "action": action.name(),
            });
            if let Some(members) = line.as_object_mut() {
                let limit = decided.limit_hit().map(Into::into);
                members.extend(limit.map(|limit| ("limit_hit".to_owned(), limit)));
                let id = request.id.clone().map(Into::into);
                members.extend(id.map(|id| ("request_id".to_owned(), id)));
            }
            writeln!(file, "{line}")?;
        }
        Ok(())
    }
}

impl<T> PartialEq for At<T> {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}
impl<T> Eq for At<T> {}
impl<T> PartialOrd for At<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl<T> Ord for At<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.order.cmp(&other.order)
    }
}
