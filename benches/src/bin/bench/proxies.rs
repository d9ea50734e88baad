//! The proxies, brought into a case: each does the same work in the way its own manual advises.
//!
//! Every proxy limits requests per address (at a rate that is never reached), keeps connections to
//! the application open, and adds `X-Forwarded-For`, `X-Forwarded-Proto` and `X-Request-ID`. nginx
//! and HAProxy watch one window, weir six. nginx writes its log through a buffer and streams
//! uploads, both faster than its defaults. For large bodies nginx has `proxy_buffers 16 64k`, and
//! HAProxy `tune.bufsize 65536` and splicing. TLS has the ciphers and tickets of each one's own
//! defaults; nginx a session cache besides, as its manual advises.

use std::fs::File;
use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::json;
use weir_benches::config;
use weir_benches::program::{Kind, PROXY_CORE, Running, directory, free_port};
use weir_benches::tls::certificate;

use crate::cases::{Case, banned_netblocks};
use crate::run::Bench;

/// Settings of weir: every refusal has its line in the log, as with the peers. Here and in the two
/// below, a line that begins with a word in brackets is there in some cases: see [`Place::fill`].
const WEIR: &str = "\
WAF_MAX_BANS={bans}
[log]WAF_LOG_REQUESTS=all
[log]WAF_LOG_REFUSED_RATE=off
[forwarded]WAF_TRUSTED_PROXIES=127.0.0.0/8
[workers]WAF_WORKERS=2
[tls]WAF_LISTEN=https://127.0.0.1:0
[tls]WAF_TLS_CERT={directory}/cert.pem
[tls]WAF_TLS_KEY={directory}/key.pem
";

/// nginx. It keeps as many connections to the application as weir.
const NGINX: &str = r#"
[log]log_format request escape=json '{"time":"$time_iso8601","event":"request","request_id":"$request_id",'
[log]  '"client":"$remote_addr","forwarded_for":"$http_x_forwarded_for","scheme":"$scheme","method":"$request_method",'
[log]  '"host":"$host","path":"$uri","query":"$args","protocol":"$server_protocol","user_agent":"$http_user_agent",'
[log]  '"referer":"$http_referer","status":$status,"response_content_type":"$sent_http_content_type",'
[log]  '"bytes":$body_bytes_sent,"total":$request_time,"upstream":"$upstream_response_time"}';
[log]access_log {directory}/access.log request buffer=64k flush=1s;
[quiet]access_log off;
[forwarded]set_real_ip_from 127.0.0.0/8; real_ip_header X-Forwarded-For;
[denied]geo $denied { default 0; include {directory}/denied; }
limit_req_zone $binary_remote_addr zone=clients:10m rate=1000000r/s;
upstream application { server {application}; keepalive 1024; keepalive_requests 1000000000; }
server {
[plain]  listen 127.0.0.1:{port} backlog=4096;
[http1s]  listen 127.0.0.1:{port} ssl backlog=4096;
[http2]  listen 127.0.0.1:{port} ssl http2 backlog=4096;
[tls]  ssl_certificate {directory}/cert.pem; ssl_certificate_key {directory}/key.pem;
[tls]  ssl_protocols TLSv1.2 TLSv1.3; ssl_session_cache shared:SSL:10m; ssl_session_timeout 10m;
  location / {
[denied]    if ($denied) { return 429; }
    limit_req zone=clients burst=1000000 nodelay; limit_req_status 429;
    proxy_pass http://application; proxy_http_version 1.1; proxy_set_header Connection "";
    proxy_set_header Host $http_host;
    proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
    proxy_set_header X-Forwarded-Proto $scheme;
    proxy_set_header X-Request-ID $request_id;
[large]    proxy_buffers 16 64k; proxy_buffer_size 64k; proxy_busy_buffers_size 128k;
[large]    client_body_buffer_size 128k;
    proxy_request_buffering off; proxy_max_temp_file_size 0;
  }
}
"#;

/// HAProxy. Its log goes to standard output.
const HAPROXY: &str = r"
global
  nbthread 1
  maxconn 8192
[large]  maxpipes 512
[large]  tune.bufsize 65536
  log stdout len 4096 format raw local0
defaults
[large]  option splice-request
[large]  option splice-response
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
  timeout http-request 10s
  timeout http-keep-alive 75s
  option http-keep-alive
  http-reuse always
frontend proxy
[plain]  bind 127.0.0.1:{port} backlog 4096
[http1s]  bind 127.0.0.1:{port} backlog 4096 ssl crt {directory}/both.pem
[http2]  bind 127.0.0.1:{port} backlog 4096 ssl crt {directory}/both.pem alpn h2
[log]  log global
[log]  log-format '{log}'
[log]  http-request capture req.hdr(X-Forwarded-For) len 256
[log]  http-request capture req.hdr(Host) len 256
[log]  http-request capture req.hdr(User-Agent) len 256
[log]  http-request capture req.hdr(Referer) len 256
  unique-id-format %{+X}o%ci%cp%Ts%rt
  unique-id-header X-Request-ID
