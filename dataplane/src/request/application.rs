//! What the application says of a client in a field of its answer (APP): words, separated by
//! commas. Reading them is pure; what a worker does about them is in `relay/mod.rs`.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::{HeaderMap, HeaderName};
use weir_shared::escalation::AskedBan;
use weir_shared::totals::ApplicationWord;
use weir_shared::units::parse_duration;

use crate::message::fields::Stripped;

/// A longer field is not understood (APP-5).
const MAX_FIELD: usize = 256;
/// The longest name of a jail.
const MAX_NAME: usize = 32;
/// The longest trust (APP-4).
const MAX_TRUST: Duration = Duration::from_secs(24 * 3600);
/// The longest ban, as in settings.
const MAX_BAN: Duration = Duration::from_secs(36_500 * 86_400);
/// Bans of the application in a second, over all workers (APP-3).
const MAX_BANS: u64 = 16;

/// `WAF_APPLICATION_FIELD`, as answers are compared with it.
#[derive(Clone, Debug)]
pub struct ApplicationField {
    /// Its name.
    pub name: HeaderName,
    /// The same as trailers may spell it.
    pub withheld: Stripped,
}

impl ApplicationField {
    /// The field of this name.
    pub fn new(name: &HeaderName) -> Self {
        Self {
            name: name.clone(),
            withheld: Stripped::new([name]),
        }
    }

    /// Takes the field out of the head of an answer, and reads it; none where it says nothing.
    ///
    /// # Errors
    /// [`Misunderstood`]
    pub fn take_from(&self, headers: &mut HeaderMap) -> Result<Option<Said>, Misunderstood> {
        if !headers.contains_key(&self.name) {
            return Ok(None);
        }
        let lines = headers.get_all(&self.name).into_iter();
        let said = read(lines.map(|value| value.as_bytes()));
        headers.remove(&self.name);
        said
    }
}

/// A field that was understood.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Said {
    /// As it was written, its lines behind each other.
    text: String,
    /// The ban that it wants.
    pub ban: Option<AskedBan>,
    /// The longest trust.
    pub trust: Option<Duration>,
}

impl Said {
    /// The field.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Tells each word, for the metrics.
    pub fn each_word(&self, mut tell: impl FnMut(ApplicationWord)) {
        for word in words(&self.text) {
            match Word::of(word) {
                Some(Word::Count) => tell(ApplicationWord::Count),
                Some(Word::Ban(_)) => tell(ApplicationWord::Ban),
                Some(Word::Trust(_)) => tell(ApplicationWord::Trust),
                None => {}
            }
        }
    }

    /// The jails that are to count the answer.
    pub fn counts(&self) -> impl Iterator<Item = &str> + Clone {
        words(&self.text).filter_map(|word| word.strip_prefix("count="))
    }
}

/// Why a field is ignored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Misunderstood {
    /// It is longer than 256 bytes.
    TooLong,
    /// It is no ASCII text.
    NoText,
    /// This is none of the words.
    Word(String),
    /// There is no jail of this name.
    NoJail(String),
}

impl fmt::Display for Misunderstood {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong => write!(f, "it is longer than {MAX_FIELD} bytes"),
            Self::NoText => f.write_str("it has other bytes than ASCII"),
            Self::Word(word) => write!(
                f,
                "{word:?} is none of count=NAME, ban, ban=DURATION and trust=DURATION (up to 24h)"
            ),
            Self::NoJail(name) => write!(f, "there is no jail {name:?}"),
        }
    }
}

/// Reads the lines of a field; none where there is no word in them.
///
/// # Errors
/// [`Misunderstood`]: then all of it is ignored.
pub fn read<'a>(lines: impl Iterator<Item = &'a [u8]>) -> Result<Option<Said>, Misunderstood> {
    let mut text = String::new();
    for (number, line) in lines.enumerate() {
        let separator = if number == 0 { "" } else { "," };
        if text.len() + separator.len() + line.len() > MAX_FIELD {
            return Err(Misunderstood::TooLong);
        }
        let line = std::str::from_utf8(line)
            .ok()
            .filter(|line| line.is_ascii());
        text.push_str(separator);
        text.push_str(line.ok_or(Misunderstood::NoText)?);
    }
    let (mut says_something, mut ban, mut trust) = (false, None::<AskedBan>, None);
    for word in words(&text) {
        let read = Word::of(word).ok_or_else(|| Misunderstood::Word(word.to_owned()))?;
        says_something = true;
        match read {
            Word::Count => {}
            Word::Ban(duration) => {
                let before = ban.unwrap_or(AskedBan {
                    plain: false,
                    duration: None,
                });
                ban = Some(AskedBan {
                    plain: before.plain || duration.is_none(),
                    duration: before.duration.max(duration),
                });
            }
            Word::Trust(duration) => trust = trust.max(Some(duration)),
        }
    }
    Ok(says_something.then_some(Said { text, ban, trust }))
}

