//! The values that both planes share, and the parts that are made from them.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use crossbeam_channel::{Receiver, Sender, bounded};
use weir_controlplane::certificates::Certificates;
use weir_controlplane::lookup::Lookups;
use weir_controlplane::request_log::RequestLog;
use weir_controlplane::{About, Events, Faults, Feeds, LiveRules, StartState, StateFiles, Wiring};
use weir_dataplane::clients::control_plane::Counts;
use weir_dataplane::clients::table::Table;
use weir_dataplane::{Bound, Counting, InForce, Records, UpstreamBound, explaining};
use weir_shared::clock::Clock;
use weir_shared::event::LimitExceeded;
use weir_shared::fleet::CountsOf;
use weir_shared::netblock::Netblock;
use weir_shared::settings::Settings;
use weir_shared::snapshot::Snapshot;
use weir_shared::spared::Spared;
use weir_shared::table::ClientTable;

use crate::process_log;

/// Batches of log records that may wait for the writer; a worker sends at most 64 records in one.
const MAX_BATCHES: usize = 1024;
/// Empty batches that are kept for reuse by each worker: as many as a busy worker fills between two
/// looks of the writer.
const SPARE_BATCHES: usize = 32;

/// The values that both planes share.
pub struct Shared {
    pub settings: Arc<Settings>,
    pub clock: Clock,
    pub snapshots: Arc<ArcSwap<Snapshot>>,
    pub table: Arc<Table>,
    /// The settings, as the data plane reads them.
    pub in_force: Arc<ArcSwap<InForce>>,
    pub counting: Counting,
    pub spared: Arc<Spared>,
    /// The bound on requests at the application.
    pub upstream: Arc<UpstreamBound>,
}

/// The clients that the service never bans by itself: the trusted proxies, and 127.0.0.1 for
/// connections over a Unix socket that name no other client (EDGE-1).
fn spared(settings: &Settings, bound: &Bound) -> Spared {
    let local = Netblock::masked(IpAddr::V4(Ipv4Addr::LOCALHOST), 32);
    let local = bound.has_unix_socket().then_some(local);
    Spared::new(settings.identity.trusted_proxies.clone()).and_always(local)
}

impl Shared {
    pub fn new(settings: &Arc<Settings>, clock: Clock, bound: &Bound, rules: &LiveRules) -> Self {
        let table = Arc::new(Table::default());
        let spared = Arc::new(spared(settings, bound));
        let upstream = Arc::new(UpstreamBound::new(&settings.connections));
        let in_force = InForce::new(Arc::clone(settings), Arc::clone(&spared), None);
        Self {
            settings: Arc::clone(settings),
            clock,
            snapshots: Arc::new(ArcSwap::from_pointee(Snapshot {
                rules: rules.current(),
                ..Snapshot::default()
            })),
            counting: Counting::of(bound, Arc::clone(&table), Arc::clone(&upstream)),
            in_force: Arc::new(ArcSwap::from_pointee(in_force)),
            spared,
            table,
            upstream,
        }
    }

    pub fn clients(&self) -> Arc<dyn ClientTable> {
        Arc::clone(&self.table) as _
    }

    /// The data plane's counts for a fleet. They cost nothing until a fleet asks for them.
    fn fleet_counts(&self, breaks: &Sender<LimitExceeded>) -> CountsOf {
        let (table, in_force) = (Arc::clone(&self.table), Arc::clone(&self.in_force));
        let (snapshots, breaks) = (Arc::clone(&self.snapshots), breaks.clone());
        let made: OnceLock<Arc<Counts>> = OnceLock::new();
        Arc::new(move || {
            let made = made.get_or_init(|| {
                Arc::new(Counts::of(
                    Arc::clone(&table),
                    Arc::clone(&in_force),
                    Arc::clone(&snapshots),
                    breaks.clone(),
                ))
            });
            Arc::clone(made) as _
        })
    }

    /// Everything that the control loop is built from.
    pub fn wiring(
        &self,
        (breaks_up, breaks): (&Sender<LimitExceeded>, Receiver<LimitExceeded>),
        (files, faults): (StateFiles, Faults),
        start: StartState,
        (lookups, rules, certificates): (Lookups, LiveRules, Arc<Certificates>),
        feeds: Feeds,
        about: About,
    ) -> Wiring {
        let counting = self.counting.clone();
        Wiring {
            settings: Arc::clone(&self.settings),
            clock: self.clock.clone(),
            snapshots: Arc::clone(&self.snapshots),
            table: self.clients(),
            spared: Arc::clone(&self.spared),
            counts: Some(self.fleet_counts(breaks_up)),
            breaks,
            explain: explaining(
                Arc::clone(&self.in_force),
                Arc::clone(&self.table),
                Arc::clone(&self.snapshots),
                self.clock.clone(),
            ),
            totals: Arc::new(move || {
                let mut totals = counting.totals();
                totals.process_log_lines_dropped = process_log::lines_lost();
                totals
            }),
            faults,
            files,
            start,
            lookups,
            certificates: Some(certificates),
            rules,
            feeds,
            about,
        }
    }