[forwarded]  http-request set-src hdr(X-Forwarded-For)
[denied]  http-request deny deny_status 429 if { src -f {directory}/denied }
  stick-table type ip size 20k expire 1d store http_req_rate(60s)
  http-request track-sc0 src
  http-request deny deny_status 429 if { sc_http_req_rate(0) gt 1000000000 }
  option forwardfor
[plain]  http-request set-header X-Forwarded-Proto http
[tls]  http-request set-header X-Forwarded-Proto https
  default_backend application
backend application
  server application {application}
";

/// A line of its log, put together.
const HAPROXY_LOG: [&str; 4] = [
    r#"{"time":"%tr","event":"request","request_id":"%ID","client":"%ci","forwarded_for":"%[capture.req.hdr(0),json(utf8s)]","#,
    r#""method":"%HM","host":"%[capture.req.hdr(1),json(utf8s)]","path":"%[capture.req.uri,json(utf8s)]","protocol":"%HV","#,
    r#""user_agent":"%[capture.req.hdr(2),json(utf8s)]","referer":"%[capture.req.hdr(3),json(utf8s)]","status":%ST,"#,
    r#""bytes":%B,"total":%Ta,"upstream":%Tr}"#,
];

/// Starts a proxy on its core; `further` are settings of weir.
pub(crate) fn start(
    kind: Kind,
    bench: &Bench,
    case: &Case,
    further: &[(&str, &str)],
) -> Result<Running> {
    let (files, port) = (directory()?, free_port()?);
    let place = Place {
        directory: files.path(),
        application: bench.application.address,
        case,
        refused: refused(case),
        port,
    };
    let file = |name: &str| files.path().join(name);
    if let Some((key, _)) = case.tls {
        certificate(files.path(), key)?;
    }
    let (text, arguments) = match kind {
        Kind::Weir => {
            std::fs::create_dir(file("state"))?;
            if !place.refused.is_empty() {
                std::fs::write(file("state/bans.json"), bans_json(&place.refused))?;
            }
            let own = place.fill(WEIR)?;
            let own = own.lines().filter_map(|line| line.split_once('='));
            let settings = own.chain(further.iter().copied()).fold(
                config::weir(files.path(), place.application),
                |all, (name, value)| all.with(name, value),
            );
            let cores = 1 + usize::from(case.two_workers);
            return Running::weir(cores, bench.programs, settings, files);
        }
        Kind::Nginx => {
            std::fs::write(file("denied"), place.refused.join(" 1;\n") + " 1;\n")?;
            (config::nginx(files.path(), &place.fill(NGINX)?), "-c")
        }
        Kind::Haproxy => {
            std::fs::write(file("denied"), place.refused.join("\n") + "\n")?;
            (place.fill(HAPROXY)?, "-db -f")
        }
    };
    std::fs::write(file("configuration"), text)?;
    let mut command = bench.programs.pinned(&[PROXY_CORE], kind.name())?;
    command
        .current_dir(files.path())
        .args(arguments.split(' '))
        .arg(file("configuration"))
        // The log of HAProxy; nginx opens its own.
        .stdout(File::create(file("access.log"))?);
    Running::start(command, files, Some(port))
        .with_context(|| format!("{} for the case {}", kind.name(), case.name))
}

/// What a configuration is made of.
struct Place<'a> {
    directory: &'a Path,
    application: SocketAddr,
    case: &'a Case,
    refused: Vec<String>,
    port: u16,
}

impl Place<'_> {
    /// A configuration in this case: the lines that it has, with what only a run knows.
    fn fill(&self, lines: &str) -> Result<String> {
        let case = self.case;
        let words = [
            ("log", case.log),
            ("quiet", !case.log),
            ("forwarded", case.is_forwarded),
            ("denied", !self.refused.is_empty()),
            ("large", case.large),
            ("workers", case.two_workers),
            ("plain", case.tls.is_none()),
            ("tls", case.tls.is_some()),
            ("http1s", case.tls.is_some() && !case.is_http2()),
            ("http2", case.is_http2()),
        ];
        let mut text = String::new();
        for line in lines.lines() {
            let marked = line.strip_prefix('[').and_then(|line| line.split_once(']'));
            let (word, line) = marked.unwrap_or(("", line));
            let mut known = words.iter().filter(|(known, _)| *known == word);
            if word.is_empty() || known.next().with_context(|| format!("[{word}]"))?.1 {
                text.extend([line, "\n"]);
            }
        }
        Ok(text
            .replace("{directory}", &self.directory.display().to_string())
            .replace("{application}", &self.application.to_string())
            .replace("{port}", &self.port.to_string())
            .replace("{bans}", &case.bans.max(10_000).to_string())
            .replace("{log}", &HAPROXY_LOG.concat()))
    }
}

/// The netblocks that are denied or banned: as many as weir's ledger holds, and no more.
fn refused(case: &Case) -> Vec<String> {
    let own = case.denied.map(str::to_owned);
    let others = case.bans.saturating_sub(usize::from(own.is_some()));
    own.into_iter().chain(banned_netblocks(others)).collect()
}

/// `bans.json` of weir.
fn bans_json(refused: &[String]) -> String {
    let ban = |netblock| json!({ "netblock": netblock, "ban_expires": "permanent" });
    let bans: Vec<serde_json::Value> = refused.iter().map(ban).collect();
    json!({ "version": 1, "bans": bans }).to_string()
}
