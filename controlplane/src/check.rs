//! Checks files and directories as a start would, without starting and without writing (CONTROL-4).

use std::fs::{self, TryLockError};
use std::io;
use std::path::Path;

use rustix::fs::{Access, access};
use weir_shared::clock::{Clock, Now};
use weir_shared::rules::RuleSet;
use weir_shared::settings::Settings;
use weir_shared::units::Time;

use crate::admin::token::{TokenErrors, Tokens};
use crate::bans::document::BansFile;
use crate::bans::ledger::{Ledger, LedgerSettings};
use crate::certificates;
use crate::control::occupied;
use crate::crawlers::warnings;
use crate::feeds;
use crate::files::KnownFiles;
use crate::fleet::Ready;
use crate::guarded;
use crate::lookup;
use crate::refusal_page;
use crate::rules;
use crate::shared_state;
use crate::state::document::Document as _;
use crate::state::{StateError, may_enter};
use crate::wiring::ControlError;

/// The name of the lock in the state directory.
const LOCK: &str = "weir.lock";

/// What a check found.
#[derive(Default)]
pub struct Found {
    /// Faults that would stop a start, one sentence each.
    pub faults: Vec<String>,
    /// Faults that would not stop a start, one sentence each.
    pub warnings: Vec<String>,
    /// Whether a service holds the state directory.
    pub is_held: bool,
    /// The valid state files, for a start that follows.
    pub files: KnownFiles,
}

/// Warnings about the fleet's engine (FLEET-28), which a start does not ask (FLEET-3).
pub fn engine_warnings(settings: &Settings) -> Vec<String> {
    let ready = Ready::read(&settings.fleet).ok().flatten();
    ready.map(|ready| ready.warnings()).unwrap_or_default()
}

/// Checks everything that the control plane opens at a start.
pub fn check(settings: &Settings, clock: &Clock) -> Found {
    let now = clock.now();
    let dir = &settings.state.dir;
    let mut found = Found::default();
    let directory = directory(dir);
    // If the directory is closed, its files cannot be checked.
    let is_closed = matches!(
        directory,
        Err(StateError::Closed { .. } | StateError::NoDirectory(_))
    );
    match directory {
        Ok(is_held) => found.is_held = is_held,
        Err(error) => found.faults.push(error.to_string()),
    }
    if !is_closed {
        let (files, faults) = KnownFiles::read(dir);
        found.faults.extend(faults.iter().map(ToString::to_string));
        found.faults.extend(too_many_bans(settings, &files, now));
        found.warnings.extend(shared_state::warning(dir));
        found.files = files;
    }
    let tokens = Tokens::read(&settings.endpoints).err();
    found
        .faults
        .extend(tokens.iter().flat_map(TokenErrors::sentences));
    let lookup = lookup::check(&settings.lookup, clock).err();
    found.faults.extend(lookup.map(|error| error.to_string()));
    let certificates = certificates::check(&settings.edge).err();
    let told = certificates.map(|error| error.to_string());
    found.faults.extend(told);
    found.faults.extend(feeds::handle::check(settings).err());
    match rules::read(settings, now) {
        Ok((rules, bad_lists)) => {
            found.warnings.extend(bad_lists);
            found.warnings.extend(unfilled_jails(settings, &rules));
            let bans = found.files.bans();
            let of_crawlers = warnings::of(&rules, settings, bans, now.wall_ms);
            found.warnings.extend(of_crawlers);
        }
        Err(_) if is_closed && settings.state.rules_file.is_none() => {}
        Err(error) => found.faults.push(error.to_string()),
    }
    let page = settings.bans.refusal_page.as_deref();
    let page = page.and_then(|file| refusal_page::check(file).err());
    found.faults.extend(page.map(|error| error.to_string()));
    found.faults.extend(log_file(settings));
    found.faults.extend(Ready::read(&settings.fleet).err());
    if !found.is_held {
        let socket = settings.control_socket().and_then(occupied);
        found.faults.extend(socket.map(|error| error.to_string()));
    }
    found
}

/// Warns of jails that count only the application's reports while these are not used (APP-2).
fn unfilled_jails(settings: &Settings, rules: &RuleSet) -> Vec<String> {
    let listens = settings.identity.application_field.is_some();
    let unfilled = (rules.every_jail()).filter(|jail| !listens && jail.statuses.is_empty());
    let told = unfilled.map(|jail| {
        format!(
            "the jail {} has no statuses and WAF_APPLICATION_FIELD is off: it counts nothing",
            jail.rule.name
        )
    });
    told.collect()
}

/// Whether a service holds the lock of the directory; an error if the directory cannot be used.
fn directory(dir: &Path) -> Result<bool, StateError> {
    may_enter(dir)?;
    let held = match guarded::open(&dir.join(LOCK)) {
        // The lock is released at once.
        Ok(lock) => matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock)),
        Err(_) => false,
    };
    let dir_of = |error| StateError::Unwritable {
        dir: dir.to_owned(),
        error,
    };
    match fs::metadata(dir) {
        Ok(_) => writable(dir).map(|()| held).map_err(dir_of),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let above = dir.ancestors().skip(1).find(|above| above.exists());
            writable(above.unwrap_or(Path::new(".")))
                .map(|()| false)
                .map_err(|error| StateError::Make {
                    dir: dir.to_owned(),
                    error,
                })
        }
        Err(error) => Err(dir_of(error)),
    }
}

fn writable(path: &Path) -> io::Result<()> {
    let path = match path.as_os_str().is_empty() {
        true => Path::new("."),
        false => path,
    };
    Ok(access(path, Access::WRITE_OK)?)
}

/// The fault that bans.json holds more than `WAF_MAX_BANS` allows.
fn too_many_bans(settings: &Settings, files: &KnownFiles, now: Now) -> Option<String> {
    let bans = BansFile::complete(files.bans().to_vec(), &[], Time(now.wall_ms));
    let rules = LedgerSettings::from(settings);
    let held = Ledger::new(rules, bans, now.wall_ms).err()?;
    let max_bans = rules.max_bans;
    Some(ControlError::TooManyBans { held, max_bans }.to_string())
}

fn log_file(settings: &Settings) -> Option<String> {
    let path = settings.log.file.as_ref()?;
    let checked = match fs::metadata(path) {
        Ok(found) if found.is_dir() => Err(io::Error::other("it is a directory")),
        Ok(_) => writable(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            writable(path.parent().unwrap_or(Path::new("")))
        }
        Err(error) => Err(error),
    };
    let error = checked.err()?;
    Some(format!(
        "WAF_LOG_FILE {} cannot be opened: {error}; make it writable or unset WAF_LOG_FILE",
        path.display()
    ))
}
