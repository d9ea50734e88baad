//! Finds the line of a request in a log file. The search goes backwards from the end and reads each
//! piece once, so that recent lines are found at once in a file of any size (CONTROL-5).

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::PathBuf;

use rustix::fs::{CWD, Mode, OFlags, openat};
use serde_json::Value;
use weir_controlplane::guarded;

use super::trust::parent;

/// Bytes of one read.
const PIECE: usize = 1 << 20;
/// A longer line is not that of a request.
const LINE: usize = 4 << 20;

/// A request log.
pub struct LogFile {
    pub path: PathBuf,
    /// Whether symbolic links are followed. They are if the path is believed; otherwise the file
    /// itself must lie in the directory.
    pub follows: bool,
}

impl LogFile {
    /// Opens the log if it is a regular file: opening a pipe would block.
    pub fn open(&self) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let opened = if self.follows {
            openat(CWD, &self.path, flags, Mode::empty())?
        } else {
            let dir = flags | OFlags::DIRECTORY;
            let dir = openat(CWD, parent(&self.path), dir, Mode::empty())?;
            let name = self.path.file_name().unwrap_or_default();
            openat(dir, name, flags | OFlags::NOFOLLOW, Mode::empty())?
        };
        let file = File::from(opened);
        guarded::is_regular(&file)?;
        Ok(file)
    }
}

/// The newest line of a request with this id.
pub fn newest(file: &mut (impl Read + Seek), id: &str) -> io::Result<Option<Value>> {
    let wanted = format!("\"request_id\":{}", Value::from(id));
    let mut at = file.seek(SeekFrom::End(0))?;
    // The end of a line whose beginning is in the piece before it.
    let mut rest = Vec::new();
    let mut is_too_long = false;
    while at > 0 {
        let count = usize::try_from(at).unwrap_or(PIECE).min(PIECE);
        at -= count as u64;
        let mut piece = vec![0; count];
        file.seek(SeekFrom::Start(at))?;
        file.read_exact(&mut piece)?;
        piece.append(&mut rest);
        let begin = match piece.iter().position(|byte| *byte == b'\n') {
            _ if at == 0 => 0,
            Some(end) => end + 1,
            None if piece.len() > LINE => {
                is_too_long = true;
                continue;
            }
            None => {
                rest = piece;
                continue;
            }
        };
        let mut lines = piece.get(begin..).unwrap_or_default();
        if std::mem::take(&mut is_too_long) {
            // The end of that line was dropped as too long: the rest of it here is no line.
            let end = lines.iter().rposition(|byte| *byte == b'\n');
            lines = lines
                .get(..end.map_or(0, |end| end + 1))
                .unwrap_or_default();
        }
        if let Some(found) = last_in(lines, &wanted, id) {
            return Ok(Some(found));
        }
        piece.truncate(begin);
        rest = piece;
    }
    Ok(None)
}

fn last_in(lines: &[u8], wanted: &str, id: &str) -> Option<Value> {
    // Log lines are UTF-8 (LOG-2); other bytes are not from the service.
    let text = String::from_utf8_lossy(lines);
    text.rmatch_indices(wanted).find_map(|(at, _)| {
        let (before, after) = text.split_at_checked(at)?;
        let before = before.rsplit('\n').next()?;
        let after = after.split('\n').next()?;
        let line: Value = serde_json::from_str(&format!("{before}{after}")).ok()?;
        (line.get("request_id")? == id).then_some(line)
    })
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    /// A reader that counts the bytes read from it.
    struct Counted(Cursor<Vec<u8>>, usize);

    impl Read for Counted {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let count = self.0.read(buffer)?;
            self.1 += count;
            Ok(count)
        }
    }

    impl Seek for Counted {
        fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
            self.0.seek(to)
        }
    }

    fn line(number: usize, path: &str) -> String {
        format!("{{\"event\":\"request\",\"request_id\":\"id-{number}\",\"path\":\"{path}\"}}\n")
    }

    /// CONTROL-5: every line is found, wherever the pieces are cut; nothing is read twice, and a
    /// line near the end costs one piece.
    #[test]
    fn every_line_is_found_once() {
        let text: String = (0..60_000).map(|number| line(number, "/ä")).collect();
        assert!(text.len() > 3 * PIECE);
        let found = |id: &str| {
            let mut file = Counted(Cursor::new(text.clone().into_bytes()), 0);
            (newest(&mut file, id).unwrap(), file.1)
        };
        for number in (0..60_000).step_by(997).chain([0, 59_999]) {
            let (line, read) = found(&format!("id-{number}"));
            assert_eq!(line.unwrap()["path"], "/ä", "{number}");
            assert!(read <= text.len(), "{read}");
        }
        assert_eq!(found("id-59999").1, PIECE);
        assert_eq!(found("id-6"), (found("id-6").0, text.len()));
        assert_eq!(found("id"), (None, text.len()));
    }

    /// CONTROL-5: the newest line of equal ids is found; the id in another member, half a line, an
    /// endless line and bytes that are no text are skipped.
    #[test]
    fn what_is_no_such_line_is_passed_over() {
        let find = |text: &[u8], id: &str| newest(&mut Cursor::new(text.to_vec()), id).unwrap();
        let both = line(1, "/old") + &line(1, "/new");
        assert_eq!(find(both.as_bytes(), "id-1").unwrap()["path"], "/new");
        let quoted = "{\"request_id\":\"b\",\"user_agent\":\"\\\"request_id\\\":\\\"a\\\"\"}\n";
        assert_eq!(find(quoted.as_bytes(), "a"), None);
        let nested = "{\"request_id\":\"b\",\"headers\":{\"request_id\":\"a\"}}";
        assert_eq!(find(nested.as_bytes(), "a"), None);
        let whole = line(1, "/x");
        assert_eq!(find(&whole.as_bytes()[..whole.len() - 5], "id-1"), None);
        assert!(
            find(whole.trim_end().as_bytes(), "id-1").is_some(),
            "no line end"
        );
        let mut odd = line(1, "/x").into_bytes();
        odd.extend(vec![b'x'; 2 * LINE]);
        odd.extend(b"\xff\n");
        odd.extend(line(2, "/y").into_bytes());
        assert_eq!(find(&odd, "id-1").unwrap()["path"], "/x");
        assert_eq!(find(&odd, "id-2").unwrap()["path"], "/y");
        assert_eq!(find(b"", "id-1"), None);
    }
}
