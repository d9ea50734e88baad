//! The chat messages as JSON Schemas, and what a program needs to trust one: strict parsing,
//! judging, types, the canonical form, signatures, and a guard against repeated messages.
//!
//! Nothing here opens a socket, reads a clock or keeps state of its own; those belong to the
//! caller. The proxy shares nothing with the chat protocol but [`Schema`], which compiles any
//! document.
//!
//! An example for each task:
//!
//! **Read and judge** what came from a client, with [`strict`] and [`Catalog`]:
//!
//! ```
//! use weir_schema::{Catalog, Family, strict};
//!
//! let catalog = Catalog::new()?; // once; it is shared by reference
//! let message = strict::parse(br##"{"command":"JOIN","to":"#weir"}"##)?;
//! assert!(catalog.validate(Family::C2s, &message).is_ok());
//!
//! let message = strict::parse(br#"{"command":"JOIN","to":"bob"}"#)?;
//! let violations = catalog.validate(Family::C2s, &message).unwrap_err();
//! assert_eq!(violations[0].instance_path, "/to");
//! assert!(strict::parse(br#"{"command":"QUIT","command":"NICK"}"#).is_err());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **As types**, with [`types`]:
//!
//! ```
//! use serde_json::json;
//! use weir_schema::{Catalog, types::{self, C2s, S2c, s2c}};
//!
//! let catalog = Catalog::new()?;
//! let message = json!({ "command": "NICK", "params": ["alice"] });
//! let answer = match types::read::<C2s>(&catalog, &message)? {
//!     C2s::Nick(nick) => {
//!         let [name] = nick.params;
//!         S2c::from(s2c::Welcome {
//!             to: name,
//!             body: vec!["Welcome.".to_owned()],
//!             ..Default::default()
//!         })
//!     }
//!     other => panic!("{} is not expected here", other.command()),
//! };
//! let value = types::write(&catalog, &answer)?;
//! assert_eq!(value, json!({ "command": "001", "to": "alice", "body": ["Welcome."] }));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **Sign, verify, and admit once**, with [`signature`] and [`replay`]:
//!
//! ```
//! use serde_json::json;
//! use weir_schema::{replay::{self, MemoryStore}, signature::{self, SecretKey}};
//!
//! let alice = SecretKey::from_seed(&[7; 32]); // in earnest: 32 random bytes
//! let message = json!({
//!     "command": "PRIVMSG", "from": "alice", "to": "#weir", "body": ["Good morning."],
//!     "id": "0f8fad5b-d9cb-469f-a165-70867728950e", "ts": "2026-03-01T12:00:00Z",
//! });
//! let signed = alice.sign(&message)?;
//!
//! let known = alice.public(); // the receiver's own record, by sender and key id
//! let verified = signature::verify(&signed, |claim| {
//!     (claim.from == "alice" && claim.kid == known.kid()).then_some(known)
//! })?;
//! let now = 1_772_366_400_000; // milliseconds since 1970, by the receiver's clock
//! let mut store = MemoryStore::new(100_000);
//! assert!(replay::admit(&mut store, &verified, now).is_ok());
//! assert!(replay::admit(&mut store, &verified, now).is_err(), "the message came before");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **Announce a key, and know when it ends**, with [`pubkey`]:
//!
//! ```
//! use serde_json::json;
//! use weir_schema::{pubkey::Announced, signature::SecretKey};
//!
//! let announced = Announced {
//!     not_after: Some("2027-01-01T00:00:00Z".to_owned()),
//!     ..SecretKey::from_seed(&[7; 32]).public().clone().into()
//! };
//! let message = json!({ "command": "PUBKEY", "body": announced.to_body() });
//! let read = Announced::from_message(&message)?;
//! assert!(read.counts_at("2026-03-01T12:00:00Z") && !read.counts_at("2027-01-02T00:00:00Z"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **The canonical form**, with [`canonical`]:
//!
//! ```
//! let value = serde_json::json!({ "b": [1.0, 1e30], "a": "€" });
//! let form = weir_schema::canonical::to_string(&value)?;
//! assert_eq!(form, r#"{"a":"€","b":[1,1e+30]}"#);
//! # Ok::<(), weir_schema::canonical::CanonicalError>(())
//! ```
//!
//! **One document** for other tools, with [`bundle`], and the examples as a conformance suite:
//!
//! ```
//! use weir_schema::{Catalog, EXAMPLES, bundle::{self, Form}};
//!
//! let catalog = Catalog::with_base("https://chat.example/v1")?;
//! let all = bundle::all(&catalog, Form::Draft07);
//! assert_eq!(all["$id"], "https://chat.example/v1/schema/draft-07/bundle.schema.json");
//! let join = bundle::one(&catalog, "c2s/join", Form::Draft202012);
//! assert!(join.is_some());
//! assert_eq!(EXAMPLES.len(), catalog.names().count());
//! # Ok::<(), weir_schema::CatalogError>(())
//! ```
//!
//! **A schema of your own**, by the same means:
//!
//! ```
//! use serde_json::json;
//! use weir_schema::Schema;
//!
//! let schema = Schema::compile(&json!({ "type": "array", "maxItems": 2 }), &[])?;
//! assert!(schema.validate(&json!([1, 2])).is_ok());
//! assert_eq!(schema.validate(&json!([1, 2, 3])).unwrap_err()[0].keyword, "maxItems");
//! # Ok::<(), weir_schema::CatalogError>(())
//! ```
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        reason = "a test may fail by panicking"
    )
)]

pub mod bundle;
pub mod canonical;
pub mod catalog;
mod documents;
pub mod pubkey;
pub mod replay;
pub mod signature;
pub mod strict;
pub mod types;

pub use catalog::{Catalog, CatalogError, Family, Schema, Violation};
pub use documents::{BASE, EXAMPLES};

/// The Rust of the README is compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
