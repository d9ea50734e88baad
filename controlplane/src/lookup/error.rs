//! Why lookups cannot start (LOOKUP-1).

use std::io;

use super::database::FileError;
use crate::outgoing::RootsError;

impl From<RootsError> for LookupError {
    fn from(error: RootsError) -> Self {
        match error {
            RootsError::CaFile { path, fault } => Self::CaFile { path, fault },
            RootsError::Tls(why) => Self::Tls(why),
        }
    }
}

/// Why lookups cannot start.
#[derive(Debug, thiserror::Error)]
pub enum LookupError {
    /// A database file cannot be used.
    #[error("WAF_LOOKUP_DB_PATH: {0}")]
    File(#[from] FileError),
    /// The additional root certificates cannot be used.
    #[error("WAF_LOOKUP_CA_FILE={path:?} cannot be used: {fault}")]
    CaFile {
        /// The file.
        path: String,
        /// What is wrong.
        fault: String,
    },
    /// The TLS library refused its own defaults.
    #[error("TLS for lookups cannot be set up: {0}")]
    Tls(String),
    /// The system refused a thread.
    #[error("the thread of the lookups cannot be started: {0}")]
    Thread(io::Error),
}
