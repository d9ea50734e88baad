// The chat messages as types, made from the schemas. They say which members there are and of
// which kind; lengths and patterns only the schemas say. Judge a message by its schema
// first.

/** Text without control characters. */
export type Plain = string;

/** 1 to 255 characters without space, comma or control character. */
export type Token = string;

/** A middle parameter: not empty, no space, no control character, no leading colon. */
export type Param = string;

/** A UUID in lower case (RFC 9562). */
export type Uuid = string;

/** A time of RFC 3339 in UTC, from 1970 on, written with T and Z, without leap seconds, with at most nine digits of a second. */
export type Timestamp = string;

/** 32 bytes in base64url without padding, 43 characters: an Ed25519 public key, a SHA-256 thumbprint or a nonce. The two bits left over in the last character are 0 (RFC 4648, section 3.5). */
export type Key32 = string;

/** 64 bytes in base64url without padding, 86 characters: an Ed25519 signature. The four bits left over in the last character are 0. */
export type Signature = string;

/** About the message. alg, kid and sig sign it; other members are free. */
export interface Meta {
  /** The signature algorithm. */
  alg?: "ed25519";
  /** The RFC 7638 thumbprint of the key. */
  kid?: Key32;
  /** The signature over the canonical form of the message without this member. */
  sig?: Signature;
  [member: string]: unknown;
}

/** A nickname of at most 32 characters (RFC 2812, section 2.3.1): ASCII letters, digits, hyphens, brackets, braces, carets, underscores, backslashes, backticks and bars, with neither a digit nor a hyphen first. */
export type Nick = string;

/** A channel name of at most 50 characters: #, &, + or !, then at least one character other than space, comma, colon and control characters. */
export type Channel = string;

/** A server's host name of at most 63 characters: parts of ASCII letters and digits, with hyphens inside, and dots between the parts. */
export type Server = string;

/** A nick or a channel. */
export type Target = Nick | Channel;

/** A nick, or * for a client that has not registered. */
export type Recipient = Nick | "*";

/** A nick with @ before it for an operator, + for one who may speak. */
export type Name = string;

/** The key of a channel: a parameter of at most 23 characters without comma. */
export type ChannelKey = string;

/** Mode letters with their signs, such as +nt or +o-v. */
export type Modes = string;

/** At most 64 lines of at most 4096 characters each. */
export type Lines = string[];

/** Lines of which at least one is not empty. */
export type SaidLines = Lines;

/** A topic or a reason: at most one line of at most 390 characters. */
export type OneLine = [] | [ShortLine];

/** A line of at most 390 characters. */
export type ShortLine = string;

/** A public key and what is to be known of it. */
export interface Pubkey {
  /** The algorithm of the key. */
  alg: "ed25519";
  /** The public key. */
  key: Key32;
  /** The RFC 7638 thumbprint of the key. */
  kid?: Key32;
  /** When the key ends. */
  not_after?: Timestamp;
  /** The kid of the key that this one replaces. */
  replaces?: Key32;
}

/** What every chat message looks like. Each message schema refers to this one and only narrows its members. A message is at most 65,536 bytes and nests at most 32 deep; the parser checks both, no schema can. */
export interface Envelope {
  /** The command in upper case, or a numeric reply of three digits (RFC 2812, sections 3 and 5). */
  command: string;
  /** Who sends: a nick, nick!user@host, or a server. Any token fits; who may say which of them, a server decides. */
  from?: Token;
  /** Whom it is for: a nick, a channel, a server, or * before registration. */
  to?: Token;
  /** The middle parameters of RFC 2812, section 2.3.1. */
  params?: Param[];
  /** Text, one line an element, or structured data. Never a raw string, so that the canonical form (RFC 8785) is one. */
  body?: { [member: string]: unknown } | unknown[];
  /** Names this message; a receiver uses it to refuse a repeated one. */
  id?: Uuid;
  /** When the message was made. */
  ts?: Timestamp;
  meta?: Meta;
}

/** JOIN (C2S). A client joins a channel, with its key where it has one. */
export interface C2SJoin {
  command: "JOIN";
  from?: Token;
  to: Channel;
  params?: [] | [ChannelKey];
  body?: never;
  id?: Uuid;
  ts?: Timestamp;
  meta?: Meta;
}

/** KICK (C2S). A client puts someone out of a channel. */
export interface C2SKick {
  command: "KICK";
  from?: Token;
  to: Channel;
  params: [Nick];
  body?: OneLine;
  id?: Uuid;
  ts?: Timestamp;
  meta?: Meta;
}

