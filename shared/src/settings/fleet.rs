//! Several instances as one (FLEET): where their engine is, and what they are called.

use std::path::PathBuf;
use std::time::Duration;

use super::engine_place::{self, EnginePlace};
use super::kind::{Fault, Kind, boolean, duration, file, whole};
use super::row::{Row, row};
use crate::ban_origin::is_instance_name;

/// The fleet; nothing of it where there is no engine.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FleetSettings {
    /// `WAF_FLEET`
    pub engine: Option<EnginePlace>,
    /// `WAF_FLEET_NAME`
    pub name: String,
    /// `WAF_FLEET_INSTANCE`; none is the host name
    pub instance: Option<String>,
    /// `WAF_FLEET_KEY_FILE`
    pub key_file: Option<PathBuf>,
    /// `WAF_FLEET_USER`
    pub user: Option<String>,
    /// `WAF_FLEET_PASSWORD_FILE`
    pub password_file: Option<PathBuf>,
    /// `WAF_FLEET_CA_FILE`; none is what the system trusts
    pub ca_file: Option<PathBuf>,
    /// `WAF_FLEET_CERT`
    pub certificate: Option<PathBuf>,
    /// `WAF_FLEET_CERT_KEY`
    pub certificate_key: Option<PathBuf>,
    /// `WAF_FLEET_INSECURE`
    pub insecure: bool,
    /// `WAF_FLEET_SHARE`
    pub share: FleetShare,
    /// `WAF_FLEET_INTERVAL`
    pub interval: Duration,
    /// `WAF_FLEET_RATE`, deltas a second
    pub rate: u64,
}

/// What is shared besides bans, lifts and edits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FleetShare {
    /// What is counted of clients (FLEET-4).
    pub counts: bool,
    /// What is counted against thresholds of anomalies, and who tells (FLEET-19).
    pub anomalies: bool,
    /// `weir allow` and `weir deny` (FLEET-18).
    pub lists: bool,
}

impl FleetShare {
    fn read(text: &str) -> Result<Self, Fault> {
        let (mut share, mut bans, mut faults) = (Self::default(), false, Vec::new());
        for word in text.split(',').map(str::trim) {
            match word {
                "bans" => bans = true,
                "counts" => share.counts = true,
                "anomalies" => share.anomalies = true,
                "lists" => share.lists = true,
                other => faults.push(format!("has {other:?}, which is not known")),
            }
        }
        if !bans && faults.is_empty() {
            faults.push("lacks bans".to_owned());
        }
        Fault::unless_empty(faults).map(|()| share)
    }
}

impl FleetSettings {
    /// Whether `weir allow` and `weir deny` hold at all instances (FLEET-18).
    pub fn shares_lists(&self) -> bool {
        self.engine.is_some() && self.share.lists
    }

    /// What cannot be started with.
    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let Some(engine) = &self.engine else {
            return problems;
        };
        if self.key_file.is_none() {
            problems.push(format!(
                "WAF_FLEET_KEY_FILE is not set: with WAF_FLEET=\"{engine}\", expected a file with the key of the fleet"
            ));
        }
        if engine.is_open() && !self.insecure {
            problems.push(format!(
                "WAF_FLEET=\"{engine}\" is not TLS: expected valkeys://, an engine on loopback or a Unix socket, or WAF_FLEET_INSECURE=on"
            ));
        }
        if self.certificate.is_some() != self.certificate_key.is_some() {
            problems.push(
                "WAF_FLEET_CERT and WAF_FLEET_CERT_KEY go together: expected both or neither"
                    .to_owned(),
            );
        }
        problems
    }

    /// What is said of them at each start (FLEET-26).
    pub(super) fn warning(&self) -> Option<String> {
        let engine = self.engine.as_ref().filter(|engine| engine.is_open())?;
        self.insecure.then(|| {
            format!(
                "WAF_FLEET_INSECURE is on: the password of {engine} and the names of the instances can be read on the way, and answers can be changed"
            )
        })
    }
}

