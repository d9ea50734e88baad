//! `chat-schema`: the schemas, the strict parser, the canonical form and the signatures for those
//! who write a chat client or server in any language (SCHEMA-8).
//!
//! Streams are newline-delimited JSON, one answer a line, so that it fits in a pipe. Everything it
//! knows is the crate's; these files read, print and count.

mod arguments;
mod failure;
mod files;
mod judge;
mod keys;
mod lines;
mod report;

use std::{
    io::{self, Write},
    process::ExitCode,
};

use clap::Parser;

use crate::{
    arguments::{Arguments, Command},
    failure::Failure,
    report::Reporter,
};

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let mut refused = false;
    match run(arguments.command, &mut io::stdout().lock(), &mut refused) {
        Ok(()) => {}
        // Who reads us has seen enough. That is no fault.
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {}
        Err(failure) => {
            complain(&failure.to_string());
            return ExitCode::from(2);
        }
    }
    if refused {
        ExitCode::from(1)
    } else {
        ExitCode::SUCCESS
    }
}

/// Does `command`, and notes in `refused` whether a message was.
// long: one arm a command
fn run(command: Command, out: &mut impl Write, refused: &mut bool) -> Result<(), Failure> {
    match command {
        Command::List { examples: false } => files::list(out)?,
        Command::List { examples: true } => files::list_examples(out)?,
        Command::Show {
            name,
            base,
            bundle,
            draft,
        } => files::show(&name, &base, bundle.then(|| draft.into()), out)?,
        Command::Validate { by, reports, file } => {
            let mut reports = Reporter::new(out, reports.reports);
            let done = judge::validate(&by, file.as_deref(), &mut reports);
            *refused = reports.refused;
            done?;
        }
        Command::Canon {
            lines: true,
            without_sig,
            reports,
            file,
        } => {
            let mut reports = Reporter::new(out, reports.reports);
            let done = judge::canon_lines(without_sig, file.as_deref(), &mut reports);
            *refused = reports.refused;
            done?;
        }
        Command::Canon {
            lines: false,
            without_sig,
            file,
            ..
        } => {
            if let Err(error) = judge::canon_whole(without_sig, file.as_deref(), out)? {
                *refused = true;
                complain(&error);
            }
        }
        Command::Keygen {
            public_of: Some(key),
            ..
        } => keys::public_of(&key, out)?,
        Command::Keygen { out: file, .. } => keys::keygen(file.as_deref(), out)?,
        Command::Pubkey {
            key,
            not_after,
            replaces,
        } => keys::pubkey(&key, not_after, replaces, out)?,
        Command::KeyId { file } => keys::key_id(file.as_deref(), out)?,
        Command::Sign { key, reports, file } => {
            let mut reports = Reporter::new(out, reports.reports);
            let done = keys::sign(&key, file.as_deref(), &mut reports);
            *refused = reports.refused;
            done?;
        }
        Command::Verify {
            key,
            from,
            fresh,
            reports,
            file,
        } => {
            let mut reports = Reporter::new(out, reports.reports);
            let (from, file) = (from.as_deref(), file.as_deref());
            let done = keys::verify(&key, from, fresh, file, &mut reports);
            *refused = reports.refused;
            done?;
        }
        Command::Export {
            base,
            out: Some(folder),
            bundle,
            examples,
            ..
        } => files::export(&base, &folder, bundle, examples, out)?,
        Command::Export { base, draft, .. } => files::print_bundle(&base, draft.into(), out)?,
    }
    out.flush()?;
    Ok(())
}

/// Says `sentence` to people. Where nobody listens, it is lost, and that is no reason to fail.
fn complain(sentence: &str) {
    drop(writeln!(io::stderr().lock(), "chat-schema: {sentence}"));
}
