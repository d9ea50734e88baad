//! A real application that is not ours: Debian's nginx, served through the proxy.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};

use serde_json::json;

use crate::support::raw_client::{Connection, get, request};
use crate::support::weir::{Weir, from_now, pretty, state_dir};
use crate::support::{free_address, wait_for, wait_until};

/// An nginx with its own configuration, ended by its process id.
struct Nginx {
    child: Child,
    address: SocketAddr,
    directory: tempfile::TempDir,
}

impl Nginx {
    #[track_caller]
    fn start() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let address = free_address();
        let root = directory.path();
        fs::create_dir(root.join("www")).expect("a directory");
        fs::write(root.join("www/index.html"), "<h1>shop</h1>\n").expect("writes");
        let large: Vec<u8> = (0..5_000_000u32).map(|n| (n % 251) as u8).collect();
        fs::write(root.join("www/large.bin"), large).expect("writes");
        let configuration = format!(
            "daemon off; master_process off; worker_processes 1; pid {root}/nginx.pid; error_log {root}/error.log;\n\
             events {{ worker_connections 256; }}\n\
             http {{ access_log {root}/access.log; gzip on; gzip_min_length 0; gzip_types application/octet-stream;\n\
             client_body_temp_path {root}/body; proxy_temp_path {root}/proxy; fastcgi_temp_path {root}/fastcgi;\n\
             uwsgi_temp_path {root}/uwsgi; scgi_temp_path {root}/scgi; keepalive_timeout 5s;\n\
             server {{ listen {address}; root {root}/www;\n\
             location = /who {{ return 200 \"$host|$http_x_forwarded_for|$http_x_forwarded_proto\\n\"; }} }} }}\n",
            root = root.display(),
        );
        fs::write(root.join("nginx.conf"), configuration).expect("writes");
        let child = Command::new("nginx")
            .arg("-p")
            .arg(root)
            .arg("-c")
            .arg(root.join("nginx.conf"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("nginx is installed and on the PATH");
        let nginx = Self {
            child,
            address,
            directory,
        };
        wait_for("nginx", || TcpStream::connect(address).ok());
        nginx
    }

    fn access_log(&self) -> String {
        fs::read_to_string(self.directory.path().join("access.log")).unwrap_or_default()
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The whole story: a client breaks a limit, its netblock is banned, the ban is seen in bans.json
/// and through the admin endpoint, lifted by an edit of the file, and the client is served again
/// (LIMIT-6, BAN-4, STATE-1, STATE-3).
#[test]
#[ignore = "needs nginx; .ci/run installs it"]
fn the_story_from_break_to_being_served_again() {
    let nginx = Nginx::start();
    let weir = Weir::start_at(
        nginx.address,
        &state_dir(),
        &[
            ("WAF_RATE_LIMIT_PER_HOUR", "10"),
            ("WAF_STATE_WRITE_DELAY", "50ms"),
        ],
    );
    let mut connection = Connection::open(weir.address());
    let page = get("/", &[("X-Forwarded-For", "203.0.113.7")]);
    for _ in 0..10 {
        connection.send(&page);
        let answer = connection.response();
        assert_eq!(
            (answer.status, answer.text()),
            (200, "<h1>shop</h1>\n".to_owned())
        );
    }
    connection.send(&page);
    connection.response().expect(429);
    wait_until("the neighbour's refusal", || {
        weir.get("/", "203.0.113.99").status == 429
    });
    assert_eq!(
        weir.get("/", "198.51.100.1").status,
        200,
        "others are served"
    );

    let mut file = weir.wait_for_bans("the ban", |bans| bans.len() == 1);
    assert_eq!(file["bans"][0]["netblock"], "203.0.113.0/24");
    assert_eq!(
        weir.bans(),
        file["bans"].as_array().expect("a list").clone()
    );

    file["bans"][0]["lifted"] = json!(from_now(0));
    fs::write(weir.state_path("bans.json"), pretty(&file)).expect("writes");
    wait_until("being served again", || {
        connection.send(&get("/_waf/probe", &[("X-Forwarded-For", "203.0.113.99")]));
        connection.response().status == 404
    });
    connection.send(&page);
    connection.response().expect(200);
}

/// What browsers ask of nginx arrives and returns unchanged.
#[test]
#[ignore = "needs nginx; .ci/run installs it"]
fn nginx_answers_through_the_proxy_as_directly() {
    let nginx = Nginx::start();
    let weir = Weir::start_at(nginx.address, &state_dir(), &[]);
    let mut through = Connection::open(weir.address());
    let mut direct = Connection::open(nginx.address);
    for (method, target, headers, body) in [
        ("GET", "/", &[][..], None),
        ("HEAD", "/", &[], None),
        ("GET", "/missing", &[], None),
        ("GET", "/large.bin", &[], None),
        ("GET", "/large.bin", &[("Range", "bytes=1000-1999")], None),
        ("GET", "/large.bin", &[("Range", "bytes=9999999-")], None),
        ("GET", "/", &[("Accept-Encoding", "gzip")], None),
        (
            "GET",
            "/",
            &[("If-Modified-Since", "Fri, 01 Jan 2100 00:00:00 GMT")],
            None,
        ),
        ("POST", "/", &[], Some(&b"form"[..])),
        ("GET", "/%2e%2e/x", &[], None),
    ] {
        let bytes = request(method, target, headers, body);
        through.send(&bytes);
        direct.send(&bytes);
        let head = method == "HEAD";
        let ours = through.try_response(head).expect("an answer");
        let theirs = direct.try_response(head).expect("an answer");
        assert_eq!(ours.status, theirs.status, "{method} {target} {headers:?}");
        assert!(ours.body == theirs.body, "{method} {target} {headers:?}");
        for name in [
            "content-type",
            "content-length",
            "etag",
            "content-range",
            "content-encoding",
            "last-modified",
        ] {
            assert_eq!(
                ours.header(name),
                theirs.header(name),
                "{method} {target} {name}"
            );
        }
    }
    let who = weir.get("/who", "203.0.113.7").text();
    assert_eq!(who, "example.org|203.0.113.7, 127.0.0.1|http\n");
    wait_until("nginx's own log", || {
        nginx.access_log().contains("GET /who")
    });
}
