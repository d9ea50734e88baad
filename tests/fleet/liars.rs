//! Engines that say hello as any does, and then refuse what is asked, or lie (FLEET-2, FLEET-24).

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::*;

/// More connections than are opened while an instance is found to be alone, each pause twice as
/// long as the one before, and fewer than one after the other without a pause.
const MOST_CONNECTIONS: usize = 200;

#[track_caller]
fn wait_alone(weir: &Weir, because: &[&str]) {
    let why = wait_for("alone", || {
        let fleet = fleet(weir);
        (fleet["state"] == "alone").then(|| fleet["why"].as_str().unwrap_or_default().to_owned())
    });
    assert!(because.iter().any(|words| why.contains(words)), "{why}");
}

/// FLEET-2: where an engine says hello and refuses batches, reads or beats, because its rules are
/// too narrow, its memory is full, or it may not be written to, the instance is alone, says why
/// once, and asks ever less often; it goes on once the engine does.
#[test]
#[ignore = "needs redis-server"]
fn an_engine_that_refuses_its_work_is_told() {
    let (application, engine) = (Application::ok(), Engine::start());
    let one = start(&application, &engine, "edge-1");
    let other = start(&application, &engine, "edge-2");
    wait_in_step(&one, 2);
    let permits = "ACL SETUSER default +@all";
    // Asked by a script it is another sentence.
    let permission = &["permission", "can't run this command"][..];
    for (number, (refuses, serves, because)) in [
        ("ACL SETUSER default -xadd", permits, permission),
        ("ACL SETUSER default -xread", permits, permission),
        ("ACL SETUSER default -zadd", permits, permission),
        (
            "CONFIG SET maxmemory 1",
            "CONFIG SET maxmemory 0",
            &["maxmemory"][..],
        ),
        (
            "REPLICAOF 127.0.0.1 1",
            "REPLICAOF NO ONE",
            // The second is the reader's, until the next attempt after a pause that has grown.
            &["read only replica", "UNBLOCKED"][..],
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let connections = || {
            let told = engine.told("INFO stats");
            let mut lines = told.lines();
            let count = lines.find_map(|line| line.strip_prefix("total_connections_received:"));
            count.and_then(|count| count.parse::<usize>().ok())
        };
        let before = connections().expect("a number");
        assert!(engine.told(refuses).starts_with("+OK"), "{refuses}");
        let client = format!("203.0.113.{number}");
        one.ban("client", &client, "1h");
        wait_alone(&one, because);
        let opened = connections().expect("a number") - before;
        assert!(opened < MOST_CONNECTIONS, "{refuses}: {opened}");
        assert!(engine.told(serves).starts_with("+OK"), "{serves}");
        other.wait_until_refused(&client);
        wait_in_step(&one, 2);
        let times_told = |words: &str| {
            let log = one.process_log();
            let has_words =
                |line: &&Value| line["message"].as_str().is_some_and(|m| m.contains(words));
            log.iter().filter(has_words).count()
        };
        // It does once that has lasted: an engine that refuses again before is still the same.
        wait_until("the end", || times_told("answers again") == number + 1);
        assert_eq!(
            times_told("this instance decides alone"),
            number + 1,
            "{refuses}"
        );
    }
}

/// FLEET-24: an engine that says of each batch that it does not have it, gives one place of the log
/// without an end, or names one snapshot after the other and has none of them, is asked again after
/// pauses that grow, and the instance says why it is alone.
#[test]
fn an_engine_that_lies_is_not_asked_without_a_pause() {
    let application = Application::ok();
    for (lies, log, because) in [
        (Lies::Forgets, "*-1\r\n", "does not have what it has taken"),
        (
            Lies::Snapshots,
            "*-1\r\n",
            "each snapshot of the engine is gone before it is read",
        ),
        (
            Lies::Log,
            "*1\r\n*2\r\n$3\r\nlog\r\n*1\r\n*2\r\n$3\r\n1-1\r\n*0\r\n",
            "gives 1-1 of its log behind 1-1",
        ),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let place = listener.local_addr().expect("an address");
        let hellos = Arc::new(AtomicUsize::new(0));
        let heard = Arc::clone(&hellos);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let heard = Arc::clone(&heard);
                std::thread::spawn(move || answer(stream, lies, log, &heard));
            }
        });
        let nobody = Engine::away();
        let mut settings = settings(&nobody, "edge-1");
        settings[0].1 = format!("valkey://{place}");
        let weir = start_at(&application, &state_dir(), &settings);
        weir.ban("client", "203.0.113.7", "1h");
        wait_alone(&weir, &[because]);
        let heard = hellos.load(Ordering::Relaxed);
        assert!(heard < MOST_CONNECTIONS, "{because}: {heard}");
    }
}

/// What an engine lies about.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lies {
    Forgets,
    Snapshots,
    Log,
}

/// Answers until the other end goes.
fn answer(stream: TcpStream, lies: Lies, log: &str, hellos: &AtomicUsize) -> Option<()> {
    let mut questions = BufReader::new(stream.try_clone().ok()?);
    let mut stream = stream;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    let now_ms = now.as_millis();
    for turn in 1.. {
        let words = question(&mut questions)?;
        let word = |at: usize| words.get(at).map_or("", String::as_str);
        let answer = match (word(0), word(2)) {
            ("EVALSHA", "3") => {
                hellos.fetch_add(1, Ordering::Relaxed);
                format!("*7\r\n$1\r\n1\r\n$1\r\n1\r\n:0\r\n*0\r\n:1\r\n:{now_ms}\r\n$0\r\n\r\n")
            }
            ("EVALSHA", "5") => format!("*1\r\n:{now_ms}\r\n"),
            ("EVALSHA", _) if word(3).ends_with(":log") => {
                let last = match lies {
                    Lies::Forgets => "0",
                    Lies::Snapshots | Lies::Log => word(6),
                };
                format!(":{last}\r\n")
            }
            ("SCRIPT", _) => "+OK\r\n".to_owned(),
            ("XREAD", _) => {
                std::thread::sleep(Duration::from_millis(10));
                log.to_owned()
            }
            ("GET", _) if lies == Lies::Snapshots && word(1).ends_with(":snap") => {
                let pointer = format!("{turn}-1 1");
                format!("${}\r\n{pointer}\r\n", pointer.len())
            }
            ("INFO" | "GET", _) => "$-1\r\n".to_owned(),
            _ => "-ERR no\r\n".to_owned(),
        };
        stream.write_all(answer.as_bytes()).ok()?;
    }
    None
}

/// The words of a question.
fn question(questions: &mut BufReader<TcpStream>) -> Option<Vec<String>> {
    let count = length(questions, '*')?;
    (0..count)
        .map(|_| {
            let length = length(questions, '$')?;
            let mut word = vec![0; length + 2];
            questions.read_exact(&mut word).ok()?;
            word.truncate(length);
            Some(String::from_utf8_lossy(&word).into_owned())
        })
        .collect()
}

fn length(questions: &mut BufReader<TcpStream>, of: char) -> Option<usize> {
    let mut line = String::new();
    questions.read_line(&mut line).ok()?;
    line.trim_end().strip_prefix(of)?.parse().ok()
}
