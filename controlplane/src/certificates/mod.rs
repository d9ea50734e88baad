//! The certificates of the TLS listeners (EDGE-2): read at the start and again on each change. A
//! faulty one stops the start; later the last good ones stay in use, and an alert says so.

mod chain;
mod choice;
mod provider;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::server::ProducesTickets;
use rustls::version::{TLS12, TLS13};
use weir_shared::reload::{Part, Take};
use weir_shared::settings::EdgeSettings;
use weir_shared::tls_record;
use weir_shared::units::Time;

use self::chain::Chain;
pub use self::chain::{CertificateError, Validity};
use self::choice::Choice;
use crate::alert::Alerts;
use crate::faults::PartFault;
use crate::watching::file::{FileWatch, Known};
use crate::watching::{FileThread, Subject};

/// An alert is raised when a certificate has a third of its life left, but at most this long before
/// its end, and again each day.
const WARN_BEFORE_MS: u64 = 14 * DAY_MS;
const DAY_MS: u64 = 86_400_000;

/// The TLS configuration for new connections.
pub type TlsConfig = Arc<ArcSwap<ServerConfig>>;

/// The certificate files, each with its key file.
type Files = Arc<[(PathBuf, PathBuf)]>;

/// Certificates that were read and can be used.
struct Judged {
    /// The number of this reading: one that began later has a higher number.
    number: u64,
    files: Files,
    /// Set for files that are not watched yet: their state from before the reading.
    unwatched: Option<Known>,
    validities: Vec<Validity>,
    config: ServerConfig,
}

/// The certificates in use.
struct InUse {
    number: u64,
    files: Files,
}

/// The certificates in use.
pub struct Certificates {
    tickets: Arc<dyn ProducesTickets>,
    config: TlsConfig,
    validities: ArcSwap<Vec<Validity>>,
    /// The number of the next reading, by the watch or a reload.
    next: AtomicU64,
    in_use: Mutex<InUse>,
    /// Whether a listener uses TLS.
    are_needed: bool,
    looks: FileThread,
}

impl Certificates {
    /// Reads the certificates, and watches them from then on. `are_needed` means that a listener
    /// uses TLS: then at least one certificate is required.
    ///
    /// # Errors
    /// One sentence an operator can act on.
    pub fn open(
        edge: &EdgeSettings,
        are_needed: bool,
        looks: &FileThread,
    ) -> Result<Arc<Self>, String> {
        let files: Files = pairs(edge).into();
        let tickets = provider::ticketer().map_err(|error| error.to_string())?;
        let empty = config(Vec::new(), &tickets).map_err(|error| error.to_string())?;
        let none = Files::from([]);
        let this = Arc::new(Self {
            validities: ArcSwap::default(),
            config: Arc::new(ArcSwap::from_pointee(empty)),
            tickets,
            next: AtomicU64::new(1),
            in_use: Mutex::new(InUse {
                number: 0,
                files: none,
            }),
            are_needed,
            looks: looks.clone(),
        });
        let judged = this.judge_all(files)?;
        this.take_all(judged);
        Ok(this)
    }

    /// The TLS configuration for new connections.
    pub fn config(&self) -> TlsConfig {
        Arc::clone(&self.config)
    }

    /// The certificates' part of a reload (RELOAD-2): the settings may name other files.
    pub fn part(self: &Arc<Self>) -> Part {
        let this = Arc::clone(self);
        Box::new(move |reloaded| {
            let named = pairs(&reloaded.settings.edge);
            let held = this.files();
            // The watch on unchanged files continues.
            let files = if *held == *named { held } else { named.into() };
            let judged = this.judge_all(files).map_err(|error| vec![error])?;
            let this = Arc::clone(&this);
            Ok(Box::new(move || {
                this.take_all(judged);
                Ok(())
            }) as Take)
        })
    }

    /// Reads and checks the files of the settings.
    fn judge_all(&self, files: Files) -> Result<Judged, String> {
        if files.is_empty() && self.are_needed {
            return Err(
                "a listening socket named https was passed and WAF_TLS_CERT is not set: expected a certificate and its key (WAF_TLS_KEY)"
                    .to_owned(),
            );
        }
        // Before the reading, so that a change right after it is not missed.
        let is_new = !files.is_empty() && !Arc::ptr_eq(&files, &self.files());
        let all = files.iter().flat_map(|(cert, key)| [cert, key]);
        let unwatched = is_new.then(|| Known::of(all));
        let judged = self.judge(files).map_err(|error| error.to_string())?;
        Ok(Judged {
            unwatched,
            ..judged
        })
    }

