//! The text of every schema file, built into the program, so that nothing is read or fetched at run
//! time (SCHEMA-2).
//!
//! A plain list and no build script: a test compares it with the folders, so a file that is not here
//! cannot go unnoticed. What the texts mean is the catalog's business.

/// The base URL that the files carry. [`crate::Catalog::with_base`] replaces it.
pub const BASE: &str = "https://weir.example/v1";

/// The envelope's name.
pub(crate) const ENVELOPE: &str = "message";

/// Name and text of every file, the envelope first, then by family and name.
pub(crate) const TEXTS: &[(&str, &str)] = &[
    ("message", include_str!("../message.schema.json")),
    ("c2s/join", include_str!("../c2s/join.schema.json")),
    ("c2s/kick", include_str!("../c2s/kick.schema.json")),
    ("c2s/mode", include_str!("../c2s/mode.schema.json")),
    ("c2s/nick", include_str!("../c2s/nick.schema.json")),
    ("c2s/notice", include_str!("../c2s/notice.schema.json")),
    ("c2s/part", include_str!("../c2s/part.schema.json")),
    ("c2s/ping", include_str!("../c2s/ping.schema.json")),
    ("c2s/privmsg", include_str!("../c2s/privmsg.schema.json")),
    ("c2s/pubkey", include_str!("../c2s/pubkey.schema.json")),
    ("c2s/quit", include_str!("../c2s/quit.schema.json")),
    ("c2s/topic", include_str!("../c2s/topic.schema.json")),
    ("s2c/001", include_str!("../s2c/001.schema.json")),
    ("s2c/002", include_str!("../s2c/002.schema.json")),
    ("s2c/322", include_str!("../s2c/322.schema.json")),
    ("s2c/353", include_str!("../s2c/353.schema.json")),
    ("s2c/366", include_str!("../s2c/366.schema.json")),
    ("s2c/372", include_str!("../s2c/372.schema.json")),
    ("s2c/375", include_str!("../s2c/375.schema.json")),
    ("s2c/376", include_str!("../s2c/376.schema.json")),
    ("s2c/401", include_str!("../s2c/401.schema.json")),
    ("s2c/403", include_str!("../s2c/403.schema.json")),
    ("s2c/433", include_str!("../s2c/433.schema.json")),
    ("s2c/error", include_str!("../s2c/error.schema.json")),
    ("s2c/join", include_str!("../s2c/join.schema.json")),
    ("s2c/kick", include_str!("../s2c/kick.schema.json")),
    ("s2c/mode", include_str!("../s2c/mode.schema.json")),
    ("s2c/nick", include_str!("../s2c/nick.schema.json")),
    ("s2c/notice", include_str!("../s2c/notice.schema.json")),
    ("s2c/part", include_str!("../s2c/part.schema.json")),
    ("s2c/pong", include_str!("../s2c/pong.schema.json")),
    ("s2c/privmsg", include_str!("../s2c/privmsg.schema.json")),
    ("s2c/pubkey", include_str!("../s2c/pubkey.schema.json")),
    ("s2c/quit", include_str!("../s2c/quit.schema.json")),
    ("s2c/topic", include_str!("../s2c/topic.schema.json")),
    ("s2s/link", include_str!("../s2s/link.schema.json")),
    ("s2s/ping", include_str!("../s2s/ping.schema.json")),
    ("s2s/pong", include_str!("../s2s/pong.schema.json")),
    ("s2s/relay", include_str!("../s2s/relay.schema.json")),
    ("s2s/sync", include_str!("../s2s/sync.schema.json")),
    ("s2s/unlink", include_str!("../s2s/unlink.schema.json")),
];
