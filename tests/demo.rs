//! `weir demo`: one command, three `curl` lines, and each shows what it says.

use std::net::SocketAddr;

use crate::support::raw_client::{Ended, request, try_exchange};
use crate::support::wait_for;
use crate::support::weir::{Weir, state_dir};

/// The demo serves with nothing set, and its three lines show a pass, a break and a ban.
#[test]
fn the_three_lines_show_what_they_say() {
    let weir = Weir::try_start(
        &["demo"],
        ([127, 0, 0, 1], 9).into(),
        &state_dir(),
        // Empty is unset: the demo stands on its own settings, on a port that is free.
        &[
            ("WAF_UPSTREAM", ""),
            ("WAF_TRUSTED_PROXIES", ""),
            ("WAF_ALLOW_NETS", ""),
            ("WAF_ADMIN_TOKEN", ""),
            ("WAF_METRICS_TOKEN", ""),
            ("WAF_LOOKUP_SOURCE", ""),
        ],
    )
    .unwrap_or_else(|refused| panic!("{refused:?}"));
    assert!(weir.address().ip().is_loopback());
    assert!(
        !weir.process_log_text().contains("visitors' addresses"),
        "the demo asks nobody about a visitor"
    );
    let commands = wait_for("three curl lines", || {
        let lines: Vec<_> = weir
            .raw_output()
            .iter()
            .filter_map(|line| Curl::parse(line))
            .collect();
        (lines.len() >= 3).then_some(lines)
    });
    assert_eq!(commands.len(), 3, "three lines: {commands:?}");
    let statuses: Vec<_> = commands
        .iter()
        .map(|curl| curl.run(weir.address()))
        .collect();
    assert!(
        statuses[0].iter().all(|status| *status == 200),
        "a pass: {statuses:?}"
    );
    let (first, last) = (statuses[1].first(), statuses[1].last());
    assert!(
        first == Some(&200) && last != Some(&200),
        "a break: {statuses:?}"
    );
    assert!(
        statuses[2].iter().all(|status| *status == 429),
        "a ban: {statuses:?}"
    );
}

/// One printed line, as far as a reader would need to understand it.
#[derive(Debug)]
struct Curl {
    method: String,
    urls: Vec<String>,
    headers: Vec<(String, String)>,
    times: usize,
}

impl Curl {
    /// Reads `curl …`, alone or in a `for … in $(seq N)` loop. `None` for a line that has no command.
    #[track_caller]
    fn parse(line: &str) -> Option<Self> {
        let start = line.find("curl ")?;
        let before = &line[..start];
        if !before.trim_start().starts_with("for ")
            && !before.trim_end_matches(['$', ' ', '\t']).is_empty()
        {
            return None;
        }
        let times = before.find("seq ").map_or(1, |at| {
            let numbers = before[at + 4..].split(')').next().unwrap_or_default();
            let last = numbers.split_whitespace().last().expect("a count");
            last.parse().expect("a count")
        });
        let command = line[start..].split(';').next()?.split(" | ").next()?;
        let mut curl = Self {
            method: "GET".to_owned(),
            urls: Vec::new(),
            headers: Vec::new(),
            times,
        };
        let mut words = words(command).into_iter().skip(1);
        while let Some(word) = words.next() {
            match word.as_str() {
                "-H" | "--header" => {
                    let header = words.next().expect("a header");
                    let (name, value) = header.split_once(':').expect("a header");
                    curl.headers
                        .push((name.trim().to_owned(), value.trim().to_owned()));
                }
                "-X" | "--request" => curl.method = words.next().expect("a method"),
                "-I" | "--head" => curl.method = "HEAD".to_owned(),
                "-A" | "--user-agent" => {
                    curl.headers
                        .push(("User-Agent".to_owned(), words.next().expect("an agent")));
                }
                "-o" | "-w" | "--output" | "--write-out" | "-m" | "--max-time" => {
                    words.next();
                }
                url if url.contains("://")
                    || url.starts_with("127.")
                    || url.starts_with("localhost") =>
                {
                    curl.urls.extend(globbed(url));
                }
                flag => assert!(
                    flag.starts_with('-') || flag.starts_with('>'),
                    "{flag} in {line}"
                ),
            }
        }
        assert!(!curl.urls.is_empty(), "no address in {line}");
        Some(curl)
    }

    /// Performs the requests and gives their statuses; 0 for a connection that was closed unanswered.
    #[track_caller]
    fn run(&self, expected: SocketAddr) -> Vec<u16> {
        let mut statuses = Vec::new();
        for _ in 0..self.times {
            for url in &self.urls {
                let rest = url.split("://").last().expect("an address");
                let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
                assert_eq!(
                    authority,
                    expected.to_string(),
                    "the line names the listener"
                );
                let mut headers: Vec<_> = self
                    .headers
                    .iter()
                    .map(|(name, value)| (name.as_str(), value.as_str()))
                    .collect();
                headers.push(("Host", authority));
                let bytes = request(&self.method, &format!("/{path}"), &headers, None);
                statuses.push(match try_exchange(expected, &bytes) {
                    Ok(answer) => answer.status,
                    Err(Ended::Closed | Ended::Reset) => 0,
                    Err(ended) => panic!("{url}: {ended:?}"),
                });
            }
        }
        statuses
    }
}

/// Splits a command as a shell does, as far as quotes go.
fn words(command: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None);
    for c in command.trim().chars() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some(_), c) => word.push(c),
            (None, '\'' | '"') => quote = Some(c),
            (None, ' ') if word.is_empty() => {}
            (None, ' ') => words.push(std::mem::take(&mut word)),
            (None, c) => word.push(c),
        }
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

/// Expands curl's own `[1-5]`.
fn globbed(url: &str) -> Vec<String> {
    let range = url.split_once('[').and_then(|(head, rest)| {
        let (range, tail) = rest.split_once(']')?;
        let (from, to) = range.split_once('-')?;
        Some((
            head,
            from.parse::<u32>().ok()?,
            to.parse::<u32>().ok()?,
            tail,
        ))
    });
    match range {
        Some((head, from, to, tail)) => (from..=to).map(|n| format!("{head}{n}{tail}")).collect(),
        None => vec![url.to_owned()],
    }
}

/// The reader of the printed lines reads what a demo might print.
#[test]
fn printed_commands_are_understood() {
    let curl = Curl::parse("  curl -s -H 'X-A: b c' \"http://127.0.0.1:1/x?[1-3]\"").expect("one");
    assert_eq!(curl.headers, [("X-A".to_owned(), "b c".to_owned())]);
    assert_eq!(curl.urls.len(), 3);
    let curl =
        Curl::parse("for i in $(seq 1 6); do curl -s http://127.0.0.1:1/; done").expect("one");
    assert_eq!((curl.times, curl.urls.len()), (6, 1));
    assert!(Curl::parse("try these with curl or a browser").is_none());
}
