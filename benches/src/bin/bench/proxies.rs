//! The proxies, brought into a case: each does the same work in the way its own manual advises.
//!
//! Every proxy limits requests per address (at a rate that is never reached), keeps connections to
//! the application open, and adds `X-Forwarded-For`, `X-Forwarded-Proto` and `X-Request-ID`. nginx
//! and HAProxy watch one window, weir six. nginx writes its log through a buffer and streams
//! uploads, both faster than its defaults. For large bodies nginx has `proxy_buffers 16 64k`, and
//! HAProxy `tune.bufsize 65536` and splicing. TLS has the ciphers and tickets of each one's own
//! defaults; nginx a session cache besides, as its manual advises.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::json;
use weir_benches::config::{self, Settings};
use weir_benches::program::{Kind, PROXY_CORE, Programs, Running, directory, free_port};
use weir_benches::tls::certificate;

use crate::cases::{Case, banned_netblocks};

/// `WAF_METRICS_TOKEN`, where the metrics are asked for.
pub(crate) const TOKEN: &str = "benchmark";

/// Starts a proxy on its core; `further` are settings of weir.
pub(crate) fn start(
    kind: Kind,
    programs: &Programs,
    case: &Case,
    application: SocketAddr,
    further: &[(&'static str, &str)],
) -> Result<Running> {
    let directory = directory()?;
    let path = directory.path().to_path_buf();
    if let Some(tls) = case.tls {
        certificate(&path, tls.key)?;
    }
    let place = Place {
        directory: &path,
        application,
        case,
        port: free_port()?,
    };
    let (text, file, arguments) = match kind {
        Kind::Weir => {
            std::fs::create_dir(path.join("state"))?;
            if case.bans > 0 || case.denied.is_some() {
                std::fs::write(path.join("state/bans.json"), bans_json(case))?;
            }
            let mut settings = place.weir();
            let further = further
                .iter()
                .map(|(name, value)| (*name, (*value).to_owned()));
            settings.0.extend(further);
            let cores = 1 + usize::from(case.two_workers);
            return Running::weir(cores, programs, settings, directory);
        }
        Kind::Nginx => (place.nginx(), "nginx.conf", &["-c"][..]),
        Kind::Haproxy => {
            std::fs::write(path.join("denied.lst"), refused(case).join("\n") + "\n")?;
            (place.haproxy(), "haproxy.cfg", &["-db", "-f"][..])
        }
    };
    let file = path.join(file);
    std::fs::write(&file, text)?;
    let mut command = programs.pinned(&[PROXY_CORE], &programs.path(kind.name())?)?;
    command.current_dir(&path).args(arguments).arg(&file);
    Running::start(command, place.port, &path, Some(directory))
        .with_context(|| format!("{} for the case {}", kind.name(), case.name))
}

/// What a configuration is made of.
struct Place<'a> {
    directory: &'a Path,
    application: SocketAddr,
    case: &'a Case,
    port: u16,
}

impl Place<'_> {
    /// nginx as the proxy.
    // long: one configuration, part by part
    fn nginx(&self) -> String {
        let (case, port, application) = (self.case, self.port, self.application);
        let mut http = String::new();
        if case.log {
            let _ = write!(
                http,
                "log_format request escape=json '{{\"time\":\"$time_iso8601\",\"event\":\"request\",\"request_id\":\"$request_id\",\
             \"client\":\"$remote_addr\",\"forwarded_for\":\"$http_x_forwarded_for\",\"scheme\":\"$scheme\",\"method\":\"$request_method\",\
             \"host\":\"$host\",\"path\":\"$uri\",\"query\":\"$args\",\"protocol\":\"$server_protocol\",\"user_agent\":\"$http_user_agent\",\
             \"referer\":\"$http_referer\",\"status\":$status,\"response_content_type\":\"$sent_http_content_type\",\
             \"bytes\":$body_bytes_sent,\"total\":$request_time,\"upstream\":\"$upstream_response_time\"}}';\n\
             access_log {}/access.log request buffer=64k flush=1s;\n",
                self.directory.display()
            );
        } else {
            http.push_str("access_log off;\n");
        }
        if case.is_forwarded {
            http.push_str("set_real_ip_from 127.0.0.0/8;\nreal_ip_header X-Forwarded-For;\n");
        }
        let mut refusal = "";
        let refused = refused(case);
        if !refused.is_empty() {
            refusal = "if ($denied) { return 429; }";
            http.push_str("geo $denied {\n  default 0;\n");
            for block in refused {
                let _ = writeln!(http, "  {block} 1;");
            }
            http.push_str("}\n");
        }
        let buffers = match case.large {
            true => {
                "proxy_buffers 16 64k; proxy_buffer_size 64k; proxy_busy_buffers_size 128k; client_body_buffer_size 128k;"
            }
            false => "",
        };
        let (ssl, certificate) = self.nginx_tls();
        let http2 = if case.is_http2() { "http2 " } else { "" };
        // As many as weir keeps.
        let pool = 1024;
        let _ = write!(
            http,
            "limit_req_zone $binary_remote_addr zone=clients:10m rate=1000000r/s;\n\
         upstream application {{ server {application}; keepalive {pool}; keepalive_requests 1000000000; }}\n\
         server {{\n  listen 127.0.0.1:{port} {ssl}{http2}backlog=4096;\n{certificate}  location / {{\n    {refusal}\n    \
         limit_req zone=clients burst=1000000 nodelay;\n    limit_req_status 429;\n    \
         proxy_pass http://application;\n    proxy_http_version 1.1;\n    proxy_set_header Connection \"\";\n    \
         proxy_set_header Host $http_host;\n    proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;\n    \
         proxy_set_header X-Forwarded-Proto $scheme;\n    proxy_set_header X-Request-ID $request_id;\n    \
         {buffers}\n    proxy_request_buffering off;\n    proxy_max_temp_file_size 0;\n  }}\n}}\n"
        );
        config::nginx(self.directory, &http)
    }

    /// What nginx has for TLS: a word behind its port, and lines of its server.
    fn nginx_tls(&self) -> (&'static str, String) {
        if self.case.tls.is_none() {
            return ("", String::new());
        }
        let (cert, key) = (self.file("cert.pem"), self.file("key.pem"));
        let lines = format!(
            "  ssl_certificate {cert};\n  ssl_certificate_key {key};\n  ssl_protocols TLSv1.2 TLSv1.3;\n  \
             ssl_session_cache shared:SSL:10m;\n  ssl_session_timeout 10m;\n"
        );
        ("ssl ", lines)
    }

    fn file(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    /// HAProxy as the proxy. Its netblocks are in `denied.lst` of the directory, its log goes to
    /// standard output.
    fn haproxy(&self) -> String {
        let (case, port, application) = (self.case, self.port, self.application);
        let (bufsize, splice) = match case.large {
            true => (
                "  maxpipes 512\n  tune.bufsize 65536\n",
                "  option splice-request\n  option splice-response\n",
            ),
            false => ("", ""),
        };
        let mut text = format!(
            "global\n  nbthread 1\n  maxconn 8192\n{bufsize}  log stdout len 4096 format raw local0\n\
         defaults\n{splice}  mode http\n  timeout connect 5s\n  timeout client 60s\n  timeout server 60s\n  \
         timeout http-request 10s\n  timeout http-keep-alive 75s\n  option http-keep-alive\n  http-reuse always\n\
         frontend proxy\n",
        );
        let alpn = if case.is_http2() { " alpn h2" } else { "" };
        let (ssl, scheme) = match case.tls {
            None => (String::new(), "http"),
            Some(_) => (format!(" ssl crt {}{alpn}", self.file("both.pem")), "https"),
        };
        let _ = writeln!(text, "  bind 127.0.0.1:{port} backlog 4096{ssl}");
        if case.log {
            text.push_str(
            "  log global\n  log-format '{\"time\":\"%tr\",\"event\":\"request\",\"request_id\":\"%ID\",\"client\":\"%ci\",\
             \"forwarded_for\":\"%[capture.req.hdr(0),json(utf8s)]\",\"method\":\"%HM\",\"host\":\"%[capture.req.hdr(1),json(utf8s)]\",\
             \"path\":\"%[capture.req.uri,json(utf8s)]\",\"protocol\":\"%HV\",\"user_agent\":\"%[capture.req.hdr(2),json(utf8s)]\",\
             \"referer\":\"%[capture.req.hdr(3),json(utf8s)]\",\"status\":%ST,\"bytes\":%B,\"total\":%Ta,\"upstream\":%Tr}'\n",
        );
            for header in ["X-Forwarded-For", "Host", "User-Agent", "Referer"] {
                let _ = writeln!(text, "  http-request capture req.hdr({header}) len 256");
            }
        }
        text.push_str("  unique-id-format %{+X}o%ci%cp%Ts%rt\n  unique-id-header X-Request-ID\n");
        if case.is_forwarded {
            text.push_str("  http-request set-src hdr(X-Forwarded-For)\n");
        }
        if case.denied.is_some() || case.bans > 0 {
            let _ = writeln!(
                text,
                "  http-request deny deny_status 429 if {{ src -f {}/denied.lst }}",
                self.directory.display()
            );
        }
        let _ = write!(
            text,
            "  stick-table type ip size 20k expire 1d store http_req_rate(60s)\n  http-request track-sc0 src\n  \
         http-request deny deny_status 429 if {{ sc_http_req_rate(0) gt 1000000000 }}\n  option forwardfor\n  \
         http-request set-header X-Forwarded-Proto {scheme}\n  default_backend application\n\
         backend application\n  server application {application}\n"
        );
        text
    }

    /// The settings of weir.
    fn weir(&self) -> Settings {
        let case = self.case;
        let mut settings = config::weir(self.directory, self.application);
        if case.tls.is_some() {
            settings = settings
                .with("WAF_LISTEN", "https://127.0.0.1:0")
                .with("WAF_TLS_CERT", self.file("cert.pem"))
                .with("WAF_TLS_KEY", self.file("key.pem"));
        }
        let bans = case.bans.max(10_000).to_string();
        for (is_so, name, value) in [
            (case.log, "WAF_LOG_REQUESTS", "all"),
            // A line for each, as the peers have.
            (case.log, "WAF_LOG_REFUSED_RATE", "off"),
            (true, "WAF_MAX_BANS", &bans),
            (case.two_workers, "WAF_WORKERS", "2"),
            (case.is_forwarded, "WAF_TRUSTED_PROXIES", "127.0.0.0/8"),
        ] {
            settings.0.extend(is_so.then(|| (name, value.to_owned())));
        }
        settings
    }
}

/// The netblocks that are denied or banned: as many as weir's ledger holds, and no more.
fn refused(case: &Case) -> Vec<String> {
    let own = case.denied.map(str::to_owned);
    let others = case.bans.saturating_sub(usize::from(own.is_some()));
    own.into_iter().chain(banned_netblocks(others)).collect()
}

/// `bans.json` of weir.
fn bans_json(case: &Case) -> String {
    let ban = |netblock| json!({ "netblock": netblock, "ban_expires": "permanent" });
    let bans: Vec<serde_json::Value> = refused(case).into_iter().map(ban).collect();
    json!({ "version": 1, "bans": bans }).to_string()
}
