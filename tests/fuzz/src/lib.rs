//! What several targets share.

#[cfg(feature = "files")]
mod files;
#[path = "../../../dataplane/tests/http1/server.rs"]
pub mod server;

use std::net::IpAddr;
use std::sync::LazyLock;

use http::HeaderName;
use http::request::Parts;
use weir_dataplane::identity::Sender;
use weir_shared::netblock::NetSet;
use weir_shared::settings::IdentitySettings;

#[cfg(feature = "files")]
pub use files::{is_fault, state};

/// The networks that are trusted in every target.
pub fn trusted() -> &'static NetSet {
    static TRUSTED: LazyLock<NetSet> = LazyLock::new(|| {
        ["10.0.0.0/8", "fd00::/8"]
            .iter()
            .map(|text| text.parse().expect("a netblock"))
            .collect()
    });
    &TRUSTED
}

/// A peer, as a byte chooses it: half of them are trusted.
pub fn peer(choice: u8) -> IpAddr {
    let peers = ["198.51.100.1", "10.0.0.1", "2001:db8::1", "fd00::1"];
    peers[usize::from(choice) % peers.len()]
        .parse()
        .expect("an address")
}

/// A peer as it sends requests, and the settings by which its client is found.
pub fn sender(peer: IpAddr, trusted: bool, header: &HeaderName) -> (Sender, IdentitySettings) {
    let sender = Sender {
        peer,
        trusted,
        is_proxy: trusted,
        scheme: "http",
    };
    let settings = IdentitySettings {
        trusted_proxies: self::trusted().clone(),
        header: header.clone(),
        strip: Vec::new(),
        trusted_hops: None,
        application_field: None,
    };
    (sender, settings)
}

/// A request's head as hyper's server reads it; none where it refuses it. The empty line at the end
/// is added.
pub fn head(bytes: &[u8]) -> Option<Parts> {
    let text = [bytes, b"\r\n\r\n"].concat();
    let mut messages = server::read(&text, &[]).messages.into_iter();
    messages.next().map(|message| message.head)
}

/// Places to cut so many bytes at, as these bytes choose them, in order.
pub fn cuts(choice: &[u8], length: usize) -> Vec<usize> {
    let mut at = 0;
    let steps = choice.iter().map(|step| usize::from(*step) % 67 + 1);
    let ends = steps.map(|step| {
        at += step;
        at
    });
    ends.take_while(|end| *end < length).collect()
}

/// For the message of an assertion.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
