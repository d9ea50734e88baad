//! What the owners of the files write, a start reads.

use proptest::prelude::*;
use weir_shared::ban::RequestNote;
use weir_shared::client::Client;
use weir_shared::escalation::Policy;
use weir_shared::event::{LimitExceeded, Offence};
use weir_shared::lookup::Lookup;
use weir_shared::netblock::{Netblock, PrefixLengths};
use weir_shared::units::Time;
use weir_shared::verdict::LimitKind;
use weir_shared::window::Window;

use super::*;
use crate::bans::ledger::{AdminBan, Ledger, LedgerSettings};
use crate::state::text;
use crate::state::text::parse;
use crate::testing::NOW;

fn client() -> impl Strategy<Value = Client> {
    prop_oneof![
        any::<u32>().prop_map(Client::V4),
        any::<u64>().prop_map(|bits| Client::of(Client::V6(bits).first_address())),
    ]
}

fn lookup() -> impl Strategy<Value = Lookup> {
    let known = (
        prop::option::of("[A-Z]{2}"),
        any::<Option<u32>>(),
        any::<Option<String>>(),
    );
    known.prop_map(|(country, asn, as_name)| Lookup {
        country,
        asn: asn.map(|number| format!("AS{number}")),
        as_name,
    })
}

fn note() -> impl Strategy<Value = RequestNote> {
    any::<[Option<String>; 5]>().prop_map(|[method, host, path, user_agent, request_id]| {
        RequestNote {
            method,
            host,
            path,
            user_agent,
            request_id,
        }
    })
}

fn window() -> impl Strategy<Value = Window> {
    (any::<u64>(), any::<u64>(), any::<u64>()).prop_map(|(start_ms, current, previous)| Window {
        start_ms,
        current,
        previous,
    })
}

/// A file with these entries, written as the thread of the files writes it, and read as a start
/// reads it.
fn reread<D: Document>(mut entries: Vec<D::Entry>) -> Result<(), TestCaseError> {
    D::sort(&mut entries);
    let mut envelope = text::Envelope::new::<D>();
    envelope.stamp(Time(NOW));
    let mut written = Vec::new();
    text::write::<D>(&mut written, &entries, &envelope).unwrap();
    let read = parse::<D>(&written);
    let read = read.map_err(|fault| TestCaseError::fail(format!("{fault}")))?;
    prop_assert_eq!(read.entries.len(), entries.len());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// TELL-3: after any requests, clients, times and orders of operators, the next start can read
    /// bans.json.
    #[test]
    fn a_start_reads_the_bans_that_were_written(
        exceeded in prop::collection::vec((client(), note(), any::<u64>(), any::<u8>(), any::<bool>()), 0..12),
        orders in prop::collection::vec((client(), 0u8..=64, any::<Option<Duration>>(), any::<String>()), 0..6),
        first in any::<Duration>(), factor in any::<u32>(), now in prop_oneof![Just(NOW), any::<u64>()], observe in any::<bool>(),
    ) {
        let policy = Policy { first, factor, ..Policy::default() };
        let rules = LedgerSettings { policy, prefixes: PrefixLengths::default(), max_bans: 15, observe };
        let mut ledger = Ledger::new(rules, Vec::new(), now).unwrap();
        for (client, request, value, percent, bytes) in exceeded {
            let kind = if bytes { LimitKind::DayBytes } else { LimitKind::Minute };
            let offence = Offence::Limit { kind, value, percent: percent % 101 };
            let exceeded = LimitExceeded { client, offence, at_ms: now, request: Some(request), fleet: None };
            let _ = ledger.ban_by_limit(&exceeded, now);
        }
        for (client, length, duration, reason) in orders {
            let netblock = Netblock::masked(client.first_address(), length).widened_to_clients();
            let _ = ledger.add(AdminBan { netblock, client: Some(client), duration, reason, force: false }, now);
        }
        let clients: Vec<Client> = ledger.all().iter().filter_map(|ban| ban.client).collect();
        if let Some(client) = clients.first() {
            ledger.lift(*client, now);
        }
        reread::<BansFile>(ledger.all())?;
    }

    /// TELL-3: the same for clients and for answers of lookups.
    #[test]
    fn a_start_reads_the_clients_and_lookups_that_were_written(
        rows in prop::collection::hash_map(client(), (any::<[u64; 4]>(), prop::option::of(lookup()), window()), 0..12),
        answers in prop::collection::hash_map(client(), (any::<u64>(), lookup()), 0..12),
    ) {
        let rows = rows.into_iter().map(|(client, ([first, last, passed, refused], lookup, window))| {
            Row::from(ClientRow {
                client,
                first_seen: Time(first),
                last_seen: Time(last),
                lookup: lookup.map(Arc::new),
                passed,
                refused,
                requests: [window; 3].into(),
                bytes: [window; 3].into(),
                rules: Vec::new(),
                other_sites: None,
                first_passed: None,
            })
        });
        reread::<ClientsFile>(rows.collect())?;
        let answers = answers.into_iter().map(|(client, (answered, lookup))| {
            Row::from(LookupRow { client, lookup: Arc::new(lookup), answered: Time(answered) })
        });
        reread::<LookupsFile>(answers.collect())?;
    }
}
