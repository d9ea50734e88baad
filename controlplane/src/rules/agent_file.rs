//! A file of literals of user agents: one literal a line, with comments as in lists of netblocks
//! (MATCH-1).

use std::path::Path;

use weir_shared::rules::{MAX_LITERAL, MAX_LITERALS, MIN_LITERAL};

use super::list_file;
use crate::netblock_list;

/// The content of such a file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Agents {
    pub(super) literals: Vec<String>,
}

/// Checks a literal (MATCH-2).
pub(super) fn literal(text: &str) -> Result<(), String> {
    if text.len() < MIN_LITERAL {
        return Err(format!(
            "{text:?} is too short: expected {MIN_LITERAL} to {MAX_LITERAL} bytes, because it is looked for anywhere in the field"
        ));
    }
    if text.len() > MAX_LITERAL {
        let length = text.len();
        return Err(format!(
            "a literal of {length} bytes is too long: expected {MIN_LITERAL} to {MAX_LITERAL}"
        ));
    }
    Ok(())
}

/// Reads a file of at most `room` literals. The error is the end of a sentence.
pub(super) fn read(path: &Path, room: usize) -> Result<Agents, String> {
    let bytes = list_file::bytes(path).map_err(|error| format!("cannot be read ({error})"))?;
    let agents = parse(&bytes)?;
    if agents.literals.is_empty() {
        return Err("has no line".to_owned());
    }
    let count = agents.literals.len();
    if count > room {
        return Err(format!(
            "has {count} lines, and {MAX_LITERALS} literals are the most of all rules together"
        ));
    }
    Ok(agents)
}

/// Parses the text of such a file.
pub(super) fn parse(bytes: &[u8]) -> Result<Agents, String> {
    let mut literals = Vec::new();
    for (number, line) in netblock_list::lines(bytes) {
        let wrong = |why: &str| format!("has a fault in line {number}: {why}");
        let text = std::str::from_utf8(line).map_err(|_| wrong("it is not UTF-8"))?;
        literal(text).map_err(|why| wrong(&why))?;
        literals.push(text.to_owned());
    }
    Ok(Agents { literals })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// MATCH-6: the lists beside the systemd unit are such files, each with its source and date.
    #[test]
    fn the_shipped_lists_can_be_named() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/user-agents");
        for name in ["ai-training", "ai-search", "ai-user", "scanners"] {
            let path = Path::new(folder).join(name).with_extension("txt");
            let agents = read(&path, MAX_LITERALS).unwrap();
            assert!(agents.literals.len() > 2, "{name}");
            let text = std::fs::read_to_string(&path).unwrap();
            for head in ["# Source: ", "# Date: 20"] {
                assert!(
                    text.lines().any(|line| line.starts_with(head)),
                    "{name}: {head}"
                );
            }
        }
    }

    /// MATCH-1, MATCH-2: one literal a line, comments behind # and ;, and each fault with its line.
    #[test]
    fn a_file_has_a_literal_a_line() {
        let text =
            b"\xef\xbb\xbf# trainers, 2026-11\n\nGPTBot ; of OpenAI\r\n  Claude Bot  # two words\n";
        let agents = parse(text).unwrap();
        assert_eq!(agents.literals, ["GPTBot", "Claude Bot"]);
        for (text, fault) in [
            (
                &b"GPTBot\n\nai\n"[..],
                "has a fault in line 3: \"ai\" is too short: expected 3 to 256 bytes, because it is looked for anywhere in the field",
            ),
            (
                b"\xff\xfe\xfd\xfc",
                "has a fault in line 1: it is not UTF-8",
            ),
        ] {
            assert_eq!(parse(text).unwrap_err(), fault);
        }
        let long = "x".repeat(257);
        let fault = parse(long.as_bytes()).unwrap_err();
        assert!(fault.contains("257 bytes is too long"), "{fault}");
    }
}
