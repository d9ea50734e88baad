//! What clients send to servers.

use crate::types::shared;

messages! {
    /// A message from a client to its server.
    C2s

    /// A client sends a message.
    "PRIVMSG" Privmsg
        {
            /// A nick or a channel.
            to: String,
            /// Lines, of which at least one is not empty.
            body: Vec<String>,
        }
        {
            /// Who sends.
            from: String,
        }

    /// A client sends a notice, to which nothing may answer by itself.
    "NOTICE" Notice
        {
            /// A nick or a channel.
            to: String,
            /// Lines, of which at least one is not empty.
            body: Vec<String>,
        }
        {
            /// Who sends.
            from: String,
        }

    /// A client joins a channel.
    "JOIN" Join
        {
            /// The channel.
            to: String,
        }
        {
            /// Who sends.
            from: String,
            /// At most one: the key of the channel.
            params: Vec<String>,
        }

    /// A client leaves a channel.
    "PART" Part
        {
            /// The channel.
            to: String,
        }
        {
            /// Who sends.
            from: String,
            /// At most one line: the reason.
            body: Vec<String>,
        }

    /// A client ends its session.
    "QUIT" Quit
        {}
        {
            /// Who sends.
            from: String,
            /// At most one line: the reason.
            body: Vec<String>,
        }

    /// A client asks for a nickname.
    "NICK" Nick
        {
            /// The nick.
            params: [String; 1],
        }
        {
            /// Who sends.
            from: String,
        }

    /// A client asks for modes (no `params`), or changes them.
    "MODE" Mode
        {
            /// A nick or a channel.
            to: String,
        }
        {
            /// Who sends.
            from: String,
            /// The modes, then their arguments.
            params: Vec<String>,
        }

    /// A client asks for the topic (no `body`), sets it, or clears it (`[]` or `[""]`).
    "TOPIC" Topic
        {
            /// The channel.
            to: String,
        }
        {
            /// Who sends.
            from: String,
            /// At most one line: the topic.
            body: Vec<String>,
        }

    /// A client puts someone out of a channel.
    "KICK" Kick
        {
            /// The channel.
            to: String,
            /// The nick.
            params: [String; 1],
        }
        {
            /// Who sends.
            from: String,
            /// At most one line: the reason.
            body: Vec<String>,
        }

    /// A client asks whether the server is there.
    "PING" Ping
        {}
        {
            /// Who sends.
            from: String,
            /// At most one: the token that the answer repeats.
            params: Vec<String>,
        }

    /// A client makes its public key known.
    "PUBKEY" Pubkey
        {
            /// The key.
            body: shared::Pubkey,
        }
        {
            /// Who sends.
            from: String,
        }
}