/** MODE (C2S). A client asks for the modes of a channel or a nick (no params), or changes them. The first parameter holds the modes, the rest their arguments. */
export interface C2SMode {
  command: "MODE";
  from?: Token;
  to: Target;
  params?: [] | [Modes, ...Param[]];
  body?: never;
  id?: Uuid;
  ts?: Timestamp;
  meta?: Meta;
}

/** NICK (C2S). A client asks for a nickname. */
export interface C2SNick {
  command: "NICK";
  from?: Token;
  to?: never;
  params: [Nick];
  body?: never;
  id?: Uuid;
  ts?: Timestamp;
  meta?: Meta;
}

/** NOTICE (C2S). A client sends a notice, to which nothing may answer by itself. */
export interface C2SNotice {
  command: "NOTICE";
  from?: Token;
  to: Target;
  params?: never;
  body: SaidLines;
  id?: Uuid;
  ts?: Timestamp;
  meta?: Meta;
}

/** PART (C2S). A client leaves a channel, with a reason if it likes. */
export interface C2SPart {
  command: "PART";
  from?: Token;
  to: Channel;
  params?: never;
  body?: OneLine;
  id?: Uuid;
  ts?: Timestamp;
  meta?: Meta;
}

/** PING (C2S). A client asks whether the server is there; the server answers PONG with the same token. */
export interface C2SPing {
  command: "PING";
  from?: Token;
  to?: never;
  params?: [] | [Param];
  body?: never;
  id?: Uuid;
  ts?: Timestamp;
  meta?: Meta;
}

/** PRIVMSG (C2S). A client sends a message to a nick or a channel. */
export interface C2SPrivmsg {
  command: "PRIVMSG";
  from?: Token;
  to: Target;
  params?: never;
  body: SaidLines;
  id?: Uuid;
  ts?: Timestamp;
  meta?: Meta;
}

/** PUBKEY (C2S). A client makes its public key known. */
export interface C2SPubkey {
  command: "PUBKEY";
  from?: Token;
  to?: never;
  params?: never;
  body: Pubkey;
  id?: Uuid;
  ts?: Timestamp;
  meta?: Meta;
}

/** QUIT (C2S). A client ends its session, with a reason if it likes. */
export interface C2SQuit {
  command: "QUIT";
  from?: Token;
  to?: never;
  params?: never;
  body?: OneLine;
  id?: Uuid;
  ts?: Timestamp;
  meta?: Meta;
}

/** TOPIC (C2S). A client asks for the topic (no body), sets it, or clears it ([] or [""]). */
export interface C2STopic {
  command: "TOPIC";
  from?: Token;
  to: Channel;
  params?: never;
  body?: OneLine;
  id?: Uuid;
  ts?: Timestamp;
  meta?: Meta;
}

/** Any C2S message; `command` tells which. */
export type C2S =
  | C2SJoin
  | C2SKick
  | C2SMode
  | C2SNick
  | C2SNotice
  | C2SPart
  | C2SPing
  | C2SPrivmsg
  | C2SPubkey
  | C2SQuit
  | C2STopic;

/** 001 RPL_WELCOME (S2C). The welcome after registration. It is fixed more widely than the other replies: any token may be its recipient, and its lines are any strings, of any length and with control characters. Check them before you show them or write them to a stream of lines. */
export interface S2C001 {
  command: "001";
  from?: Token;
  to: Token;
  params?: never;
  body: string[];
  id?: Uuid;
  ts?: Timestamp;
  meta?: Meta;
}

/** 002 RPL_YOURHOST (S2C). The server's name and version. */
export interface S2C002 {
  command: "002";
  from?: Token;
  to: Recipient;
  params?: never;
  body: Lines;
  id?: Uuid;
  ts?: Timestamp;
  meta?: Meta;
}

/** 322 RPL_LIST (S2C). One channel of the list: its name, how many are in it, its topic. */
export interface S2C322 {
  command: "322";
  from?: Token;
  to: Recipient;
  params: [Channel, string];
  body?: OneLine;
  id?: Uuid;
  ts?: Timestamp;
  meta?: Meta;
}

/** 353 RPL_NAMREPLY (S2C). Names of those in a channel. The first parameter tells the kind of channel: = public, * private, @ secret. */
export interface S2C353 {
  command: "353";
  from?: Token;
  to: Recipient;
  params: ["=" | "*" | "@", Channel];
  body: Name[];
  id?: Uuid;
  ts?: Timestamp;
  meta?: Meta;
}

/** 366 RPL_ENDOFNAMES (S2C). The names of a channel end. */
export interface S2C366 {
  command: "366";
  from?: Token;
  to: Recipient;
  params: [Channel];
  body?: Lines;
  id?: Uuid;
  ts?: Timestamp;
  meta?: Meta;
}

