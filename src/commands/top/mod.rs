//! `weir top`: the running service on a terminal, every second (CONTROL-3).
#![expect(
    clippy::disallowed_methods,
    reason = "how often a person is shown something: no test turns its clock"
)]

use std::io::{IsTerminal, stdin, stdout};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use ratatui::crossterm::terminal::disable_raw_mode;
use serde_json::json;
use tokio::signal::unix::SignalKind;

mod draw;
mod screen;
mod source;

use self::screen::Screen;
use self::source::{Asker, By, Command, Source, Wanted};
use super::ask::{Asking, Place};
use super::common::{EXIT_USAGE, Failure, finish, print_json};
use super::ended;

/// How long to wait for a key before looking at the reports of the source.
const PAUSE: Duration = Duration::from_millis(100);

/// How long after a signal the command may still write to the terminal.
const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Args, Debug)]
pub struct Top {
    /// Seconds between two looks
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=3600))]
    interval: u16,
    #[command(flatten)]
    asking: Asking,
}

/// Runs `weir top`. With `--json`, asks once and ends.
pub fn run(given: &Top) -> ExitCode {
    finish(show(given))
}

fn show(given: &Top) -> Result<ExitCode, Failure> {
    let asker = Asker::new(Place::of(&given.asking)?);
    let is_terminal = stdin().is_terminal() && stdout().is_terminal();
    if !given.asking.json && !is_terminal {
        let sentence = "top needs a terminal; --json looks once and prints what it sees";
        return Err(Failure::new(EXIT_USAGE, sentence));
    }
    // Fails here if the service does not answer, before the screen is cleared.
    let first = asker.look(Wanted {
        bans: given.asking.json,
        ..Wanted::default()
    })?;
    if given.asking.json {
        let groups = |by| asker.groups(by, Wanted::default().sort.name());
        return print_json(&json!({
            "netblocks": groups(By::Netblock)?,
            "ases": groups(By::Asn)?,
            "countries": groups(By::Country)?,
            "status": first.status,
            "clients": first.clients,
            "bans": first.bans,
            "alerts": first.alerts,
        }));
    }
    let system = |error: std::io::Error| Failure::new(1, format!("the terminal: {error}"));
    let signals = [
        SignalKind::terminate(),
        SignalKind::hangup(),
        SignalKind::interrupt(),
    ];
    // Ends the process where a stopped terminal blocks the write to it.
    let ends = ended::by_or(&signals, PATIENCE, || {
        let _ = disable_raw_mode();
        std::process::exit(0);
    });
    let ends = ends.map_err(system)?;
    let source = Source::start(asker).map_err(system)?;
    let mut screen = Screen::default();
    screen.take(source::Report::Look(Box::new(first)));
    // `try_init` also restores the terminal after a panic.
    let terminal = ratatui::try_init().map_err(system)?;
    let interval = Duration::from_secs(given.interval.into());
    let shown = turn(terminal, &mut screen, &source, interval, &ends);
    ratatui::restore();
    shown.map_err(system)?;
    Ok(ExitCode::SUCCESS)
}

/// Draws the screen and handles keys until the end.
fn turn(
    mut terminal: DefaultTerminal,
    screen: &mut Screen,
    source: &Source,
    interval: Duration,
    ends: &AtomicBool,
) -> std::io::Result<()> {
    let mut next = Instant::now() + interval;
    while !screen.quits && !ends.load(Ordering::Relaxed) {
        terminal.draw(|frame| draw::draw(frame, screen))?;
        let mut order = None;
        if event::poll(PAUSE)?
            && let Event::Key(key) = event::read()?
            && key.kind == KeyEventKind::Press
        {
            order = screen.key(key);
        }
        let changes = matches!(
            order,
            Some(Command::Ban(_) | Command::BanNetblock(_) | Command::Lift(_) | Command::Allow(_))
        );
        if let Some(order) = order {
            // A send fails only if the thread has ended, and it ends with this one.
            let _ = source.orders.send(order);
        }
        if changes || Instant::now() >= next {
            next = Instant::now() + interval;
            let _ = source.orders.send(Command::Look(screen.wanted()));
        }
        while let Ok(report) = source.reports.try_recv() {
            screen.take(report);
        }
    }
    Ok(())
}
