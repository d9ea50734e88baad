//! Events of somebody who has the key and lies: whatever they are, they are taken in or counted,
//! and those who take in the same are alike (FLEET-24).

use serde_json::{Value, json};

use super::random::Random;
use super::{World, client};
use crate::bans::Subject;
use crate::fleet::core::Core;
use crate::fleet::event::{self, MAX_BATCH, Rejected};
use crate::fleet::replica::{Item, Replica};
use crate::fleet::stamp::Origin;

fn events(replica: &Replica) -> Vec<(Item, Value)> {
    (replica.items())
        .filter_map(|item| {
            let event = replica.event(&item)?;
            Some((item, serde_json::to_value(&event).unwrap()))
        })
        .collect()
}

/// Changes one value somewhere in it.
fn lie(value: &mut Value, random: &mut Random) {
    let strange = [
        json!(null),
        json!(0),
        json!(-1),
        json!(u64::MAX),
        json!(281_474_976_710_655_u64),
        json!(1.5e300),
        json!(""),
        json!("permanent"),
        json!("9999-12-31T23:59:59Z"),
        json!("1970-01-01T00:00:00Z"),
        json!("0.0.0.0/0"),
        json!("::/0"),
        json!("x".repeat(5000)),
        json!([]),
        json!({}),
        json!(true),
    ];
    let replace = random.one_in(3);
    match value {
        Value::Object(members) if !replace && !members.is_empty() => {
            let place = random.below(members.len());
            if random.one_in(8) {
                let name = members.keys().nth(place).unwrap().clone();
                members.remove(&name);
            } else {
                lie(members.values_mut().nth(place).unwrap(), random);
            }
        }
        Value::Array(parts) if !replace && !parts.is_empty() => {
            let place = random.below(parts.len());
            lie(&mut parts[place], random);
        }
        other => *other = random.of(&strange).clone(),
    }
}

/// FLEET-24: events in which one value or more is another are taken in or counted, none of them
/// ends the thread, and in whatever order two take them in, they are alike.
#[test]
fn lies_are_taken_in_or_counted() {
    let (mut taken, mut rejected) = (0, 0);
    for seed in 0..300 {
        let mut world = World::new(seed, false);
        for _ in 0..40 {
            world.step();
        }
        let now = world.now + 100_000;
        let told = events(world.instances[0].core.replica());
        let mut random = Random::new(seed);
        let mut lies: Vec<Vec<u8>> = Vec::new();
        for (_, value) in &told {
            for _ in 0..3 {
                let mut value = value.clone();
                for _ in 0..=random.below(3) {
                    lie(&mut value, &mut random);
                }
                lies.push(serde_json::to_vec(&[&value]).unwrap());
            }
        }
        let mut cores = ["a", "b"].map(|name| Core::new(Origin::new(name, 1).unwrap(), &[]).0);
        for lie in &lies {
            cores[0].take(event::read(lie), now);
        }
        for lie in lies.iter().rev() {
            cores[1].take(event::read(lie), now);
        }
        let [a, b] = &cores;
        assert_eq!(a.counts(), b.counts(), "seed {seed}");
        assert_eq!(events(a.replica()), events(b.replica()), "seed {seed}");
        assert_eq!(a.replica().digest(now), b.replica().digest(now));
        taken += a.counts().received;
        rejected += a.counts().rejected.iter().sum::<u64>();
    }
    println!("{taken} lies taken in as what they say, {rejected} counted");
    assert!(taken > 0 && rejected > 0);
}

/// FLEET-24: bytes that are no batch, or too many, are counted by their reason; one event that is
/// none keeps nothing else of its batch out.
#[test]
fn what_is_no_batch_is_counted() {
    for (bytes, reason) in [
        (&b""[..], Rejected::Schema),
        (b"{}", Rejected::Schema),
        (b"[1", Rejected::Schema),
        (b"\xff", Rejected::Schema),
        (&[b'['; 5000], Rejected::Schema),
        (&[b' '; MAX_BATCH + 1], Rejected::Size),
    ] {
        assert_eq!(event::read(bytes).unwrap_err(), reason);
    }
    let many = format!("[{}1]", "1,".repeat(256));
    assert_eq!(event::read(many.as_bytes()).unwrap_err(), Rejected::Size);
    let (mut core, _) = Core::new(Origin::new("a", 1).unwrap(), &[]);
    let mut other = Core::new(Origin::new("b", 1).unwrap(), &[]).0;
    other.lift(Subject::Client(client(1)), 1_000_000);
    let lift = &events(other.replica())[0].1;
    let batch = format!(r#"[{{"colour":1}},{lift},7]"#);
    core.take(event::read(batch.as_bytes()), 1_000_000);
    assert_eq!((core.counts().received, core.replica().len()), (1, 1));
    assert_eq!(core.counts().rejected.iter().sum::<u64>(), 2);
    // A stamp that lies too far ahead, and would hold for ever.
    core.take(event::read(format!("[{lift}]").as_bytes()), 900_000);
    assert_eq!(core.counts().rejected.iter().sum::<u64>(), 3);
}
