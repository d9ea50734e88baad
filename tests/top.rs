//! `weir top` in a pseudo-terminal, as a person at a keyboard runs it (CONTROL-3).

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};
use serde_json::Value;

use crate::control::{file, validator};
use crate::support::application::Application;
use crate::support::command::run;
use crate::support::raw_client::{Connection, get};
use crate::support::weir::{ONE_PER_HOUR, Weir, state_dir};
use crate::support::{PATIENCE, wait_for, wait_until};

/// The number of the system call, on the machines that this was tried on.
const WRITE: u32 = if cfg!(target_arch = "x86_64") { 1 } else { 64 };

/// Leaves the alternate screen; and shows the cursor again.
const RESTORED: [&str; 2] = ["\u{1b}[?1049l", "\u{1b}[?25h"];

/// A terminal with the command in it.
struct Terminal {
    child: Child,
    keyboard: File,
    /// The side of the command, held open.
    side: OwnedFd,
    shown: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    #[track_caller]
    fn start(state: &Path, size: (u16, u16)) -> Self {
        let terminal = Self::unread(state, size);
        let mut screen = terminal.keyboard.try_clone().expect("the screen");
        let written = Arc::clone(&terminal.shown);
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = screen.read(&mut bytes) {
                written.lock().expect("no panic").extend(&bytes[..count]);
            }
        });
        terminal
    }

    /// One that takes what its buffer holds and no more.
    #[track_caller]
    fn unread(state: &Path, (columns, lines): (u16, u16)) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&master).expect("granted");
        unlockpt(&master).expect("unlocked");
        let name = ptsname(&master, Vec::new()).expect("its name");
        let side = open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).expect("its side");
        let size = Winsize {
            ws_row: lines,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&side, size).expect("its size");
        let end = || Stdio::from(side.try_clone().expect("its side"));
        let child = Command::new(env!("CARGO_BIN_EXE_weir"))
            .arg("top")
            .env_clear()
            .env("WAF_STATE_DIR", state)
            .env("TERM", "xterm-256color")
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .expect("the binary runs");
        Self {
            child,
            keyboard: File::from(master),
            side,
            shown: Arc::default(),
        }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().expect("no panic")).into_owned()
    }

    /// Waits until this stands on the screen.
    #[track_caller]
    fn shows(&self, text: &str) {
        let end = Instant::now() + PATIENCE;
        while !screen(&self.text()).contains(text) {
            let shown = screen(&self.text());
            assert!(
                Instant::now() < end,
                "{text:?} is not on the screen:\n{shown}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    #[track_caller]
    fn signal(&self, signal: Signal) {
        let id = Pid::from_raw(self.child.id().cast_signed()).expect("a pid");
        kill_process(id, signal).expect("it runs");
    }

    fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).expect("pressed");
    }

    /// It ends, and the terminal is as it was.
    #[track_caller]
    fn ends(mut self, code: i32) {
        self.has_ended(code);
        for sequence in RESTORED {
            wait_until("the screen is given back", || {
                self.text().contains(sequence)
            });
        }
    }

    /// It ends, and lines are edited and echoed again.
    #[track_caller]
    fn has_ended(&mut self, code: i32) {
        let status = wait_for("the end", || self.child.try_wait().expect("a child"));
        assert_eq!(status.code(), Some(code), "{}", self.text());
        let modes = tcgetattr(&self.side).expect("its modes").local_modes;
        let cooked = rustix::termios::LocalModes::ECHO | rustix::termios::LocalModes::ICANON;
        assert!(modes.contains(cooked), "{modes:?}");
    }
}

/// CONTROL-3: the ninth who wants the paths is told why there are none, and has them once one of
/// the eight goes.
#[test]
fn paths_that_nobody_tells_are_no_empty_list() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[]);
    let listeners: Vec<_> = (0..8)
        .map(|_| {
            let mut connection = Connection::open_unix(&weir.state_path("weir.sock"));
            connection.send(&get("/v1/events", &[]));
            assert_eq!(connection.head().expect("a head").status, 200);
            connection
        })
        .collect();
    let mut terminal = Terminal::start(&weir.state_path(""), (80, 24));
    terminal.press("5");
    terminal.shows("8 others listen to the events, which is the most: try again later");
    drop(listeners);
    wait_until("the path", || {
        weir.get("/seen", "203.0.113.7").expect(200);
        screen(&terminal.text()).contains("/seen")
    });
    terminal.press("q");
    terminal.ends(0);
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Nothing is left behind by a test that fails.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What stands on the screen after all that was written: the command moves the cursor and writes.
fn screen(written: &str) -> String {
    let mut cells = vec![vec![' '; 200]; 60];
    let (mut line, mut column) = (0, 0);
    let mut letters = written.chars();
    while let Some(letter) = letters.next() {
        if letter != '\u{1b}' {
            let cell = cells.get_mut(line).and_then(|cells| cells.get_mut(column));
            *cell.expect("on the screen") = letter;
            column += 1;
            continue;
        }
        assert_eq!(letters.next(), Some('['), "{written:?}");
        let mut numbers = String::new();
        let end = letters
            .by_ref()
            .find(|letter| match letter.is_ascii_alphabetic() {
                true => true,
                false => {
                    numbers.push(*letter);
                    false
                }
            });
        match end {
            Some('H') => {
                let mut numbers = numbers.split(';').map(|number| number.parse().unwrap_or(1));
                line = numbers.next().unwrap_or(1) - 1;
                column = numbers.next().unwrap_or(1) - 1;
            }
            Some('J') => cells.iter_mut().for_each(|line| line.fill(' ')),
            _ => {}
        }
    }
    let lines = cells.iter().map(|line| line.iter().collect::<String>());
    lines
        .map(|line| line.trim_end().to_owned() + "\n")
        .collect()
}

