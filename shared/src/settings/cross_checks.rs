//! Checks of settings in combination. A setting that is malformed by itself is left out, so that
//! one fault gives one sentence. (A malformed address needs no such care: its port stays 0, which
//! equals no valid one.)

use std::collections::BTreeMap;

use super::edge::LocalIs;
use super::endpoints::{ControlSocket, TokenSource};
use super::listen::{Listen, Place, reaches};
use super::lookup::{CountryList, LookupSource};
use super::table::{Settings, all};
use crate::escalation::Policy;

pub(super) struct CrossChecks<'a> {
    /// The set values, by name.
    pub(super) written: &'a BTreeMap<String, String>,
    /// The names of malformed values.
    pub(super) malformed: &'a [&'static str],
}

impl CrossChecks<'_> {
    /// Combinations that prevent a start.
    pub(super) fn problems(&self, settings: &Settings) -> Vec<String> {
        let checks = [
            self.upstream_missing(),
            self.upstream_is_the_service(settings),
            self.first_ban_permanent(settings),
            self.both_set("WAF_METRICS_TOKEN_FILE", "WAF_METRICS_TOKEN"),
            self.both_set("WAF_ADMIN_TOKEN_FILE", "WAF_ADMIN_TOKEN"),
            self.both_set("WAF_DENY_COUNTRIES", "WAF_ALLOW_COUNTRIES"),
            self.two_forms_of_trust(settings),
            self.db_path(settings),
            self.url_missing(settings),
            self.control_socket_too_long(settings),
        ];
        let mut problems: Vec<String> = checks.into_iter().flatten().collect();
        problems.extend(self.needs_lookups(settings));
        problems.extend(self.certificates(settings));
        let names = [
            "WAF_FLEET",
            "WAF_FLEET_KEY_FILE",
            "WAF_FLEET_CERT",
            "WAF_FLEET_CERT_KEY",
        ];
        if self.are_sound(&names) {
            problems.extend(settings.fleet.problems());
        }
        problems
    }

    /// Combinations that have no effect, or more effect than intended.
    pub(super) fn warnings(&self, settings: &Settings) -> Vec<String> {
        let mut warnings = Vec::new();
        if settings.anomalies.watch.is_on() && settings.anomalies.watch_nets.is_empty() {
            warnings.push(
                "WAF_WATCH_* has thresholds but WAF_WATCH_NETS is not set: nothing is watched"
                    .to_owned(),
            );
        }
        if settings.limits.burst.is_some() && settings.limits.per_second.is_none() {
            warnings.push(
                "WAF_RATE_LIMIT_BURST does nothing: WAF_RATE_LIMIT_PER_SECOND is off".to_owned(),
            );
        }
        let endpoints = &settings.endpoints;
        if endpoints.admin_listen.is_some() && endpoints.admin_token == TokenSource::Unset {
            warnings.push(
                "WAF_ADMIN_LISTEN is set and no admin token: its requests are answered 404, but for /metrics with a metrics token"
                    .to_owned(),
            );
        }
        if settings.listen.iter().all(|listen| !listen.tls)
            && !settings.edge.certificates.is_empty()
        {
            warnings.push(
                "WAF_TLS_CERT is not used: no place of WAF_LISTEN begins with https://".to_owned(),
            );
        }
        let unix = |listen: &Listen| matches!(listen.place, Place::Unix(_));
        let identity = &settings.identity;
        let has_proxies = !identity.trusted_proxies.is_empty()
            || identity.trusted_hops.is_some()
            || settings.listen.iter().any(unix);
        if settings.edge.proxy_protocol && !has_proxies {
            warnings.push(
                "WAF_PROXY_PROTOCOL=\"on\" does nothing: WAF_TRUSTED_PROXIES is not set, and the header of another peer is not read".to_owned(),
            );
        }
        if settings.edge.proxy_protocol_local == LocalIs::Trusted && !settings.edge.proxy_protocol {
            warnings.push(
                "WAF_PROXY_PROTOCOL_LOCAL does nothing: WAF_PROXY_PROTOCOL is off".to_owned(),
            );
        }
        if self.are_sound(&["WAF_LOOKUP_SOURCE"]) {
            warnings.extend(self.idle_lookup_settings(settings));
        }
        warnings.extend(self.places_of_one_client(settings));
        warnings.extend(settings.fleet.warning());
        warnings
    }

    /// Warns if one client can take every place at the application (CONN-12).
    fn places_of_one_client(&self, settings: &Settings) -> Option<String> {
        let (of_client, of_all) = ("WAF_MAX_REQUESTS_PER_CLIENT", "WAF_MAX_UPSTREAM");
        let places = settings.connections.max_upstream;
        let most = settings
            .limits
            .max_under_way
            .and_then(|most| usize::try_from(most).ok());
        let has_all =
            most.is_none_or(|most| most >= places) && self.are_sound(&[of_client, of_all]);
        has_all.then(|| {
            format!(
                "{of_client}={:?} lets one client have every place at the application: {of_all} is {places}",
                self.value(of_client)
            )
        })
    }

    /// Warns of settings without effect for this source of lookups.
    fn idle_lookup_settings(&self, settings: &Settings) -> Vec<String> {
        let lookup = &settings.lookup;
        let mut warnings = Vec::new();
        if lookup.source == LookupSource::Off {
            if lookup.percents.unknown < 100 {
                warnings.push(format!(
                    "WAF_UNKNOWN_LIMIT_PERCENT=\"{}\" lowers every client's limits: with WAF_LOOKUP_SOURCE=\"off\" no client's country is known",
                    lookup.percents.unknown
                ));
            }
            if lookup.add_headers {
                warnings.push(
                    "WAF_ADD_LOOKUP_HEADERS adds nothing: with WAF_LOOKUP_SOURCE=\"off\" no client's country and AS are known"
                        .to_owned(),
                );
            }
        }
        if !lookup.source.asks_a_service() {
            let unused = ["WAF_LOOKUP_URL", "WAF_LOOKUP_CA_FILE"]
                .into_iter()
                .filter(|name| self.written.contains_key(*name));
            for name in unused {
                warnings.push(format!(
                    "{name} is not used: no service is asked with WAF_LOOKUP_SOURCE={:?}",
                    self.value("WAF_LOOKUP_SOURCE")
                ));
            }
        }
        warnings
    }

    fn are_sound(&self, names: &[&str]) -> bool {
        names.iter().all(|name| !self.malformed.contains(name))
    }

    /// The value as written, or the default.
    fn value(&self, name: &str) -> &str {
        self.written.get(name).map_or_else(
            || {
                all()
                    .find(|row| row.name == name)
                    .map_or("", |row| row.default)
            },
            String::as_str,
        )
    }

    fn upstream_missing(&self) -> Option<String> {
        let missing = !self.written.contains_key("WAF_UPSTREAM");
        missing.then(|| {
            "WAF_UPSTREAM is not set: expected http://host:port, the address of the application"
                .to_owned()
        })
    }

    fn upstream_is_the_service(&self, settings: &Settings) -> Option<String> {
        let value = self.written.get("WAF_UPSTREAM")?;
        let mut places = settings.listen.iter();
        let itself = places.find(|listen| reaches(listen, &settings.upstream))?;
        Some(format!(
            "WAF_UPSTREAM={value:?} is the service itself, which listens on {itself}: expected the address of another service"
        ))
    }

    /// TLS needs certificates, and each certificate a key (EDGE-2).
    fn certificates(&self, settings: &Settings) -> Option<String> {
        if !self.are_sound(&["WAF_LISTEN", "WAF_TLS_CERT", "WAF_TLS_KEY"]) {
            return None;
        }
        let edge = &settings.edge;
        let (certificates, keys) = (edge.certificates.len(), edge.keys.len());
        let tls = settings.listen.iter().find(|listen| listen.tls);
        if certificates != keys {
            return Some(format!(
                "WAF_TLS_CERT names {certificates} files and WAF_TLS_KEY {keys}: expected a key for each certificate, in the same order"
            ));
        }
        match tls {
            Some(place) if certificates == 0 => Some(format!(
                "WAF_LISTEN names {place} and WAF_TLS_CERT is not set: expected a certificate and its key (WAF_TLS_KEY)"
            )),
            None if edge.redirect_http => Some(
                "WAF_REDIRECT_HTTP=\"on\" has nowhere to send to: expected an https:// place in WAF_LISTEN".to_owned(),
            ),
            Some(_) | None => None,
        }
    }

    /// The path of the control socket is too long for the system (CONTROL-1).
    fn control_socket_too_long(&self, settings: &Settings) -> Option<String> {
        let path = settings.control_socket()?;
        let length = path.as_os_str().len();
        let longest = ControlSocket::LONGEST;
        let name = match settings.endpoints.control_socket {
            ControlSocket::InStateDir => "WAF_CONTROL_SOCKET is not set and ",
            _ => "WAF_CONTROL_SOCKET=",
        };
        (length > longest).then(|| {
            format!(
                "{name}{path:?} is {length} bytes long: expected at most {longest}, the longest path of a socket, or off"
            )
        })
    }

    fn first_ban_permanent(&self, settings: &Settings) -> Option<String> {
        let Policy {
            first,
            permanent_after,
            ..
        } = settings.bans.policy;
        let sound = self.are_sound(&["WAF_BAN_FIRST", "WAF_BAN_PERMANENT_AFTER"]);
        (sound && first > permanent_after).then(|| {
            format!(
                "WAF_BAN_FIRST={:?} is longer than WAF_BAN_PERMANENT_AFTER={:?}: expected a first ban that is not permanent",
                self.value("WAF_BAN_FIRST"),
                self.value("WAF_BAN_PERMANENT_AFTER"),
            )
        })
    }

    fn both_set(&self, name: &str, other: &str) -> Option<String> {
        let value = self.written.get(name)?;
        self.written
            .contains_key(other)
            .then(|| format!("{name}={value:?} is set and {other} too: expected only one of them"))
    }

    /// Proxies are known by their addresses or by their number (CLIENT-8).
    fn two_forms_of_trust(&self, settings: &Settings) -> Option<String> {
        let hops = settings.identity.trusted_hops?;
        let proxies = self.written.get("WAF_TRUSTED_PROXIES")?;
        Some(format!(
            "WAF_TRUSTED_HOPS=\"{hops}\" is set and WAF_TRUSTED_PROXIES={proxies:?} too: expected only one of them"
        ))
    }

    /// A path needs `file`, and `file` a path (SETTING-2).
    fn db_path(&self, settings: &Settings) -> Option<String> {
        if !self.are_sound(&["WAF_LOOKUP_SOURCE", "WAF_LOOKUP_DB_PATH"]) {
            return None;
        }
        let path = self.written.get("WAF_LOOKUP_DB_PATH");
        match (settings.lookup.source, path) {
            (LookupSource::File, _) if settings.lookup.db_paths.is_empty() => Some(
                "WAF_LOOKUP_DB_PATH is not set: with WAF_LOOKUP_SOURCE=\"file\", expected the path of a database file"
                    .to_owned(),
            ),
            (LookupSource::File, _) | (_, None) => None,
            (_, Some(path)) => Some(format!(
                "WAF_LOOKUP_DB_PATH={path:?} is set and WAF_LOOKUP_SOURCE={:?}: expected a path with file only",
                self.value("WAF_LOOKUP_SOURCE")
            )),
        }
    }

    fn url_missing(&self, settings: &Settings) -> Option<String> {
        let missing = settings.lookup.source == LookupSource::Url
            && !self.written.contains_key("WAF_LOOKUP_URL");
        missing.then(|| {
            "WAF_LOOKUP_URL is not set: with WAF_LOOKUP_SOURCE=\"url\", expected the URL of a service"
                .to_owned()
        })
    }

    /// Without lookups no client has a country or an AS number, so these settings would have no
    /// effect (SETTING-2).
    fn needs_lookups(&self, settings: &Settings) -> Vec<String> {
        if settings.lookup.source != LookupSource::Off || !self.are_sound(&["WAF_LOOKUP_SOURCE"]) {
            return Vec::new();
        }
        let mut names = settings.lookup.percents.lowering();
        match settings.lookup.countries {
            CountryList::None => {}
            CountryList::Allow(_) => names.push("WAF_ALLOW_COUNTRIES"),
            CountryList::Deny(_) => names.push("WAF_DENY_COUNTRIES"),
        }
        if !settings.lookup.deny_asns.is_empty() {
            names.push("WAF_DENY_ASNS");
        }
        if settings.anomalies.asn.is_on() {
            let names_of_all = all().map(|setting| setting.name.as_str());
            names.extend(names_of_all.filter(|name| name.starts_with("WAF_ANOMALY_ASN_")));
        }
        names
            .into_iter()
            .filter_map(|name| Some((name, self.written.get(name)?)))
            .filter(|(_, value)| *value != "off")
            .map(|(name, value)| {
                format!(
                    "{name}={value:?} needs lookups and WAF_LOOKUP_SOURCE=\"off\": expected geojs, url or file with it"
                )
            })
            .collect()
    }
}