/** 372 RPL_MOTD (S2C). Lines of the message of the day. */
export interface S2C372 {
  command: "372";
  from?: Token;
  to: Recipient;
  params?: never;
  body: Lines;
  id?: Uuid;
  ts?: Timestamp;
  meta?: Meta;
}

/** 375 RPL_MOTDSTART (S2C). The message of the day begins. */
export interface S2C375 {
  command: "375";
  from?: Token;
  to: Recipient;
  params?: never;
  body: Lines;
  id?: Uuid;
  ts?: Timestamp;
  meta?: Meta;
}

/** 376 RPL_ENDOFMOTD (S2C). The message of the day ends. */
export interface S2C376 {
  command: "376";
  from?: Token;
  to: Recipient;
  params?: never;
  body?: Lines;
  id?: Uuid;
  ts?: Timestamp;
  meta?: Meta;
}

/** 401 ERR_NOSUCHNICK (S2C). There is no such nick or channel. The parameter repeats the name as it was sent. */
export interface S2C401 {
  command: "401";
  from?: Token;
  to: Recipient;
  params: [Param];
  body?: Lines;
  id?: Uuid;
  ts?: Timestamp;
  meta?: Meta;
}

/** 403 ERR_NOSUCHCHANNEL (S2C). There is no such channel. The parameter repeats the name as it was sent. */
export interface S2C403 {
  command: "403";
  from?: Token;
  to: Recipient;
  params: [Param];
  body?: Lines;
  id?: Uuid;
  ts?: Timestamp;
  meta?: Meta;
}

/** 433 ERR_NICKNAMEINUSE (S2C). Someone has this nickname already. */
export interface S2C433 {
  command: "433";
  from?: Token;
  to: Recipient;
  params: [Nick];
  body?: Lines;
  id?: Uuid;
  ts?: Timestamp;
  meta?: Meta;
}

/** ERROR (S2C). The server ends the connection and says why. */
export interface S2CError {
  command: "ERROR";
  from?: Token;
  to?: never;
  params?: never;
  body: Lines;
  id?: Uuid;
  ts?: Timestamp;
  meta?: Meta;
}

/** JOIN (S2C). Someone joined a channel. params may hold the channel's key, as in C2S; a server should leave it out, for every member of the channel reads it. */
export interface S2CJoin {
  command: "JOIN";
  from: Token;
  to: Channel;
  params?: [] | [ChannelKey];
  body?: never;
  id?: Uuid;
  ts?: Timestamp;
  meta?: Meta;
}

/** KICK (S2C). Someone was put out of a channel. */
export interface S2CKick {
  command: "KICK";
  from: Token;
  to: Channel;
  params: [Nick];
  body?: OneLine;
  id?: Uuid;
  ts?: Timestamp;
  meta?: Meta;
}

/** MODE (S2C). The modes of a channel or a nick, or a change of them. The first parameter holds the modes, the rest their arguments. A server should not leave the params out: such a message says nothing. */
export interface S2CMode {
  command: "MODE";
  from: Token;
  to: Target;
  params?: [] | [Modes, ...Param[]];
  body?: never;
  id?: Uuid;
  ts?: Timestamp;
  meta?: Meta;
}

/** NICK (S2C). Someone changed the nickname. */
export interface S2CNick {
  command: "NICK";
  from: Token;
  to?: never;
  params: [Nick];
  body?: never;
  id?: Uuid;
  ts?: Timestamp;
  meta?: Meta;
}

/** NOTICE (S2C). A server passes on a notice, to which nothing may answer by itself. As in C2S it goes to a nick or a channel, so that a client gets none before registration. */
export interface S2CNotice {
  command: "NOTICE";
  from: Token;
  to: Target;
  params?: never;
  body: SaidLines;
  id?: Uuid;
  ts?: Timestamp;
  meta?: Meta;
}

/** PART (S2C). Someone left a channel. */
export interface S2CPart {
  command: "PART";
  from: Token;
  to: Channel;
  params?: never;
  body?: OneLine;
  id?: Uuid;
  ts?: Timestamp;
  meta?: Meta;
}

/** PONG (S2C). The answer to a PING, with its token. */
export interface S2CPong {
  command: "PONG";
  from?: Token;
  to?: never;
  params?: [] | [Param];
  body?: never;
  id?: Uuid;
  ts?: Timestamp;
  meta?: Meta;
}

/** PRIVMSG (S2C). A server passes on a message to a nick or a channel. */
export interface S2CPrivmsg {
  command: "PRIVMSG";
  from: Token;
  to: Target;
  params?: never;
  body: SaidLines;
  id?: Uuid;
  ts?: Timestamp;
  meta?: Meta;
}

