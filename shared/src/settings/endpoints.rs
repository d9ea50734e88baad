//! The ways in for operators: the endpoints below `/_waf/`, the control socket, the admin listener.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::address::LONGEST_SOCKET_PATH;
use super::kind::{Kind, whole};
use super::listen;
use super::row::{Row, row};

/// The ways in for operators.
#[derive(Clone, Debug, Default)]
pub struct EndpointSettings {
    /// `WAF_METRICS_TOKEN` or `WAF_METRICS_TOKEN_FILE`
    pub metrics_token: TokenSource,
    /// `WAF_METRICS_TOP_N`
    pub metrics_top_n: usize,
    /// `WAF_ADMIN_TOKEN` or `WAF_ADMIN_TOKEN_FILE`
    pub admin_token: TokenSource,
    /// `WAF_ADMIN_READ_TOKEN_FILE`
    pub read_token: TokenSource,
    /// `WAF_CONTROL_SOCKET`
    pub control_socket: ControlSocket,
    /// `WAF_ADMIN_LISTEN`
    pub admin_listen: Option<SocketAddr>,
}

/// Where the control socket lies (CONTROL-1).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum ControlSocket {
    /// In the state directory.
    #[default]
    InStateDir,
    /// Here.
    Path(PathBuf),
    /// Nowhere.
    Off,
}

impl ControlSocket {
    /// Its name in the state directory.
    pub const FILE: &'static str = "weir.sock";
    /// The longest path that the system takes for a socket, in bytes.
    pub const LONGEST: usize = LONGEST_SOCKET_PATH;
}

/// Where a token comes from.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum TokenSource {
    /// Neither setting: its endpoints answer 404 (ADMIN-1).
    #[default]
    Unset,
    /// The setting itself.
    Value(Secret),
    /// A file, which is read at the start and by each reload.
    File(PathBuf),
}

/// A token. Its `Debug` form does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

/// A token of fewer characters can be guessed.
const SAFE_LENGTH: usize = 16;

impl Secret {
    /// Holds a token.
    pub fn new(token: String) -> Self {
        Self(token)
    }

    /// The token, for a comparison in constant time.
    pub fn bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// What to warn of, as a predicate.
    pub fn weakness(&self) -> Option<String> {
        (self.0.len() < SAFE_LENGTH)
            .then(|| format!("has fewer than {SAFE_LENGTH} characters: it can be guessed"))
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(…)")
    }
}

// long: a flat list of rows
pub(super) fn rows() -> Vec<Row<EndpointSettings>> {
    vec![
        row(
            "WAF_METRICS_TOKEN",
            "",
            token().map(TokenSource::Value),
            |endpoints: &mut EndpointSettings| &mut endpoints.metrics_token,
            "Token of `/_waf/metrics`; unset: 404.",
        ).live()
        .secret(),
        row(
            "WAF_METRICS_TOKEN_FILE",
            "",
            token_file(),
            |endpoints: &mut EndpointSettings| &mut endpoints.metrics_token,
            "A file that holds the token of the metrics; read again on SIGHUP.",
        ).live()
        .essential(),
        row(
            "WAF_METRICS_TOP_N",
            "20",
            whole(1..=1000),
            |endpoints: &mut EndpointSettings| &mut endpoints.metrics_top_n,
            "Countries, and AS numbers, that have a metric of their own; the rest is `other`.",
        ).live(),
        row(
            "WAF_ADMIN_TOKEN",
            "",
            token().map(TokenSource::Value),
            |endpoints: &mut EndpointSettings| &mut endpoints.admin_token,
            "Token of the admin endpoints; unset: 404.",
        ).live()
        .secret(),
        row(
            "WAF_ADMIN_TOKEN_FILE",
            "",
            token_file(),
            |endpoints: &mut EndpointSettings| &mut endpoints.admin_token,
            "A file that holds the token of the admin endpoints; read again on SIGHUP.",
        ).live()
        .essential(),
        row(
            "WAF_ADMIN_READ_TOKEN_FILE",
            "",
            token_file(),
            |endpoints: &mut EndpointSettings| &mut endpoints.read_token,
            "A file that holds a token with which the admin listener may be read and nothing changed, for a team.",
        ).live(),
        row(
            "WAF_CONTROL_SOCKET",
            "",
            control_socket(),
            |endpoints: &mut EndpointSettings| &mut endpoints.control_socket,
            "The Unix socket for the commands, open to the service's own user and to root.",
        ).restart()
        .unset("`weir.sock` in `WAF_STATE_DIR`"),
        row(
            "WAF_ADMIN_LISTEN",
            "off",
            listen::one_address().or_off(),
            |endpoints: &mut EndpointSettings| &mut endpoints.admin_listen,
            "The same as the control socket over TCP, with the tokens; plain HTTP, keep it on loopback.",
        ).restart(),
    ]
}

fn control_socket() -> Kind<ControlSocket> {
    Kind::new("a path, or off", |text| match text {
        "off" => Ok(ControlSocket::Off),
        _ if text.ends_with('/') => Err("is a directory"),
        _ => Ok(ControlSocket::Path(PathBuf::from(text))),
    })
}

/// A file that holds a token.
fn token_file() -> Kind<TokenSource> {
    Kind::new("a file", |text| {
        Ok::<_, &str>(TokenSource::File(PathBuf::from(text)))
    })
}

/// A token as `Authorization: Bearer` can carry it.
fn token() -> Kind<Secret> {
    Kind {
        expected: "a text of visible ASCII characters without blanks".to_owned(),
        read: Box::new(|text, remarks| {
            if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Err("holds a character that a header cannot carry".into());
            }
            let token = Secret::new(text.to_owned());
            remarks.extend(token.weakness());
            Ok(token)
        }),
    }
}
