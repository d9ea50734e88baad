//! A history: who connects, under which settings, and what happens, one thing after the other. It
//! is made by a property test, or read from the bytes of a fuzz target; either way the same bytes
//! stand for it.

use std::fmt::Write as _;

use crate::world::service::NAMED;

/// What happens on one connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct History {
    /// Who connects.
    pub who: Who,
    /// Under which of the settings that a room knows.
    pub settings: u8,
    /// The system takes little of an answer at once.
    pub narrow: bool,
    /// What happens, in order.
    pub events: Vec<Event>,
}

/// Who connects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Who {
    /// Somebody who is let in.
    LetIn,
    /// Somebody who is banned.
    Banned,
    /// Somebody whom the settings deny.
    Denied,
    /// A trusted proxy, which names the client of each request.
    Proxy,
}

impl Who {
    /// Each of them.
    pub const ALL: [Self; 4] = [Self::LetIn, Self::Banned, Self::Denied, Self::Proxy];
}

/// One thing that happens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The client sends so many requests of one form.
    Ask {
        /// The request.
        ask: Ask,
        /// How many.
        count: u8,
    },
    /// The client sends these bytes.
    Raw(Vec<u8>),
    /// What the client sends from now on is held back.
    Hold,
    /// So many bytes of it go.
    Part(u16),
    /// All of it goes, and nothing is held back any more.
    Release,
    /// The client reads nothing from now on.
    Pause,
    /// It reads so many bytes.
    Take(u16),
    /// It reads what comes.
    Read,
    /// For 36 s it sends so many bytes of what is held back every three seconds.
    Drip(u8),
    /// For 36 s it reads so many bytes every three seconds.
    Sip(u8),
    /// It has sent all that it sends.
    CloseWrite,
    /// It is gone.
    Reset,
    /// So many milliseconds pass.
    Advance(u16),
    /// The peer is banned.
    Ban,
    /// The ban is lifted.
    Lift,
    /// Other settings hold.
    Reload(u8),
    /// Answers that the application holds back go on.
    Go,
    /// The service stops.
    Drain,
    /// Another process takes over.
    HandOver,
    /// The service stops at once.
    Abort,
    /// The next two things happen at the same moment: nobody does anything in between.
    AtOnce,
}

/// A request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ask {
    /// Its form.
    pub kind: Kind,
    /// What the application does with it.
    pub script: Script,
    /// Its body, an index into [`SIZES`].
    pub sends: u8,
    /// The answer's, likewise.
    pub gets: u8,
    /// A proxy names a client who is banned.
    pub of_banned: bool,
}

/// Sizes at the bounds of what is held, read, copied and moved at once.
pub const SIZES: [usize; 16] = [
    0, 1, 2, 3, 100, 700, 4_096, 8_191, 8_193, 16_320, 16_384, 32_768, 65_536, 70_000, 120_000,
    300_000,
];

