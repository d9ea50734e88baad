//! What is measured. How each proxy is brought into a case stands in `config.rs`.

use weir_benches::load::{CLIENTS, FEW_CLIENTS, MANY_CLIENTS};
use weir_benches::tls::Key;

/// One row of the comparison.
#[derive(Debug)]
pub(crate) struct Case {
    /// As `--cases` names it.
    pub(crate) name: &'static str,
    /// What wrk asks for.
    pub(crate) path: &'static str,
    /// Whether the proxy writes its request log, as JSON, into a file.
    pub(crate) log: bool,
    /// Whether the client is denied: every answer is a 429.
    pub(crate) refuse: bool,
    /// Whether the denied client is named by a trusted proxy, the generator; otherwise the
    /// generator is the client itself.
    pub(crate) named: bool,
    /// Connections of the generator.
    pub(crate) connections: Connections,
    /// How many /24 netblocks, the generator's not among them, are banned too.
    pub(crate) bans: usize,
    /// Whether a trusted `X-Forwarded-For` names many clients in turn.
    pub(crate) clients: bool,
    /// Whether weir has two workers, on both cores, beside the load. It is measured alone: what
    /// counts is its cost of a request beside that with one worker.
    pub(crate) two_workers: bool,
    /// Whether bodies are large: each peer has the buffers that its manual advises for them.
    pub(crate) large: bool,
    /// What wrk sends, as a Lua script; empty for its plain GET.
    pub(crate) script: &'static str,
    /// Whether clients speak TLS.
    pub(crate) tls: Option<Tls>,
}

/// How many connections the generator has.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Connections {
    /// As many as asked for.
    Asked,
    /// At most this many: a netblock that is denied may have eight (CONN-3).
    AtMost(usize),
    /// This many.
    Exactly(usize),
}

impl Connections {
    /// How many they are where so many were asked for.
    pub(crate) fn of(self, asked: usize) -> usize {
        match self {
            Self::Asked => asked,
            Self::AtMost(most) => asked.min(most),
            Self::Exactly(number) => number,
        }
    }
}

/// TLS between client and proxy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tls {
    pub(crate) key: Key,
    pub(crate) handshakes: Handshakes,
    /// Whether HTTP/2 is spoken over it, on kept connections.
    pub(crate) http2: bool,
}

/// How often a handshake is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Handshakes {
    /// Connections are kept.
    Once,
    /// Each request has a connection and a full handshake.
    Full,
    /// Each request has a connection, which goes on with a session.
    Resumed,
}

/// TLS 1.3 with the key that is most used.
const KEPT: Tls = Tls {
    key: Key::Ecdsa,
    handshakes: Handshakes::Once,
    http2: false,
};

/// HTTP/2 over it, ten streams a connection.
const HTTP2: Tls = Tls {
    http2: true,
    ..KEPT
};

const PLAIN: Case = Case {
    name: "",
    path: "/",
    log: false,
    refuse: false,
    named: false,
    connections: Connections::Asked,
    bans: 0,
    clients: false,
    two_workers: false,
    large: false,
    script: "",
    tls: None,
};

/// A denied client behind a trusted proxy.
const NAMED: Case = Case {
    refuse: true,
    named: true,
    script: "wrk.headers['X-Forwarded-For'] = '203.0.113.7'\n",
    ..PLAIN
};

