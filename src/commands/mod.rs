//! The commands, one module or function each, and how a start is run.

use std::process::ExitCode;

use weir_shared::settings::{Loaded, Refused};

use crate::channel;
use crate::open_files;
use crate::predecessor;
use crate::process_log;
use crate::serve;
use crate::service::{EXIT_SOFTWARE, StartError};
use crate::signals::Signals;
use crate::sources::Sources;
use crate::systemd;

pub mod alerts;
pub mod ask;
pub mod bans;
pub mod check;
pub mod common;
pub mod crawlers;
pub mod dashboard;
pub mod demo;
mod ended;
pub mod explain;
pub mod feeds;
pub mod fleet;
pub mod lists;
mod log_search;
pub mod look;
pub mod man;
mod paths;
pub mod process;
pub mod replay;
mod text;
pub mod top;
mod trust;
mod wire;

use common::{EXIT_CONFIG, last_words};

/// `weir`, `weir serve`: serves with the settings of the environment and of the settings file.
pub fn serve() -> ExitCode {
    let sources = Sources::of_process();
    match sources.load() {
        Ok(loaded) => run(sources, loaded, serve::Announce::Nothing),
        Err(refused) => refuse(&refused),
    }
}

/// `weir completions`
pub fn completions(shell: clap_complete::Shell, command: &mut clap::Command) -> ExitCode {
    let mut text = Vec::new();
    clap_complete::generate(shell, command, "weir", &mut text);
    common::out(&String::from_utf8_lossy(&text));
    ExitCode::SUCCESS
}

/// `weir version`: version, target and build of this program, as text or JSON.
pub fn version(json: bool) -> ExitCode {
    let target = format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS);
    let libc = if cfg!(target_env = "musl") {
        "musl, static"
    } else {
        "glibc"
    };
    let features = if cfg!(feature = "fleet") {
        vec!["fleet"]
    } else {
        Vec::new()
    };
    let version = env!("CARGO_PKG_VERSION");
    if json {
        return common::finish(common::print_json(&serde_json::json!({
            "version": version,
            "target": target,
            "libc": libc,
            "features": features,
        })));
    }
    let features = match features.as_slice() {
        [] => "none".to_owned(),
        features => features.join(", "),
    };
    common::out(&format!(
        "weir {version}\ntarget    {target}\nlibc      {libc}\nfeatures  {features}\n"
    ));
    ExitCode::SUCCESS
}

/// Serves until a signal; every problem that stops the start is one line on standard error.
pub fn run(sources: Sources, loaded: Loaded, announce: serve::Announce) -> ExitCode {
    if let Some(shortage) = open_files::shortage(&loaded.settings) {
        predecessor::tell_failure(&shortage);
        last_words([shortage]);
        return ExitCode::from(EXIT_CONFIG);
    }
    // Signals first: one that comes in the middle of the start must not end the process (ALIVE-3).
    let started = Signals::new()
        .and_then(|signals| Ok((signals, process_log::start(loaded.settings.log.level)?)));
    let (mut signals, log) = match started {
        Ok(started) => started,
        Err(error) => {
            let told = "the system refused a signal handler or a thread";
            last_words([format!("{told}: {error}")]);
            return ExitCode::FAILURE;
        }
    };
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    let (settings, is_given) = (loaded.settings.clone(), systemd::is_given());
    let ended = serve::serve(sources, loaded, &mut signals, announce);
    if let Err(error @ StartError::ThreadEnded(_)) = &ended {
        // Reported through the process log, which does not block if nobody reads standard error.
        tracing::error!("{error}");
    }
    if let Err(error) = &ended {
        predecessor::tell_failure(&error.to_string());
    }
    log.finish();
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(StartError::ThreadEnded(_)) => ExitCode::from(EXIT_SOFTWARE),
        Err(StartError::Unfit(first)) => {
            last_words([&first]);
            // A start ends at its first fault. All others are listed too, so that an operator can
            // mend them in one go (SETTING-1).
            let is_successor = std::env::var_os(channel::NAME).is_some();
            if !is_successor {
                let faults = check::faults(&settings, is_given);
                last_words(faults.iter().filter(|fault| **fault != first));
            }
            ExitCode::from(EXIT_CONFIG)
        }
        Err(error @ (StartError::Stopped | StartError::System(_))) => {
            last_words([error]);
            ExitCode::FAILURE
        }
    }
}

fn refuse(refused: &Refused) -> ExitCode {
    last_words(&refused.problems);
    predecessor::tell_failure(&refused.problems.join("; "));
    last_words((refused.warnings.iter()).map(|warning| format!("warning: {warning}")));
    ExitCode::from(EXIT_CONFIG)
}
