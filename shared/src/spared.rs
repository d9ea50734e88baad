//! Spared clients, which automatic bans do not cover (ALIVE-5): trusted proxies, because everybody
//! behind one would be banned with it; peers that look like a forgotten proxy (CLIENT-7), which are
//! banned for their own offences but not for the sum of what they forward; and verified crawlers
//! (CRAWL-4).

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::ban::{Cause, Scope};
use crate::client::Client;
use crate::netblock::{NetSet, Netblock, PrefixLengths};
use crate::spans::Spans;

/// How long a peer is spared after it was seen forwarding for many clients.
const HOUR_MS: u64 = 3_600_000;

/// The most forwarders that are spared at once, as many as the data plane watches.
const MAX_FORWARDERS: usize = 64;

/// How long a crawler is spared after it was verified: a day, plus the hour in which it is not
/// noted again.
const CRAWLER_MS: u64 = 25 * HOUR_MS;

/// How often expired crawlers are removed.
const SWEEP_MS: u64 = 60_000;

/// The most clients of verified crawlers that are spared at once.
pub const MAX_CRAWLER_CLIENTS: usize = 20_000;

/// Trusted proxies, untrusted peers that forward for many clients, and verified crawlers. Both
/// planes ask it when a limit was exceeded, which is rare, so a lock is fast enough.
#[derive(Debug, Default)]
pub struct Spared {
    /// `WAF_TRUSTED_PROXIES`
    trusted: Mutex<NetSet>,
    /// A netblock that is trusted whatever the setting says.
    always: Option<Netblock>,
    /// Forwarders, each with the end of its hour. At most [`MAX_FORWARDERS`].
    forwarders: Mutex<Vec<(IpAddr, u64)>>,
    crawlers: Mutex<Crawlers>,
}

/// Clients of verified crawlers.
#[derive(Debug, Default)]
struct Crawlers {
    /// The clients, each with the end of its day. At most [`MAX_CRAWLER_CLIENTS`].
    until: BTreeMap<Client, u64>,
    /// When expired clients were last removed.
    swept_ms: u64,
    /// The number of changes of the set in `until`.
    changes: u64,
    /// The ranges of crawlers from feeds.
    ranges: Arc<Spans>,
}

/// The spared client that a netblock covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Covered {
    /// One of `WAF_TRUSTED_PROXIES`.
    TrustedProxy(Netblock),
    /// A peer that forwards for many clients and is not trusted.
    Forwarder(IpAddr),
}

impl Spared {
    /// Spares these trusted proxies.
    pub fn new(trusted: NetSet) -> Self {
        Self {
            trusted: Mutex::new(trusted),
            always: None,
            forwarders: Mutex::default(),
            crawlers: Mutex::default(),
        }
    }

    /// Also spares this netblock, whatever the setting says.
    #[must_use]
    pub fn and_always(mut self, netblock: Option<Netblock>) -> Self {
        self.always = netblock;
        self
    }

    /// Sets the trusted proxies.
    pub fn set_trusted(&self, trusted: NetSet) {
        *self.trusted() = trusted;
    }

    /// The trusted netblocks.
    pub fn trusted_blocks(&self) -> Vec<Netblock> {
        self.trusted_with(&self.trusted())
    }

    /// The netblocks trusted by this setting, and the one that is always trusted.
    pub fn trusted_with(&self, trusted: &NetSet) -> Vec<Netblock> {
        let set = trusted.blocks().iter().copied();
        set.chain(self.always).collect()
    }

    /// Spares an untrusted peer that forwards for many clients, for an hour from now.
    pub fn spare(&self, peer: IpAddr, now_ms: u64) {
        let until_ms = now_ms.saturating_add(HOUR_MS);
        let client = Client::of(peer);
        let mut forwarders = self.forwarders();
        forwarders.retain(|(held, _)| Client::of(*held) != client);
        // The one noticed longest ago is dropped. Otherwise a client with many addresses could keep
        // the places; a load balancer is noticed again each minute.
        if forwarders.len() >= MAX_FORWARDERS {
            forwarders.remove(0);
        }
        forwarders.push((peer, until_ms));
    }

    /// Spares a client that was verified as a crawler, for a day from now (CRAWL-4).
    pub fn spare_crawler(&self, client: Client, now_ms: u64) {
        let mut crawlers = self.crawlers();
        let is_full = crawlers.until.len() >= MAX_CRAWLER_CLIENTS;
        if is_full && !crawlers.until.contains_key(&client) {
            // No operator has so many addresses, so this search is rare.
            let first = crawlers.until.iter().min_by_key(|(_, until)| **until);
            if let Some(first) = first.map(|(held, _)| *held) {
                crawlers.until.remove(&first);
            }
        }
        let until_ms = now_ms.saturating_add(CRAWLER_MS);
        if crawlers.until.insert(client, until_ms).is_none() {
            crawlers.changes += 1;
        }
    }