    /// Takes the certificates of the settings into use, and has their files watched.
    fn take_all(self: &Arc<Self>, mut judged: Judged) {
        let (unwatched, files) = (judged.unwatched.take(), Arc::clone(&judged.files));
        if files.is_empty() {
            self.looks.forget(Subject::Certificates);
        }
        let is_reload = unwatched.is_some() || files.is_empty();
        self.take(judged, is_reload);
        if let Some(known) = unwatched {
            let this = Arc::clone(self);
            let watch = FileWatch::new(known, move || this.read_again(&files));
            self.looks.watch(Subject::Certificates, watch);
        }
    }

    fn judge(&self, files: Files) -> Result<Judged, CertificateError> {
        let number = self.next.fetch_add(1, Ordering::SeqCst);
        let chains = read(&files)?;
        let validities = validities(&chains);
        let config = config(chains, &self.tickets);
        let failed = |error: rustls::Error| CertificateError::of(Path::new(""), error.to_string());
        Ok(Judged {
            number,
            files,
            unwatched: None,
            validities,
            config: config.map_err(failed)?,
        })
    }

    /// Takes certificates into use, unless newer ones are: the watch and a reload read
    /// independently of each other. Other files come from a reload, and are newer than anything the
    /// watch has read.
    fn take(&self, judged: Judged, are_others: bool) {
        let mut in_use = self.in_use();
        let is_same = Arc::ptr_eq(&judged.files, &in_use.files);
        if !(are_others || is_same && judged.number > in_use.number) {
            return;
        }
        self.validities.store(Arc::new(judged.validities));
        self.config.store(Arc::new(judged.config));
        in_use.number = judged.number;
        in_use.files = judged.files;
    }

    fn in_use(&self) -> MutexGuard<'_, InUse> {
        // A panic of a holder leaves the value valid.
        self.in_use.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn files(&self) -> Files {
        Arc::clone(&self.in_use().files)
    }

    /// Reads these files again, for new handshakes. With a fault the last good certificates stay in
    /// use.
    fn read_again(&self, files: &Files) {
        match self.judge(Arc::clone(files)) {
            Ok(judged) => {
                self.take(judged, false);
                tracing::info!("the certificates were read again");
            }
            Err(error) => {
                tracing::warn!("{error}; what was read before stays in use");
                (self.looks.faults()).tell(PartFault::file(&error.file, &error));
            }
        }
    }
}

/// Whether a start could use the certificates.
///
/// # Errors
/// [`CertificateError`], as a start would tell it.
pub fn check(edge: &EdgeSettings) -> Result<(), CertificateError> {
    read(&pairs(edge)).map(drop)
}

fn pairs(edge: &EdgeSettings) -> Vec<(PathBuf, PathBuf)> {
    let keys = edge.keys.iter().cloned();
    edge.certificates.iter().cloned().zip(keys).collect()
}

fn read(paths: &[(PathBuf, PathBuf)]) -> Result<Vec<Chain>, CertificateError> {
    paths
        .iter()
        .map(|(cert, key)| Chain::read(cert, key))
        .collect()
}

fn validities(chains: &[Chain]) -> Vec<Validity> {
    let validities = chains.iter().map(|chain| chain.validity.clone());
    validities.collect()
}

/// When the alerts about a certificate's end begin: 14 days before it for a lifetime of 90 days,
/// two days before it for six.
fn warned_from_ms(validity: &Validity) -> u64 {
    let life = validity.ends_ms.saturating_sub(validity.begins_ms);
    let before = WARN_BEFORE_MS.min(life / 3);
    validity.ends_ms.saturating_sub(before)
}

/// The TLS configuration: TLS 1.2 and 1.3 only, and tickets that every worker and each generation
/// of certificates can read.
fn config(
    chains: Vec<Chain>,
    tickets: &Arc<dyn ProducesTickets>,
) -> Result<ServerConfig, rustls::Error> {
    let builder = ServerConfig::builder_with_provider(provider::shared());
    let mut config = builder
        .with_protocol_versions(&[&TLS13, &TLS12])?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(Choice::of(chains)));
    config.ticketer = Arc::clone(tickets);
    config.max_fragment_size = Some(tls_record::FRAGMENT);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// The control loop's watch over the validity of certificates.
#[derive(Default)]
pub(crate) struct Watched {
    certificates: Option<Arc<Certificates>>,
    /// When the last alert about each expiring certificate was raised, by its name and end.
    told: HashMap<(String, u64), u64>,
}

impl Watched {
    /// Watches the certificates in use; none without TLS.
    pub(crate) fn new(certificates: Option<Arc<Certificates>>) -> Self {
        Self {
            certificates,
            told: HashMap::new(),
        }
    }

    /// The validity of each certificate.
    pub(crate) fn validities(&self) -> Vec<Validity> {
        let held = self.certificates.as_ref();
        let validities = held.map(|held| held.validities.load());
        validities.map_or_else(Vec::new, |validities| validities.to_vec())
    }