/** PUBKEY (S2C). Someone's public key. */
export interface S2CPubkey {
  command: "PUBKEY";
  from: Token;
  to?: never;
  params?: never;
  body: Pubkey;
  id?: Uuid;
  ts?: Timestamp;
  meta?: Meta;
}

/** QUIT (S2C). Someone's session ended. */
export interface S2CQuit {
  command: "QUIT";
  from: Token;
  to?: never;
  params?: never;
  body?: OneLine;
  id?: Uuid;
  ts?: Timestamp;
  meta?: Meta;
}

/** TOPIC (S2C). The topic of a channel was set, or cleared ([] or [""]). A server should not leave the body out: such a message says that there is news of the topic, and not which. */
export interface S2CTopic {
  command: "TOPIC";
  from: Token;
  to: Channel;
  params?: never;
  body?: OneLine;
  id?: Uuid;
  ts?: Timestamp;
  meta?: Meta;
}

/** Any S2C message; `command` tells which. */
export type S2C =
  | S2C001
  | S2C002
  | S2C322
  | S2C353
  | S2C366
  | S2C372
  | S2C375
  | S2C376
  | S2C401
  | S2C403
  | S2C433
  | S2CError
  | S2CJoin
  | S2CKick
  | S2CMode
  | S2CNick
  | S2CNotice
  | S2CPart
  | S2CPong
  | S2CPrivmsg
  | S2CPubkey
  | S2CQuit
  | S2CTopic;

/** LINK (S2S). A server asks another for a link, or answers such a request by echoing its nonce. */
export interface S2SLink {
  command: "LINK";
  from: Server;
  to: Server;
  params?: never;
  body: {
    /** The version of the protocol between servers. */
    version: number;
    /** 32 fresh random bytes. */
    nonce: Key32;
    /** The nonce of the LINK that this one answers. */
    echo?: Key32;
    /** The name of the network. */
    network?: Token;
    /** What the server can do beyond the version. */
    capabilities?: string[];
    /** The server's public key. */
    key?: Key32;
  };
  id?: Uuid;
  ts?: Timestamp;
  meta?: Meta;
}

/** PING (S2S). A server asks whether another is there. */
export interface S2SPing {
  command: "PING";
  from: Server;
  to: Server;
  params: [Param];
  body?: never;
  id?: Uuid;
  ts?: Timestamp;
  meta?: Meta;
}

/** PONG (S2S). The answer to a PING, with its token. */
export interface S2SPong {
  command: "PONG";
  from: Server;
  to: Server;
  params: [Param];
  body?: never;
  id?: Uuid;
  ts?: Timestamp;
  meta?: Meta;
}

/** RELAY (S2S). A server passes a message on. The message inside is an envelope of its own and stays as it was signed; it is no RELAY. This schema judges it as an envelope only: judge it by the schema of its own family and command as well. */
export interface S2SRelay {
  command: "RELAY";
  from: Server;
  to?: never;
  params?: never;
  body: {
    /** The message that is passed on. */
    message: Envelope;
    /** The servers it came through, first one first. */
    path?: Server[];
    /** When the first server received it. */
    received?: Timestamp;
  };
  id?: Uuid;
  ts?: Timestamp;
  meta?: Meta;
}

/** SYNC (S2S). A server tells another, in parts, who and what it knows. The last part says so. */
export interface S2SSync {
  command: "SYNC";
  from: Server;
  to: Server;
  params?: never;
  body: {
    /** The number of this part, from 1. */
    part: number;
    /** Whether this is the last part. */
    last: boolean;
    users?: {
      nick: Nick;
      /** Where the user is. */
      server: Server;
      /** The kid of the user's key. */
      kid?: Key32;
    }[];
    channels?: {
      name: Channel;
      topic?: ShortLine;
      modes?: Modes;
      /** No entry comes twice. That a nick comes twice, with a prefix and without, no schema can refuse. */
      members?: Name[];
    }[];
  };
  id?: Uuid;
  ts?: Timestamp;
  meta?: Meta;
}

/** UNLINK (S2S). A server ends a link, or says that the named server is gone. */
export interface S2SUnlink {
  command: "UNLINK";
  from: Server;
  to?: never;
  params?: [] | [Server];
  body?: OneLine;
  id?: Uuid;
  ts?: Timestamp;
  meta?: Meta;
}

/** Any S2S message; `command` tells which. */
export type S2S =
  | S2SLink
  | S2SPing
  | S2SPong
  | S2SRelay
  | S2SSync
  | S2SUnlink;
