//! The settings file: lines of `NAME=value` in the form of systemd's `EnvironmentFile=`
//! (RELOAD-1; systemd.exec(5)). A text comes in, assignments come out; nothing is expanded, and
//! nothing is read here.

use std::path::{Path, PathBuf};

/// The longest settings file that is read, in bytes.
pub const MAX_FILE_BYTES: u64 = 1 << 20;

/// A settings file that was read.
#[derive(Clone, Debug)]
pub struct SettingsFile {
    /// Where it lies.
    pub path: PathBuf,
    pub(super) assignments: Vec<Assignment>,
    pub(super) warnings: Vec<String>,
    /// Named on the command line: it stands above the environment (RELOAD-1).
    pub wins: bool,
}

/// One `NAME=value`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Assignment {
    pub(super) name: String,
    pub(super) value: String,
    /// Where it begins, from 1.
    pub(super) line: usize,
}

impl SettingsFile {
    /// Reads a text.
    ///
    /// # Errors
    /// Every fault, one sentence each, with the line.
    pub fn parse(path: &Path, text: &[u8]) -> Result<Self, Vec<String>> {
        let at = |line: usize| place(path, line);
        let Ok(text) = std::str::from_utf8(text) else {
            let good = text.utf8_chunks().next().map_or("", |chunk| chunk.valid());
            let line = 1 + good.matches('\n').count();
            return Err(vec![format!("{} is not UTF-8", at(line))]);
        };
        let mut reader = Reader::default();
        for c in text.chars() {
            reader.take(c);
        }
        let (assignments, ignored, unclosed) = reader.finish();
        let mut faults: Vec<String> = unclosed
            .map(|(line, quote)| format!("{} has a {quote} that is not closed", at(line)))
            .into_iter()
            .collect();
        let mut warnings: Vec<String> = ignored
            .into_iter()
            .map(|line| format!("{} has no = and is ignored: expected NAME=value", at(line)))
            .collect();
        for (index, assignment) in assignments.iter().enumerate() {
            let Assignment { name, value, line } = assignment;
            if !is_name(name) {
                faults.push(format!(
                    "{} has {name:?}, which is not a name: expected NAME=value",
                    at(*line)
                ));
            } else if value.contains('\0') {
                faults.push(format!("{} has a NUL character in {name}", at(*line)));
            }
            let later = assignments.iter().skip(index + 1);
            if let Some(later) = later.rev().find(|later| later.name == *name) {
                warnings.push(format!(
                    "{name} stands twice in {}: line {} counts, not line {line}",
                    path.display(),
                    later.line
                ));
            }
        }
        if faults.is_empty() {
            let path = path.to_owned();
            Ok(Self {
                path,
                assignments,
                warnings,
                wins: false,
            })
        } else {
            Err(faults)
        }
    }

    /// What the file sets; the last assignment of a name counts. An empty value is an unset one.
    pub fn variables(&self) -> impl Iterator<Item = (&str, &str)> {
        let set = self.assignments.iter();
        set.map(|one| (one.name.as_str(), one.value.as_str()))
    }
}

/// How a place in the file is told.
pub(super) fn place(path: &Path, line: usize) -> String {
    format!("settings file {}, line {line}", path.display())
}

/// The name of a variable, as systemd takes it.
fn is_name(name: &str) -> bool {
    name.bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && name.starts_with(|c: char| !c.is_ascii_digit())
}

/// Blanks around a name or a value.
const fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r' | '\n')
}

/// Where the reader is.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum At {
    /// Before a name.
    #[default]
    Start,
    Comment,
    /// Behind a backslash in a comment: a comment is not continued.
    CommentEscape,
    Name,
    /// Behind the equals sign, or behind a quoted part.
    BeforeValue,
    Value,
    /// Behind a backslash.
    Escape,
    Single,
    Double,
    /// Behind a backslash in double quotes.
    DoubleEscape,
}

