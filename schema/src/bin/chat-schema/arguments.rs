//! What can be asked on the command line. The doc comments are the text of `--help`.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use weir_schema::{BASE, Family, bundle::Form};

/// The chat message schemas on the command line.
///
/// FILE is standard input where it is absent or `-`. Streams are newline-delimited JSON, and there
/// is one answer for each line.
///
/// Exit status: 0 if everything was done and nothing refused; 1 if a message was refused; 2 if the
/// command could not do its work, with one sentence on standard error.
#[derive(Parser)]
#[command(name = "chat-schema", version)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Lists the schemas: name, tab, title. Those of `proxy/` are documents of the proxy, no
    /// messages.
    List {
        /// List the examples instead: name, tab, how many are valid and invalid.
        #[arg(long)]
        examples: bool,
    },
    /// Prints one file: a schema, such as `message`, `s2c/001` or `proxy/bans`, or the examples of
    /// one, such as `examples/s2c/001`.
    Show {
        /// As `list` and `list --examples` name it.
        name: String,
        /// The base URL of the `$id`.
        #[arg(long, default_value = BASE)]
        base: String,
        /// Print the message's schema with all that it refers to, as one document.
        #[arg(long)]
        bundle: bool,
        /// The dialect of the bundle.
        #[arg(long, default_value = "2020-12", requires = "bundle")]
        draft: Draft,
    },
    /// Judges newline-delimited messages; one report a line.
    Validate {
        #[command(flatten)]
        by: By,
        #[command(flatten)]
        reports: Reports,
        /// Standard input where it is absent or `-`.
        file: Option<PathBuf>,
    },
    /// Prints the canonical form (RFC 8785) of one JSON text, without a line break at the end. Of a
    /// text that is refused it prints nothing.
    Canon {
        /// Read newline-delimited JSON and print one line for each: the canonical form, or a report
        /// where there is none.
        #[arg(long)]
        lines: bool,
        /// Leave `meta.sig` out: these are the bytes that a signature covers.
        #[arg(long)]
        without_sig: bool,
        #[command(flatten)]
        reports: Reports,
        /// Standard input where it is absent or `-`.
        file: Option<PathBuf>,
    },
    /// Makes an Ed25519 key and prints it as a private JWK.
    Keygen {
        /// Write the private key to this new file, for its owner alone, and print the public one.
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        /// Make no key; print the public half of this one.
        #[arg(long, value_name = "FILE", conflicts_with = "out")]
        public_of: Option<PathBuf>,
    },
    /// Prints the PUBKEY message that announces a key.
    Pubkey {
        /// The key, a JWK, private or public. Only its public half is printed.
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
        /// When the key ends, such as 2027-01-01T00:00:00Z.
        #[arg(long, value_name = "TIME")]
        not_after: Option<String>,
        /// The key id of the key that this one replaces.
        #[arg(long, value_name = "KID")]
        replaces: Option<String>,
    },
    /// Prints the key id (`kid`, the RFC 7638 thumbprint) of a JWK, a PUBKEY message or its body.
    KeyId {
        /// Standard input where it is absent or `-`.
        file: Option<PathBuf>,
    },
    /// Signs newline-delimited messages and prints them; of a line that is refused, a report.
    Sign {
        /// The private key, a JWK.
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
        #[command(flatten)]
        reports: Reports,
        /// Standard input where it is absent or `-`.
        file: Option<PathBuf>,
    },
    /// Verifies newline-delimited messages; one report a line.
    Verify {
        /// A key that is trusted: a JWK, a PUBKEY message or its body, whose `not_after` then
        /// counts for the `ts` of each message. May come several times.
        #[arg(long, required = true, value_name = "FILE")]
        key: Vec<PathBuf>,
        /// Accept messages from this sender only. Without it a good signature proves a key, no
        /// sender.
        #[arg(long, value_name = "NAME")]
        from: Option<String>,
        /// Refuse messages more than 300 s from the clock, and those that come twice.
        #[arg(long)]
        fresh: bool,
        #[command(flatten)]
        reports: Reports,
        /// Standard input where it is absent or `-`.
        file: Option<PathBuf>,
    },
    /// Writes the schema files, and on demand bundles and examples, into a folder.
    Export {
        /// The base URL of every `$id`; the files belong below it.
        #[arg(long, default_value = BASE)]
        base: String,
        /// The folder. Files that are there are replaced. Without it, `--bundle` prints the one
        /// document of all messages.
        #[arg(long, required_unless_present = "bundle")]
        out: Option<PathBuf>,
        /// Write `schema/bundle.schema.json`, all messages in one document, and `bundled/…`, one
        /// document a message; and both in draft 07 below `schema/draft-07`.
        #[arg(long)]
        bundle: bool,
        /// The dialect of the bundle that is printed.
        #[arg(
            long,
            default_value = "2020-12",
            requires = "bundle",
            conflicts_with = "out"
        )]
        draft: Draft,
        /// Write `examples/…`: for each message valid ones, and invalid ones with what must fail.
        #[arg(long, requires = "out")]
        examples: bool,
    },
}

/// What messages are judged by.
#[derive(Args)]
#[group(required = true, multiple = false)]
pub(crate) struct By {
    /// c2s, s2c or s2s: each message is judged by the schema of its command.
    #[arg(long)]
    pub(crate) family: Option<Family>,
    /// One schema for all lines, such as s2s/link, message (the envelope alone) or
    /// proxy/request-log.
    #[arg(long, value_name = "NAME")]
    pub(crate) schema: Option<String>,
}

#[derive(Args)]
pub(crate) struct Reports {
    /// How reports are printed: as text for people or as JSON. Text on a terminal, else JSON.
    #[arg(long, value_name = "HOW")]
    pub(crate) reports: Option<How>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum How {
    Text,
    Json,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Draft {
    #[value(name = "2020-12")]
    Draft202012,
    #[value(name = "07")]
    Draft07,
}

impl From<Draft> for Form {
    fn from(draft: Draft) -> Self {
        match draft {
            Draft::Draft202012 => Self::Draft202012,
            Draft::Draft07 => Self::Draft07,
        }
    }
}