/// Every case, in the order of the table.
pub(crate) static CASES: [Case; 27] = [
    Case {
        name: "pass",
        ..PLAIN
    },
    Case {
        name: "pass+log",
        log: true,
        ..PLAIN
    },
    Case {
        name: "named",
        ..NAMED
    },
    Case {
        name: "named+log",
        log: true,
        ..NAMED
    },
    Case {
        name: "refuse",
        refuse: true,
        connections: Connections::AtMost(8),
        ..PLAIN
    },
    Case {
        name: "refuse+log",
        refuse: true,
        connections: Connections::AtMost(8),
        log: true,
        ..PLAIN
    },
    Case {
        name: "browser",
        script: BROWSER,
        ..PLAIN
    },
    Case {
        name: "clients",
        clients: true,
        script: CLIENTS,
        ..PLAIN
    },
    Case {
        name: "connect",
        script: "wrk.headers['Connection'] = 'close'\n",
        ..PLAIN
    },
    Case {
        name: "download",
        path: "/1m",
        large: true,
        ..PLAIN
    },
    Case {
        name: "upload",
        path: "/upload",
        large: true,
        script: "wrk.method = 'POST'\nwrk.body = string.rep('x', 100000)\n",
        ..PLAIN
    },
    Case {
        name: "bans",
        bans: 10_000,
        ..PLAIN
    },
    Case {
        name: "bans+100000",
        bans: 100_000,
        ..PLAIN
    },
    Case {
        name: "bans+refuse",
        bans: 10_000,
        ..NAMED
    },
    Case {
        name: "clients+100",
        clients: true,
        script: FEW_CLIENTS,
        ..PLAIN
    },
    Case {
        name: "clients+1000000",
        clients: true,
        script: MANY_CLIENTS,
        ..PLAIN
    },
    Case {
        name: "clients+bans",
        clients: true,
        script: CLIENTS,
        bans: 10_000,
        ..PLAIN
    },
    Case {
        name: "busy",
        connections: Connections::Exactly(1000),
        ..PLAIN
    },
    Case {
        name: "workers",
        two_workers: true,
        ..PLAIN
    },
    Case {
        name: "tls",
        tls: Some(KEPT),
        ..PLAIN
    },
    Case {
        name: "tls+download",
        path: "/1m",
        large: true,
        tls: Some(KEPT),
        ..PLAIN
    },
    Case {
        name: "tls+full",
        tls: Some(Tls {
            handshakes: Handshakes::Full,
            ..KEPT
        }),
        ..PLAIN
    },
    Case {
        name: "tls+resumed",
        tls: Some(Tls {
            handshakes: Handshakes::Resumed,
            ..KEPT
        }),
        ..PLAIN
    },
    Case {
        name: "tls+full+rsa",
        tls: Some(Tls {
            key: Key::Rsa,
            handshakes: Handshakes::Full,
            ..KEPT
        }),
        ..PLAIN
    },
    Case {
        name: "h2",
        connections: Connections::AtMost(16),
        tls: Some(HTTP2),
        ..PLAIN
    },
    Case {
        name: "h2+log",
        connections: Connections::AtMost(16),
        log: true,
        tls: Some(HTTP2),
        ..PLAIN
    },
    Case {
        name: "h2+download",
        path: "/1m",
        connections: Connections::AtMost(4),
        large: true,
        tls: Some(HTTP2),
        ..PLAIN
    },
];

/// For `--steady`, which no table of costs has: 20,000 clients, 10,000 bans.
pub(crate) static STEADY: Case = Case {
    name: "steady",
    clients: true,
    script: CLIENTS,
    bans: 10_000,
    ..PLAIN
};

impl Case {
    /// Whether `X-Forwarded-For` names the client.
    pub(crate) fn is_forwarded(&self) -> bool {
        self.clients || self.named
    }