/// Reads character by character, as systemd does.
struct Reader {
    at: At,
    line: usize,
    /// Where the assignment, and the quoted part, began.
    begun: usize,
    quoted: usize,
    name: String,
    value: String,
    /// The length of the value that is kept whatever follows: blanks behind it are none of it.
    kept: usize,
    assignments: Vec<Assignment>,
    ignored: Vec<usize>,
}

impl Default for Reader {
    fn default() -> Self {
        Self {
            at: At::Start,
            line: 1,
            begun: 1,
            quoted: 1,
            name: String::new(),
            value: String::new(),
            kept: 0,
            assignments: Vec::new(),
            ignored: Vec::new(),
        }
    }
}

impl Reader {
    fn take(&mut self, c: char) {
        self.at = self.next(c);
        self.line += usize::from(c == '\n');
    }

    fn next(&mut self, c: char) -> At {
        match (self.at, c) {
            (At::Start, '#' | ';') => At::Comment,
            (At::Start, c) if is_blank(c) => At::Start,
            (At::Start, _) => {
                self.begun = self.line;
                self.name.push(c);
                At::Name
            }
            (At::Comment | At::CommentEscape, '\n') => At::Start,
            (At::Comment, '\\') => At::CommentEscape,
            (At::Comment | At::CommentEscape, _) => At::Comment,
            (At::Name, '\n') => {
                self.ignored.push(self.begun);
                self.name.clear();
                At::Start
            }
            (At::Name, '=') => At::BeforeValue,
            (At::Name, c) => {
                self.name.push(c);
                At::Name
            }
            (At::BeforeValue | At::Value, '\n') => self.end(),
            (At::BeforeValue, '\'' | '"') => {
                self.quoted = self.line;
                if c == '"' { At::Double } else { At::Single }
            }
            (At::BeforeValue | At::Value, '\\') => At::Escape,
            (At::BeforeValue, c) if is_blank(c) => At::BeforeValue,
            (At::BeforeValue | At::Value, c) => {
                self.value.push(c);
                if !is_blank(c) {
                    self.kept = self.value.len();
                }
                At::Value
            }
            (At::Escape, '\n') => At::Value,
            (At::Escape, c) => self.keep(c, At::Value),
            (At::Single, '\'') | (At::Double, '"') => At::BeforeValue,
            (At::Double, '\\') => At::DoubleEscape,
            (At::Single | At::Double, c) => self.keep(c, self.at),
            (At::DoubleEscape, '\n') => At::Double,
            (At::DoubleEscape, '"' | '\\' | '`' | '$') => self.keep(c, At::Double),
            (At::DoubleEscape, c) => {
                self.value.push('\\');
                self.keep(c, At::Double)
            }
        }
    }

    fn keep(&mut self, c: char, then: At) -> At {
        self.value.push(c);
        self.kept = self.value.len();
        then
    }

    fn end(&mut self) -> At {
        let mut value = std::mem::take(&mut self.value);
        value.truncate(std::mem::take(&mut self.kept));
        let name = std::mem::take(&mut self.name);
        self.assignments.push(Assignment {
            name: name.trim_end_matches(is_blank).to_owned(),
            value,
            line: self.begun,
        });
        At::Start
    }

