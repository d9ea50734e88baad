//! Where the head of a request ends.

/// How far a head has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum HeadEnd {
    /// Only empty lines came, which a server leaves out (RFC 9112 §2.2).
    #[default]
    Before,
    /// In the middle of a line.
    InLine,
    /// At the beginning of a line.
    AfterLf,
    /// Behind the CR at the beginning of a line.
    AfterCr,
}

impl HeadEnd {
    /// Where the head ends in what comes next of it: behind the first empty line, whatever its
    /// lines end with. No reader sees an end before that.
    pub fn find(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        loop {
            let rest = bytes.get(at..)?;
            match (*self, *rest.first()?) {
                (Self::Before, b'\r' | b'\n') => at += 1,
                (Self::AfterLf | Self::AfterCr, b'\n') => {
                    *self = Self::Before;
                    return Some(at + 1);
                }
                (Self::AfterLf, b'\r') => {
                    *self = Self::AfterCr;
                    at += 1;
                }
                _ => {
                    *self = Self::InLine;
                    at += memchr::memchr(b'\n', rest)? + 1;
                    *self = Self::AfterLf;
                }
            }
        }
    }
}
