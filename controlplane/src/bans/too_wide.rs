//! Netblocks that an administrator bans only with `"force": true` (ADMIN-2, ALIVE-5): a mistake
//! could shut out everyone, a load balancer with all clients behind it, or the administrator.

use ipnet::IpNet;
use serde_json::Value;
use weir_shared::ban::Ban;
use weir_shared::client::Client;
use weir_shared::netblock::{Netblock, PrefixLengths};
use weir_shared::spared::{Covered, Spared};

use super::document::BansFile;
use crate::state::Change;

/// The widest netblocks that need no force.
const WIDEST_V4: u8 = 8;
const WIDEST_V6: u8 = 16;

/// Why a ban of this netblock needs force; none if it does not. `asker` is the client that sends
/// the request, if it is known.
pub(crate) fn too_wide(
    netblock: Netblock,
    spared: &Spared,
    asker: Option<Client>,
) -> Option<String> {
    if let Some(wide) = width(netblock) {
        return Some(wide);
    }
    match spared.covered_by(netblock) {
        Some(Covered::TrustedProxy(proxy)) => {
            return Some(format!("{netblock} covers {proxy} of WAF_TRUSTED_PROXIES"));
        }
        Some(Covered::Forwarder(peer)) => {
            return Some(format!(
                "{netblock} covers {peer}, which forwards for many clients and may be a proxy that is missing in \
                 WAF_TRUSTED_PROXIES"
            ));
        }
        None => {}
    }
    asker
        .filter(|asker| netblock.covers_client(*asker))
        .map(|_| format!("{netblock} covers the client that sends this request"))
}

/// Why this netblock is so wide that it may be a mistake, whomever it covers; none if it is not.
pub(crate) fn width(netblock: Netblock) -> Option<String> {
    let net = netblock.net();
    let (widest, family) = match net {
        IpNet::V4(_) => (WIDEST_V4, "IPv4"),
        IpNet::V6(_) => (WIDEST_V6, "IPv6"),
    };
    if net.prefix_len() == 0 {
        return Some(format!("{netblock} covers every address"));
    }
    (net.prefix_len() < widest).then(|| format!("{netblock} is wider than an {family} /{widest}"))
}

/// Whether this is an automatic ban of another instance, wider than this instance would have made
/// it (FLEET-24).
pub(crate) fn is_wider_than_own(ban: &Ban, prefixes: PrefixLengths) -> bool {
    let net = ban.netblock.net();
    let own = match net {
        IpNet::V4(_) => prefixes.v4,
        IpNet::V6(_) => prefixes.v6,
    };
    ban.origin().is_automatic() && net.prefix_len() < own
}

/// Whether the entry has `"force": true`.
pub(crate) fn is_forced(ban: &Ban) -> bool {
    ban.unknown.get("force") == Some(&Value::Bool(true))
}

/// The bans that an edit puts into force although they need force and lack `"force": true`, each
/// with the reason.
pub(crate) fn of_edit<'a>(
    changes: &'a [Change<BansFile>],
    spared: &'a Spared,
    now_ms: u64,
) -> impl Iterator<Item = (&'a Ban, String)> {
    changes.iter().filter_map(move |change| {
        let Change::Put { before, after } = change else {
            return None;
        };
        let stood = before.as_ref().is_some_and(|ban| ban.is_active(now_ms));
        if stood || !after.is_active(now_ms) || is_forced(after) {
            return None;
        }
        too_wide(after.netblock, spared, None).map(|why| (&**after, why))
    })
}
