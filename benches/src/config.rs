//! What the benches have in common in their configurations: the application, and weir with six
//! windows (requests and bytes a minute, hour and day), the ban ledger and the bound on bodies.
//! Lookups, country lists, exempt paths and alert thresholds are off unless a row is about them.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;

/// A body of about 100 bytes, as small answers are.
const SMALL: &str = "ok: a small answer of about one hundred bytes, which is what a health check or an API call sends.\\n";

/// Settings of weir. One that is given again later takes the place of the one before.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Settings(pub Vec<(String, String)>);

impl Settings {
    /// These with another one.
    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.0.push((name.to_owned(), value.to_string()));
        self
    }
}

/// What nginx needs in one process, in the foreground, with all its files in `directory`.
pub fn nginx(directory: &Path, http: &str) -> String {
    let directory = directory.display();
    let mut text = format!(
        "daemon off;\nmaster_process off;\nworker_processes 1;\npid {directory}/nginx.pid;\n\
         error_log {directory}/error.log error;\nevents {{ worker_connections 8192; }}\nhttp {{\n"
    );
    for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
        let _ = writeln!(text, "{kind}_temp_path {directory}/{kind};");
    }
    text.push_str("keepalive_requests 1000000000;\nclient_max_body_size 100m;\ntcp_nodelay on;\nserver_tokens off;\n");
    text.push_str(http);
    text.push_str("}\n");
    text
}

/// The application: nginx on a port of its own. `/upload` answers when it has read the body, as an
/// application does: `mirror` makes nginx read it, and the refusal to POST to a file becomes the
/// answer.
pub fn application(directory: &Path, port: u16) -> String {
    nginx(
        directory,
        &format!(
            "access_log off;\nsendfile on;\nserver {{\n  listen 127.0.0.1:{port} backlog=4096;\n  root {};\n  \
             default_type text/plain;\n  location / {{ return 200 \"{SMALL}\"; }}\n  location = /1m {{ }}\n  location = /drop {{ }}\n  \
             location = /upload {{\n    client_body_buffer_size 256k;\n    mirror /read;\n    error_page 405 =200 @read;\n  }}\n  \
             location = /read {{ internal; return 204; }}\n  location @read {{ return 200 \"ok\\n\"; }}\n}}\n",
            directory.display()
        ),
    )
}

/// The settings of weir, with its files in `directory`: no limit within reach, no log.
pub fn weir(directory: &Path, application: SocketAddr) -> Settings {
    let file = |name: &str| directory.join(name).display().to_string();
    // Nobody outside is asked about loopback clients.
    Settings::default()
        .with("WAF_LISTEN", "127.0.0.1:0")
        .with("WAF_UPSTREAM", format!("http://{application}"))
        .with("WAF_WORKERS", 1)
        .with("WAF_STATE_DIR", file("state"))
        .with("WAF_LOOKUP_SOURCE", "off")
        .with("WAF_MAX_CONNECTIONS_PER_CLIENT", 10_000)
        .with("WAF_LOG_REQUESTS", "off")
        .with("WAF_LOG_FILE", file("access.log"))
        .with("WAF_RATE_LIMIT_PER_MINUTE", 1_000_000_000_000_u64)
        .with("WAF_RATE_LIMIT_PER_HOUR", 1_000_000_000_000_u64)
        .with("WAF_RATE_LIMIT_PER_DAY", 1_000_000_000_000_u64)
        .with("WAF_BYTES_LIMIT_PER_MINUTE", "1000T")
        .with("WAF_BYTES_LIMIT_PER_HOUR", "1000T")
        .with("WAF_BYTES_LIMIT_PER_DAY", "1000T")
}
