//! Full state files: 20,000 clients, those of the script `CLIENTS`, each with a lookup and a
//! counter, and as many bans as are wanted that none of them is under.

use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use weir_shared::units::Time;

/// As many clients, lookups and counters as weir keeps.
const CLIENTS: usize = 20_000;
/// As many bans as it keeps by default.
pub const BANS: usize = 10_000;

/// The names of the files.
pub const FILES: [&str; 4] = ["bans.json", "clients.json", "lookups.json", "alerts.json"];

/// Writes the four files into `directory`, which is made, with so many bans.
pub fn write(directory: &Path, bans: usize) -> Result<()> {
    std::fs::create_dir(directory)?;
    for (name, content) in FILES.iter().zip(contents(now()?, bans)) {
        let text = serde_json::to_string_pretty(&content)?;
        std::fs::write(directory.join(name), text)
            .with_context(|| format!("{name} of the full state cannot be written"))?;
    }
    Ok(())
}

/// The time of the files.
pub fn now() -> Result<Time> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    Ok(Time(u64::try_from(now.as_millis())?))
}

/// Makes a state directory with some of the files of another.
pub fn copy(from: &Path, to: &Path, files: &[&str]) -> Result<()> {
    std::fs::create_dir(to)?;
    for file in files {
        std::fs::copy(from.join(file), to.join(file))
            .with_context(|| format!("{file} of the full state cannot be copied"))?;
    }
    Ok(())
}

/// In the order of [`FILES`].
fn contents(now: Time, bans: usize) -> [Value; 4] {
    let window = |current: u64| json!({"start": now, "current": current, "previous": 2 * current});
    let of_scope = |current| json!({"minute": window(current), "hour": window(10 * current)});
    let of_client = |current| json!({"minute": window(current), "hour": window(10 * current), "day": window(100 * current)});
    let clients = numbered(CLIENTS, |number| {
        json!({"client": client(number), "first_seen": now, "last_seen": now, "lookup": lookup(number),
            "passed": 10, "refused": 0, "requests": of_client(3), "bytes": of_client(3000)})
    });
    let lookups = numbered(CLIENTS, |number| {
        json!({"client": client(number), "answered": now,
            "country": "DE", "asn": asn(number), "as_name": "Example Networks"})
    });
    let counters = numbered(
        CLIENTS,
        |number| json!({"scope": "client", "of": client(number), "requests": of_scope(3), "bytes": of_scope(3000)}),
    );
    let expires = now.plus(Duration::from_secs(86_400));
    let bans = numbered(bans, |number| {
        json!({"netblock": banned(number), "client": banned(number), "ban_started": now, "ban_expires": expires,
            "cause": "rate_limit", "reason": "more than 1000 requests per minute",
            "notes": {"request": {"method": "GET", "host": "example.org", "path": "/a", "user_agent": "x", "request_id": "y"},
                "netblock_requests": 1043, "limit": "minute", "limit_value": 1000, "limit_percent": 100,
                "lookup": lookup(number)}})
    });
    [
        json!({"version": 1, "bans": bans}),
        json!({"version": 1, "clients": clients}),
        json!({"version": 1, "lookups": lookups}),
        json!({"version": 1, "counters": counters, "cooldowns": [], "alerts": []}),
    ]
}

fn numbered(count: usize, entry: impl Fn(usize) -> Value) -> Vec<Value> {
    (0..count).map(entry).collect()
}

/// Address of a client.
pub fn client(number: usize) -> String {
    format!("10.200.{}.{}", number / 256, number % 256)
}

/// Address of a banned client, and its netblock.
pub fn banned(number: usize) -> String {
    let place = number / 256;
    format!("{}.{}.{}.1", 100 + place / 256, place % 256, number % 256)
}

fn lookup(number: usize) -> Value {
    json!({"country": "DE", "asn": asn(number), "as_name": "Example Networks"})
}

fn asn(number: usize) -> String {
    format!("AS{}", 1000 + number % 500)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_are_full_and_no_entry_stands_there_twice() {
        let [bans, clients, lookups, alerts] = contents(Time(1_800_000_000_000), BANS);
        for (file, list, member, count) in [
            (bans, "bans", "netblock", BANS),
            (clients, "clients", "client", CLIENTS),
            (lookups, "lookups", "client", CLIENTS),
            (alerts, "counters", "of", CLIENTS),
        ] {
            let entries = file[list].as_array().unwrap().iter();
            let names: std::collections::HashSet<_> = entries
                .map(|entry| entry[member].as_str().unwrap())
                .collect();
            assert_eq!(names.len(), count, "{list}");
        }
    }
}
