//! Histories of one connection, drawn at random, and those that once failed.

use std::cell::RefCell;

use proptest::prelude::*;
use proptest::sample::select;

use crate::world::history::{Ask, Kind, MOST, Script};
use crate::world::*;

thread_local! {
    static ROOM: RefCell<Option<Room>> = const { RefCell::new(None) };
}

/// Runs a history; a fault names the bytes that stand for it.
fn run_from(history: &History, first: usize) -> Result<Vec<Answered>, TestCaseError> {
    ROOM.with_borrow_mut(|room| {
        let held = room.get_or_insert_with(|| Room::new().unwrap());
        let ran = held.run(history, first);
        if ran.is_err() {
            *room = None;
        }
        ran.map_err(|fault| {
            let bytes = history.bytes();
            let bytes: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            TestCaseError::fail(format!("{fault}\nWEIR_HISTORY={bytes}\n{history:?}"))
        })
    })
}

pub(super) fn run(history: &History) -> Result<Vec<Answered>, TestCaseError> {
    run_from(history, 1)
}

fn ask(kinds: &'static [Kind], scripts: &'static [Script]) -> impl Strategy<Value = Event> {
    let small = 0_u8..6;
    let any_size = prop_oneof![4 => small.clone(), 1 => 6_u8..16];
    let count = prop_oneof![6 => Just(1_u8), 2 => 2_u8..4, 1 => 15_u8..19, 1 => 1..=MOST];
    let (kind, script) = (select(kinds), select(scripts));
    let parts = (
        kind,
        script,
        any_size.clone(),
        any_size,
        any::<bool>(),
        count,
    );
    parts.prop_map(|(kind, script, sends, gets, of_banned, count)| {
        let ask = Ask {
            kind,
            script,
            sends,
            gets,
            of_banned,
        };
        // Large ones are few.
        let count = if sends.max(gets) > 9 { 1 } else { count };
        Event::Ask { ask, count }
    })
}

/// What happens besides requests.
fn other() -> impl Strategy<Value = Event> {
    let bytes = || prop_oneof![0_u16..64, 0_u16..2000, any::<u16>()];
    let time = prop_oneof![
        1_u16..200,
        900_u16..1200,
        3_000_u16..10_000,
        30_000_u16..32_000
    ];
    prop_oneof![
        4 => Just(Event::Hold),
        8 => bytes().prop_map(Event::Part),
        3 => Just(Event::Release),
        2 => Just(Event::Pause),
        2 => bytes().prop_map(Event::Take),
        2 => Just(Event::Read),
        1 => Just(Event::CloseWrite),
        1 => Just(Event::Reset),
        4 => time.prop_map(Event::Advance),
        1 => Just(Event::Ban),
        1 => Just(Event::Lift),
        1 => (0_u8..6).prop_map(Event::Reload),
        2 => Just(Event::Go),
        1 => Just(Event::Drain),
        1 => Just(Event::HandOver),
        1 => Just(Event::Abort),
        2 => Just(Event::AtOnce),
        1 => "(GET / HTTP/1.1|POST|[ -~]{0,9}|\r\n|Host: a\r\n|\r\n\r\n){1,4}"
            .prop_map(|text| Event::Raw(text.into_bytes())),
    ]
}

/// The same request with a body that is larger than what is read at once.
fn with_much(event: Event) -> Event {
    match event {
        Event::Ask { ask, .. } => Event::Ask {
            ask: Ask { sends: 13, ..ask },
            count: 1,
        },
        other => other,
    }
}