macro_rules! listed {
    ($(#[$about:meta])* $name:ident { $($(#[$each:meta])* $variant:ident),+ $(,)? }) => {
        $(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum $name { $($(#[$each])* $variant),+ }
        impl $name {
            /// Each of them.
            pub const ALL: &[Self] = &[$(Self::$variant),+];
            fn of(byte: u8) -> Self {
                let at = usize::from(byte) % Self::ALL.len();
                Self::ALL.get(at).copied().unwrap_or(const { [$(Self::$variant),+][0] })
            }
        }
    };
}

listed! {
    /// The form of a request.
    Kind {
        /// Most are like it.
        Plain,
        /// `HEAD`
        Head,
        /// A field that the service has to look at.
        Te,
        /// A body of known length.
        Length,
        /// A body in chunks.
        Chunked,
        /// A body in chunks, with a trailer field.
        Trailers,
        /// A body that the client is to be asked for; it does not wait.
        Expect,
        /// A body that is announced, and is none.
        Zero,
        /// A WebSocket.
        Upgrade,
        /// HTTP/1.0
        Old,
        /// HTTP/1.0, to be kept.
        OldKept,
        /// Its target is a whole address.
        Absolute,
        /// `OPTIONS *`
        Asterisk,
        /// `CONNECT`
        Connect,
        /// The health check.
        Health,
        /// Answered by the service.
        Own,
        /// The same with a body that is read.
        OwnBody,
        /// A bug of the service ends it.
        Panics,
        /// The connection closes behind it.
        Close,
        /// It names no host.
        Hostless,
        /// No request at all.
        Bad,
        /// Two lengths.
        TwoLengths,
        /// A length and chunks.
        LengthAndChunks,
        /// Chunks that are none.
        BadChunks,
        /// A head larger than one may be.
        Huge,
        /// A bug of the service ends a request with a body.
        PanicsBody,
        /// The health check with a body, which is a request by itself.
        HealthLength,
        /// The same in one chunk.
        HealthChunked,
        /// A body that is a request by itself, of somebody else where a proxy sends it.
        Smuggles,
    }
}

listed! {
    /// What the application does with a request.
    Script {
        /// It answers with a length.
        Length,
        /// In chunks.
        Chunked,
        /// With a 103 first.
        Early,
        /// Up to the end of its connection.
        UntilClose,
        /// Less than it announced.
        Short,
        /// It goes away.
        Reset,
        /// It answers once it is told to.
        Stall,
        /// It stalls in the middle of its answer.
        Half,
        /// The same in chunks.
        HalfChunked,
        /// It answers before it has read the body.
        Soon,
        /// It reads nothing of the body, and answers.
        Deaf,
        /// It reads nothing of the body until it is told to.
        DeafStall,
        /// It switches protocols where that was asked for.
        Switch,
        /// What it says is no HTTP.
        Nonsense,
        /// 204
        Empty,
        /// 304
        NotModified,
        /// It answers, and closes its connection.
        Close,
    }
}

impl Ask {
    /// The bytes of the request with this number.
    pub fn bytes(self, number: usize, named: Option<&str>) -> Vec<u8> {
        let size = |index: u8| SIZES.get(usize::from(index) % SIZES.len()).copied();
        let (sends, gets) = (size(self.sends).unwrap_or(0), size(self.gets).unwrap_or(0));
        let script = self.script as u8;
        let path = format!("/{number}/{script}/{gets}");
        let smuggled = self.smuggled(number, named);
        let sends = smuggled.as_ref().map_or(sends, Vec::len);
        let (method, target, version, fields) = self.head(&path, sends);
        let mut head = format!("{method} {target} HTTP/1.{version}\r\n{fields}");
        if let Some(named) = named {
            let _ = write!(head, "X-Forwarded-For: {named}\r\n");
        }
        if self.kind == Kind::Huge {
            let _ = write!(head, "X-Huge: {}\r\n", "h".repeat(34_000));
        }
        let mut bytes = (head + "\r\n").into_bytes();
        let content = smuggled.unwrap_or_else(|| pattern(number, sends));
        self.body(&content, &mut bytes);
        bytes
    }

    /// A request that nobody sends: the body of another.
    fn smuggled(self, number: usize, named: Option<&str>) -> Option<Vec<u8>> {
        const SMUGGLERS: [Kind; 3] = [Kind::HealthLength, Kind::HealthChunked, Kind::Smuggles];
        let mut head = format!("GET /{}/0/2 HTTP/1.1\r\nHost: a\r\n", number + SMUGGLED);
        if named.is_some() {
            let _ = write!(head, "X-Forwarded-For: {NAMED}\r\n");
        }
        SMUGGLERS
            .contains(&self.kind)
            .then(|| (head + "\r\n").into_bytes())
    }

    // long: a flat list of forms
    fn head(self, path: &str, sends: usize) -> (&'static str, String, u8, String) {
        let host = "Host: a\r\n";
        let plain = |fields: &str| format!("{host}{fields}");
        let length = format!("Content-Length: {sends}\r\n");
        let own = |rest: &str| format!("/_waf/{rest}");
        let (target, chunked) = (path.to_owned(), plain("Transfer-Encoding: chunked\r\n"));
        match self.kind {
            Kind::Plain => ("GET", target, 1, plain("Accept: */*\r\n")),
            Kind::Head => ("HEAD", target, 1, plain("")),
            Kind::Te => (
                "GET",
                target,
                1,
                plain("TE: trailers\r\nConnection: TE\r\n"),
            ),
            Kind::Length | Kind::Smuggles => ("POST", target, 1, plain(&length)),
            Kind::Chunked | Kind::Trailers | Kind::BadChunks => ("POST", target, 1, chunked),
            Kind::Expect => {
                let fields = plain(&format!("{length}Expect: 100-continue\r\n"));
                ("PUT", target, 1, fields)
            }
            Kind::Zero => ("GET", target, 1, plain("Content-Length: 0\r\n")),
            Kind::Upgrade => {
                let fields = plain("Connection: Upgrade\r\nUpgrade: websocket\r\n");
                ("GET", target, 1, fields)
            }
            Kind::Old => ("GET", target, 0, plain("")),
            Kind::OldKept => ("GET", target, 0, plain("Connection: keep-alive\r\n")),
            Kind::Absolute => ("GET", format!("http://a{path}"), 1, plain("")),
            Kind::Asterisk => ("OPTIONS", "*".to_owned(), 1, plain("")),
            Kind::Connect => ("CONNECT", "a:80".to_owned(), 1, plain("")),
            Kind::Health => ("GET", own("health"), 1, plain("")),
            Kind::HealthLength => ("GET", own("health"), 1, plain(&length)),
            Kind::HealthChunked => ("GET", own("health"), 1, chunked),
            Kind::Own => ("GET", own("own"), 1, plain("")),
            Kind::OwnBody => ("POST", own("body"), 1, plain(&length)),
            Kind::Panics => ("GET", own("panics"), 1, plain("")),
            Kind::PanicsBody => ("POST", own("panics"), 1, plain(&length)),
            Kind::Close => ("GET", target, 1, plain("Connection: close\r\n")),
            Kind::Hostless => ("GET", target, 1, String::new()),
            Kind::Bad => ("G\u{e9}T", target, 1, plain("")),
            Kind::TwoLengths => {
                let other = format!("{length}Content-Length: {}\r\n", sends + 1);
                ("POST", target, 1, plain(&other))
            }
            Kind::LengthAndChunks => ("POST", target, 1, chunked + &length),
            Kind::Huge => ("GET", target, 1, plain("")),
        }
    }

    fn body(self, content: &[u8], out: &mut Vec<u8>) {
        match self.kind {
            Kind::Length
            | Kind::Expect
            | Kind::OwnBody
            | Kind::PanicsBody
            | Kind::TwoLengths
            | Kind::HealthLength
            | Kind::Smuggles => out.extend_from_slice(content),
            Kind::Chunked | Kind::Trailers | Kind::LengthAndChunks | Kind::HealthChunked => {
                // In pieces that come in no order of two; one that is a request stays whole.
                let pieces = if self.kind == Kind::HealthChunked {
                    1
                } else {
                    3
                };
                for piece in content.chunks(content.len() / pieces + 1) {
                    out.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
                    out.extend_from_slice(piece);
                    out.extend_from_slice(b"\r\n");
                }
                out.extend_from_slice(b"0\r\n");
                if self.kind == Kind::Trailers {
                    out.extend_from_slice(b"X-Trailer: 1\r\n");
                }
                out.extend_from_slice(b"\r\n");
            }
            Kind::BadChunks => out.extend_from_slice(b"2\r\nab\r\nzz\r\n"),
            _ => {}
        }
    }
}

/// The content of the body with this number, which no other has.
pub fn pattern(number: usize, length: usize) -> Vec<u8> {
    let word = format!("<{number}>");
    let mut content = word.repeat(length / word.len() + 1).into_bytes();
    content.truncate(length);
    content
}

/// Behind the last number that a request has.
const SMUGGLED: usize = 1_000_000;

/// The most requests of one event.
pub const MOST: u8 = 40;

impl History {
    /// The history that these bytes stand for; each do.
    pub fn of(bytes: &[u8]) -> Self {
        let mut bytes = Bytes(bytes);
        let first = bytes.next();
        let who = Who::ALL.get(usize::from(first % 4)).copied();
        let mut history = Self {
            who: who.unwrap_or(Who::LetIn),
            settings: first / 4 % 8,
            narrow: first >= 128,
            events: Vec::new(),
        };
        while !bytes.0.is_empty() {
            history.events.push(bytes.event());
        }
        history
    }

    /// The bytes that stand for it.
    pub fn bytes(&self) -> Vec<u8> {
        let narrow = if self.narrow { 128 } else { 0 };
        let mut out = vec![self.who as u8 + self.settings % 8 * 4 + narrow];
        self.events.iter().for_each(|event| event.write(&mut out));
        out
    }
}

/// The bytes of a history that are left.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn next(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    fn two(&mut self) -> u16 {
        u16::from_be_bytes([self.next(), self.next()])
    }

    fn event(&mut self) -> Event {
        match self.next() % 22 {
            0 => Event::Raw({
                let length = usize::from(self.next()).min(self.0.len());
                let (raw, rest) = self.0.split_at_checked(length).unwrap_or_default();
                self.0 = rest;
                raw.to_vec()
            }),
            1 => Event::Hold,
            2 => Event::Part(self.two()),
            3 => Event::Release,
            4 => Event::Pause,
            5 => Event::Take(self.two()),
            6 => Event::Read,
            7 => Event::CloseWrite,
            8 => Event::Reset,
            9 => Event::Advance(self.two()),
            10 => Event::Ban,
            11 => Event::Lift,
            12 => Event::Reload(self.next()),
            13 => Event::Go,
            14 => Event::Drain,
            15 => Event::HandOver,
            16 => Event::Abort,
            17 => Event::Drip(self.next()),
            18 => Event::Sip(self.next()),
            21 => Event::AtOnce,
            _ => {
                let (kind, script) = (Kind::of(self.next()), Script::of(self.next()));
                let (sizes, count) = (self.next(), self.next());
                let ask = Ask {
                    kind,
                    script,
                    sends: sizes / 16,
                    gets: sizes % 16,
                    of_banned: count >= 128,
                };
                let count = count % 128 % MOST + 1;
                Event::Ask { ask, count }
            }
        }
    }
}

impl Event {
    fn write(&self, out: &mut Vec<u8>) {
        let mut two = |code: u8, number: u16| {
            out.push(code);
            out.extend_from_slice(&number.to_be_bytes());
        };
        match self {
            Self::Raw(raw) => {
                let raw = raw.get(..255).unwrap_or(raw);
                out.push(0);
                out.push(u8::try_from(raw.len()).unwrap_or(u8::MAX));
                out.extend_from_slice(raw);
            }
            Self::Hold => out.push(1),
            Self::Part(bytes) => two(2, *bytes),
            Self::Release => out.push(3),
            Self::Pause => out.push(4),
            Self::Take(bytes) => two(5, *bytes),
            Self::Read => out.push(6),
            Self::CloseWrite => out.push(7),
            Self::Reset => out.push(8),
            Self::Advance(milliseconds) => two(9, *milliseconds),
            Self::Ban => out.push(10),
            Self::Lift => out.push(11),
            Self::Reload(settings) => out.extend_from_slice(&[12, *settings]),
            Self::Go => out.push(13),
            Self::Drain => out.push(14),
            Self::HandOver => out.push(15),
            Self::Abort => out.push(16),
            Self::Drip(bytes) => out.extend_from_slice(&[17, *bytes]),
            Self::Sip(bytes) => out.extend_from_slice(&[18, *bytes]),
            Self::AtOnce => out.push(21),
            Self::Ask { ask, count } => {
                let banned = if ask.of_banned { 128 } else { 0 };
                let count = (count.clamp(&1, &MOST) - 1) + banned;
                let sizes = ask.sends % 16 * 16 + ask.gets % 16;
                out.extend_from_slice(&[19, ask.kind as u8, ask.script as u8, sizes, count]);
            }
        }
    }
}