// long: a flat list of rows
pub(super) fn rows() -> Vec<Row<FleetSettings>> {
    vec![
        row(
            "WAF_FLEET",
            "off",
            engine().or_off(),
            |fleet: &mut FleetSettings| &mut fleet.engine,
            "The Valkey or Redis by which several instances are one; see [fleet.md](fleet.md).",
        )
        .live(),
        row(
            "WAF_FLEET_NAME",
            "weir",
            name(),
            |fleet: &mut FleetSettings| &mut fleet.name,
            "The name of the fleet: instances with one engine, one name and one key are one.",
        )
        .restart(),
        row(
            "WAF_FLEET_INSTANCE",
            "",
            name().map(Some),
            |fleet: &mut FleetSettings| &mut fleet.instance,
            "The name of this instance in the fleet.",
        )
        .restart()
        .unset("the host name, in small letters"),
        row(
            "WAF_FLEET_KEY_FILE",
            "",
            file(),
            |fleet: &mut FleetSettings| &mut fleet.key_file,
            "A file with the key of the fleet: 32 to 1024 visible characters, of mode 0640 or less; during a change a second line has the old key.",
        )
        .live(),
        row(
            "WAF_FLEET_USER",
            "",
            text(),
            |fleet: &mut FleetSettings| &mut fleet.user,
            "The user of the engine.",
        )
        .live(),
        row(
            "WAF_FLEET_PASSWORD_FILE",
            "",
            file(),
            |fleet: &mut FleetSettings| &mut fleet.password_file,
            "A file that holds the password of the engine.",
        )
        .live(),
        row(
            "WAF_FLEET_CA_FILE",
            "",
            file(),
            |fleet: &mut FleetSettings| &mut fleet.ca_file,
            "Certificates (PEM) that sign that of the engine.",
        )
        .live()
        .unset("those of the system"),
        row(
            "WAF_FLEET_CERT",
            "",
            file(),
            |fleet: &mut FleetSettings| &mut fleet.certificate,
            "The certificate (PEM) that is shown to the engine.",
        )
        .live(),
        row(
            "WAF_FLEET_CERT_KEY",
            "",
            file(),
            |fleet: &mut FleetSettings| &mut fleet.certificate_key,
            "Its key.",
        )
        .live(),
        row(
            "WAF_FLEET_INSECURE",
            "off",
            boolean(),
            |fleet: &mut FleetSettings| &mut fleet.insecure,
            "Let the engine be asked without TLS over a network.",
        )
        .live(),
        row(
            "WAF_FLEET_SHARE",
            "bans,counts,anomalies,lists",
            Kind::new(
                "bans, and those of counts, anomalies and lists that are shared too",
                FleetShare::read,
            ),
            |fleet: &mut FleetSettings| &mut fleet.share,
            "What is shared: bans with lifts and edits; what is counted of clients; thresholds of anomalies; lists, which `weir allow` and `weir deny` write.",
        )
        .live(),
        row(
            "WAF_FLEET_INTERVAL",
            "100ms",
            duration(Duration::from_millis(10)..=Duration::from_secs(10)),
            |fleet: &mut FleetSettings| &mut fleet.interval,
            "How often counts are sent that are not urgent.",
        )
        .live(),
        row(
            "WAF_FLEET_RATE",
            "2000",
            whole(1..=10_000),
            |fleet: &mut FleetSettings| &mut fleet.rate,
            "The most counts (of one client, or of one rule of one client) that this instance sends a second.",
        )
        .live(),
    ]
}

fn engine() -> Kind<EnginePlace> {
    Kind::new(engine_place::EXPECTED, EnginePlace::read)
}

fn name() -> Kind<String> {
    Kind::new("1 to 64 of a-z, 0-9, _, . and -", |text| {
        if is_instance_name(text) {
            Ok(text.to_owned())
        } else {
            Err("is no such name")
        }
    })
}

fn text() -> Kind<Option<String>> {
    Kind::new("a text of visible ASCII characters", |text| {
        if text.bytes().all(|byte| byte.is_ascii_graphic()) {
            Ok(Some(text.to_owned()))
        } else {
            Err("has other characters")
        }
    })
}
