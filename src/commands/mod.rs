//! One function a command, and the exit statuses they share.

use std::process::ExitCode;

use weir_shared::settings::{self, Loaded, Refused, Settings};

use crate::process_log;
use crate::serve::{self, StartError};

pub mod demo;

/// Something an operator must mend before a start (`EX_CONFIG` of sysexits; SETTING-1).
pub const EXIT_CONFIG: u8 = 78;

/// `weir`, `weir serve`: serves with the settings of the environment.
pub fn serve() -> ExitCode {
    match settings::load(environment()) {
        Ok(Loaded { settings, warnings }) => run(settings, &warnings, serve::Announce::Nothing),
        Err(refused) => refuse(&refused),
    }
}

/// `weir check`: says what is wrong with the settings, or that nothing is.
pub fn check() -> ExitCode {
    match settings::load(environment()) {
        Ok(Loaded { warnings, .. }) => {
            for warning in warnings {
                eprintln!("weir: warning: {warning}");
            }
            println!("the settings are fine");
            ExitCode::SUCCESS
        }
        Err(refused) => refuse(&refused),
    }
}

/// Serves until a signal; every problem that stops the start is one line on standard error.
pub fn run(settings: Settings, warnings: &[String], announce: serve::Announce) -> ExitCode {
    let log = match process_log::start(settings.log.level) {
        Ok(log) => log,
        Err(error) => {
            eprintln!("weir: the process log cannot be started: {error}");
            return ExitCode::FAILURE;
        }
    };
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    let ended = serve::serve(settings, announce);
    if let Err(error @ StartError::Panicked) = &ended {
        // Nobody may read standard error any more: it goes the way that does not wait.
        tracing::error!("{error}");
    }
    log.finish();
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(StartError::Panicked) => ExitCode::FAILURE,
        Err(error @ StartError::Unfit(_)) => {
            eprintln!("weir: {error}");
            ExitCode::from(EXIT_CONFIG)
        }
        Err(error @ StartError::System(_)) => {
            eprintln!("weir: {error}");
            ExitCode::FAILURE
        }
    }
}

fn refuse(refused: &Refused) -> ExitCode {
    for problem in &refused.problems {
        eprintln!("weir: {problem}");
    }
    for warning in &refused.warnings {
        eprintln!("weir: warning: {warning}");
    }
    ExitCode::from(EXIT_CONFIG)
}

/// The environment; names and values that are not UTF-8 are shown with replacement characters, and
/// then judged.
pub fn environment() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os().map(|(name, value)| {
        (
            name.to_string_lossy().into_owned(),
            value.to_string_lossy().into_owned(),
        )
    })
}