    /// Starts the request log, even if no request is logged: it also carries the alerts.
    pub fn start_log(
        &self,
        lines: Receiver<Vec<u8>>,
        events: Arc<Events>,
    ) -> Result<(RequestLog, Records), String> {
        let settings = &self.settings;
        let (records_up, records) = bounded(MAX_BATCHES);
        let (spare_back, spare) = bounded(SPARE_BATCHES * settings.workers);
        let counting = self.counting.clone();
        let lost = Arc::new(move || counting.totals().records_dropped);
        let log = RequestLog::start(settings, records, spare_back, lines, lost, events)?;
        let records = Records {
            batches: records_up,
            emptied: spare,
            refused: Arc::default(),
        };
        Ok((log, records))
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use crossbeam_channel::bounded;
    use proptest::prelude::*;
    use weir_controlplane::replay::Escalation;
    use weir_dataplane::clients::table::Table;
    use weir_dataplane::identity::Who;
    use weir_dataplane::ladder::{Rules, ban_target};
    use weir_shared::ban::{RequestNote, Scope};
    use weir_shared::clock::Now;
    use weir_shared::event::{LimitExceeded, Offence};
    use weir_shared::netblock::{Netblock, PrefixLengths};
    use weir_shared::rules::{Rule, RuleKind};
    use weir_shared::verdict::LimitKind;

    use super::*;

    const NOW: Now = Now {
        wall_ms: 1_795_276_800_000,
        mono_ns: 1,
    };

    /// An offence with the ban that follows it.
    fn offence() -> impl Strategy<Value = Offence> {
        let of_rule = |kind, scope| Offence::Rule {
            rule: Arc::new(Rule::new(kind, "rule".to_owned())),
            quota: None,
            scope,
        };
        let scope = prop_oneof![Just(Scope::Client), Just(Scope::Netblock)];
        let kind = prop_oneof![Just(RuleKind::Trap), Just(RuleKind::Jail)];
        let limit = prop_oneof![Just(LimitKind::Minute), Just(LimitKind::DayBytes)];
        prop_oneof![
            limit.prop_map(|kind| Offence::Limit {
                kind,
                value: 1,
                percent: 100
            }),
            Just(of_rule(RuleKind::Limit, Scope::Netblock)),
            (kind, scope).prop_map(move |(kind, scope)| of_rule(kind, scope)),
        ]
    }

    /// One of a few addresses, so that they meet in netblocks.
    fn address() -> impl Strategy<Value = IpAddr> {
        let four = (0u8..4, 0u8..4).prop_map(|(net, last)| IpAddr::from([203, 0, net, last]));
        let six = (0u16..4, 0u16..4)
            .prop_map(|(net, last)| IpAddr::from([0x2001, 0xdb8, net, last << 6, 0, 0, 0, 1]));
        prop_oneof![four, six]
    }

    proptest! {
        /// ALIVE-5, RULE-8: for any trusted, forwarding and offending addresses, and any offence,
        /// the control plane bans exactly what the data plane announces, or nobody if it announces
        /// that. Neither ever covers a spared address beside the client itself.
        #[test]
        fn both_planes_ban_the_same(
            trusted in prop::collection::vec((address(), 20u8..=32, any::<bool>()), 0..4),
            forwarders in prop::collection::vec(address(), 0..4),
            (v4, v6) in (16u8..=32, 32u8..=64),
            offences in prop::collection::vec((address(), offence()), 1..20),
        ) {
            let nets = trusted.iter().map(|(net, length, host)| {
                let (whole, length) = if net.is_ipv6() { (128, length * 2) } else { (32, *length) };
                Netblock::masked(*net, if *host { whole } else { length })
            });
            let nets: Vec<Netblock> = nets.collect();
            let state = tempfile::tempdir().expect("a directory");
            let mut settings = Settings::default();
            settings.state.dir = state.path().to_owned();
            settings.bans.prefixes = PrefixLengths { v4, v6 };
            let spared = Arc::new(Spared::new(nets.iter().copied().collect()));
            for peer in &forwarders {
                spared.spare(*peer, NOW.wall_ms);
            }
            let rules = Rules::of(&settings, Arc::clone(&spared));
            let snapshots = Arc::<ArcSwap<Snapshot>>::default();
            let (up, down) = bounded(1);
            let mut escalation = Escalation::new(
                &settings, down, Arc::new(Table::default()), Arc::clone(&snapshots), spared, (NOW, NOW),
            ).expect("no rules.json");
            for (address, offence) in offences {
                let (who, cause, scope) = (Who::client(address), offence.cause(), offence.scope());
                let before = (snapshots.load_full(), escalation.made());
                let target = ban_target(&rules, &before.0, who, cause, scope);
                let proxy = Who { is_proxy: true, ..who };
                prop_assert_eq!(ban_target(&rules, &before.0, proxy, cause, scope), None);
                let report = LimitExceeded {
                    client: who.client,
                    offence,
                    at_ms: NOW.wall_ms,
                    request: Some(RequestNote::default()),
                    fleet: None,
                };
                up.send(report).expect("it is taken");
                escalation.turn(NOW);
                let after = snapshots.load_full();
                let is_banned = |snapshot: &Snapshot, target| snapshot.bans.span(target).is_some();
                let alone = Netblock::alone(who.client);
                let forwards = forwarders.iter().any(|peer| alone.contains(*peer));
                prop_assert_eq!(target.is_none(), forwards && cause.is_of_a_limit());
                let Some(target) = target else {
                    prop_assert_eq!(escalation.made(), before.1);
                    continue;
                };
                let fresh = !is_banned(&before.0, target);
                prop_assert_eq!(escalation.made(), before.1 + u64::from(fresh));
                prop_assert!(is_banned(&after, target) && target.covers_client(who.client));
                if target != alone {
                    prop_assert_eq!((target, scope), (Netblock::of(who.client, settings.bans.prefixes), Scope::Netblock));
                    prop_assert!(!nets.iter().any(|net| target.covers(*net) || net.covers(target)));
                    prop_assert!(!forwarders.iter().any(|peer| target.contains(*peer)));
                }
            }
        }
    }
}
