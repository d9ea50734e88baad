//! Reads what a fleet needs before it starts: key, password and certificates, from their files. A
//! fault in one of them stops a start (FLEET-3). The engine is not asked.

use std::path::Path;
use std::time::Duration;

use weir_shared::ban_origin::is_instance_name;
use weir_shared::settings::FleetSettings;

use super::eviction;
use super::kept::{self, Found};
use super::link::{Access, Link};
use super::seal::FleetKey;
use crate::guarded;

/// The longest password, and the longest file of certificates.
const MAX_PASSWORD: u64 = 4096;
const MAX_CERTIFICATES: u64 = 1 << 20;
/// The longest name of an instance.
const MAX_NAME: usize = 64;

/// The settings and files of a fleet, read and checked.
#[derive(Clone)]
pub struct Ready {
    pub(super) access: Access,
    pub(super) key: FleetKey,
    pub(super) fleet: String,
    pub(super) instance: String,
    pub(super) sharing: FleetSettings,
    /// The content of fleet.json, once it was read.
    pub(super) found: Option<Found>,
}

/// Leaves the password out.
impl std::fmt::Debug for Ready {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (fleet, instance) = (&self.fleet, &self.instance);
        write!(f, "Ready({instance} of {fleet})")
    }
}

impl Ready {
    /// Reads the files. None if there is no fleet.
    ///
    /// # Errors
    /// One sentence an operator can act on.
    pub fn read(settings: &FleetSettings) -> Result<Option<Self>, String> {
        let Some(place) = &settings.engine else {
            return Ok(None);
        };
        let key_file = settings.key_file.as_deref().unwrap_or(Path::new(""));
        let key = FleetKey::read(&settings.name, key_file)
            .map_err(|fault| format!("WAF_FLEET_KEY_FILE {fault}"))?;
        let password = settings
            .password_file
            .as_deref()
            .map(password)
            .transpose()?;
        let read = |name: &str, path: &Option<std::path::PathBuf>| {
            let read = |path: &Path| {
                let read = guarded::read(path, MAX_CERTIFICATES);
                read.map_err(|error| format!("{name} {}: {error}", path.display()))
            };
            path.as_deref().map(read).transpose()
        };
        let certificate = read("WAF_FLEET_CERT", &settings.certificate)?;
        let access = Access {
            place: place.clone(),
            fleet: settings.name.clone(),
            user: settings.user.clone(),
            password,
            roots: read("WAF_FLEET_CA_FILE", &settings.ca_file)?,
            insecure: settings.insecure,
            identity: certificate.zip(read("WAF_FLEET_CERT_KEY", &settings.certificate_key)?),
        };
        (access.check()).map_err(|fault| format!("the certificates of WAF_FLEET: {fault}"))?;
        let instance = settings.instance.clone().unwrap_or_else(host_name);
        Ok(Some(Self {
            access,
            key,
            fleet: settings.name.clone(),
            instance,
            sharing: settings.clone(),
            found: None,
        }))
    }

    /// Reads fleet.json. An unusable file is logged, and counts as missing.
    pub(crate) fn read_kept(&mut self, dir: &Path) {
        self.found = kept::read(dir, &self.fleet).unwrap_or_else(|why| {
            tracing::error!(
                "{} cannot be used: {why}; the instance joins its fleet as a new one",
                dir.join(kept::FILE).display()
            );
            None
        });
    }

    /// The name of the fleet.
    pub(crate) fn fleet(&self) -> &str {
        &self.fleet
    }

    /// Whether a fleet started with `self` needs no restart for `other`.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        self.access == other.access && self.key == other.key && self.sharing == other.sharing
    }

    /// Whether both use the same sums of counts.
    pub(super) fn counts_with(&self, other: &Self) -> bool {
        self.access.place == other.access.place && self.key == other.key
    }
}

impl Ready {
    /// Warnings about the engine if it answers, or why it does not answer.
    pub fn warnings(&self) -> Vec<String> {
        let asked = Link::open(&self.access, Duration::ZERO).and_then(|mut link| link.policy());
        match asked {
            Ok(policy) => eviction::sentence(&policy).into_iter().collect(),
            Err(fault) => vec![format!(
                "the engine of the fleet at {} cannot be asked: {fault}",
                self.access.place
            )],
        }
    }
}

fn password(path: &Path) -> Result<String, String> {
    let wrong = |what: &str| format!("WAF_FLEET_PASSWORD_FILE {}: {what}", path.display());
    let bytes = guarded::read(path, MAX_PASSWORD).map_err(|error| wrong(&error.to_string()))?;
    let text = String::from_utf8(bytes).map_err(|_| wrong("it is not UTF-8"))?;
    let password = text.trim_end_matches(['\r', '\n']);
    if password.is_empty() {
        return Err(wrong("it holds no password"));
    }
    Ok(password.to_owned())
}

/// The host name, as the name of an instance.
fn host_name() -> String {
    let system = rustix::system::uname();
    let name = system.nodename().to_string_lossy().to_ascii_lowercase();
    let fits = |letter: char| is_instance_name(&letter.to_string());
    let name: String = (name.chars())
        .map(|letter| if fits(letter) { letter } else { '-' })
        .take(MAX_NAME)
        .collect();
    if name.is_empty() {
        return "weir".to_owned();
    }
    name
}
