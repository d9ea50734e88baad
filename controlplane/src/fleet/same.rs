//! The settings that should be the same in a whole fleet (FLEET-21), in the form in which they are
//! compared.

use std::collections::BTreeMap;

use weir_shared::settings::Listed;

/// The prefixes of their names.
const SAME: [&str; 13] = [
    "WAF_MODE",
    "WAF_RATE_LIMIT",
    "WAF_BYTE",
    "WAF_ON_LIMIT",
    "WAF_BAN_",
    "WAF_MAX_BANS",
    "WAF_EXEMPT_PATHS",
    "WAF_ALLOW_",
    "WAF_DENY_",
    "WAF_ASN_",
    "WAF_COUNTRY_",
    "WAF_UNKNOWN_LIMIT",
    "WAF_FLEET_SHARE",
];
/// The longest value that is sent whole.
const MAX_VALUE: usize = 200;

/// These settings by name. A long value is replaced by its beginning and a hash of the whole.
pub(super) fn same_everywhere(listing: &[Listed]) -> BTreeMap<String, String> {
    let is_same = |listed: &&Listed| SAME.iter().any(|name| listed.name.starts_with(name));
    let told = listing.iter().filter(is_same).map(|listed| {
        // An unset setting counts as empty, and differs from one that is set.
        let value = listed.value.as_deref().unwrap_or_default();
        if value.chars().count() <= MAX_VALUE {
            return (listed.name.clone(), value.to_owned());
        }
        let beginning: String = value.chars().take(MAX_VALUE / 2).collect();
        let told = format!("{beginning}… ({:016x})", hash(value.as_bytes()));
        (listed.name.clone(), told)
    });
    told.collect()
}

/// FNV-1a.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use weir_shared::settings::Origin;

    use super::*;

    /// FLEET-21: the limits of ASes and countries are compared like all limits, an unset one with a
    /// set one; a long value is shown by its beginning and compared to its end; settings that
    /// belong to each instance are left out.
    #[test]
    fn limits_of_all_kinds_are_compared() {
        let listed = |name: &str, value: Option<&str>| Listed {
            name: name.to_owned(),
            theme: "",
            value: value.map(str::to_owned),
            unset: "",
            origin: Origin::Default,
            secret: false,
        };
        let long = "192.0.2.1,".repeat(50);
        let of = |end: &str| {
            same_everywhere(&[
                listed("WAF_MODE", Some("observe")),
                listed("WAF_BYTES_COUNT", Some("both")),
                listed("WAF_ASN_LIMIT_PERCENT", Some("AS64496=50")),
                listed("WAF_COUNTRY_BYTES_PERCENT", None),
                listed("WAF_DENY_NETS", Some(&format!("{long}{end}"))),
                listed("WAF_LISTEN", Some("127.0.0.1:8080")),
                listed("WAF_ADMIN_TOKEN", None),
            ])
        };
        let compared = of("192.0.2.2");
        let names: Vec<&str> = compared.keys().map(String::as_str).collect();
        let expected = [
            "WAF_ASN_LIMIT_PERCENT",
            "WAF_BYTES_COUNT",
            "WAF_COUNTRY_BYTES_PERCENT",
            "WAF_DENY_NETS",
            "WAF_MODE",
        ];
        assert_eq!(names, expected);
        assert_eq!(compared["WAF_COUNTRY_BYTES_PERCENT"], "");
        let told = &compared["WAF_DENY_NETS"];
        assert!(told.starts_with("192.0.2.1,192.0.2.1,") && told.chars().count() < MAX_VALUE);
        assert_ne!(told, &of("192.0.2.3")["WAF_DENY_NETS"]);
    }
}