/// The words between the commas; empty ones are none (RFC 9110 §5.6.1).
fn words(text: &str) -> impl Iterator<Item = &str> + Clone {
    let words = text.split(',').map(|word| word.trim_matches([' ', '\t']));
    words.filter(|word| !word.is_empty())
}

enum Word {
    Count,
    Ban(Option<Duration>),
    Trust(Duration),
}

impl Word {
    fn of(word: &str) -> Option<Self> {
        match word.split_once('=') {
            None => (word == "ban").then_some(Self::Ban(None)),
            Some(("count", name)) => is_name(name).then_some(Self::Count),
            Some(("ban", text)) => Some(Self::Ban(Some(duration(text, MAX_BAN)?))),
            Some(("trust", text)) => Some(Self::Trust(duration(text, MAX_TRUST)?)),
            Some(_) => None,
        }
    }
}

fn is_name(name: &str) -> bool {
    let is_of_names = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-');
    (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(is_of_names)
}

/// A duration as in settings, without blanks.
fn duration(text: &str, max: Duration) -> Option<Duration> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let duration = parse_duration(text).ok().filter(|_| is_plain)?;
    (!duration.is_zero() && duration <= max).then_some(duration)
}

/// What all workers share of it.
#[derive(Debug, Default)]
pub struct Voice {
    /// The second of the wall clock, and the bans in it. Relaxed, as the others: each stands alone.
    bans: AtomicU64,
    /// The minute in which a field that was not understood was told last.
    told: AtomicU64,
    /// Those that were not told since.
    untold: AtomicU64,
}

impl Voice {
    /// Whether one more ban is within the bound of this second; counts it.
    pub fn may_ban(&self, wall_ms: u64) -> bool {
        let second = (wall_ms / 1000) << 8;
        let next = |held: u64| {
            let made = if held >> 8 << 8 == second {
                held & 0xff
            } else {
                0
            };
            (made < MAX_BANS).then_some(second | (made + 1))
        };
        let order = Ordering::Relaxed;
        self.bans.fetch_update(order, order, next).is_ok()
    }

    /// A field that was not understood: told once a minute, with the number of those before.
    pub fn misunderstood(&self, field: &HeaderName, why: &Misunderstood, wall_ms: u64) {
        if let Some(untold) = self.is_due(wall_ms) {
            tracing::warn!(
                %field, untold,
                "what the application says in its field is ignored: {why}"
            );
        }
    }

