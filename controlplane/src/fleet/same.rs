//! The settings that should be the same in a whole fleet (FLEET-21), as they are compared.

use std::collections::BTreeMap;

use weir_shared::settings::Listed;

/// Their names begin so.
const SAME: [&str; 12] = [
    "WAF_MODE",
    "WAF_RATE_LIMIT",
    "WAF_BYTE",
    "WAF_ON_LIMIT",
    "WAF_BAN_",
    "WAF_MAX_BANS",
    "WAF_EXEMPT_PATHS",
    "WAF_ALLOW_",
    "WAF_DENY_",
    "WAF_UNKNOWN_LIMIT",
    "WAF_HOSTING_LIMIT",
    "WAF_LIMIT",
];
/// The longest value that is told whole.
const MAX_VALUE: usize = 200;

/// Those settings, by name. Of a long value there is the beginning, and a number for the whole.
pub(super) fn same_everywhere(listing: &[Listed]) -> BTreeMap<String, String> {
    let is_same = |listed: &&Listed| SAME.iter().any(|name| listed.name.starts_with(name));
    let told = listing.iter().filter(is_same).filter_map(|listed| {
        let value = listed.value.as_deref()?;
        if value.chars().count() <= MAX_VALUE {
            return Some((listed.name.clone(), value.to_owned()));
        }
        let beginning: String = value.chars().take(MAX_VALUE / 2).collect();
        let told = format!("{beginning}… ({:016x})", hash(value.as_bytes()));
        Some((listed.name.clone(), told))
    });
    told.collect()
}

/// FNV-1a.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