    /// The netblock that is denied, if one is.
    pub(crate) fn denied(&self) -> Option<&'static str> {
        let denied = if self.named {
            "203.0.113.0/24"
        } else {
            "127.0.0.1/32"
        };
        self.refuse.then_some(denied)
    }

    /// The status every answer must have: a figure of wrong answers is worth nothing.
    pub(crate) fn status(&self) -> u16 {
        if self.refuse { 429 } else { 200 }
    }

    /// The case in words, for the table.
    pub(crate) fn title(&self) -> &'static str {
        match self.name {
            "pass" => "pass",
            "pass+log" => "pass, log on",
            "named" => "refuse named by a trusted proxy",
            "named+log" => "refuse named by a trusted proxy, log on",
            "refuse" => "refuse of a banned peer itself",
            "refuse+log" => "refuse of a banned peer itself, log on",
            "browser" => "browser-size heads",
            "clients" => "20,000 clients in turn",
            "connect" => "new connection each request",
            "download" => "1 MiB answer",
            "upload" => "100 kB upload",
            "bans" => "pass, 10,000 bans",
            "bans+100000" => "pass, 100,000 bans",
            "clients+100" => "100 clients in turn",
            "clients+1000000" => "1,000,000 clients in turn",
            "clients+bans" => "20,000 clients in turn, 10,000 bans",
            "busy" => "pass, 1,000 connections",
            "workers" => "pass, two workers",
            "bans+refuse" => "refuse named by a trusted proxy, 10,000 bans",
            "tls" => "pass over TLS",
            "tls+download" => "1 MiB answer over TLS",
            "tls+full" => "full handshake each request, ECDSA P-256",
            "tls+resumed" => "resumed handshake each request",
            "tls+full+rsa" => "full handshake each request, RSA-2048",
            "h2" => "pass over HTTP/2, ten streams a connection",
            "h2+log" => "pass over HTTP/2, log on",
            "h2+download" => "1 MiB answer over HTTP/2",
            other => other,
        }
    }

    /// Whether clients speak HTTP/2.
    pub(crate) fn is_http2(&self) -> bool {
        self.tls.is_some_and(|tls| tls.http2)
    }
}

/// The netblocks of [`Case::bans`].
pub(crate) fn banned_netblocks(count: usize) -> impl Iterator<Item = String> {
    (0..count).map(|number| {
        // 10.40.0.0 and above are clients.
        let (first, number) = match number.checked_sub(10_000) {
            None => (10, number),
            Some(number) => (11 + number / 65_536, number % 65_536),
        };
        format!("{first}.{}.{}.0/24", number / 256, number % 256)
    })
}

/// A head of the size a browser sends: about 1.2 kB in 17 fields.
const BROWSER: &str = r#"
wrk.headers['User-Agent'] = 'Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/131.0.0.0 Safari/537.36'
wrk.headers['Accept'] = 'text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,image/apng,*/*;q=0.8,application/signed-exchange;v=b3;q=0.7'
wrk.headers['Accept-Encoding'] = 'gzip, deflate, br, zstd'
wrk.headers['Accept-Language'] = 'de-DE,de;q=0.9,en-US;q=0.8,en;q=0.7'
wrk.headers['Cache-Control'] = 'max-age=0'
wrk.headers['Cookie'] = '_ga=GA1.2.1234567890.1700000000; _gid=GA1.2.987654321.1700000000; session=' .. string.rep('0123456789abcdef', 16) .. '; theme=dark; consent=all'
wrk.headers['DNT'] = '1'
wrk.headers['Priority'] = 'u=0, i'
wrk.headers['Referer'] = 'https://www.example.org/catalogue/shoes/running?page=3&sort=price&colour=blue'
wrk.headers['Sec-Ch-Ua'] = '"Chromium";v="131", "Not_A Brand";v="24", "Google Chrome";v="131"'
wrk.headers['Sec-Ch-Ua-Mobile'] = '?0'
wrk.headers['Sec-Ch-Ua-Platform'] = '"Linux"'
wrk.headers['Sec-Fetch-Dest'] = 'document'
wrk.headers['Sec-Fetch-Mode'] = 'navigate'
wrk.headers['Sec-Fetch-Site'] = 'same-origin'
wrk.headers['Sec-Fetch-User'] = '?1'
wrk.headers['Upgrade-Insecure-Requests'] = '1'
"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_preloaded_bans_are_distinct_and_spare_the_clients() {
        let blocks: std::collections::HashSet<_> = banned_netblocks(100_000).collect();
        assert_eq!(blocks.len(), 100_000);
        assert!(blocks.iter().all(|block| {
            ["10.200.", "100.", "127."]
                .iter()
                .all(|client| !block.starts_with(client))
        }));
    }

    #[test]
    fn every_case_has_its_own_name_and_title() {
        let names: std::collections::HashSet<_> = CASES.iter().map(|case| case.name).collect();
        let titles: std::collections::HashSet<_> = CASES.iter().map(Case::title).collect();
        assert_eq!((names.len(), titles.len()), (CASES.len(), CASES.len()));
    }
}
