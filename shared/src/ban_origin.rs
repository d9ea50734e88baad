//! The origin of a ban: who decided it, and at which instance of a fleet (FLEET-14).
//!
//! Written as `service`, `admin` or `file`, followed by `@NAME` if another instance made the ban.
//! Words of a later version are kept. The origin is part of a ban's key, so that two instances
//! cannot give two bans the same key.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::sync::{OnceLock, PoisonError, RwLock};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The most names of instances that a process keeps. They are read from files and from other
/// instances, so there is a bound.
const MAX_INSTANCES: usize = 4096;
/// The most bytes of a name.
const MAX_NAME: usize = 64;

/// Who decided a ban.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub enum DecidedBy {
    /// The service, by a limit or a rule. Only such bans may be dropped while active (BAN-5).
    #[default]
    Service,
    /// An administrator, by a request or an import.
    Admin,
    /// A person, by an edit of bans.json.
    File,
    /// A word that this version does not know: it is kept (STATE-11).
    Other(OtherWord),
}

impl DecidedBy {
    const ALL: [Self; 3] = [Self::Service, Self::Admin, Self::File];

    fn name(self) -> &'static str {
        match self {
            Self::Service => "service",
            Self::Admin => "admin",
            Self::File => "file",
            Self::Other(other) => other.name(),
        }
    }
}

/// The name of a cause or of an origin that this version does not know, because a later version
/// wrote it. Each name is stored once in a process, which keeps at most 64 of them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct OtherWord(u8);

static OTHER_WORDS: [OnceLock<Box<str>>; 64] = [const { OnceLock::new() }; 64];

impl OtherWord {
    pub(crate) fn named(name: &str) -> Option<Self> {
        let is_word = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
        if name.is_empty() || name.len() > 64 || !name.bytes().all(is_word) {
            return None;
        }
        // The first place that is free, or that has this name already.
        let place =
            (OTHER_WORDS.iter()).position(|held| &**held.get_or_init(|| name.into()) == name);
        place.and_then(|place| u8::try_from(place).ok()).map(Self)
    }

    pub(crate) fn name(self) -> &'static str {
        let held = OTHER_WORDS.get(usize::from(self.0));
        held.and_then(OnceLock::get).map_or("", |name| name)
    }
}

/// The origin of a ban.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct BanOrigin {
    /// Who decided it.
    pub by: DecidedBy,
    /// The other instance; none for this one.
    pub instance: Option<Instance>,
}

impl BanOrigin {
    /// The first of all in the order of origins, and the last.
    pub const RANGE: (Self, Self) = (
        Self::here(DecidedBy::Service),
        Self {
            by: DecidedBy::Other(OtherWord(u8::MAX)),
            instance: Some(Instance(u16::MAX)),
        },
    );

    /// An origin at this instance.
    pub const fn here(by: DecidedBy) -> Self {
        Self { by, instance: None }
    }

    /// Whether a service made the ban by itself.
    pub const fn is_automatic(self) -> bool {
        matches!(self.by, DecidedBy::Service)
    }
}

impl fmt::Display for BanOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.by.name())?;
        match self.instance {
            Some(instance) => write!(f, "@{}", instance.name()),
            None => Ok(()),
        }
    }
}

impl FromStr for BanOrigin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (by, instance) = match text.split_once('@') {
            Some((by, name)) => (by, Some(Instance::named(name)?)),
            None => (text, None),
        };
        let known = DecidedBy::ALL.into_iter().find(|known| known.name() == by);
        let other = || OtherWord::named(by).map(DecidedBy::Other);
        let by = known.or_else(other).ok_or_else(|| {
            format!(
                "{text:?} is no origin of a ban: expected service, admin or file, and @NAME behind it where another instance made the ban; of others small letters and _, and at most 64 unknown words"
            )
        })?;
        Ok(Self { by, instance })
    }
}

impl Serialize for BanOrigin {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for BanOrigin {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Whether an instance, or a fleet, can have this name.
pub fn is_instance_name(name: &str) -> bool {
    let is_part = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'.' | b'-');
    (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(is_part)
}

/// Another instance, by its name. Each name is stored once in a process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Instance(u16);

/// The stored names.
#[derive(Default)]
struct Names {
    all: Vec<&'static str>,
    places: HashMap<&'static str, u16>,
}

fn names() -> &'static RwLock<Names> {
    static NAMES: OnceLock<RwLock<Names>> = OnceLock::new();
    NAMES.get_or_init(RwLock::default)
}

impl Instance {
    /// The instance of this name.
    ///
    /// # Errors
    /// What is wrong with the name, or that there are too many.
    pub fn named(name: &str) -> Result<Self, String> {
        if !is_instance_name(name) {
            return Err(format!(
                "{name:?} is no name of an instance: expected at most {MAX_NAME} of a-z, 0-9, _, . and -"
            ));
        }
        // Nothing panics while one of the locks is held.
        let read = names().read().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = read.places.get(name) {
            return Ok(Self(*place));
        }
        drop(read);
        let mut names = names().write().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = names.places.get(name) {
            return Ok(Self(*place));
        }
        let place = u16::try_from(names.all.len()).unwrap_or(u16::MAX);
        if names.all.len() >= MAX_INSTANCES {
            return Err(format!(
                "{name:?} is one name of an instance too many: at most {MAX_INSTANCES} are allowed"
            ));
        }
        // Leaked on purpose: keys of bans are copied, and the names are few.
        let name: &'static str = Box::leak(name.into());
        names.all.push(name);
        names.places.insert(name, place);
        Ok(Self(place))
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        let names = names().read().unwrap_or_else(PoisonError::into_inner);
        names.all.get(usize::from(self.0)).copied().unwrap_or("")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// BAN-4, STATE-11: an origin is read as it is written, even an unknown one, which counts as
    /// not made by the service; names are bounded in length and characters.
    #[test]
    fn an_origin_is_read_as_it_is_written() {
        for text in [
            "service",
            "admin",
            "file",
            "admin@edge-1",
            "service@a.b_c",
            "a_vote",
            "a_vote@edge-1",
        ] {
            let origin: BanOrigin = text.parse().unwrap();
            assert_eq!(origin.to_string(), text);
            assert!(origin >= BanOrigin::RANGE.0 && origin <= BanOrigin::RANGE.1);
            assert_eq!(origin.is_automatic(), text.starts_with("service"));
        }
        let long = format!("admin@{}", "a".repeat(65));
        for wrong in [
            "",
            "@a",
            "admin@",
            "admin@A",
            "admin@a@b",
            "Admin",
            "a-b",
            &long,
        ] {
            assert!(wrong.parse::<BanOrigin>().is_err(), "{wrong}");
        }
        let one: BanOrigin = "admin@edge-1".parse().unwrap();
        assert_eq!(one, "admin@edge-1".parse().unwrap());
        assert_ne!(one, "admin@edge-2".parse().unwrap());
    }
}
