//! `weir check`: finds every fault that would stop a start, and warns of settings that may be
//! mistakes, without starting (CONTROL-4).

use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use weir_controlplane::check::{check, engine_warnings};
use weir_dataplane::can_be_bound;
use weir_shared::api::settings::SettingList;
use weir_shared::clock::Clock;
use weir_shared::netblock::{Netblock, PrefixLengths};
use weir_shared::settings::{self, CountryList, Listen, Loaded, Settings, TokenSource, Upstream};

use super::ask::{Asked, Asking, Place};
use super::common::{EXIT_CONFIG, Failure, finish, out, print_json};
use crate::open_files;
use crate::sources::Sources;

/// How long the application may take to accept a connection.
const PATIENCE: Duration = Duration::from_secs(2);

/// Trusted nets wider than this are warned of.
const WIDEST_TRUST: PrefixLengths = PrefixLengths { v4: 24, v6: 48 };

/// What was found.
#[derive(Default)]
struct Findings {
    /// Faults that would stop a start.
    faults: Vec<String>,
    /// Settings that work and may be mistakes.
    warnings: Vec<String>,
    /// What the check left out because a running service uses it.
    notes: Vec<String>,
}

/// `weir check`
pub fn run(asking: &Asking) -> ExitCode {
    let found = match Sources::of_process().load() {
        Ok(loaded) => judge(loaded, asking),
        Err(refused) => Ok(Findings {
            faults: refused.problems,
            warnings: refused.warnings,
            notes: Vec::new(),
        }),
    };
    finish(found.and_then(|found| print(&found, asking.json)))
}

fn print(found: &Findings, as_json: bool) -> Result<ExitCode, Failure> {
    let Findings {
        faults,
        warnings,
        notes,
    } = found;
    if as_json {
        print_json(&json!({"faults": faults, "warnings": warnings, "notes": notes}))?;
    } else {
        for fault in faults {
            eprintln!("weir: {fault}");
        }
        for warning in warnings {
            eprintln!("weir: warning: {warning}");
        }
        for note in notes {
            out(&format!("{note}\n"));
        }
        if faults.is_empty() {
            out("the settings are fine: a start would find no fault\n");
        }
    }
    Ok(ExitCode::from(if faults.is_empty() {
        0
    } else {
        EXIT_CONFIG
    }))
}

fn judge(loaded: Loaded, asking: &Asking) -> Result<Findings, Failure> {
    let settings = &loaded.settings;
    // Nothing else could be looked at.
    if let Some(shortage) = open_files::shortage(settings) {
        return Ok(Findings {
            faults: vec![shortage],
            warnings: loaded.warnings,
            notes: Vec::new(),
        });
    }
    let checked = check(settings, &Clock::system());
    let mut found = Findings {
        faults: checked.faults,
        warnings: [loaded.warnings, checked.warnings].concat(),
        notes: unshared(settings).into_iter().collect(),
    };
    let running = if checked.is_held {
        running(asking)?
    } else {
        None
    };
    match &running {
        Some(service) => {
            let dir = settings.state.dir.display();
            found.notes.push(format!("the running service holds the state directory {dir}"));
            found.warnings.extend(differences(service, &loaded.listing));
        }
        None if checked.is_held => found.faults.push(format!(
            "state directory {} is in use by another service (it holds weir.lock), which does not answer at the control socket; stop it or set WAF_STATE_DIR",
            settings.state.dir.display()
        )),
        None => {}
    }
    let same = |name: &str| {
        running
            .as_ref()
            .is_some_and(|service| is_same(service, name, &loaded.listing))
    };
    if same("WAF_LISTEN") {
        let places: Vec<String> = settings.listen.iter().map(Listen::to_string).collect();
        found.notes.push(format!(
            "the running service holds WAF_LISTEN={}",
            places.join(",")
        ));
    } else {
        found.faults.extend(unbound(settings));
    }
    match settings.endpoints.admin_listen {
        Some(address) if same("WAF_ADMIN_LISTEN") => {
            found.notes.push(format!(
                "the running service holds WAF_ADMIN_LISTEN={address}"
            ));
        }
        Some(address) => found.faults.extend(unbound_admin(address)),
        None => {}
    }
    found.warnings.extend(warnings(settings));
    Ok(found)
}

/// Every fault that would stop a start with these settings. A start itself ends at the first one.
/// `is_given`: a supervisor passes the listeners.
pub fn faults(settings: &Settings, is_given: bool) -> Vec<String> {
    let mut faults = check(settings, &Clock::system()).faults;
    if !is_given {
        faults.extend(unbound(settings));
        faults.extend(settings.endpoints.admin_listen.and_then(unbound_admin));
    }
    faults
}

/// The addresses of `WAF_LISTEN` that cannot be bound.
fn unbound(settings: &Settings) -> impl Iterator<Item = String> {
    let bound = settings.listen.iter().map(can_be_bound);
    bound.filter_map(|bound| bound.err().map(|error| error.to_string()))
}

fn unbound_admin(address: SocketAddr) -> Option<String> {
    let error = std::net::TcpListener::bind(address).err()?;
    Some(format!(
        "WAF_ADMIN_LISTEN: {address} cannot be bound: {error}"
    ))
}

/// The settings of the service that answers at the control socket.
fn running(asking: &Asking) -> Result<Option<Value>, Failure> {
    match Place::of(asking)?.ask(Method::GET, "/v1/settings", None)? {
        Asked::Answered(answer) => {
            let (answer, _) = answer.read::<SettingList>()?;
            Ok(Some(answer))
        }
        Asked::NoService(_) => Ok(None),
    }
}

