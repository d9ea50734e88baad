//! The text of every schema file and of its examples, built into the program, so that nothing is
//! read or fetched at run time (SCHEMA-2).
//!
//! A plain list and no build script: a test compares it with the folders, so a file that is not
//! here cannot go unnoticed. What the texts mean is the catalog's business.

/// The base URL that the files carry, with the version of the protocol.
/// [`crate::Catalog::with_base`] replaces it.
pub const BASE: &str = "https://weir.example/v1";

/// The base URL of the proxy's own documents. They are no part of the protocol and of its version.
pub(crate) const PROXY_BASE: &str = "https://weir.example";

/// The envelope's name.
pub(crate) const ENVELOPE: &str = "message";

macro_rules! messages {
    ($($name:literal)*) => {
        /// Name and text of every message schema, the envelope first, then by family and name.
        pub(crate) static TEXTS: &[(&str, &str)] = &[
            $(($name, include_str!(concat!("../", $name, ".schema.json")))),*
        ];

        /// The examples of every message schema, in the same order: its name, and a JSON text with
        /// the members `schema`, `valid` and `invalid`. Each example has `why` and `message`; each
        /// invalid one the `path` and the `keyword` that must fail, too.
        pub static EXAMPLES: &[(&str, &str)] = &[
            $(($name, include_str!(concat!("../examples/", $name, ".json")))),*
        ];
    };
}

messages! {
    "message"
    "c2s/join" "c2s/kick" "c2s/mode" "c2s/nick" "c2s/notice" "c2s/part" "c2s/ping" "c2s/privmsg"
    "c2s/pubkey" "c2s/quit" "c2s/topic"
    "s2c/001" "s2c/002" "s2c/322" "s2c/353" "s2c/366" "s2c/372" "s2c/375" "s2c/376" "s2c/401"
    "s2c/403" "s2c/433" "s2c/error" "s2c/join" "s2c/kick" "s2c/mode" "s2c/nick" "s2c/notice"
    "s2c/part" "s2c/pong" "s2c/privmsg" "s2c/pubkey" "s2c/quit" "s2c/topic"
    "s2s/link" "s2s/ping" "s2s/pong" "s2s/relay" "s2s/sync" "s2s/unlink"
}

/// Name and text of the schemas of the proxy's own documents.
pub(crate) static PROXY: &[(&str, &str)] = &[
    ("proxy/alerts", include_str!("../proxy/alerts.schema.json")),
    (
        "proxy/ban-order",
        include_str!("../proxy/ban-order.schema.json"),
    ),
    ("proxy/bans", include_str!("../proxy/bans.schema.json")),
    (
        "proxy/clients",
        include_str!("../proxy/clients.schema.json"),
    ),
    (
        "proxy/list-entry",
        include_str!("../proxy/list-entry.schema.json"),
    ),
    ("proxy/lists", include_str!("../proxy/lists.schema.json")),
    (
        "proxy/lookups",
        include_str!("../proxy/lookups.schema.json"),
    ),
    ("proxy/replay", include_str!("../proxy/replay.schema.json")),
    (
        "proxy/request-log",
        include_str!("../proxy/request-log.schema.json"),
    ),
    (
        "proxy/requests-left-out",
        include_str!("../proxy/requests-left-out.schema.json"),
    ),
    ("proxy/rules", include_str!("../proxy/rules.schema.json")),
    ("proxy/shared", include_str!("../proxy/shared.schema.json")),
];