/// Some things one after the other that lead where single ones seldom do.
fn scene() -> impl Strategy<Value = Vec<Event>> {
    const BODIES: &[Kind] = &[
        Kind::Length,
        Kind::Chunked,
        Kind::Trailers,
        Kind::Expect,
        Kind::OwnBody,
    ];
    // It begins with a head and a little, or with more than is gathered before the application is
    // asked.
    let begins = prop_oneof![150_u16..400, 33_000_u16..34_000];
    let slow_upload =
        (ask(BODIES, Script::ALL), begins, any::<u8>()).prop_map(|(ask, first, bytes)| {
            vec![Event::Hold, ask, Event::Part(first), Event::Drip(bytes)]
        });
    let slow_reader = (ask(Kind::ALL, Script::ALL), any::<u8>())
        .prop_map(|(ask, bytes)| vec![Event::Pause, ask, Event::Sip(bytes)]);
    // More stands behind a last request than is read with it.
    const LAST: &[Kind] = &[Kind::Close, Kind::Bad, Kind::Old, Kind::Health];
    let behind_the_last = (ask(LAST, Script::ALL), ask(Kind::ALL, Script::ALL))
        .prop_map(|(last, ask)| vec![Event::AtOnce, last, with_much(ask)]);
    // A request meets the end of the service, or of its client.
    let ends = select(vec![
        Event::Drain,
        Event::HandOver,
        Event::Abort,
        Event::Reset,
    ]);
    let at_the_end =
        (ask(Kind::ALL, Script::ALL), ends, any::<bool>()).prop_map(|(ask, end, at_once)| {
            match at_once {
                true => vec![Event::AtOnce, ask, end],
                false => vec![ask, end, Event::Advance(4_500)],
            }
        });
    prop_oneof![
        2 => behind_the_last,
        2 => at_the_end,
        30 => ask(Kind::ALL, Script::ALL).prop_map(|ask| vec![ask]),
        20 => other().prop_map(|event| vec![event]),
        2 => slow_upload,
        1 => slow_reader,
    ]
}

fn histories() -> impl Strategy<Value = History> {
    let events = prop::collection::vec(scene(), 1..9).prop_map(|scenes| scenes.concat());
    let settings = prop_oneof![3 => Just(0_u8), 2 => 1_u8..6];
    let who = select(Who::ALL.as_slice());
    (who, settings, prop::bool::weighted(0.3), events).prop_map(
        |(who, settings, narrow, events)| History {
            who,
            settings,
            narrow,
            events,
        },
    )
}

/// How many histories a property draws.
const CASES: u32 = 2_000;

pub(super) fn cases() -> ProptestConfig {
    let asked = std::env::var("WEIR_HISTORIES").ok();
    let cases = asked.and_then(|asked| asked.parse().ok());
    ProptestConfig {
        cases: cases.unwrap_or(CASES),
        max_shrink_iters: 20_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(cases())]

    /// CONN-15, LOG-3, LIMIT-5: whatever a client, the application and time do to a connection,
    /// each turn consumes or waits, each request is answered, counted and logged once, and nothing
    /// is held at the end.
    #[test]
    fn whatever_happens_the_rules_hold(history in histories()) {
        run(&history)?;
    }
}

const WHOLE: &[Script] = &[
    Script::Length,
    Script::Chunked,
    Script::Early,
    Script::Empty,
    Script::NotModified,
    Script::Close,
];

