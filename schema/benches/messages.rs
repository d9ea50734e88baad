//! What a message costs, step by step, and what the catalog costs at the start.
//!
//! `cargo bench -p weir-schema`. The message is a signed PRIVMSG of three lines.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a benchmark may fail by panicking"
)]

use std::{hint::black_box, time::Duration};

use criterion::{Criterion, criterion_group, criterion_main};
use serde_json::{Value, json};
use weir_schema::{
    Catalog, Family, canonical,
    replay::{self, MemoryStore},
    signature::{self, SecretKey, Verified},
    strict,
};

fn message() -> Value {
    json!({
        "command": "PRIVMSG", "from": "alice!a@host.example", "to": "#weir",
        "body": ["Good morning.", "The water stands at 3.40 m.", "The gate is open."],
        "id": "0f8fad5b-d9cb-469f-a165-70867728950e", "ts": "2026-03-01T12:00:00Z",
    })
}

fn messages(criterion: &mut Criterion) {
    let catalog = Catalog::new().unwrap();
    let key = SecretKey::from_seed(&[7; 32]);
    let signed = key.sign(&message()).unwrap();
    let text = signed.to_string();
    let mut invalid = signed.clone();
    invalid["to"] = "irc.weir.example".into();

    criterion.bench_function("parse strictly", |bencher| {
        bencher.iter(|| strict::parse(black_box(text.as_bytes())).unwrap());
    });
    criterion.bench_function("parse with serde_json, for comparison", |bencher| {
        bencher.iter(|| serde_json::from_slice::<Value>(black_box(text.as_bytes())).unwrap());
    });
    criterion.bench_function("validate a valid PRIVMSG", |bencher| {
        bencher.iter(|| catalog.validate(Family::C2s, black_box(&signed)).unwrap());
    });
    criterion.bench_function("validate an invalid PRIVMSG", |bencher| {
        bencher.iter(|| {
            catalog
                .validate(Family::C2s, black_box(&invalid))
                .unwrap_err()
        });
    });
    criterion.bench_function("canonicalise", |bencher| {
        bencher.iter(|| canonical::to_vec(black_box(&signed)).unwrap());
    });
    criterion.bench_function("sign", |bencher| {
        bencher.iter(|| key.sign(black_box(&signed)).unwrap());
    });
    criterion.bench_function("verify", |bencher| {
        bencher.iter(|| signature::verify(black_box(&signed), |_| Some(key.public())).unwrap());
    });
    criterion.bench_function("admit", |bencher| {
        let mut store = MemoryStore::new(10_000);
        let mut number = 0_i64;
        bencher.iter(|| {
            number += 1;
            // 30 messages a second: 9,000 are remembered at a time.
            let now = 1_772_366_400_000 + number * 33;
            let verified = Verified {
                kid: key.public().kid().to_owned(),
                id: number.to_string(),
                from: String::new(),
                ts: jiff::Timestamp::from_millisecond(now).unwrap().to_string(),
            };
            replay::admit(&mut store, &verified, now).unwrap();
        });
    });
    criterion.bench_function("start the catalog", |bencher| {
        bencher.iter(|| Catalog::new().unwrap())
    });
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(30)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2));
    targets = messages
}
criterion_main!(benches);
