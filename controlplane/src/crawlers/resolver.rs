//! Asks DNS for the names of an address, and for which of them resolve to it (CRAWL-3).

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{
    ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts,
};
use hickory_resolver::lookup::Lookup;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::ResponseCode;
use hickory_resolver::proto::rr::rdata::CNAME;
use hickory_resolver::proto::rr::{Name, RData, Record};
use hickory_resolver::system_conf::parse_resolv_conf;
use weir_shared::proof::{MAX_ADDRESS_NAMES, Suffixes};

use crate::guarded;

/// The file with the system's DNS servers.
const RESOLV_CONF: &str = "/etc/resolv.conf";
const MAX_RESOLV_CONF: u64 = 64 << 10;
/// How often that file is checked.
const LOOK_NS: u64 = 30_000_000_000;
/// The time-out of one try at one server. Two tries are the default of the system's resolver.
const TRY: Duration = Duration::from_secs(3);
const TRIES: usize = 2;

/// The DNS servers to ask.
#[derive(Clone, Debug)]
pub(super) enum Servers {
    /// Those of `/etc/resolv.conf`.
    OfSystem,
    /// Those of `WAF_NAME_SERVERS`.
    These(Arc<[SocketAddr]>),
}

impl Servers {
    /// The servers of the setting; those of the system if it is empty.
    pub(super) fn of(servers: &[SocketAddr]) -> Self {
        if servers.is_empty() {
            Self::OfSystem
        } else {
            Self::These(servers.into())
        }
    }
}

impl fmt::Display for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OfSystem => f.write_str(RESOLV_CONF),
            Self::These(servers) => {
                let servers: Vec<String> = servers.iter().map(SocketAddr::to_string).collect();
                f.write_str(&servers.join(","))
            }
        }
    }
}

/// The result of a lookup.
#[derive(Debug)]
pub(super) struct Found {
    /// Names that are below a suffix and resolve to the address.
    pub(super) names: Vec<Box<str>>,
    /// The smallest TTL of the answers, in seconds.
    pub(super) ttl_seconds: u32,
}

/// Why a lookup failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("no answer in time")]
    Late,
    #[error("the server cannot be asked, or its answer is none: {0}")]
    Server(String),
    #[error("the server says {0}")]
    Refused(ResponseCode),
    #[error("{0}")]
    NoServer(String),
    #[error("too many questions before it had no answer")]
    Shut,
    #[error("the question panicked")]
    Panicked,
}

impl Failure {
    /// Who caused the failure. A failure about one zone says nothing about others; otherwise the
    /// owner of a zone could open the breaker for everybody.
    pub(super) const fn whose(&self) -> Whose {
        match self {
            Self::NoServer(_) => Whose::Server,
            // Includes a failed TCP connection, which only large answers need.
            Self::Late | Self::Server(_) => Whose::OneOfThem,
            Self::Refused(ResponseCode::ServFail) | Self::Shut | Self::Panicked => Whose::Zone,
            Self::Refused(_) => Whose::OneOfThem,
        }
    }
}

/// The cause of a failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Whose {
    /// The server.
    Server,
    /// The server, or the owner of a zone.
    OneOfThem,
    /// The zone, not the server.
    Zone,
}

/// Makes the resolver, and a new one when `/etc/resolv.conf` changes.
pub(super) struct Resolving {
    servers: Servers,
    /// The resolver, with the text that it was made from.
    held: Option<(Vec<u8>, Resolver)>,
    look_at_ns: u64,
}

impl Resolving {
    pub(super) const fn new(servers: Servers) -> Self {
        Self {
            servers,
            held: None,
            look_at_ns: 0,
        }
    }

    /// The current resolver.
    pub(super) fn resolver(&mut self, now_ns: u64) -> Result<Resolver, Failure> {
        if let Some((_, resolver)) = &self.held
            && now_ns < self.look_at_ns
        {
            return Ok(resolver.clone());
        }
        self.look_at_ns = now_ns.saturating_add(LOOK_NS);
        let (text, config) = match &self.servers {
            Servers::These(servers) => (Vec::new(), of_servers(servers)),
            Servers::OfSystem => {
                let text = guarded::read(Path::new(RESOLV_CONF), MAX_RESOLV_CONF);
                let text = text.map_err(|error| no_server(&error))?;
                let (config, _) = parse_resolv_conf(&text).map_err(|error| no_server(&error))?;
                // Names are fully qualified: search domains are not used.
                let config = ResolverConfig::from_name_servers(config.name_servers);
                (text, config)
            }
        };
        match &self.held {
            Some((held, resolver)) if *held == text => Ok(resolver.clone()),
            _ => {
                let resolver = Resolver::new(config)?;
                self.held = Some((text, resolver.clone()));
                Ok(resolver)
            }
        }
    }
}

fn no_server(error: &dyn fmt::Display) -> Failure {
    Failure::NoServer(format!("{RESOLV_CONF} names no server: {error}"))
}

fn of_servers(servers: &[SocketAddr]) -> ResolverConfig {
    let servers = servers.iter().map(|server| {
        let connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()];
        let connections = connections.map(|mut connection| {
            connection.port = server.port();
            connection
        });
        NameServerConfig::new(server.ip(), true, connections.into())
    });
    ResolverConfig::from_name_servers(servers.collect())
}

