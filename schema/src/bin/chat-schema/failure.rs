//! Why the command could not do its work: exit status 2.

use std::{
    io,
    path::{Path, PathBuf},
};

use weir_schema::CatalogError;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{}: {_1}", _0.display())]
    File(PathBuf, io::Error),
    #[error("standard input: {0}")]
    Input(io::Error),
    #[error("standard output: {0}")]
    Output(#[from] io::Error),
    #[error("{}: {_1}", _0.display())]
    Key(PathBuf, String),
    #[error("standard input: {0}")]
    KeyInput(String),
    #[error("there is no schema {0:?}; `chat-schema list` names them")]
    NoSchema(String),
    #[error("there are no examples {0:?}; `chat-schema list --examples` names them")]
    NoExamples(String),
    #[error("{0:?} is no message and has no bundle")]
    NoBundle(String),
    #[error("{0}")]
    Pubkey(String),
    #[error("the system gives no random bytes: {0}")]
    Random(String),
    #[error(transparent)]
    Catalog(#[from] CatalogError),
}

impl Failure {
    pub(crate) fn key(path: &Path, error: impl ToString) -> Self {
        Self::Key(path.to_owned(), error.to_string())
    }

    pub(crate) fn input(file: Option<&Path>, error: io::Error) -> Self {
        match file {
            Some(path) if path != Path::new("-") => Self::File(path.to_owned(), error),
            _ => Self::Input(error),
        }
    }
}
