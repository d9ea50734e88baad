//! HTTP/1.1 as a strict reader finds it in what was sent: written for the tests alone, and with
//! nothing of the readers that they test. What it does not know for certain it says it does not.

/// A message, as far as it came.
#[derive(Clone, Debug, Default)]
pub struct Message {
    /// The words of its first line.
    pub first: [String; 3],
    /// Its fields; names in small letters.
    pub fields: Vec<(String, String)>,
    /// Its content so far.
    pub body: Vec<u8>,
    /// It has come to its end.
    pub is_whole: bool,
    /// It ends with the connection.
    pub until_close: bool,
}

impl Message {
    /// The first value of a field.
    pub fn field(&self, name: &str) -> Option<&str> {
        let found = self.fields.iter().find(|(each, _)| each == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Whether `Connection` says that word.
    pub fn connection(&self, word: &str) -> bool {
        let lines = self.fields.iter().filter(|(name, _)| name == "connection");
        let mut words = lines.flat_map(|(_, value)| value.split(','));
        words.any(|each| each.trim().eq_ignore_ascii_case(word))
    }

    /// The status of an answer.
    pub fn status(&self) -> u16 {
        self.first[1].parse().unwrap_or(0)
    }

    /// The path of a request.
    pub fn path(&self) -> &str {
        let target = self.first[1].as_str();
        if self.first[0] == "CONNECT" {
            return "";
        }
        let behind = target.strip_prefix("http://");
        let path = behind.map_or(target, |rest| {
            rest.find('/').and_then(|at| rest.get(at..)).unwrap_or("/")
        });
        path.split('?').next().unwrap_or(path)
    }

    /// Whether it is the health check (CHECK-1).
    pub fn is_health_check(&self) -> bool {
        ["GET", "HEAD"].contains(&self.first[0].as_str()) && self.path() == "/_waf/health"
    }

    /// Whether it says that a body follows.
    pub fn announces_body(&self) -> bool {
        let length = self.field("content-length").unwrap_or("0");
        length != "0" || self.field("transfer-encoding").is_some()
    }

    /// Whether it is a request for a WebSocket.
    pub fn asks_for_websocket(&self) -> bool {
        let upgrade = self.field("upgrade").unwrap_or("");
        self.first[0] == "GET"
            && self.first[2] == "HTTP/1.1"
            && upgrade.eq_ignore_ascii_case("websocket")
            && self.connection("upgrade")
    }
}

/// What follows the last whole message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tail {
    /// Nothing.
    Nothing,
    /// The beginning of a head.
    Head,
    /// A head, and a part of its body.
    Body,
    /// What is no message for certain, or none that is understood.
    Unknown,
    /// All belongs to another protocol.
    Tunnel,
    /// Answers to what is no request for certain.
    Unjudged,
}

/// Which side's messages they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// Requests.
    Requests,
    /// Answers.
    Answers,
}

/// Reads messages one after the other.
#[derive(Debug)]
pub struct Reader {
    side: Side,
    /// Where the message begins that is not whole.
    at: usize,
    /// So much was there, and whether it was all, when this was read last.
    last: (usize, bool),
    /// The whole ones, and interim answers among them.
    pub messages: Vec<Message>,
    /// The one that is not whole, if its head is.
    pub part: Option<Message>,
    /// What stands behind the last whole one.
    pub tail: Tail,
}

impl Reader {
    /// A reader of nothing.
    pub const fn new(side: Side) -> Self {
        Self {
            side,
            at: 0,
            last: (0, false),
            messages: Vec::new(),
            part: None,
            tail: Tail::Nothing,
        }
    }

    /// Where the message begins that is not whole.
    pub const fn at(&self) -> usize {
        self.at
    }

    /// Reads on. `all` is all that was ever sent, `is_end` that no more comes. Of an answer
    /// `bodiless` says by its number whether it is one to `HEAD`; none where that is not known.
    pub fn read(&mut self, all: &[u8], is_end: bool, bodiless: impl Fn(usize) -> Option<bool>) {
        if std::mem::replace(&mut self.last, (all.len(), is_end)) == (all.len(), is_end) {
            return;
        }
        while !matches!(self.tail, Tail::Unknown | Tail::Tunnel | Tail::Unjudged) {
            let rest = all.get(self.at..).unwrap_or_default();
            if rest.is_empty() {
                self.part = None;
                self.tail = Tail::Nothing;
                return;
            }
            let Some(end) = find(rest, b"\r\n\r\n") else {
                self.part = None;
                self.tail = self.of_part(rest);
                return;
            };
            let head = rest.get(..end + 4).unwrap_or_default();
            let Some(mut message) = head_of(head) else {
                self.tail = Tail::Unknown;
                return;
            };
            let Some(is_bodiless) = bodiless(self.finals()) else {
                self.part = None;
                self.tail = Tail::Unjudged;
                return;
            };
            let Some(used) = self.body(&mut message, rest.get(end + 4..), is_end, is_bodiless)
            else {
                self.tail = Tail::Unknown;
                return;
            };
            if !message.is_whole {
                self.part = Some(message);
                self.tail = Tail::Body;
                return;
            }
            self.at += end + 4 + used;
            self.part = None;
            let switches = self.side == Side::Answers && message.status() == 101;
            self.messages.push(message);
            if switches {
                self.tail = Tail::Tunnel;
            }
        }
    }