/// Asks.
#[derive(Clone)]
pub(super) struct Resolver(TokioResolver);

impl Resolver {
    fn new(config: ResolverConfig) -> Result<Self, Failure> {
        let mut builder =
            TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
        let options: &mut ResolverOpts = builder.options_mut();
        options.timeout = TRY;
        options.attempts = TRIES;
        // /etc/hosts proves nothing about other machines.
        options.use_hosts_file = ResolveHosts::Never;
        // Answers are cached by address in `cache.rs`.
        options.cache_size = 0;
        // That cache bounds the TTLs (CRAWL-3); the resolver would cut them to a day.
        options.positive_max_ttl = Some(Duration::from_secs(u64::from(u32::MAX)));
        // One server after the other, so that a question has one socket.
        options.num_concurrent_reqs = 1;
        let resolver = builder.build();
        resolver
            .map(Self)
            .map_err(|error| Failure::Server(error.to_string()))
    }

    /// The names of an address that are below one of the suffixes and resolve to it. Only the first
    /// four names are checked.
    pub(super) async fn names(
        &self,
        address: IpAddr,
        suffixes: &Suffixes,
    ) -> Result<Found, Failure> {
        let mut found = Found {
            names: Vec::new(),
            ttl_seconds: u32::MAX,
        };
        let mut failure = None;
        let asked = self.0.reverse_lookup(address).await;
        let asked = answers(asked, &Name::from(address), &mut found.ttl_seconds)?;
        let names = asked.into_iter().filter_map(|data| match data {
            RData::PTR(name) => Some(name.0),
            _ => None,
        });
        for name in names.take(MAX_ADDRESS_NAMES) {
            let text = as_text(&name);
            if !suffixes.cover(&text) {
                continue;
            }
            match self.leads_to(name, address, &mut found.ttl_seconds).await {
                Ok(true) => found.names.push(text.into()),
                Ok(false) => {}
                Err(error) => failure = Some(error),
            }
        }
        match failure {
            Some(failure) if found.names.is_empty() => Err(failure),
            _ => Ok(found),
        }
    }

    async fn leads_to(
        &self,
        name: Name,
        address: IpAddr,
        ttl_seconds: &mut u32,
    ) -> Result<bool, Failure> {
        let asked = match address {
            IpAddr::V4(_) => self.0.ipv4_lookup(name.clone()).await,
            IpAddr::V6(_) => self.0.ipv6_lookup(name.clone()).await,
        };
        let is_it = |data: RData| match data {
            RData::A(v4) => IpAddr::V4(v4.0) == address,
            RData::AAAA(v6) => IpAddr::V6(v6.0) == address,
            _ => false,
        };
        let asked = answers(asked, &name, ttl_seconds)?;
        Ok(asked.into_iter().any(is_it))
    }
}

/// The name in small letters, without the trailing dot.
fn as_text(name: &Name) -> String {
    let text = name.to_ascii().to_ascii_lowercase();
    text.strip_suffix('.').unwrap_or(&text).to_owned()
}

/// The records of a name; empty if the server knows that there are none. Lowers `ttl_seconds` to
/// that of the answer.
fn answers(
    asked: Result<Lookup, NetError>,
    name: &Name,
    ttl_seconds: &mut u32,
) -> Result<Vec<RData>, Failure> {
    match asked {
        Ok(lookup) => {
            let records = lookup.answers();
            let shortest = records.iter().map(|record| record.ttl).min();
            *ttl_seconds = (*ttl_seconds).min(shortest.unwrap_or(0));
            let name = behind_aliases(records, name);
            let of_name = records.iter().filter(|record| record.name == *name);
            Ok(of_name.map(|record| record.data.clone()).collect())
        }
        Err(NetError::Dns(DnsError::NoRecordsFound(none)))
            if is_no(none.response_code, none.soa.is_some(), none.ns.is_some()) =>
        {
            *ttl_seconds = (*ttl_seconds).min(none.negative_ttl.unwrap_or(0));
            Ok(Vec::new())
        }
        Err(NetError::Dns(DnsError::NoRecordsFound(none))) => {
            Err(Failure::Refused(none.response_code))
        }
        Err(NetError::Dns(DnsError::ResponseCode(code))) => Err(Failure::Refused(code)),
        Err(NetError::Timeout) => Err(Failure::Late),
        Err(error) => Err(Failure::Server(error.to_string())),
    }
}

/// Follows the aliases of a name in an answer. Other records are about names that were not asked
/// for, and prove nothing. Aliases come in order, as resolvers write them.
fn behind_aliases<'a>(records: &'a [Record], name: &'a Name) -> &'a Name {
    records
        .iter()
        .fold(name, |name, record| match &record.data {
            RData::CNAME(CNAME(other)) if record.name == *name => other,
            _ => name,
        })
}

/// Whether an answer without records means that there are none. A referral does not.
fn is_no(code: ResponseCode, has_soa: bool, is_referral: bool) -> bool {
    match code {
        ResponseCode::NXDomain => true,
        ResponseCode::NoError => has_soa || !is_referral,
        _ => false,
    }
}