    /// Raises alerts of certificates that end soon.
    pub(crate) fn turn(&mut self, alerts: &mut Alerts, now_ms: u64) {
        let Some(certificates) = self.certificates.clone() else {
            return;
        };
        for validity in self.due(&certificates.validities.load(), now_ms) {
            let (name, expires) = (&validity.name, Time(validity.ends_ms));
            tracing::warn!(name = %name, expires = %expires, "a certificate ends soon");
            alerts.certificate(name, expires, now_ms);
        }
    }

    /// The certificates for which an alert is due.
    fn due(&mut self, validities: &[Validity], now_ms: u64) -> Vec<Validity> {
        let key = |validity: &Validity| (validity.name.clone(), validity.ends_ms);
        let stands = |told: &(String, u64)| validities.iter().any(|one| key(one) == *told);
        self.told.retain(|told, _| stands(told));
        let near = validities.iter();
        let near = near.filter(|validity| warned_from_ms(validity) <= now_ms);
        let mut due = Vec::new();
        for validity in near {
            let last = self.told.get(&key(validity));
            if last.is_none_or(|last| now_ms.saturating_sub(*last) >= DAY_MS) {
                self.told.insert(key(validity), now_ms);
                due.push(validity.clone());
            }
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: u64 = 2_000_000_000_000;

    fn write(directory: &Path, name: &str) {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = params.self_signed(&key).unwrap();
        std::fs::write(directory.join("key"), key.serialize_pem()).unwrap();
        std::fs::write(directory.join("cert"), certificate.pem()).unwrap();
    }

    /// EDGE-2: of two concurrent reads the later one is in use, whichever is done first.
    #[test]
    fn what_was_read_last_is_in_use() {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), "a.test");
        let settings = EdgeSettings {
            certificates: vec![directory.path().join("cert")],
            keys: vec![directory.path().join("key")],
            ..EdgeSettings::default()
        };
        let held = Certificates::open(&settings, true, &FileThread::default()).unwrap();
        let names = || -> Vec<String> {
            let validities = held.validities.load();
            validities.iter().map(|one| one.name.clone()).collect()
        };
        let files = held.files();
        let judge = || held.judge(Arc::clone(&files)).unwrap();
        let before = judge();
        write(directory.path(), "b.test");
        let after = judge();
        held.take(after, false);
        assert_eq!(names(), ["b.test"]);
        held.take(before, false);
        assert_eq!(names(), ["b.test"]);
        // Other files are a reload's, whatever the watch on those before reads meanwhile.
        let other = tempfile::tempdir().unwrap();
        write(other.path(), "c.test");
        let named = Files::from([(other.path().join("cert"), other.path().join("key"))]);
        let reload = held.judge_all(named).unwrap();
        held.take(judge(), false);
        held.take_all(reload);
        assert_eq!(names(), ["c.test"]);
        held.take(judge(), false);
        assert_eq!(names(), ["c.test"]);
        assert!(held.judge_all(Files::from([])).is_err());
    }

    /// EDGE-2: once a third of its life, but at most fourteen days, is left, a certificate is
    /// reported once a day until another replaces it.
    #[test]
    fn an_end_is_told_from_a_third_of_the_life_on() {
        let of = |life_ms: u64, ends_ms: u64| Validity {
            name: "a.test".to_owned(),
            begins_ms: ends_ms - life_ms,
            ends_ms,
        };
        const HOUR_MS: u64 = DAY_MS / 24;
        for (life, before) in [
            (365 * DAY_MS, 14 * DAY_MS),
            (90 * DAY_MS, 14 * DAY_MS),
            (42 * DAY_MS, 14 * DAY_MS),
            (6 * DAY_MS, 2 * DAY_MS),
            (DAY_MS, 8 * HOUR_MS),
        ] {
            let mut watch = Watched::default();
            let certificates = [of(life, END)];
            assert_eq!(watch.due(&certificates, END - before - 1), [], "{life}");
            assert_eq!(watch.due(&certificates, END - before), certificates);
        }
        let mut watch = Watched::default();
        let year = |ends_ms| [of(365 * DAY_MS, ends_ms)];
        let mut due = |certificates: [Validity; 1], now_ms| watch.due(&certificates, now_ms).len();
        let first = END - WARN_BEFORE_MS;
        assert_eq!(due(year(END), first), 1);
        assert_eq!(due(year(END), first + DAY_MS - 1), 0);
        assert_eq!(due(year(END), first + DAY_MS), 1);
        assert_eq!(due(year(2 * END), first + 2 * DAY_MS), 0);
        assert_eq!(due(year(END), first + 2 * DAY_MS), 1);
        assert_eq!(due(year(END), END + 10 * DAY_MS), 1);
    }
}
