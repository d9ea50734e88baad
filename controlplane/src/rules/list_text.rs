//! Reads a list in a file of its own (RULE-10, ALIVE-5).

use std::path::Path;

use weir_shared::netblock::Netblock;
use weir_shared::rules::MAX_NETBLOCKS;
use weir_shared::spans::Spans;

use super::list_file;
use crate::netblock_list::{self, ListText, Unusable};

/// Reads a list of at most `room` netblocks. The error is the end of a sentence.
pub(super) fn list(path: &Path, room: usize) -> Result<ListText, String> {
    let bytes = list_file::bytes(path).map_err(|error| format!("cannot be read ({error})"))?;
    let text = netblock_list::parse(&bytes, room).map_err(|why| match why {
        Unusable::NotJson(fault) => format!("has a fault in {fault}"),
        Unusable::TooMany(_) => format!(
            "has more than {room} netblocks, and {MAX_NETBLOCKS} are the most of all lists together"
        ),
    })?;
    if text.netblocks.is_empty() {
        return Err("has no netblock, and a text, JSON or JSON lines with some is expected".into());
    }
    Ok(text)
}

/// Refuses a list that covers all clients, or most of them in pieces, unless rules.json confirms it
/// (ALIVE-5).
pub(super) fn for_all(text: ListText, force: bool) -> Result<ListText, String> {
    if force {
        return Ok(text);
    }
    let is_all = |netblock: &&Netblock| netblock.net().prefix_len() == 0;
    if let Some(netblock) = text.netblocks.iter().find(is_all) {
        return Err(format!(
            "has {netblock}, which is every client, and no \"force\": true beside its name"
        ));
    }
    match text.netblocks.iter().copied().collect::<Spans>().mostly() {
        Some(family) => Err(format!(
            "has more than half of all {family} addresses, and no \"force\": true beside its name"
        )),
        None => Ok(text),
    }
}
