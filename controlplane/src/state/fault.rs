//! Why an edited file is not taken: what does not fit, and where (STATE-5, STATE-6).

use std::fmt;
use std::io;

use weir_shared::record::disturbs;

/// The most characters of a fault's message and of its pointer.
const MAX_QUOTE: usize = 300;

/// Why a file cannot be taken.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub struct Fault {
    pub(crate) line: usize,
    pub(crate) column: usize,
    /// JSON Pointer (RFC 6901); empty for the whole document.
    pub(crate) pointer: String,
    pub(crate) message: String,
    /// Further faults of the same file, where the reader finds more than one.
    pub(crate) further: Vec<Fault>,
}

impl Fault {
    /// The file cannot be read: there is no place in it.
    pub(crate) fn unreadable(error: &io::Error) -> Self {
        Self::new(0, 0, "", &error.to_string())
    }

    /// A fault at a place of a text, in what a pointer names.
    pub(crate) fn new(line: usize, column: usize, pointer: &str, message: &str) -> Self {
        Self {
            line,
            column,
            pointer: shortened(pointer),
            message: shortened(message),
            further: Vec::new(),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            line,
            column,
            pointer,
            message,
            further,
        } = self;
        match line {
            0 => write!(f, "it cannot be read: {message}"),
            _ => write!(
                f,
                "line {line}, column {column}, at \"{pointer}\": {message}"
            ),
        }?;
        further.iter().try_for_each(|fault| write!(f, "; {fault}"))
    }
}

/// A fault quotes what it found, and that may be a megabyte, or a command to a terminal: its
/// beginning, on one line, is enough to find it by.
fn shortened(text: &str) -> String {
    let mut short = String::new();
    for (place, character) in text.chars().enumerate() {
        if place == MAX_QUOTE {
            short.push('…');
            break;
        }
        if disturbs(character) {
            short.extend(character.escape_default());
        } else {
            short.push(character);
        }
    }
    short
}
