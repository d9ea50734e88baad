//! The request log and the process log.

use std::path::PathBuf;

use http::{HeaderName, header};

use super::kind::{Kind, each_entry, file, parse_header_name, whole, word};
use super::row::{Row, row};

/// The request log and the process log.
#[derive(Clone, Debug, Default)]
pub struct LogSettings {
    /// `WAF_INSTANCE_NAME`
    pub instance_name: Option<String>,
    /// `WAF_LOG_REQUESTS`
    pub requests: LogRequests,
    /// `WAF_LOG_REFUSED_RATE`: lines a second; none is `off`
    pub refused_rate: Option<u32>,
    /// `WAF_LOG_FORMAT`
    pub format: LogFormat,
    /// `WAF_LOG_FILE`; none is standard output
    pub file: Option<PathBuf>,
    /// `WAF_LOG_REQUEST_HEADERS`
    pub request_headers: Vec<HeaderName>,
    /// `WAF_LOG_LEVEL`: `error`, `warn`, `info`, `debug` or `trace`
    pub level: &'static str,
}

/// `WAF_LOG_REQUESTS`
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LogRequests {
    /// Every request.
    #[default]
    All,
    /// Those that were, or would have been, refused.
    Refused,
    /// None.
    Off,
}

/// `WAF_LOG_FORMAT` (TELL-2)
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LogFormat {
    /// One JSON object a line.
    #[default]
    Json,
    /// The NCSA combined format.
    Combined,
}

/// Headers that hold secrets (LOG-1).
const NEVER_LOGGED: [&str; 3] = ["Authorization", "Cookie", "Set-Cookie"];
/// A name that stands in every line has to be short.
const MAX_INSTANCE_NAME: usize = 128;

// long: a flat list of rows
pub(super) fn rows() -> Vec<Row<LogSettings>> {
    vec![
        row(
            "WAF_INSTANCE_NAME",
            "",
            instance_name(),
            |log: &mut LogSettings| &mut log.instance_name,
            "`instance` of the request log.",
        )
        .live(),
        row(
            "WAF_LOG_REQUESTS",
            "all",
            word([
                ("all", LogRequests::All),
                ("refused", LogRequests::Refused),
                ("off", LogRequests::Off),
            ]),
            |log: &mut LogSettings| &mut log.requests,
            "Which requests are logged.",
        )
        .live()
        .essential(),
        row(
            "WAF_LOG_REFUSED_RATE",
            "1000",
            whole(1..=1_000_000).or_off(),
            |log: &mut LogSettings| &mut log.refused_rate,
            "Lines a second for refused requests of one netblock; the others of that second are counted in one line.",
        )
        .live(),
        row(
            "WAF_LOG_FORMAT",
            "json",
            word([("json", LogFormat::Json), ("combined", LogFormat::Combined)]),
            |log: &mut LogSettings| &mut log.format,
            "Form of a line: one JSON object, or the NCSA combined format.",
        )
        .live(),
        row(
            "WAF_LOG_FILE",
            "",
            file(),
            |log: &mut LogSettings| &mut log.file,
            "Where the request log goes; opened again on SIGUSR1.",
        )
        .live()
        .unset("standard output")
        .essential(),
        row(
            "WAF_LOG_REQUEST_HEADERS",
            "",
            logged_headers(),
            |log: &mut LogSettings| &mut log.request_headers,
            "Request headers that are logged; never Authorization, Cookie or Set-Cookie.",
        )
        .live(),
        row(
            "WAF_LOG_LEVEL",
            "info",
            word(["error", "warn", "info", "debug", "trace"].map(|level| (level, level))),
            |log: &mut LogSettings| &mut log.level,
            "Of the process log on standard error.",
        )
        .live(),
    ]
}

fn instance_name() -> Kind<Option<String>> {
    Kind::new(
        format!("a text of at most {MAX_INSTANCE_NAME} bytes without control characters"),
        |text| {
            if text.len() > MAX_INSTANCE_NAME {
                return Err("is too long");
            }
            if text.chars().any(char::is_control) {
                return Err("holds a control character");
            }
            Ok(Some(text.to_owned()))
        },
    )
}

fn logged_headers() -> Kind<Vec<HeaderName>> {
    Kind {
        expected: "a list of header names other than Host and Transfer-Encoding".to_owned(),
        read: Box::new(|text, remarks| {
            let mut names = Vec::new();
            each_entry(text, |entry| {
                let wrong = || format!("has {entry:?}, which is not a header name");
                let name = parse_header_name(entry).ok_or_else(wrong)?;
                if [header::HOST, header::TRANSFER_ENCODING].contains(&name) {
                    return Err(format!("has {entry:?}, which cannot be logged"));
                }
                let is_secret = |never: &&&str| never.eq_ignore_ascii_case(name.as_str());
                if let Some(never) = NEVER_LOGGED.iter().find(is_secret) {
                    remarks.push(format!(
                        "has {never}, whose value is never logged: it is left out"
                    ));
                } else if !names.contains(&name) {
                    names.push(name);
                }
                Ok(())
            })?;
            Ok(names)
        }),
    }
}
