//! Resolves the names of feeds: only to public addresses, and loopback's name only to loopback,
//! whatever DNS says (FEED-3). Otherwise a publisher, or whoever controls DNS, could make the
//! service send requests to machines that only it can reach.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper_util::client::legacy::connect::dns::Name;
use tower_service::Service;
use weir_shared::client::fold;
use weir_shared::lookup::is_public;

/// The addresses that may be connected to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reach {
    /// Public addresses.
    Public,
    /// Loopback addresses.
    Loopback,
    /// For tests, which have loopback addresses only: as [`Self::Public`], and loopback as well.
    #[cfg(test)]
    TestPublic,
}

impl Reach {
    /// Whether an address may be connected to.
    pub(super) fn has(self, address: IpAddr) -> bool {
        let address = fold(address);
        match self {
            Self::Public => is_public(address),
            Self::Loopback => address.is_loopback(),
            #[cfg(test)]
            Self::TestPublic => address.is_loopback() || Self::Public.has(address),
        }
    }
}

/// Asks the system for the addresses of a name, and leaves out those that may not be connected to.
#[derive(Clone, Debug)]
pub(super) struct Resolver {
    reach: Reach,
}

impl Resolver {
    pub(super) const fn new(reach: Reach) -> Self {
        Self { reach }
    }
}

type Resolving<T> = Pin<Box<dyn Future<Output = io::Result<T>> + Send>>;

impl Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = Resolving<Self::Response>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let reach = self.reach;
        Box::pin(async move {
            let found = tokio::net::lookup_host((asked(name.as_str()), 0)).await?;
            among(found, reach)
        })
    }
}

/// In a test, any name of `.test` is this machine.
#[cfg(test)]
fn asked(name: &str) -> &str {
    if name.ends_with(".test") {
        "127.0.0.1"
    } else {
        name
    }
}

#[cfg(not(test))]
const fn asked(name: &str) -> &str {
    name
}

fn among(
    found: impl Iterator<Item = SocketAddr>,
    reach: Reach,
) -> io::Result<std::vec::IntoIter<SocketAddr>> {
    let may_be_asked: Vec<_> = found.filter(|found| reach.has(found.ip())).collect();
    if may_be_asked.is_empty() {
        return Err(io::Error::other(match reach {
            Reach::Loopback => "the name has no address of loopback",
            _ => "the name has no public address",
        }));
    }
    Ok(may_be_asked.into_iter())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FEED-3: of the addresses from DNS only public ones are used; of loopback's name only
    /// loopback addresses.
    #[test]
    fn private_addresses_are_not_asked() {
        let all = [
            "10.0.0.1",
            "169.254.169.254",
            "127.0.0.1",
            "::1",
            "fd00::1",
            "::ffff:192.168.0.1",
            "64:ff9b::a00:1",
            "64:ff9b::808:808",
            "2620:fe::fe",
            "9.9.9.9",
        ];
        let all = all.map(|text| SocketAddr::new(text.parse().unwrap(), 443));
        let asked = |reach| {
            let asked = among(all.into_iter(), reach).unwrap();
            asked
                .map(|address| address.ip().to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(
            asked(Reach::Public),
            ["64:ff9b::808:808", "2620:fe::fe", "9.9.9.9"]
        );
        assert_eq!(asked(Reach::Loopback), ["127.0.0.1", "::1"]);
        let none = among(all[..7].iter().copied(), Reach::Public).unwrap_err();
        assert_eq!(none.to_string(), "the name has no public address");
        assert!(among(all[9..].iter().copied(), Reach::Loopback).is_err());
    }
}