    fn is_due(&self, wall_ms: u64) -> Option<u64> {
        let minute = wall_ms / 60_000 + 1;
        if self.told.swap(minute, Ordering::Relaxed) == minute {
            self.untold.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(self.untold.swap(0, Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read_one(text: &str) -> Result<Option<Said>, Misunderstood> {
        read([text.as_bytes()].into_iter())
    }

    fn hours(hours: u64) -> Duration {
        Duration::from_secs(3600 * hours)
    }

    /// APP-1: several words, the longest of several bans and trusts.
    #[test]
    fn words_are_read() {
        let said = read_one("count=login,  trust=1h ,,count=a-b_0")
            .unwrap()
            .unwrap();
        assert!(said.counts().eq(["login", "a-b_0"]));
        assert_eq!((said.ban, said.trust), (None, Some(hours(1))));
        let said = read_one("ban=1h,ban,trust=1m,ban=90m,trust=24h,trust=1s")
            .unwrap()
            .unwrap();
        let ban = AskedBan {
            plain: true,
            duration: Some(Duration::from_secs(5400)),
        };
        assert_eq!((said.ban, said.trust), (Some(ban), Some(hours(24))));
        let lines = [b"ban".as_slice(), b"count=x"];
        let said = read(lines.into_iter()).unwrap().unwrap();
        assert_eq!(said.text(), "ban,count=x");
        assert!(said.counts().eq(["x"]));
        for nothing in ["", " ", ",", " ,\t, "] {
            assert_eq!(read_one(nothing), Ok(None), "{nothing:?}");
        }
        assert_eq!(read(std::iter::empty()), Ok(None));
    }

    /// APP-1, APP-5: one word that is not understood, and nothing is; no more than 256 bytes.
    #[test]
    fn one_wrong_word_spoils_all() {
        for wrong in [
            "Ban",
            "ban=",
            "ban=0s",
            "ban=1",
            "ban= 1h",
            "ban=1h x",
            "ban=permanent",
            "count",
            "count=",
            "count=A",
            "count=a b",
            "count=a=b",
            "trust",
            "trust=",
            "trust=0ms",
            "trust=24h1ms",
            "trust=off",
            "=",
            "=ban",
            "ban;x",
            "\"ban\"",
            "ban=36501d",
        ] {
            let text = format!("count=login, {wrong}, trust=1h");
            let found = read_one(&text);
            assert_eq!(found, Err(Misunderstood::Word(wrong.to_owned())), "{text}");
        }
        let name = "x".repeat(33);
        assert!(read_one(&format!("count={name}")).is_err());
        assert!(read_one(&format!("count={}", &name[1..])).is_ok());
        assert_eq!(
            read([b"b\xe4n".as_slice()].into_iter()),
            Err(Misunderstood::NoText)
        );
        let long = format!("ban{}", ",".repeat(253));
        assert!(read_one(&long).is_ok());
        assert_eq!(read_one(&format!("{long},")), Err(Misunderstood::TooLong));
        let lines = [long.as_bytes(), b""];
        assert_eq!(read(lines.into_iter()), Err(Misunderstood::TooLong));
    }

    /// The words, cut out byte by byte, and what they mean; none where one is wrong.
    type Words = (Vec<String>, bool, Vec<u128>, Vec<u128>);

    fn naive(text: &str) -> Option<Words> {
        let mut found = (Vec::new(), false, Vec::new(), Vec::new());
        let mut word = String::new();
        for c in text.chars().chain([',']) {
            if c != ',' {
                word.push(c);
                continue;
            }
            let one = std::mem::take(&mut word);
            let blank = |c: &char| *c == ' ' || *c == '\t';
            let one: String = one.chars().skip_while(blank).collect();
            let end = one.chars().rev().take_while(blank).count();
            let one = &one[..one.len() - end];
            let millis = |text: &str, max: u128| {
                let mut rest = text;
                let mut total = 0u128;
                while !rest.is_empty() {
                    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
                    rest = &rest[digits.len()..];
                    let unit: String = rest.chars().take_while(|c| !c.is_ascii_digit()).collect();
                    rest = &rest[unit.len()..];
                    let units = [
                        ("ms", 1),
                        ("s", 1000),
                        ("m", 60_000),
                        ("h", 3_600_000),
                        ("d", 86_400_000),
                    ];
                    let scale = units.iter().find(|(name, _)| *name == unit)?.1;
                    total += digits.parse::<u64>().ok().map(u128::from)? * scale;
                }
                (1..=max).contains(&total).then_some(total)
            };
            if one.is_empty() {
            } else if one == "ban" {
                found.1 = true;
            } else if let Some(text) = one.strip_prefix("ban=") {
                found.2.push(millis(text, 36_500 * 86_400_000)?);
            } else if let Some(text) = one.strip_prefix("trust=") {
                found.3.push(millis(text, 86_400_000)?);
            } else {
                let name = one.strip_prefix("count=")?;
                let of_names = "abcdefghijklmnopqrstuvwxyz0123456789_-";
                if name.is_empty() || name.len() > 32 || !name.chars().all(|c| of_names.contains(c))
                {
                    return None;
                }
                found.0.push(name.to_owned());
            }
        }
        Some(found)
    }

    proptest! {
        /// APP-1: whatever is written is read as its words, cut out one by one, are.
        #[test]
        fn read_as_word_by_word(
            parts in prop::collection::vec(
                prop_oneof![
                    Just("ban".to_owned()),
                    Just("count=".to_owned()),
                    "(ban|trust)=[0-9]{1,3}(ms|s|m|h|d)",
                    "count=[a-z0-9_-]{1,33}",
                    Just("trust=24h".to_owned()),
                    "[ \tbancoutrs=0-9hmd]{0,6}",
                ],
                0..8,
            ),
            separator in "[ \t]?,[ \t]?",
        ) {
            let text = parts.join(&separator);
            prop_assume!(text.len() <= MAX_FIELD);
            let said = read_one(&text).ok();
            match naive(&text) {
                None => prop_assert_eq!(said, None),
                Some((counts, plain, bans, trusts)) => {
                    let says = plain || !(counts.is_empty() && bans.is_empty() && trusts.is_empty());
                    let said = said.unwrap();
                    prop_assert_eq!(said.is_some(), says);
                    let Some(said) = said else { return Ok(()) };
                    prop_assert!(said.counts().eq(counts));
                    prop_assert_eq!(said.trust.map(|trust| trust.as_millis()), trusts.into_iter().max());
                    let ban = said.ban;
                    prop_assert_eq!(ban.is_some(), plain || !bans.is_empty());
                    prop_assert_eq!(ban.is_some_and(|ban| ban.plain), plain);
                    let longest = ban.and_then(|ban| ban.duration).map(|longest| longest.as_millis());
                    prop_assert_eq!(longest, bans.into_iter().max());
                }
            }
        }
    }

    /// APP-3: 16 bans in a second, and 16 in the next; a clock that is set back begins anew.
    #[test]
    fn bans_are_bounded() {
        let voice = Voice::default();
        let made = |wall_ms| (0..100).filter(|_| voice.may_ban(wall_ms)).count();
        assert_eq!(
            [made(5_000), made(5_999), made(6_000), made(5_500)],
            [16, 0, 16, 16]
        );
    }

    /// APP-5: told once a minute, with the number of those that were not.
    #[test]
    fn told_once_a_minute() {
        let voice = Voice::default();
        let told = [0, 1, 59_999, 60_000, 60_001].map(|at| voice.is_due(at));
        assert_eq!(told, [Some(0), None, None, Some(2), None]);
    }
}