    /// The number of changes of the set of verified crawlers' clients.
    pub fn crawler_changes(&self) -> u64 {
        self.crawlers().changes
    }

    /// The clients of verified crawlers, with the time at which the day of each ends, for the next
    /// start.
    pub fn crawler_rows(&self) -> Vec<(Client, u64)> {
        let crawlers = self.crawlers();
        (crawlers
            .until
            .iter()
            .map(|(client, until)| (*client, *until)))
        .collect()
    }

    /// Adds the clients that the previous process kept. None is spared for longer than a day from
    /// now, whatever the file and its clock say; clients verified since then take precedence.
    pub fn put_crawlers(&self, rows: impl IntoIterator<Item = (Client, u64)>, now_ms: u64) {
        let longest_ms = now_ms.saturating_add(CRAWLER_MS);
        let mut crawlers = self.crawlers();
        crawlers.changes += 1;
        let held = &mut crawlers.until;
        for (client, until_ms) in rows.into_iter().filter(|(_, until_ms)| *until_ms > now_ms) {
            let until_ms = until_ms.min(longest_ms);
            if held.len() < MAX_CRAWLER_CLIENTS || held.contains_key(&client) {
                let held_ms = held.entry(client).or_default();
                *held_ms = until_ms.max(*held_ms);
            }
        }
    }

    /// Removes expired entries. Called in every turn of the control loop.
    pub fn end(&self, now_ms: u64) {
        self.forwarders().retain(|(_, until)| *until > now_ms);
        let mut crawlers = self.crawlers();
        if now_ms.abs_diff(crawlers.swept_ms) >= SWEEP_MS {
            crawlers.swept_ms = now_ms;
            let before = crawlers.until.len();
            crawlers.until.retain(|_, until| *until > now_ms);
            crawlers.changes += u64::from(crawlers.until.len() != before);
        }
    }

    /// Sets the ranges of crawlers from feeds: a client in such a range that is no verified crawler
    /// is banned alone (CRAWL-4).
    pub fn set_crawler_ranges(&self, ranges: &Arc<Spans>) {
        self.crawlers().ranges = Arc::clone(ranges);
    }

    /// Whether a verified crawler of the last day is in a netblock.
    fn has_crawler(&self, netblock: Netblock) -> bool {
        self.crawlers()
            .until
            .range(netblock.clients())
            .next()
            .is_some()
    }

    /// The number of forwarders that are spared now.
    pub fn forwarder_count(&self) -> usize {
        self.forwarders().len()
    }

    /// The netblock that an automatic ban of this client covers; none if the client is not banned.
    /// Both planes ask it.
    ///
    /// A client that was a verified crawler within the last day is not banned (CRAWL-4). If the
    /// netblock covers a spared client, only the client itself is banned. A peer that forwards for
    /// many is not banned by limits: these sum the requests of many, and refuse the peer until one
    /// fits. Traps and jails ban it, because only its own claim says that it forwards. A client in
    /// a trusted net is one that a proxy named; the callers spare the proxy itself.
    pub fn target(
        &self,
        client: Client,
        cause: Cause,
        scope: Scope,
        prefixes: PrefixLengths,
    ) -> Option<Netblock> {
        let alone = Netblock::alone(client);
        if self.has_crawler(alone) {
            return None;
        }
        if cause.is_of_a_limit() && self.forwarder_in(alone).is_some() {
            return None;
        }
        let netblock = match scope {
            Scope::Client => alone,
            Scope::Netblock => Netblock::of(client, prefixes),
        };
        let is_free = netblock == alone
            || (self.covered_by(netblock).is_none()
                && !self.has_crawler(netblock)
                && !self.crawlers().ranges.meet(netblock));
        Some(if is_free { netblock } else { alone })
    }

    /// The spared client that a ban of this netblock would cover, if there is one.
    pub fn covered_by(&self, netblock: Netblock) -> Option<Covered> {
        let proxy = (self.trusted().blocks().iter())
            .copied()
            .chain(self.always)
            .find(|proxy| netblock.covers(*proxy) || proxy.covers(netblock));
        let proxy = proxy.map(Covered::TrustedProxy);
        proxy.or_else(|| self.forwarder_in(netblock).map(Covered::Forwarder))
    }

    fn forwarder_in(&self, netblock: Netblock) -> Option<IpAddr> {
        let forwarders = self.forwarders();
        let mut peers = forwarders.iter().map(|(peer, _)| *peer);
        peers.find(|peer| netblock.contains(*peer))
    }

