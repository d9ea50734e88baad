//! `keygen`, `pubkey`, `key-id`, `sign` and `verify`.

use std::{
    fs::{self, OpenOptions},
    io::Write,
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use serde_json::{Value, json};
use weir_schema::{
    Catalog, Family,
    pubkey::Announced,
    replay::{self, MemoryStore},
    signature::{self, PublicKey, SecretKey, Verified},
    strict,
};

use crate::{
    failure::Failure,
    lines::{for_each_line, whole},
    report::Reporter,
};

/// How many messages `verify --fresh` remembers.
const REMEMBERED: usize = 1_000_000;

/// Prints a new key, or writes it to `file` and prints its public half.
pub(crate) fn keygen(file: Option<&Path>, out: &mut impl Write) -> Result<(), Failure> {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed).map_err(|error| Failure::Random(error.to_string()))?;
    let key = SecretKey::from_seed(&seed);
    let Some(path) = file else {
        return Ok(writeln!(out, "{}", key.to_jwk())?);
    };
    let mut options = OpenOptions::new();
    options.write(true).create_new(true); // a key that is there may be the only one
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
        .open(path)
        .and_then(|mut file| {
            writeln!(file, "{}", key.to_jwk())?;
            file.sync_all()
        })
        .map_err(|error| Failure::File(path.to_owned(), error))?;
    Ok(writeln!(out, "{}", key.public().to_jwk())?)
}

/// Prints the public half of the key in `path`.
pub(crate) fn public_of(path: &Path, out: &mut impl Write) -> Result<(), Failure> {
    let key = PublicKey::from_jwk(&read_json(path)?).map_err(|error| Failure::key(path, error))?;
    Ok(writeln!(out, "{}", key.to_jwk())?)
}

/// Prints the PUBKEY message of the key in `path`.
pub(crate) fn pubkey(
    path: &Path,
    not_after: Option<String>,
    replaces: Option<String>,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let key = PublicKey::from_jwk(&read_json(path)?).map_err(|error| Failure::key(path, error))?;
    let announced = Announced {
        key,
        not_after,
        replaces,
    };
    let message = json!({ "command": "PUBKEY", "body": announced.to_body() });
    if let Err(violations) = Catalog::new()?.validate(Family::C2s, &message) {
        let first = violations.first().map(ToString::to_string);
        return Err(Failure::Pubkey(first.unwrap_or_default()));
    }
    Announced::from_message(&message).map_err(|error| Failure::Pubkey(error.to_string()))?;
    Ok(writeln!(out, "{message}")?)
}

/// Prints the key id of what `file` holds.
pub(crate) fn key_id(file: Option<&Path>, out: &mut impl Write) -> Result<(), Failure> {
    let text = whole(file)?;
    let announced = strict::parse(&text)
        .map_err(|error| error.to_string())
        .and_then(|value| announced(&value));
    let announced = announced.map_err(|error| match file {
        Some(path) if path != Path::new("-") => Failure::key(path, error),
        _ => Failure::KeyInput(error),
    })?;
    Ok(writeln!(out, "{}", announced.key.kid())?)
}

/// Prints each line of `file`, a message, signed with the key in `key`.
pub(crate) fn sign<W: Write>(
    key: &Path,
    file: Option<&Path>,
    reports: &mut Reporter<'_, W>,
) -> Result<(), Failure> {
    let key = SecretKey::from_jwk(&read_json(key)?).map_err(|error| Failure::key(key, error))?;
    for_each_line(file, |number, text| match strict::parse(text) {
        Err(error) => reports.unreadable(number, &error),
        Ok(message) => match key.sign(&message) {
            Ok(message) => Ok(writeln!(reports.out, "{message}")?),
            Err(error) => reports.error(number, &error.to_string()),
        },
    })
}

/// Verifies each line of `file` with the trusted keys in `keys`.
pub(crate) fn verify<W: Write>(
    keys: &[impl AsRef<Path>],
    from: Option<&str>,
    fresh: bool,
    file: Option<&Path>,
    reports: &mut Reporter<'_, W>,
) -> Result<(), Failure> {
    let mut trusted = Vec::<Announced>::with_capacity(keys.len());
    for path in keys {
        let path = path.as_ref();
        let known = announced(&read_json(path)?).map_err(|error| Failure::key(path, error))?;
        // One may end before the other, and nothing says which counts.
        if trusted.iter().any(|other| other.key == known.key) {
            return Err(Failure::key(path, "the key is given twice"));
        }
        trusted.push(known);
    }
    let mut store = fresh.then(|| MemoryStore::new(REMEMBERED));
    for_each_line(file, |number, text| match strict::parse(text) {
        Err(error) => reports.unreadable(number, &error),
        Ok(message) => match verified(&message, &trusted, from, store.as_mut()) {
            Ok(verified) => reports.verified(number, &verified),
            Err(error) => reports.error(number, &error),
        },
    })
}

fn verified(
    message: &Value,
    keys: &[Announced],
    from: Option<&str>,
    store: Option<&mut MemoryStore>,
) -> Result<Verified, String> {
    let mut found = None;
    let verified = signature::verify(message, |claim| {
        if from.is_none_or(|from| from == claim.from) {
            found = keys.iter().find(|known| known.key.kid() == claim.kid);
        }
        found.map(|known| &known.key)
    })
    .map_err(|error| error.to_string())?;
    if let Some(known) = found
        && !known.counts_at(&verified.ts)
    {
        let is_time = Announced::from(known.key.clone()).counts_at(&verified.ts);
        return Err(match is_time {
            true => "the key ended before the message was made".to_owned(),
            false => format!("ts is {:?}, which is no time in UTC", verified.ts),
        });
    }
    if let Some(store) = store {
        replay::admit(store, &verified, now()).map_err(|error| error.to_string())?;
    }
    Ok(verified)
}

/// The key of a JWK, a PUBKEY message or its body.
fn announced(value: &Value) -> Result<Announced, String> {
    if value.get("kty").is_some() {
        let key = PublicKey::from_jwk(value).map_err(|error| error.to_string())?;
        return Ok(key.into());
    }
    let announced = if value.get("command").is_some() {
        Announced::from_message(value)
    } else {
        Announced::from_body(value)
    };
    announced.map_err(|error| error.to_string())
}

/// Milliseconds since 1970.
#[expect(clippy::disallowed_methods, reason = "a program is its own edge")]
fn now() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |age| i64::try_from(age.as_millis()).unwrap_or(i64::MAX))
}

fn read_json(path: &Path) -> Result<Value, Failure> {
    let text = fs::read(path).map_err(|error| Failure::File(path.to_owned(), error))?;
    strict::parse(&text).map_err(|error| Failure::key(path, error))
}
