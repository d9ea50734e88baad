//! All data in the engine is sealed with the fleet key (FLEET-25): the engine's owner can neither
//! read events nor forge, change or move them.
//!
//! Each text has a key of its own, by HKDF-SHA256 from the fleet key, a random salt of 128 bits,
//! and the identity of the text: its fleet, kind, origin and number. The number alone must not be
//! the nonce: after a failover that lost writes, the same number is sealed again with other events.

use std::fs::File;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Salt};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};

use weir_shared::fleet::ValueHash;

use super::event::Rejected;

/// The form of a sealed text.
const FORM: u8 = 1;
const SALT: usize = 16;
const TAG: usize = 16;
/// What sealing adds to a text.
pub const OVERHEAD: usize = 1 + SALT + TAG;

/// The longest key file, in bytes.
const MAX_FILE: u64 = 4096;
/// The allowed length of a key, in characters.
const KEY_LENGTH: std::ops::RangeInclusive<usize> = 32..=1024;
/// The widest mode of the key file: its owner and its group may read it.
const WIDEST_MODE: u32 = 0o640;

/// A random number that cannot be guessed.
pub(super) fn random() -> Option<u128> {
    let mut bytes = [0; 16];
    SystemRandom::new().fill(&mut bytes).ok()?;
    Some(u128::from_le_bytes(bytes))
}

/// The kind of a sealed text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A batch of the log.
    Log,
    /// A chunk of the snapshot.
    Snapshot,
    /// A beat of an instance.
    Beat,
    /// A claim of an alert.
    Claim,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Log => "log",
            Self::Snapshot => "snapshot",
            Self::Beat => "beat",
            Self::Claim => "claim",
        }
    }
}

/// The keys of a fleet: the first seals, all of them open.
#[derive(Clone)]
pub struct FleetKey {
    fleet: String,
    keys: Vec<Vec<u8>>,
    random: SystemRandom,
}

/// The same fleet and the same keys.
impl PartialEq for FleetKey {
    fn eq(&self, other: &Self) -> bool {
        (&self.fleet, &self.keys) == (&other.fleet, &other.keys)
    }
}

impl std::fmt::Debug for FleetKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FleetKey(…)")
    }
}

impl FleetKey {
    /// Reads a key file: one key a line, at most two.
    ///
    /// # Errors
    /// One sentence with the file, and what is allowed.
    pub fn read(fleet: &str, path: &Path) -> Result<Self, String> {
        let wrong = |what: &dyn std::fmt::Display| format!("{}: {what}", path.display());
        let mode = mode(path).map_err(|error| wrong(&error))?;
        if mode & !WIDEST_MODE & 0o777 != 0 {
            return Err(wrong(&format_args!(
                "others may read the fleet key (mode {mode:04o}): expected {WIDEST_MODE:04o} or less"
            )));
        }
        let bytes = crate::guarded::read(path, MAX_FILE).map_err(|error| wrong(&error))?;
        Self::parse(fleet, &bytes).map_err(|what| wrong(&what))
    }

    /// The keys in this text.
    ///
    /// # Errors
    /// What is wrong with it, and what is expected.
    pub fn parse(fleet: &str, text: &[u8]) -> Result<Self, String> {
        let keys: Vec<Vec<u8>> = text
            .split(|byte| *byte == b'\n')
            .map(<[u8]>::trim_ascii)
            .filter(|line| !line.is_empty())
            .map(<[u8]>::to_vec)
            .collect();
        let fits =
            |key: &Vec<u8>| KEY_LENGTH.contains(&key.len()) && key.iter().all(u8::is_ascii_graphic);
        if !(1..=2).contains(&keys.len()) || !keys.iter().all(fits) {
            return Err(format!(
                "is no fleet key: expected one key a line, at most two, each of {} to {} visible characters",
                KEY_LENGTH.start(),
                KEY_LENGTH.end()
            ));
        }
        Ok(Self {
            fleet: fleet.to_owned(),
            keys,
            random: SystemRandom::new(),
        })
    }