    fn crawlers(&self) -> MutexGuard<'_, Crawlers> {
        // As with the forwarders.
        self.crawlers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn trusted(&self) -> MutexGuard<'_, NetSet> {
        // As with the forwarders.
        self.trusted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forwarders(&self) -> MutexGuard<'_, Vec<(IpAddr, u64)>> {
        // Nothing panics while the lock is held; even then the list would be valid.
        self.forwarders
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_795_276_800_000;

    fn block(text: &str) -> Netblock {
        text.parse().unwrap()
    }

    /// ALIVE-5: a netblock that covers a trusted proxy, or lies within a trusted net, is spared.
    #[test]
    fn trusted_proxies_are_spared() {
        let spared = Spared::new(
            ["10.1.2.3/32", "172.16.0.0/12"]
                .map(block)
                .into_iter()
                .collect(),
        );
        let covered = |text: &str| spared.covered_by(block(text));
        let proxy = |text: &str| Some(Covered::TrustedProxy(block(text)));
        assert_eq!(covered("10.1.2.0/24"), proxy("10.1.2.3/32"));
        assert_eq!(covered("172.20.1.0/24"), proxy("172.16.0.0/12"));
        assert_eq!(covered("10.1.3.0/24"), None);
        assert_eq!(covered("0.0.0.0/0"), proxy("10.1.2.3/32"));
    }

    /// ALIVE-5: a forgotten proxy is spared for an hour since it was last seen forwarding; no more
    /// than 64 are.
    #[test]
    fn forwarders_are_spared_for_an_hour() {
        let spared = Spared::default();
        let peer = "198.51.100.1".parse().unwrap();
        spared.spare(peer, NOW);
        spared.spare(peer, NOW + 10);
        assert_eq!(spared.forwarder_count(), 1);
        spared.end(NOW + HOUR_MS);
        let covered = Some(Covered::Forwarder(peer));
        assert_eq!(spared.covered_by(block("198.51.100.0/24")), covered);
        spared.end(NOW + HOUR_MS + 10);
        assert_eq!(spared.covered_by(block("198.51.100.0/24")), None);
        for last in 0..=255 {
            spared.spare(IpAddr::from([203, 0, 113, last]), NOW);
        }
        assert_eq!(spared.forwarder_count(), MAX_FORWARDERS);
        let last = "203.0.113.255".parse().unwrap();
        let covered = Some(Covered::Forwarder(last));
        assert_eq!(spared.covered_by(block("203.0.113.255/32")), covered);
        assert_eq!(spared.covered_by(block("203.0.113.0/32")), None);
    }

    /// ALIVE-5: one IPv6 client is one forwarder, however many addresses it sends from.
    #[test]
    fn a_64_is_one_forwarder() {
        let spared = Spared::default();
        for last in 1..=9 {
            spared.spare(IpAddr::from([0x2001, 0xdb8, 0, 1, 0, 0, 0, last]), NOW);
        }
        assert_eq!(spared.forwarder_count(), 1);
    }

    /// CRAWL-4: clients that the old process kept are spared until the same moment, and never for
    /// longer than a day; clients verified since are kept, and the bound is kept, too.
    #[test]
    fn crawlers_of_the_process_before_are_spared() {
        let client = |text: &str| text.parse::<Client>().unwrap();
        let before = Spared::default();
        before.spare_crawler(client("66.249.66.1"), NOW);
        before.spare_crawler(client("2001:db8:1:2::1"), NOW + 5);
        let rows = before.crawler_rows();
        let spared = Spared::default();
        spared.put_crawlers(rows.clone(), NOW + HOUR_MS);
        assert_eq!(spared.crawler_rows(), rows);
        spared.spare_crawler(client("66.249.66.1"), NOW + 2 * HOUR_MS);
        spared.put_crawlers(rows, NOW + 2 * HOUR_MS);
        let later = (client("66.249.66.1"), NOW + 2 * HOUR_MS + CRAWLER_MS);
        assert!(spared.crawler_rows().contains(&later));
        let far = [(client("192.0.2.1"), u64::MAX), (client("192.0.2.2"), NOW)];
        let spared = Spared::default();
        spared.put_crawlers(far, NOW);
        assert_eq!(
            spared.crawler_rows(),
            [(client("192.0.2.1"), NOW + CRAWLER_MS)]
        );
        let many = (0..=20_000).map(|number| (Client::V4(number), NOW + 1));
        spared.put_crawlers(many, NOW);
        assert_eq!(spared.crawler_rows().len(), MAX_CRAWLER_CLIENTS);
    }

