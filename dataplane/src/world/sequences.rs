//! Every pair and triple of requests of each form, of everybody who may send them: in one write,
//! and cut at every byte. Each is answered as it is behind none, and the turns that it takes are
//! counted. Of the triples, and of the places to cut at, each n-th is run, by `WEIR_HISTORIES`: all
//! with 130,000.

use crate::world::history::{Ask, Kind, Script};
use crate::world::tests::{cases, run};
use crate::world::*;

/// What begins a request and does not end it.
const PARTIAL: &[u8] = b"GET /0/0/0 HTTP/1.1\r\nHost: a\r\n";

/// The forms that take ways of their own through the front; none is [`PARTIAL`].
const FORMS: [Option<Kind>; 11] = [
    Some(Kind::Plain),
    Some(Kind::Length),
    Some(Kind::Chunked),
    Some(Kind::Expect),
    Some(Kind::Te),
    Some(Kind::Upgrade),
    Some(Kind::OldKept),
    Some(Kind::Absolute),
    Some(Kind::HealthLength),
    Some(Kind::Bad),
    None,
];

/// Who sends them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sender {
    /// The peer.
    Peer(Who),
    /// The peer, who is over a limit from the sixth request on.
    OverALimit,
    /// Somebody whom a trusted proxy names, who is banned or not.
    Named(bool),
}

const SENDERS: [Sender; 6] = [
    Sender::Peer(Who::LetIn),
    Sender::Peer(Who::Banned),
    Sender::Peer(Who::Denied),
    Sender::OverALimit,
    Sender::Named(false),
    Sender::Named(true),
];

/// The limit of the second settings.
const LIMIT: u8 = 5;

/// A request with a body of a few bytes, if it has one.
fn event(form: Option<Kind>, of_banned: bool, count: u8) -> Event {
    let Some(kind) = form else {
        return Event::Raw(PARTIAL.to_vec());
    };
    let ask = Ask {
        kind,
        script: Script::Length,
        sends: 3,
        gets: 3,
        of_banned,
    };
    Event::Ask { ask, count }
}

/// The requests of these forms; the limit is used up before by others of the same connection.
fn requests(sender: Sender, forms: &[Option<Kind>]) -> Vec<Event> {
    let of_banned = sender == Sender::Named(true);
    let before = (sender == Sender::OverALimit).then(|| event(Some(Kind::Plain), false, LIMIT));
    let asked = forms.iter().map(|form| event(*form, of_banned, 1));
    before.into_iter().chain(asked).collect()
}

/// What each was answered when they are sent in these parts, and the turns that it took.
fn sent(sender: Sender, forms: &[Option<Kind>], parts: &[u16]) -> (Vec<Answered>, u64) {
    let who = match sender {
        Sender::Peer(who) => who,
        Sender::OverALimit => Who::LetIn,
        Sender::Named(_) => Who::Proxy,
    };
    let events = [Event::Hold].into_iter().chain(requests(sender, forms));
    let events = events.chain(parts.iter().map(|bytes| Event::Part(*bytes)));
    let history = History {
        who,
        settings: u8::from(sender == Sender::OverALimit),
        narrow: false,
        events: events.collect(),
    };
    let before = turns::all();
    let answered = run(&history).unwrap_or_else(|fault| panic!("{sender:?} {forms:?}: {fault}"));
    (answered, turns::all() - before)
}

/// How many bytes these requests have.
fn length(sender: Sender, forms: &[Option<Kind>]) -> u16 {
    let named = match sender {
        Sender::Named(true) => Some(NAMED_BANNED),
        Sender::Named(false) => Some(NAMED),
        _ => None,
    };
    let mut number = 1;
    let mut length = 0;
    for event in requests(sender, forms) {
        match event {
            Event::Ask { ask, count } => {
                for _ in 0..count {
                    length += ask.bytes(number, named).len();
                    number += 1;
                }
            }
            Event::Raw(bytes) => length += bytes.len(),
            _ => {}
        }
    }
    u16::try_from(length).expect("some hundred bytes")
}

/// Status and, of the application's, content: documents of ours name their request.
fn content(answered: &[Answered]) -> Vec<(u16, &[u8])> {
    let mut all = Vec::new();
    for each in answered {
        let body: &[u8] = if each.status < 400 { &each.body } else { &[] };
        all.push((each.status, body));
    }
    all
}