    /// Seals a text. None if the system has no random numbers.
    pub fn seal(&self, kind: Kind, origin: &str, number: u64, text: &[u8]) -> Option<Vec<u8>> {
        let mut salt = [0; SALT];
        self.random.fill(&mut salt).ok()?;
        let said = self.said(kind, origin, number);
        let key = derived(self.keys.first()?, &salt, &said)?;
        let mut sealed = Vec::with_capacity(text.len() + OVERHEAD);
        sealed.extend_from_slice(text);
        let nonce = Nonce::assume_unique_for_key([0; 12]);
        key.seal_in_place_append_tag(nonce, Aad::from(&said), &mut sealed)
            .ok()?;
        let head = [FORM].into_iter().chain(salt);
        Some(head.chain(sealed).collect())
    }

    /// Opens a text that was sealed with this kind, origin and number.
    ///
    /// # Errors
    /// [`Rejected::Seal`]
    pub fn open(
        &self,
        kind: Kind,
        origin: &str,
        number: u64,
        sealed: &[u8],
    ) -> Result<Vec<u8>, Rejected> {
        let opened = || {
            let (form, rest) = sealed.split_first()?;
            let (salt, text) = rest.split_at_checked(SALT)?;
            if *form != FORM {
                return None;
            }
            let said = self.said(kind, origin, number);
            self.keys.iter().find_map(|key| {
                let key = derived(key, salt, &said)?;
                let nonce = Nonce::assume_unique_for_key([0; 12]);
                let mut text = text.to_vec();
                let length = key
                    .open_in_place(nonce, Aad::from(&said), &mut text)
                    .ok()?
                    .len();
                text.truncate(length);
                Some(text)
            })
        };
        opened().ok_or(Rejected::Seal)
    }

    /// The name of a count in the engine: 96 bits of an HMAC, which reveals nothing about the
    /// client. While the key is being changed, instances with different first keys use different
    /// names.
    pub fn name(&self, what: &str) -> [u8; 12] {
        let key = self.keys.first().map_or(&[][..], Vec::as_slice);
        let key = hmac::Key::new(hmac::HMAC_SHA256, key);
        let said = format!("weir fleet {FORM}\n{}\ncount\n{what}", self.fleet);
        let tag = hmac::sign(&key, said.as_bytes());
        let mut name = [0; 12];
        for (to, from) in name.iter_mut().zip(tag.as_ref()) {
            *to = *from;
        }
        name
    }

    /// Hashes of the field values by which a limit counts: 64 bits of an HMAC.
    pub fn values(&self) -> ValueHash {
        let key = self.keys.first().map_or(&[][..], Vec::as_slice);
        let key = hmac::Key::new(hmac::HMAC_SHA256, key);
        let said = format!("weir fleet {FORM}\n{}\nvalue\n", self.fleet);
        Box::new(move |value| {
            let mut context = hmac::Context::with_key(&key);
            context.update(said.as_bytes());
            context.update(value);
            let tag = context.sign();
            let first = tag.as_ref().first_chunk().copied();
            first.map_or(0, u64::from_be_bytes)
        })
    }

    /// The identity of a text, encoded without ambiguity.
    fn said(&self, kind: Kind, origin: &str, number: u64) -> Vec<u8> {
        format!(
            "weir fleet {FORM}\n{}\n{}\n{origin}\n{number}",
            self.fleet,
            kind.name()
        )
        .into_bytes()
    }
}

fn mode(path: &Path) -> io::Result<u32> {
    let file: File = crate::guarded::open(path)?;
    Ok(file.metadata()?.permissions().mode())
}