    /// CRAWL-4: a client that was a verified crawler within the last day is not banned, and of its
    /// netblock only the offending client is; a day later neither is treated specially.
    #[test]
    fn a_verified_crawler_is_spared_for_a_day() {
        let spared = Spared::default();
        let target = |client: &str| {
            let client = client.parse().unwrap();
            let target = spared.target(client, Cause::Jail, Scope::Netblock, Default::default());
            target.map(|netblock| netblock.to_string())
        };
        for client in ["203.0.113.7", "2001:db8:1:2::7"] {
            spared.spare_crawler(client.parse().unwrap(), NOW);
        }
        spared.end(NOW + 24 * HOUR_MS);
        assert_eq!(target("203.0.113.7"), None);
        assert_eq!(target("2001:db8:1:2::8"), None);
        assert_eq!(target("203.0.113.8"), Some("203.0.113.8/32".to_owned()));
        let beside = Some("2001:db8:1:3::/64".to_owned());
        assert_eq!(target("2001:db8:1:3::7"), beside);
        let other = Some("203.0.112.0/24".to_owned());
        assert_eq!(target("203.0.112.7"), other);
        spared.end(NOW + 25 * HOUR_MS);
        let whole = Some("203.0.113.0/24".to_owned());
        assert_eq!(target("203.0.113.7"), whole);
    }

    /// CRAWL-4: a ban whose netblock overlaps a range of a feed covers only the client.
    #[test]
    fn ranges_of_crawlers_are_spared() {
        let spared = Spared::default();
        let ranges: Spans = ["203.0.113.64/27", "2001:db8::/32"]
            .map(block)
            .into_iter()
            .collect();
        spared.set_crawler_ranges(&Arc::new(ranges));
        for (client, expected) in [
            ("203.0.113.7", "203.0.113.7/32"),
            ("203.0.113.70", "203.0.113.70/32"),
            ("203.0.112.7", "203.0.112.0/24"),
            ("2001:db8:1:2::7", "2001:db8:1:2::/64"),
            ("2001:db9:1:2::7", "2001:db9:1::/56"),
        ] {
            let of = client.parse().unwrap();
            let target = spared.target(of, Cause::RateLimit, Scope::Netblock, Default::default());
            assert_eq!(target, Some(block(expected)), "{client}");
        }
    }

    /// CRAWL-4: at most 20,000 clients are spared; the one that was verified longest ago is
    /// dropped.
    #[test]
    fn spared_crawlers_are_bounded() {
        let spared = Spared::default();
        for number in 0..=20_000 {
            spared.spare_crawler(Client::V4(number), NOW + u64::from(number));
        }
        let held = &spared.crawlers().until;
        assert_eq!(held.len(), MAX_CRAWLER_CLIENTS);
        assert!(!held.contains_key(&Client::V4(0)));
    }

    const ALL: [Cause; 5] = [
        Cause::RateLimit,
        Cause::ByteLimit,
        Cause::RuleLimit,
        Cause::Trap,
        Cause::Jail,
    ];

    /// ALIVE-5: the addresses that a ban covers, by its cause and by the spared addresses in the
    /// netblock.
    #[test]
    fn the_client_alone_is_banned_beside_somebody_spared() {
        let spared = Spared::new(
            ["192.0.2.1/32", "10.0.0.0/8"]
                .map(block)
                .into_iter()
                .collect(),
        );
        spared.spare("198.51.100.1".parse().unwrap(), NOW);
        let target = |client: &str, cause, scope| {
            let client = client.parse().unwrap();
            let target = spared.target(client, cause, scope, PrefixLengths::default());
            target.map(|netblock| netblock.to_string())
        };
        for cause in ALL {
            let of = |client: &str, scope| target(client, cause, scope).unwrap_or_default();
            for (client, netblock) in [
                ("203.0.113.7", "203.0.113.0/24"),
                ("192.0.2.7", "192.0.2.7/32"),
                ("10.1.2.3", "10.1.2.3/32"),
                ("198.51.100.7", "198.51.100.7/32"),
                ("2001:db8:1:2::7", "2001:db8:1::/56"),
            ] {
                assert_eq!(of(client, Scope::Netblock), netblock, "{cause:?}");
            }
            assert_eq!(of("203.0.113.7", Scope::Client), "203.0.113.7/32");
            assert_eq!(of("2001:db8:1:2::7", Scope::Client), "2001:db8:1:2::/64");
            for scope in [Scope::Client, Scope::Netblock] {
                let expected = if cause.is_of_a_limit() {
                    ""
                } else {
                    "198.51.100.1/32"
                };
                assert_eq!(of("198.51.100.1", scope), expected, "{cause:?}");
            }
        }
    }
}
