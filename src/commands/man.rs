//! `weir man`: the manual, a page for each command. clap supplies commands and flags; the settings,
//! the files and examples are written here.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use weir_shared::settings::table;

use super::common::{EXIT_USAGE, Failure, finish, out};
use super::trust;

/// What is written.
#[derive(Args, Debug)]
pub struct Man {
    /// Of which command, such as bans or bans import; without it of weir
    command: Vec<String>,
    /// Write every page into this directory instead
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    dir: Option<PathBuf>,
}

/// The sections that are appended to the page of weir itself.
const FILES: &str = "\
/etc/weir/weir.env|the settings of the packaged service, NAME=value lines; weir reload takes changes in
/etc/weir/credentials|tokens and keys that only root may read; the unit passes them to the service
/var/lib/weir/bans.json|the bans; may be edited while weir runs
/var/lib/weir/rules.json|lists, limits, traps and jails, unless WAF_RULES_FILE names another file
/var/lib/weir/clients.json, alerts.json, lookups.json|what is known of clients, the newest alerts, and answers of lookups
/var/lib/weir/weir.sock|the control socket, for the user of the service and for root
/usr/share/doc/weir|the documentation, alert rules, a Grafana board and schemas";

const EXAMPLES: &str = "\
weir check && weir serve|start, if the settings of the environment have no fault
weir explain 203.0.113.7 --path /login|why is this client refused, and how to undo it
weir bans add 203.0.113.0/24 --for 24h --reason scraping|ban a netblock
weir bans lift 203.0.113.7|lift every ban that covers an address
weir bans import drop.txt --for 36h --reason feed --dry-run|judge a list of netblocks without banning any
weir allow 198.51.100.7 --for 24h|let an address pass every check for a day
weir reload|take changed settings, rules and certificates in, all or none
weir upgrade|hand over to the program as it lies on disk now, without losing a connection
weir replay /var/log/nginx/access.log|what these settings would have refused of yesterday's requests
weir --settings /etc/weir/weir.env settings|every setting, its value, and where it comes from";

const STATUS: &str = "\
0|done
1|the answer is no: refused, nothing lifted, not healthy, faults in a file
2|a wrong call
69|no service answers
70|a fault inside the service
78|settings that must be mended before a start
130|SIGINT ended it";

/// Writes one page to standard output, or all of them into a directory.
pub fn run(command: clap::Command, given: &Man) -> ExitCode {
    finish(match &given.dir {
        Some(dir) => write_all(command, dir),
        None => one(command, &given.command),
    })
}

fn one(command: clap::Command, words: &[String]) -> Result<ExitCode, Failure> {
    let name = [&["weir".to_owned()], words].concat().join("-");
    let mut pages = pages(command).into_iter();
    let Some((_, page)) = pages.find(|(of, _)| *of == name) else {
        let sentence = format!("weir has no command {:?}", words.join(" "));
        return Err(Failure::new(EXIT_USAGE, sentence));
    };
    out(&page);
    Ok(ExitCode::SUCCESS)
}

fn write_all(command: clap::Command, dir: &Path) -> Result<ExitCode, Failure> {
    for (name, page) in pages(command) {
        let path = dir.join(format!("{name}.1"));
        let failed = |error| format!("{} cannot be written: {error}", path.display());
        trust::create(&path)
            .and_then(|mut file| file.write_all(page.as_bytes()))
            .map_err(|error| Failure::new(EXIT_USAGE, failed(error)))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Every command and subcommand with its page.
fn pages(mut command: clap::Command) -> Vec<(String, String)> {
    command.build();
    let mut pages = Vec::new();
    add(&command, "weir", &mut pages);
    pages
}

fn add(command: &clap::Command, name: &str, pages: &mut Vec<(String, String)>) {
    // clap wants a static name. The leak is bounded: the process ends once the pages are written.
    let of_page: &'static str = name.to_owned().leak();
    let mut text = Vec::new();
    let mut shown = command.clone().name(of_page);
    if shown.find_subcommand("help").is_some() {
        // The subcommand `help` has no page of its own.
        shown = shown.mut_subcommand("help", |help| help.hide(true));
    }
    // Writing to memory cannot fail.
    let _ = clap_mangen::Man::new(shown).render(&mut text);
    let mut text = String::from_utf8_lossy(&text).into_owned();
    if name == "weir" {
        text.push_str(&own_sections());
    } else {
        text.push_str(".SH \"SEE ALSO\"\n\\fBweir\\fR(1)\n");
    }
    pages.push((name.to_owned(), text));
    let visible = command
        .get_subcommands()
        .filter(|inner| !inner.is_hide_set());
    for inner in visible.filter(|inner| inner.get_name() != "help") {
        add(inner, &format!("{name}-{}", inner.get_name()), pages);
    }
}

fn own_sections() -> String {
    let mut text = section("EXAMPLES", pairs(EXAMPLES));
    let rows = table().iter().flat_map(|theme| &theme.rows);
    let settings = rows.map(|row| {
        let first = row.settings.first();
        let default = first.map_or("", |first| first.default);
        let default = match default {
            "" => String::new(),
            default => format!(" Default: {default}."),
        };
        let help = row.help.replace('`', "");
        (row.name.to_owned(), format!("{help}{default}"))
    });
    text.push_str(&section("ENVIRONMENT", settings));
    text.push_str(&section("FILES", pairs(FILES)));
    text.push_str(&section("EXIT STATUS", pairs(STATUS)));
    text
}

fn pairs(lines: &str) -> impl Iterator<Item = (String, String)> {
    let pairs = lines.lines().filter_map(|line| line.split_once('|'));
    pairs.map(|(name, text)| (name.to_owned(), text.to_owned()))
}

fn section(heading: &str, entries: impl Iterator<Item = (String, String)>) -> String {
    let mut text = format!(".SH \"{heading}\"\n");
    for (name, about) in entries {
        text.push_str(&format!(".TP\n\\fB{}\\fR\n{}\n", roff(&name), roff(&about)));
    }
    text
}

/// Escapes a text so that roff shows it unchanged.
fn roff(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    match text.starts_with(['.', '\'']) {
        true => format!("\\&{text}"),
        false => text,
    }
}