/// Requests that are sent at once, cut as these numbers say, and each on a connection of its own.
fn same_however_cut(who: Who, asks: &[Event], cuts: &[u16]) -> Result<(), TestCaseError> {
    let history = |events| History {
        who,
        settings: 0,
        narrow: false,
        events,
    };
    let at_once = run(&history(asks.to_vec()))?;
    let parts = cuts.iter().map(|bytes| Event::Part(*bytes));
    let cut = [Event::Hold].into_iter().chain(asks.iter().cloned());
    let cut = run(&history(cut.chain(parts).collect()))?;
    // A document of ours names its request.
    let content = |answer: &Answered| {
        let body = (answer.status < 400).then(|| answer.body.clone());
        (answer.status, body)
    };
    for (at_once, cut) in at_once.iter().zip(&cut) {
        prop_assert_eq!(content(at_once), content(cut));
    }
    if who == Who::LetIn {
        prop_assert_eq!(at_once.len(), cut.len());
    }
    let mut at = 0;
    for event in asks {
        let Event::Ask { ask, count } = event else {
            continue;
        };
        for _ in 0..*count {
            let Some(together) = at_once.get(at) else {
                return Ok(());
            };
            at += 1;
            let one = Event::Ask {
                ask: *ask,
                count: 1,
            };
            let alone = run_from(&history(vec![one]), at)?;
            let alone = alone.first().map(content);
            prop_assert_eq!(alone, Some(content(together)), "{} of {:?}", at, asks);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases().cases / 8, ..cases() })]

    /// CONN-9, CONN-15: requests behind each other are answered as each is by itself, however they
    /// are cut on their way.
    #[test]
    fn requests_are_answered_alike_however_they_come(
        who in select(Who::ALL.as_slice()),
        asks in prop::collection::vec(ask(Kind::ALL, WHOLE), 1..5),
        cuts in prop::collection::vec(prop_oneof![1_u16..9, 1_u16..300], 0..40),
    ) {
        same_however_cut(who, &asks, &cuts)?;
    }
}

/// CONN-3: what a proxy's other clients were refused before costs a client nothing who is let in:
/// after its first request the next ones take as many turns as on any connection.
#[test]
fn refusals_of_others_are_forgotten() {
    let plain = |of_banned| Event::Ask {
        ask: Ask {
            kind: Kind::Plain,
            script: Script::Length,
            sends: 0,
            gets: 4,
            of_banned,
        },
        count: 1,
    };
    let turns = |refused: usize, let_in: usize| {
        let refused = std::iter::repeat_n(plain(true), refused);
        let events = refused
            .chain(std::iter::repeat_n(plain(false), let_in))
            .collect();
        let before = turns::all();
        run(&History {
            who: Who::Proxy,
            settings: 0,
            narrow: false,
            events,
        })
        .unwrap();
        turns::all() - before
    };
    assert_eq!(turns(20, 12) - turns(20, 4), turns(0, 12) - turns(0, 4));
}

/// A history is what its bytes say, and every string of bytes is one.
#[test]
fn bytes_stand_for_a_history() {
    proptest!(ProptestConfig::default(), |(history in histories())| {
        prop_assert_eq!(History::of(&history.bytes()), history);
    });
    proptest!(ProptestConfig::default(), |(bytes: Vec<u8>)| {
        let history = History::of(&bytes);
        prop_assert_eq!(History::of(&history.bytes()), history);
    });
}

/// CONN-7, CONN-15: the histories that the fuzzer begins with, those that once failed among them.
#[test]
fn kept_histories_hold() {
    let seeds = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../tests/fuzz/seeds/connection"
    );
    let mut count = 0;
    for seed in std::fs::read_dir(seeds).unwrap() {
        let path = seed.unwrap().path();
        let history = History::of(&std::fs::read(&path).unwrap());
        if let Err(fault) = run(&history) {
            panic!("{}: {fault}", path.display());
        }
        count += 1;
    }
    assert!(count >= 45, "{count}");
}

/// Runs the history of `WEIR_HISTORY`: the bytes in hexadecimal, or a file of them.
#[test]
fn replay() {
    let Ok(asked) = std::env::var("WEIR_HISTORY") else {
        return;
    };
    let from_file = std::fs::read(&asked);
    let bytes = from_file.unwrap_or_else(|_| {
        let digits: Vec<_> = asked.trim().bytes().collect();
        let pairs = digits
            .chunks(2)
            .map(|pair| std::str::from_utf8(pair).unwrap());
        pairs
            .map(|pair| u8::from_str_radix(pair, 16).unwrap())
            .collect()
    });
    let history = History::of(&bytes);
    eprintln!("{history:#?}");
    eprintln!("{:#?}", run(&history).unwrap());
}