fn derived(key: &[u8], salt: &[u8], said: &[u8]) -> Option<LessSafeKey> {
    let extracted = Salt::new(HKDF_SHA256, salt).extract(key);
    let info = [said];
    let expanded = extracted.expand(&info, &CHACHA20_POLY1305).ok()?;
    Some(LessSafeKey::new(UnboundKey::from(expanded)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "0123456789abcdef0123456789abcdef";
    const NEW: &str = "fedcba9876543210fedcba9876543210";

    fn key(text: &str) -> FleetKey {
        FleetKey::parse("weir", text.as_bytes()).unwrap()
    }

    /// FLEET-4: a value has one number at all instances, and another in another fleet or with
    /// another key; neither is its number the name of a count.
    #[test]
    fn a_value_has_one_number_in_a_fleet() {
        let [one, other] = [OLD, OLD].map(|text| key(text).values());
        assert_eq!(one(b"secret"), other(b"secret"));
        assert_ne!(one(b"secret"), one(b"secre"));
        assert_ne!(one(b"secret"), key(NEW).values()(b"secret"));
        let elsewhere = FleetKey::parse("other", OLD.as_bytes()).unwrap();
        assert_ne!(one(b"secret"), elsewhere.values()(b"secret"));
        assert!(
            !key(OLD)
                .name("secret")
                .starts_with(&one(b"secret").to_be_bytes())
        );
    }

    /// FLEET-25: sealed data opens only as its own kind; with a changed bit, a missing piece,
    /// another place, fleet, or key it does not open. No two seals are equal.
    #[test]
    fn what_is_sealed_opens_only_as_what_it_is() {
        let ours = key(OLD);
        let sealed = ours.seal(Kind::Log, "edge-1@7", 3, b"a ban").unwrap();
        assert_eq!(sealed.len(), 5 + OVERHEAD);
        assert_eq!(
            ours.open(Kind::Log, "edge-1@7", 3, &sealed).unwrap(),
            b"a ban"
        );
        assert_ne!(
            sealed,
            ours.seal(Kind::Log, "edge-1@7", 3, b"a ban").unwrap()
        );
        assert!(ours.open(Kind::Log, "edge-1@7", 4, &sealed).is_err());
        assert!(ours.open(Kind::Log, "edge-2@7", 3, &sealed).is_err());
        assert!(ours.open(Kind::Beat, "edge-1@7", 3, &sealed).is_err());
        assert!(key(NEW).open(Kind::Log, "edge-1@7", 3, &sealed).is_err());
        let other = FleetKey::parse("other", OLD.as_bytes()).unwrap();
        assert!(other.open(Kind::Log, "edge-1@7", 3, &sealed).is_err());
        for place in 0..sealed.len() {
            let mut forged = sealed.clone();
            forged[place] ^= 1;
            assert!(
                ours.open(Kind::Log, "edge-1@7", 3, &forged).is_err(),
                "byte {place}"
            );
            assert!(
                ours.open(Kind::Log, "edge-1@7", 3, &sealed[..place])
                    .is_err()
            );
        }
        assert!(!sealed.windows(5).any(|window| window == b"a ban"));
    }

    /// FLEET-25: during a change of the key the first key seals, and both keys open.
    #[test]
    fn two_keys_during_a_change() {
        let (before, during) = (key(OLD), key(&format!("{NEW}\n{OLD}\n")));
        let old = before.seal(Kind::Log, "a@1", 1, b"old").unwrap();
        let new = during.seal(Kind::Log, "a@1", 2, b"new").unwrap();
        assert_eq!(during.open(Kind::Log, "a@1", 1, &old).unwrap(), b"old");
        assert_eq!(key(NEW).open(Kind::Log, "a@1", 2, &new).unwrap(), b"new");
        assert!(before.open(Kind::Log, "a@1", 2, &new).is_err());
    }

    /// FLEET-3: a key that is too short, too many keys, or a file that others may read is a fault
    /// with its place.
    #[test]
    fn a_key_file_that_does_not_fit_is_a_fault() {
        let short = "x".repeat(31);
        for wrong in [
            "",
            "\n",
            &short,
            &format!("{OLD}\n{NEW}\n{OLD}"),
            "0123456789 bcdef0123456789abcdef",
        ] {
            let fault = FleetKey::parse("weir", wrong.as_bytes()).unwrap_err();
            assert!(fault.contains("32 to 1024 visible characters"), "{fault}");
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        std::fs::write(&path, OLD).unwrap();
        let set = |mode| std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        set(0o644);
        let fault = FleetKey::read("weir", &path).unwrap_err();
        assert!(fault.contains("0640") && fault.contains("key"), "{fault}");
        set(0o640);
        assert!(FleetKey::read("weir", &path).is_ok());
        assert!(FleetKey::read("weir", &dir.path().join("none")).is_err());
    }
}