    /// The assignments, the lines that are none, and the quote that is not closed.
    fn finish(mut self) -> (Vec<Assignment>, Vec<usize>, Option<(usize, char)>) {
        let mut unclosed = None;
        match self.at {
            At::Start | At::Comment | At::CommentEscape => {}
            At::Name => self.ignored.push(self.begun),
            At::BeforeValue | At::Value | At::Escape => drop(self.end()),
            At::Single => unclosed = Some((self.quoted, '\'')),
            At::Double | At::DoubleEscape => unclosed = Some((self.quoted, '"')),
        }
        (self.assignments, self.ignored, unclosed)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Vec<(String, String, usize)> {
        let file = SettingsFile::parse(Path::new("weir.env"), text.as_bytes()).unwrap();
        let tuple = |one: Assignment| (one.name, one.value, one.line);
        file.assignments.into_iter().map(tuple).collect()
    }

    fn one(text: &str) -> String {
        let read = read(text);
        assert_eq!(read.len(), 1, "{read:?}");
        read[0].1.clone()
    }

    /// RELOAD-1: names, comments and lines are read with their places.
    #[test]
    fn lines_are_assignments_or_comments() {
        let text = "# first\n; second \\\nA=1\n\n  B = two words  \r\nC=\n # x\nD=\\\n4\nE=5";
        let expected = [
            ("A", "1", 3),
            ("B", "two words", 5),
            ("C", "", 6),
            ("D", "4", 8),
            ("E", "5", 10),
        ];
        let expected = expected.map(|(name, value, line)| (name.into(), value.into(), line));
        assert_eq!(read(text), expected);
    }

    /// RELOAD-1: quotes, escapes and continuations as systemd.exec(5) has them; nothing is
    /// expanded.
    #[test]
    fn values_are_quoted_and_continued_as_systemd_does() {
        for (text, value) in [
            ("A=$HOME `x` $(y) ~", "$HOME `x` $(y) ~"),
            ("A=a b \"c\" 'd'", "a b \"c\" 'd'"),
            ("A=a\\ \\\\b\\\"", "a \\b\""),
            ("A=one,\\\n  two", "one,  two"),
            ("A='it is \\n \"so\"\nand so'  ", "it is \\n \"so\"\nand so"),
            (
                "A=\"a \\\"b\\\" \\$c \\`d\\` \\\\ \\n\"",
                "a \"b\" $c `d` \\ \\n",
            ),
            ("A=\"one \\\ntwo\nthree\"", "one two\nthree"),
            ("A=\"a \"'b '", "a b "),
            ("A=\"a\" b", "ab"),
            ("A=a # no comment", "a # no comment"),
            ("A=b=c", "b=c"),
            ("A=a \\", "a"),
        ] {
            assert_eq!(one(text), value, "{text:?}");
        }
    }

    /// RELOAD-1: a fault names the file and the line.
    #[test]
    fn a_fault_names_file_and_line() {
        let faults = |text: &[u8]| SettingsFile::parse(Path::new("w.env"), text).unwrap_err();
        assert_eq!(
            faults(b"A=1\nB='x\ny\n"),
            ["settings file w.env, line 2 has a ' that is not closed"]
        );
        assert_eq!(
            faults(b"\nexport A=1\n1B=2\n"),
            [
                "settings file w.env, line 2 has \"export A\", which is not a name: expected NAME=value",
                "settings file w.env, line 3 has \"1B\", which is not a name: expected NAME=value",
            ]
        );
        assert_eq!(
            faults(b"A=1\nB=\xff\n"),
            ["settings file w.env, line 2 is not UTF-8"]
        );
        let file = SettingsFile::parse(Path::new("w.env"), b"A=1\nB\nA=2").unwrap();
        assert_eq!(
            file.warnings,
            [
                "settings file w.env, line 2 has no = and is ignored: expected NAME=value",
                "A stands twice in w.env: line 3 counts, not line 1",
            ]
        );
    }

    proptest! {
        /// RELOAD-1: any value can be written in single quotes, in double quotes and with
        /// backslashes, and is read back unchanged.
        #[test]
        fn what_is_quoted_is_read_as_it_was(value in "[^\0']{0,40}") {
            prop_assert_eq!(one(&format!("A='{value}'\n")), value.clone());
            let escaped: String = value.chars().flat_map(|c| match c {
                '"' | '\\' | '$' | '`' => vec!['\\', c],
                c => vec![c],
            }).collect();
            prop_assert_eq!(one(&format!("A=\"{escaped}\"\n")), value.clone());
            let value: String = value.chars().filter(|c| *c != '\n').collect();
            let escaped: String = value.chars().flat_map(|c| ['\\', c]).collect();
            prop_assert_eq!(one(&format!("A={escaped}\n")), value);
        }

        /// Any text is parsed or refused, without a panic.
        #[test]
        fn any_text_is_judged(text in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = SettingsFile::parse(Path::new("w"), &text);
        }
    }
}