    /// What follows so many messages is none.
    pub fn become_tunnel(&mut self, behind: usize) {
        self.messages.truncate(behind);
        self.part = None;
        self.tail = Tail::Tunnel;
    }

    /// How many messages are whole, interim answers left out.
    pub fn finals(&self) -> usize {
        self.messages
            .iter()
            .filter(|each| self.is_final(each))
            .count()
    }

    /// Whether it is no interim answer.
    pub fn is_final(&self, message: &Message) -> bool {
        self.side == Side::Requests || message.status() >= 200 || message.status() == 101
    }

    /// Whether what is there of a head may become one.
    fn of_part(&self, rest: &[u8]) -> Tail {
        let bare = rest.iter().enumerate().any(|(at, byte)| {
            *byte == b'\n' && at.checked_sub(1).and_then(|at| rest.get(at)) != Some(&b'\r')
        });
        let first = rest.first().copied().unwrap_or(b'A');
        if bare || !first.is_ascii_uppercase() {
            return Tail::Unknown;
        }
        Tail::Head
    }

    /// Reads the body that the head announces; how long it is with its framing. None: unknown.
    fn body(
        &self,
        message: &mut Message,
        rest: Option<&[u8]>,
        is_end: bool,
        bodiless: bool,
    ) -> Option<usize> {
        let rest = rest.unwrap_or_default();
        let of = |name: &'static str| message.fields.iter().filter(move |(each, _)| each == name);
        let (lengths, codings) = (
            of("content-length").count(),
            of("transfer-encoding").count(),
        );
        if lengths > 1 || codings > 1 || lengths + codings > 1 {
            return None;
        }
        let status = message.status();
        let is_answer = self.side == Side::Answers;
        if is_answer && (bodiless || status < 200 || status == 204 || status == 304) {
            message.is_whole = true;
            return Some(0);
        }
        if codings == 1 {
            if message.field("transfer-encoding") != Some("chunked")
                || message.first.iter().any(|word| word == "HTTP/1.0")
            {
                return None;
            }
            return chunks(message, rest);
        }
        if lengths == 1 {
            let length: usize = message.field("content-length")?.parse().ok()?;
            let there = rest.get(..length.min(rest.len()))?;
            message.body = there.to_vec();
            message.is_whole = there.len() == length;
            return Some(there.len());
        }
        if is_answer {
            message.body = rest.to_vec();
            message.is_whole = is_end;
            message.until_close = true;
            return Some(rest.len());
        }
        message.is_whole = true;
        Some(0)
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    memchr::memmem::find(bytes, what)
}

fn head_of(head: &[u8]) -> Option<Message> {
    let text = std::str::from_utf8(head).ok()?.strip_suffix("\r\n\r\n")?;
    if text.len() > 16_000
        || text
            .bytes()
            .any(|byte| !matches!(byte, b'\r' | b'\n' | 32..127))
    {
        return None;
    }
    let mut lines = text.split("\r\n");
    let first = lines.next().filter(|line| !line.contains(['\r', '\n']))?;
    let first: Vec<_> = first.splitn(3, ' ').map(str::to_owned).collect();
    let mut message = Message {
        first: first.try_into().ok()?,
        ..Message::default()
    };
    if message.first.iter().any(String::is_empty) {
        return None;
    }
    for line in lines {
        let (name, value) = line.split_once(':')?;
        let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        if name.is_empty() || !name.bytes().all(is_token) || line.contains(['\r', '\n']) {
            return None;
        }
        let value = value.trim_matches(' ').to_owned();
        message.fields.push((name.to_ascii_lowercase(), value));
    }
    Some(message)
}

/// Reads chunks; how long they are with their framing. None: unknown.
fn chunks(message: &mut Message, rest: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        let line = rest.get(at..)?;
        let Some(end) = find(line, b"\r\n") else {
            return (line.len() < 20).then_some(at);
        };
        let digits = std::str::from_utf8(line.get(..end)?).ok()?;
        let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !is_hex || digits.len() > 8 {
            return None;
        }
        let size = usize::from_str_radix(digits, 16).ok()?;
        at += end + 2;
        if size == 0 {
            return trailers(message, rest, at);
        }
        let there = rest.get(at..)?;
        message
            .body
            .extend_from_slice(there.get(..size.min(there.len()))?);
        let Some(behind) = there.get(size..size + 2) else {
            return Some(at);
        };
        if behind != b"\r\n" {
            return None;
        }
        at += size + 2;
    }
}

fn trailers(message: &mut Message, rest: &[u8], at: usize) -> Option<usize> {
    let behind = rest.get(at..)?;
    if behind.starts_with(b"\r\n") {
        message.is_whole = true;
        return Some(at + 2);
    }
    let Some(end) = find(behind, b"\r\n\r\n") else {
        return (behind.len() < 200).then_some(at);
    };
    // A head without its first line.
    let fields = [b"a b c\r\n", behind.get(..end + 4)?].concat();
    head_of(&fields)?;
    message.is_whole = true;
    Some(at + end + 4)
}