fn value_of<'a>(service: &'a Value, name: &str) -> &'a Value {
    let settings = service["settings"].as_array().into_iter().flatten();
    let mut named = settings.filter(|one| one["name"] == name);
    named.next().map_or(&Value::Null, |one| &one["value"])
}

fn is_same(service: &Value, name: &str, listing: &[settings::Listed]) -> bool {
    let here = listing.iter().find(|listed| listed.name == name);
    let there = value_of(service, name);
    here.is_some_and(|here| *there == json!(here.value) || is_same_file(here, there))
}

/// Whether both values are paths of one file, such as a relative one here and an absolute one
/// there.
fn is_same_file(here: &settings::Listed, there: &Value) -> bool {
    let place = |path: &str| std::fs::canonicalize(path).ok();
    let here_at = here
        .value
        .as_deref()
        .filter(|_| here.name == "WAF_SETTINGS_FILE");
    match (here_at.and_then(place), there.as_str().and_then(place)) {
        (Some(here), Some(there)) => here == there,
        _ => false,
    }
}

/// Settings that a restart would change.
fn differences(service: &Value, listing: &[settings::Listed]) -> Vec<String> {
    let changed = listing
        .iter()
        .filter(|here| !is_same(service, &here.name, listing));
    let shown = |value: &Value| value.as_str().unwrap_or("nothing").to_owned();
    changed
        .map(|here| {
            format!(
                "{} is {} in the running service and {} here",
                here.name,
                shown(value_of(service, &here.name)),
                here.value.as_deref().unwrap_or("nothing")
            )
        })
        .collect()
}

/// Warnings about settings that work and may be mistakes. Warnings about single settings come with
/// the settings themselves.
fn warnings(settings: &Settings) -> Vec<String> {
    let mut warnings = Vec::new();
    let endpoints = &settings.endpoints;
    let token = endpoints.admin_token != TokenSource::Unset;
    if token && settings.lists.allow_nets.is_empty() && settings.control_socket().is_none() {
        warnings.push(
            "an admin token is set, and neither WAF_ALLOW_NETS nor a control socket: once your own address is banned, no ban can be lifted over the endpoints".to_owned(),
        );
    }
    let countries = settings.lookup.countries != CountryList::None;
    if countries && settings.lookup.source.asks_a_service() {
        warnings.push(
            "a country list asks a lookup service about each new client, whose first request waits for it; WAF_LOOKUP_SOURCE=file asks nobody".to_owned(),
        );
    }
    warnings.extend(wide_trust(settings));
    warnings.extend(few_open_files(settings));
    if settings.observe {
        warnings.push("WAF_MODE=observe refuses nobody".to_owned());
    }
    warnings.extend(engine_warnings(settings));
    if let Err(why) = reach(&settings.upstream) {
        let upstream = &settings.upstream;
        warnings.push(format!(
            "the application at {upstream} cannot be reached: {why}"
        ));
    }
    warnings
}

/// Names the limits that the instances of a fleet do not count together (FLEET-4).
fn unshared(settings: &Settings) -> Option<String> {
    settings.fleet.engine.as_ref()?;
    let also = match settings.fleet.share.counts {
        true => "",
        false => ", and so do all counts without counts in WAF_FLEET_SHARE",
    };
    Some(format!(
        "the fleet shares bans and counts, but these hold at each instance by itself: per_second, burst and concurrent limits, bounds of connections, whom the application trusts, and who is a verified crawler{also}"
    ))
}

/// The warning of a start about too few open files (CONN-4). It holds for this shell: the service
/// may be started with another limit.
fn few_open_files(settings: &Settings) -> Option<String> {
    let limit = open_files::raise_limit().ok()?;
    let bounds = open_files::bounds_within(limit, settings)?;
    Some(bounds.sentence(limit, &settings.connections))
}

/// Warns of trusted nets that are wide enough to contain clients besides the proxies: such a client
/// can claim any address (CLIENT-3). Loopback nets are exempt, because no client has a loopback
/// address.
fn wide_trust(settings: &Settings) -> impl Iterator<Item = String> {
    let nets = settings.identity.trusted_proxies.blocks().iter();
    // The settings themselves warn of a net of all addresses.
    let is_told = |net: &&Netblock| net.net().prefix_len() == 0;
    let is_loopback = |net: &&Netblock| net.net().network().is_loopback();
    let wide = nets
        .filter(move |net| net.is_wider_than(WIDEST_TRUST) && !is_told(net) && !is_loopback(net));
    wide.map(|net| {
        format!(
            "WAF_TRUSTED_PROXIES has {net}, which is wider than a /24 (IPv6: /48): a client whose own address lies in it can name any other client in {}; list the proxies alone, or count them with WAF_TRUSTED_HOPS",
            settings.identity.header
        )
    })
}

/// Connects to the application, at each of its addresses until one accepts.
fn reach(upstream: &Upstream) -> Result<(), String> {
    let (host, port) = match upstream {
        Upstream::Tcp { host, port } => (host.as_str(), *port),
        Upstream::Unix(path) => {
            let connected = UnixStream::connect(path);
            return connected.map(drop).map_err(|error| error.to_string());
        }
    };
    let addresses = (host, port).to_socket_addrs();
    let mut why = "its name has no address".to_owned();
    for address in addresses.map_err(|error| error.to_string())? {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(_) => return Ok(()),
            Err(error) => why = error.to_string(),
        }
    }
    Err(why)
}
