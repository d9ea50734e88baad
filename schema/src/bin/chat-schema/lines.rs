//! Reading what comes in: line by line, or one text, never more of it than a message may be long.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::Path,
};

use weir_schema::strict::Limits;

use crate::failure::Failure;

/// One byte more than is allowed, so that the parser sees that a text is too long.
const MOST: usize = Limits::MESSAGE.bytes + 1;

/// Calls `each` with the number, from 1, and the bytes of every line. A line that is longer than a
/// message may be is cut one byte after the limit, where the parser refuses it; memory does not
/// grow with it.
pub(crate) fn for_each_line(
    file: Option<&Path>,
    mut each: impl FnMut(u64, &[u8]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut source = input(file)?;
    let mut line = Vec::new();
    let mut number = 0;
    loop {
        line.clear();
        let failed = |error| Failure::input(file, error);
        // Two more for the line break.
        source
            .by_ref()
            .take(MOST as u64 + 2)
            .read_until(b'\n', &mut line)
            .map_err(failed)?;
        if line.is_empty() {
            return Ok(());
        }
        if line.last() == Some(&b'\n') {
            line.pop();
            if line.last() == Some(&b'\r') {
                line.pop();
            }
        } else {
            source.skip_until(b'\n').map_err(failed)?;
        }
        line.truncate(MOST);
        number += 1;
        each(number, &line)?;
    }
}

/// The whole input, cut one byte after what a message may be long.
pub(crate) fn whole(file: Option<&Path>) -> Result<Vec<u8>, Failure> {
    let mut text = Vec::new();
    input(file)?
        .take(MOST as u64)
        .read_to_end(&mut text)
        .map_err(|error| Failure::input(file, error))?;
    Ok(text)
}

fn input(file: Option<&Path>) -> Result<Box<dyn BufRead>, Failure> {
    match file {
        Some(path) if path != Path::new("-") => {
            let file = File::open(path).map_err(|error| Failure::File(path.to_owned(), error))?;
            Ok(Box::new(BufReader::new(file)))
        }
        _ => Ok(Box::new(io::stdin().lock())),
    }
}