/// CONTROL-3: a person looks, explains, lifts and bans; each change is asked for first; the
/// terminal is restored at the end.
#[test]
fn a_person_works_with_top() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[ONE_PER_HOUR]);
    weir.break_limit("203.0.113.7");
    let mut terminal = Terminal::start(&weir.state_path(""), (80, 24));
    terminal.shows("203.0.113.7");
    // The administrator's own address stands beside it.
    terminal.press("/203\r\r");
    terminal.shows("REFUSED now: banned");
    terminal.press(" u");
    terminal.shows("Lift every ban that covers 203.0.113.7?");
    terminal.press("n");
    terminal.shows("nothing was changed");
    assert!(weir.bans().iter().all(|ban| ban["lifted"].is_null()));
    terminal.press("uy");
    terminal.shows("no ban of 203.0.113.7 is left");
    assert!(weir.bans().iter().all(|ban| ban["lifted"].is_string()));
    terminal.press("by");
    terminal.shows("203.0.113.0/24 is banned for 1h");
    wait_for("the ban", || {
        let mut bans = weir.bans().into_iter();
        bans.find(|ban| ban["cause"] == "admin" && ban["reason"] == "weir top")
    });
    terminal.press("6");
    terminal.shows("REASON");
    terminal.press("2");
    terminal.shows("BANNED");
    terminal.shows("203.0.113.0/24  1 ");
    // The search of before goes on.
    terminal.press("\r");
    terminal.shows("REFUSED now: banned");
    terminal.press(" uy");
    terminal.shows("no ban of 203.0.113.0/24 is left");
    terminal.press("b");
    terminal.shows("Clients known of it: 1.");
    terminal.press("nay");
    terminal.shows("in force");
    let rules = std::fs::read_to_string(weir.state_path("rules.json")).expect("rules");
    assert!(rules.contains("203.0.113.0/24"), "{rules}");
    // Only a minute that is listened to has paths.
    // By itself: with a letter behind it, it would be that letter with Alt.
    terminal.press("\u{1b}");
    terminal.shows("  by requests");
    terminal.press("5");
    terminal.shows("FAILED");
    wait_until("the path on the screen", || {
        weir.get("/watched", "203.0.113.8").expect(200);
        screen(&terminal.text()).contains("/watched")
    });
    terminal.press("34");
    terminal.shows("COUNTRY");
    terminal.press("q");
    terminal.ends(0);
}

/// CONTROL-3: SIGTERM and Ctrl-C give the terminal back as well, a narrow one too; a service that
/// goes away is told and not the end.
#[test]
fn the_terminal_is_given_back() {
    let application = Application::ok();
    let mut weir = Weir::start(&application, &[]);
    weir.get("/", "203.0.113.7").expect(200);
    let mut narrow = Terminal::start(&weir.state_path(""), (20, 6));
    narrow.shows("203.0.113.7");
    narrow.press("\u{3}");
    narrow.ends(0);
    let terminal = Terminal::start(&weir.state_path(""), (80, 24));
    terminal.shows("203.0.113.7");
    weir.stop();
    terminal.shows("no service answers at");
    terminal.signal(Signal::TERM);
    terminal.ends(0);
}

/// CONTROL-3: a terminal that takes nothing more (its window hangs) does not keep the command from
/// its end.
#[test]
fn a_stalled_terminal_keeps_nobody() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[]);
    for number in 1..100 {
        weir.get("/", &format!("10.0.{number}.1")).expect(200);
    }
    let mut terminal = Terminal::unread(&weir.state_path(""), (200, 60));
    let syscall = format!("/proc/{}/syscall", terminal.child.id());
    wait_until("it blocked in a write", || {
        // Another list each time: every line is drawn anew.
        terminal.press("162");
        let call = std::fs::read_to_string(&syscall).unwrap_or_default();
        call.starts_with(&format!("{} 0x1 ", WRITE))
    });
    terminal.signal(Signal::TERM);
    terminal.has_ended(0);
}

/// CONTROL-3: without a terminal one sentence and status 2, without a service 69; `--json` looks
/// once.
#[test]
fn without_a_terminal_it_looks_once() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[]);
    weir.get("/", "203.0.113.7").expect(200);
    let sentence = "weir: top needs a terminal; --json looks once and prints what it sees\n";
    let state = weir.state_path("");
    let ran = run(&state, &["top"]);
    assert_eq!(
        (ran.code, ran.out.as_str(), ran.err.as_str()),
        (2, "", sentence)
    );
    let ran = run(&state, &["top", "--json"]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    let look: Value = serde_json::from_str(&ran.out).expect("JSON");
    let document = file("openapi.json");
    for (member, component) in [
        ("status", "Status"),
        ("netblocks", "Groups"),
        ("ases", "Groups"),
        ("countries", "Groups"),
        ("clients", "Clients"),
        ("bans", "Bans"),
        ("alerts", "Alerts"),
    ] {
        let schema = format!("{{\"$ref\":\"#/components/schemas/{component}\"}}");
        let schema = serde_json::from_str(&schema).expect("JSON");
        assert!(
            validator(&document, &schema).is_valid(&look[member]),
            "{member}: {look:#}"
        );
    }
    let ran = run(state_dir().path(), &["top", "--json"]);
    assert_eq!((ran.code, ran.out.as_str()), (69, ""));
    assert!(ran.err.contains("no service answers"), "{}", ran.err);
}
