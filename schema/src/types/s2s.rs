//! What servers send to servers.

use serde::{Deserialize, Serialize};

use crate::types::shared::{self, Envelope};

messages! {
    /// A message from a server to a server.
    S2s

    /// A server passes a message on.
    "RELAY" Relay
        {
            /// The server that sends.
            from: String,
            /// The message, and the way it came.
            body: RelayBody,
        }
        {}

    /// A server asks another for a link, or answers such a request.
    "LINK" Link
        {
            /// The server that sends.
            from: String,
            /// The server that it is for.
            to: String,
            /// The request.
            body: LinkBody,
        }
        {}

    /// A server ends a link, or says that the named server is gone.
    "UNLINK" Unlink
        {
            /// The server that sends.
            from: String,
        }
        {
            /// At most one: the server that is gone.
            params: Vec<String>,
            /// At most one line: the reason.
            body: Vec<String>,
        }

    /// A server tells another, in parts, who and what it knows.
    "SYNC" Sync
        {
            /// The server that sends.
            from: String,
            /// The server that it is for.
            to: String,
            /// One part.
            body: SyncBody,
        }
        {}

    /// A server asks whether another is there.
    "PING" Ping
        {
            /// The server that sends.
            from: String,
            /// The server that it is for.
            to: String,
            /// The token.
            params: [String; 1],
        }
        {}

    /// The answer to a PING.
    "PONG" Pong
        {
            /// The server that sends.
            from: String,
            /// The server that it is for.
            to: String,
            /// The token of the PING.
            params: [String; 1],
        }
        {}
}

/// What RELAY carries.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RelayBody {
    /// The message that is passed on. It was judged as an envelope only: judge it by its own
    /// family.
    pub message: Box<Envelope>,
    /// The servers it came through, first one first.
    #[serde(
        default,
        deserialize_with = "shared::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub path: Option<Vec<String>>,
    /// When the first server received it, RFC 3339.
    #[serde(
        default,
        deserialize_with = "shared::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub received: Option<String>,
}

/// What LINK carries.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkBody {
    /// The version of the protocol between servers.
    #[serde(deserialize_with = "shared::whole")]
    pub version: u16,
    /// 32 fresh random bytes in base64url.
    pub nonce: String,
    /// The nonce of the LINK that this one answers.
    #[serde(
        default,
        deserialize_with = "shared::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub echo: Option<String>,
    /// The name of the network.
    #[serde(
        default,
        deserialize_with = "shared::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub network: Option<String>,
    /// What the server can do beyond the version.
    #[serde(
        default,
        deserialize_with = "shared::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub capabilities: Option<Vec<String>>,
    /// The server's public key, 32 bytes in base64url.
    #[serde(
        default,
        deserialize_with = "shared::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub key: Option<String>,
}

/// What SYNC carries.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SyncBody {
    /// The number of this part, from 1.
    #[serde(deserialize_with = "shared::whole")]
    pub part: u32,
    /// Whether this is the last part.
    pub last: bool,
    /// Users.
    #[serde(
        default,
        deserialize_with = "shared::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub users: Option<Vec<SyncUser>>,
    /// Channels.
    #[serde(
        default,
        deserialize_with = "shared::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub channels: Option<Vec<SyncChannel>>,
}

/// A user of SYNC.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SyncUser {
    /// The nick.
    pub nick: String,
    /// Where the user is.
    pub server: String,
    /// The `kid` of the user's key.
    #[serde(
        default,
        deserialize_with = "shared::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub kid: Option<String>,
}

/// A channel of SYNC.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SyncChannel {
    /// The channel.
    pub name: String,
    /// The topic.
    #[serde(
        default,
        deserialize_with = "shared::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub topic: Option<String>,
    /// Mode letters with their signs.
    #[serde(
        default,
        deserialize_with = "shared::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub modes: Option<String>,
    /// Nicks, with `@` or `+` before them.
    #[serde(
        default,
        deserialize_with = "shared::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub members: Option<Vec<String>>,
}
