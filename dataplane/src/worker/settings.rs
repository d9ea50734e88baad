//! The settings that hold, in the forms in which the data plane reads them: made once for all
//! workers, and replaced as a whole by a reload (RELOAD-2).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::HeaderName;
use weir_shared::record::logged_headers;
use weir_shared::settings::{Settings, TimeoutSettings};
use weir_shared::spared::Spared;

use crate::conn::deadlines::Timeouts;
use crate::request::application::{ApplicationField, Voice};
use crate::request::ladder::Rules;
use crate::upstream::pool::Name;
use crate::worker::clock::nanos;

/// One set of settings.
#[derive(Debug)]
pub struct InForce {
    /// Tells it from others, from 1.
    pub id: u64,
    /// The settings.
    pub settings: Arc<Settings>,
    /// What the ladder needs of them.
    pub rules: Arc<Rules>,
    /// Those of client connections.
    pub timeouts: Timeouts,
    /// The application, where it is named: its addresses are asked for.
    pub application: Option<Arc<Name>>,
    /// The header fields that are logged.
    pub logged_headers: Arc<[HeaderName]>,
    /// `WAF_APPLICATION_FIELD`
    pub application_field: Option<ApplicationField>,
    /// What became of its words lately, over all settings.
    pub voice: Arc<Voice>,
}

impl InForce {
    /// These settings, which take the place of those before.
    pub fn new(settings: Arc<Settings>, spared: Arc<Spared>, before: Option<&Self>) -> Self {
        // Relaxed: a number that nobody else has, and nothing hangs on it.
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            rules: Arc::new(Rules::of(&settings, spared)),
            timeouts: timeouts(&settings.timeouts),
            application: {
                let before = before.and_then(|before| before.application.as_ref());
                Name::of(&settings.upstream, before)
            },
            logged_headers: logged_headers(&settings.log.request_headers).into(),
            application_field: (settings.identity.application_field.as_ref())
                .map(ApplicationField::new),
            voice: before.map_or_else(Arc::default, |before| Arc::clone(&before.voice)),
            settings,
        }
    }
}

fn timeouts(settings: &TimeoutSettings) -> Timeouts {
    Timeouts {
        head_ns: nanos(settings.header),
        body_ns: nanos(settings.body),
        idle_ns: nanos(settings.keepalive),
        send_ns: nanos(settings.send),
        min_rate: settings.min_rate,
    }
}
