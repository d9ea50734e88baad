//! What servers send to clients.

use crate::types::shared::{self, ChannelKind};

messages! {
    /// A message from a server to a client.
    S2c

    /// A server passes on a message.
    "PRIVMSG" Privmsg
        {
            /// Who sends.
            from: String,
            /// A nick or a channel.
            to: String,
            /// Lines, of which at least one is not empty.
            body: Vec<String>,
        }
        {}

    /// A server passes on a notice, to which nothing may answer by itself.
    "NOTICE" Notice
        {
            /// Who sends.
            from: String,
            /// A nick or a channel.
            to: String,
            /// Lines, of which at least one is not empty.
            body: Vec<String>,
        }
        {}

    /// Someone joined a channel.
    "JOIN" Join
        {
            /// Who sends.
            from: String,
            /// The channel.
            to: String,
        }
        {
            /// At most one: the key of the channel.
            params: Vec<String>,
        }

    /// Someone left a channel.
    "PART" Part
        {
            /// Who sends.
            from: String,
            /// The channel.
            to: String,
        }
        {
            /// At most one line: the reason.
            body: Vec<String>,
        }

    /// Someone's session ended.
    "QUIT" Quit
        {
            /// Who sends.
            from: String,
        }
        {
            /// At most one line: the reason.
            body: Vec<String>,
        }

    /// Someone changed the nickname.
    "NICK" Nick
        {
            /// Who sends.
            from: String,
            /// The nick.
            params: [String; 1],
        }
        {}

    /// The modes of a channel or a nick, or a change of them.
    "MODE" Mode
        {
            /// Who sends.
            from: String,
            /// A nick or a channel.
            to: String,
        }
        {
            /// The modes, then their arguments.
            params: Vec<String>,
        }

    /// The topic of a channel was set, or cleared (`[]` or `[""]`).
    "TOPIC" Topic
        {
            /// Who sends.
            from: String,
            /// The channel.
            to: String,
        }
        {
            /// At most one line: the topic.
            body: Vec<String>,
        }

    /// Someone was put out of a channel.
    "KICK" Kick
        {
            /// Who sends.
            from: String,
            /// The channel.
            to: String,
            /// The nick.
            params: [String; 1],
        }
        {
            /// At most one line: the reason.
            body: Vec<String>,
        }

    /// Someone's public key.
    "PUBKEY" Pubkey
        {
            /// Who sends.
            from: String,
            /// The key.
            body: shared::Pubkey,
        }
        {}

    /// The answer to a PING.
    "PONG" Pong
        {}
        {
            /// Who sends.
            from: String,
            /// At most one: the token of the PING.
            params: Vec<String>,
        }

    /// The server ends the connection.
    "ERROR" Error
        {
            /// Why.
            body: Vec<String>,
        }
        {
            /// Who sends.
            from: String,
        }

    /// 001 RPL_WELCOME: the welcome after registration.
    "001" Welcome
        {
            /// The recipient, any token.
            to: String,
            /// Any strings: check them before you show them.
            body: Vec<String>,
        }
        {
            /// Who sends.
            from: String,
        }

    /// 002 RPL_YOURHOST: the server's name and version.
    "002" YourHost
        {
            /// A nick, or `*` before registration.
            to: String,
            /// Lines of text.
            body: Vec<String>,
        }
        {
            /// Who sends.
            from: String,
        }

    /// 322 RPL_LIST: one channel of the list.
    "322" List
        {
            /// A nick, or `*` before registration.
            to: String,
            /// The channel, and how many are in it.
            params: (String, String),
        }
        {
            /// Who sends.
            from: String,
            /// At most one line: the topic.
            body: Vec<String>,
        }

    /// 353 RPL_NAMREPLY: names of those in a channel.
    "353" NameReply
        {
            /// A nick, or `*` before registration.
            to: String,
            /// The kind of the channel, and the channel.
            params: (ChannelKind, String),
            /// Nicks, with `@` or `+` before them.
            body: Vec<String>,
        }
        {
            /// Who sends.
            from: String,
        }

    /// 366 RPL_ENDOFNAMES: the names of a channel end.
    "366" EndOfNames
        {
            /// A nick, or `*` before registration.
            to: String,
            /// The channel.
            params: [String; 1],
        }
        {
            /// Who sends.
            from: String,
            /// Lines of text.
            body: Vec<String>,
        }

    /// 372 RPL_MOTD: lines of the message of the day.
    "372" Motd
        {
            /// A nick, or `*` before registration.
            to: String,
            /// Lines of text.
            body: Vec<String>,
        }
        {
            /// Who sends.
            from: String,
        }

    /// 375 RPL_MOTDSTART: the message of the day begins.
    "375" MotdStart
        {
            /// A nick, or `*` before registration.
            to: String,
            /// Lines of text.
            body: Vec<String>,
        }
        {
            /// Who sends.
            from: String,
        }

    /// 376 RPL_ENDOFMOTD: the message of the day ends.
    "376" EndOfMotd
        {
            /// A nick, or `*` before registration.
            to: String,
        }
        {
            /// Who sends.
            from: String,
            /// Lines of text.
            body: Vec<String>,
        }

    /// 401 ERR_NOSUCHNICK: there is no such nick or channel.
    "401" NoSuchNick
        {
            /// A nick, or `*` before registration.
            to: String,
            /// The name as it was sent.
            params: [String; 1],
        }
        {
            /// Who sends.
            from: String,
            /// Lines of text.
            body: Vec<String>,
        }

    /// 403 ERR_NOSUCHCHANNEL: there is no such channel.
    "403" NoSuchChannel
        {
            /// A nick, or `*` before registration.
            to: String,
            /// The name as it was sent.
            params: [String; 1],
        }
        {
            /// Who sends.
            from: String,
            /// Lines of text.
            body: Vec<String>,
        }

    /// 433 ERR_NICKNAMEINUSE: someone has this nickname already.
    "433" NicknameInUse
        {
            /// A nick, or `*` before registration.
            to: String,
            /// The nick.
            params: [String; 1],
        }
        {
            /// Who sends.
            from: String,
            /// Lines of text.
            body: Vec<String>,
        }
}