/// All pairs.
fn pairs() -> impl Iterator<Item = [Option<Kind>; 2]> {
    FORMS
        .into_iter()
        .flat_map(|first| FORMS.map(|second| [first, second]))
}

/// These answers are those of the same requests in one write, as far as there are any: what is left
/// of a refused body may end the connection.
#[track_caller]
fn same(sender: Sender, forms: &[Option<Kind>], cut: &[Answered], at_once: &[Answered]) {
    let (cut, at_once) = (content(cut), content(at_once));
    let count = cut.len().min(at_once.len());
    assert_eq!(cut[..count], at_once[..count], "{sender:?} {forms:?}");
    let is_let_in = matches!(sender, Sender::Peer(Who::LetIn) | Sender::Named(false));
    // What is behind no request is not told apart.
    let begins = forms
        .first()
        .is_some_and(|form| !matches!(form, None | Some(Kind::Bad)));
    assert!(count > 0 || !begins, "{sender:?} {forms:?}");
    if is_let_in {
        assert_eq!(cut.len(), at_once.len(), "{sender:?} {forms:?}");
    }
}

/// Turns that a request takes at most, and each further part in which it comes.
const OF_REQUEST: u64 = 6;
const OF_PART: u64 = 3;

#[track_caller]
fn few_turns(sender: Sender, forms: &[Option<Kind>], parts: usize, turns: u64) {
    let before = u64::from(sender == Sender::OverALimit) * u64::from(LIMIT);
    let most = OF_REQUEST * (forms.len() as u64 + before) + OF_PART * parts as u64;
    assert!(
        turns <= most,
        "{turns} turns, not {most}: {sender:?} {forms:?} in {parts} parts"
    );
}

/// Says which of so many are run, if not all are to be: each n-th.
fn chosen(count: usize) -> impl FnMut() -> bool {
    let step = count.div_ceil(cases().cases as usize).max(1);
    let mut at = 0;
    move || {
        at += 1;
        at % step == 0
    }
}

/// CONN-15, CONN-9: whatever stands behind what in one write, a request is answered as it is behind
/// the ones before it alone, in few turns.
#[test]
fn every_pair_and_triple_in_one_write() {
    let mut is_chosen = chosen(SENDERS.len() * FORMS.len().pow(3));
    for sender in SENDERS {
        for pair in pairs() {
            let (of_pair, turns) = sent(sender, &pair, &[u16::MAX]);
            few_turns(sender, &pair, 1, turns);
            for third in FORMS.into_iter().filter(|_| is_chosen()) {
                let triple = [pair[0], pair[1], third];
                let (of_triple, turns) = sent(sender, &triple, &[u16::MAX]);
                few_turns(sender, &triple, 1, turns);
                // What follows a beginning is its rest.
                if pair.iter().all(Option::is_some) {
                    let count = of_pair.len().min(of_triple.len());
                    let before = content(&of_triple[..count]);
                    assert_eq!(before, content(&of_pair[..count]), "{sender:?} {triple:?}");
                }
            }
        }
    }
}

/// CONN-15, CONN-9: nor does it matter where it is cut: at every byte at once, and in two at each.
#[test]
fn every_pair_cut_at_every_byte() {
    // Two beginnings are no head: that is told at once, or where it was cut once its time is up.
    let told = || pairs().filter(|pair| *pair != [None, None]);
    let all = || {
        SENDERS
            .into_iter()
            .flat_map(|sender| told().map(move |pair| (sender, pair)))
    };
    let cuts = all().map(|(sender, pair)| usize::from(length(sender, &pair)) - 1);
    let mut is_chosen = chosen(cuts.sum());
    // One of two hundred parts takes as long as many of two.
    let mut is_cut_everywhere = chosen(all().count() * 40);
    for (sender, pair) in all() {
        let (at_once, _) = sent(sender, &pair, &[u16::MAX]);
        let length = length(sender, &pair);
        if is_cut_everywhere() {
            let bytes = vec![1; usize::from(length)];
            let (cut, turns) = sent(sender, &pair, &bytes);
            same(sender, &pair, &cut, &at_once);
            few_turns(sender, &pair, bytes.len(), turns);
        }
        for at in (1..length).filter(|_| is_chosen()) {
            let (cut, turns) = sent(sender, &pair, &[at, u16::MAX]);
            same(sender, &pair, &cut, &at_once);
            few_turns(sender, &pair, 2, turns);
        }
    }
}
