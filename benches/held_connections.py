#!/usr/bin/env python3
"""What a held connection costs: resident memory of the proxy, as growth divided by connections.

    benches/held_connections.py target/release/weir [--count 1000] [--workers 1,2]
        [--proxy weir,nginx,haproxy] [--kinds idle,upload] [--tls] [--h2]

A thousand connections of a kind are held for five seconds (CONN-1); then all of them are closed, and
five seconds later the growth that is left is read. Loopback only; ends by itself. nginx and HAProxy
are started with the timeouts and buffers of their own defaults, where installed. With --tls every
connection has made a handshake (TLS 1.3, a certificate of ECDSA P-256 by openssl). With --h2 as well
HTTP/2 is spoken, and the kinds are `nothing` (SETTINGS and no more) and `idle`.
"""

import argparse
import asyncio
import pathlib
import re
import resource
import socket
import ssl
import subprocess
import tempfile
import threading
import time

from programs import answered, connected, free_port, running, settings, wait_for

KINDS = ["nothing", "idle", "idle-head", "idle-upload", "idle-download", "head", "reader", "upload", "chunked"]
BIG = 20_000_000
HEAD = 31_000
# HTTP/2: what a client begins with (RFC 9113 §3.4), and GET / of https://a on stream 1 (RFC 7541).
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0"
FIRST = b"\0\0\x06\x01\x05\0\0\0\x01\x82\x87\x84\x41\x01a"
SETTINGS_ACK = b"\0\0\0\x04\x01\0\0\0\0"


async def application(listener):
    """Answers `/` at once, `/big` with 20 MB, reads an upload to `/read`, and none to `/stall`."""

    async def serve(reader, writer):
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                target = head.split(b" ", 2)[1]
                if target.startswith(b"/stall"):
                    writer.transport.pause_reading()
                    await asyncio.sleep(600)
                if target.startswith(b"/read"):
                    await reader.readexactly(200_000)
                size = {b"/big": BIG, b"/1mb": 1_000_000}.get(target, 2)
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
                left = size
                while left:
                    part = min(left, 65_536)
                    writer.write(bytes(part))
                    await writer.drain()
                    left -= part
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    # asyncio listens once more, with a queue of 100 where it is not told.
    server = await asyncio.start_server(serve, sock=listener, limit=65_536, backlog=4096)
    await server.serve_forever()


def start_application():
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    listener.bind(("127.0.0.1", 0))
    listener.listen(4096)
    threading.Thread(target=lambda: asyncio.run(application(listener)), daemon=True).start()
    return listener.getsockname()[1]


def certificate(directory):
    """Makes a certificate; in one file with its key besides, as HAProxy wants it."""
    cert, key, both = (directory / name for name in ("cert.pem", "key.pem", "both.pem"))
    subprocess.run(
        ["openssl", "req", "-x509", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
        + ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-keyout", key, "-out", cert],
        check=True,
        stderr=subprocess.DEVNULL,
    )
    both.write_text(cert.read_text() + key.read_text())
    return cert, key, both


def prepared(args, proxy, workers, port, upstream, directory):
    """The command of a proxy, and its environment; its configuration lies in the directory then."""
    cert, key, both = certificate(directory) if args.tls else (None, None, None)
    configuration = directory / "configuration"
    if proxy == "weir":
        environment = settings(port, upstream, directory) | {
            "WAF_WORKERS": str(workers),
            "WAF_HEADER_TIMEOUT": "60s",
            "WAF_KEEPALIVE_TIMEOUT": "120s",
            "WAF_BODY_TIMEOUT": "120s",
            "WAF_UPSTREAM_TIMEOUT": "120s",
            "WAF_UPSTREAM_CONNECT_TIMEOUT": "60s",
            # A busy machine is no slow client.
            "WAF_MIN_RATE": "off",
            "WAF_SEND_TIMEOUT": "600s",
            "WAF_MAX_CONNECTIONS": "30000",
            # One address stands for all clients here.
            "WAF_TRUSTED_PROXIES": "127.0.0.0/8",
            "WAF_ALLOW_NETS": "127.0.0.0/8",
        }
        if args.tls:
            environment["WAF_LISTEN"] = f"https://127.0.0.1:{port}"
            environment["WAF_TLS_CERT"], environment["WAF_TLS_KEY"] = str(cert), str(key)
        return [args.binary], environment | dict(setting.split("=", 1) for setting in args.set)
    if proxy == "nginx":
        h2 = " http2" if args.h2 else ""
        tls = f"ssl{h2}; ssl_certificate {cert}; ssl_certificate_key {key}" if args.tls else ""
        configuration.write_text(
            f"""
            daemon off; master_process off; pid {directory}/pid; error_log {directory}/error.log crit;
            worker_rlimit_nofile 20000; events {{ worker_connections 10000; }}
            http {{ access_log off; client_header_timeout 60s; client_max_body_size 0;
              large_client_header_buffers 4 32k; client_body_temp_path {directory}/body;
              proxy_temp_path {directory}/proxy; proxy_max_temp_file_size 0;
              upstream a {{ server 127.0.0.1:{upstream}; keepalive 256; }}
              server {{ listen 127.0.0.1:{port} {tls}; keepalive_timeout 120s;
                location / {{ proxy_pass http://a; proxy_http_version 1.1; proxy_set_header Connection "";
                  proxy_request_buffering off; proxy_send_timeout 600s;
                  proxy_read_timeout 600s; send_timeout 600s; client_body_timeout 600s; }} }} }}
            """
        )
        return ["nginx", "-c", configuration], None
    h2 = " alpn h2" if args.h2 else ""
    tls = f" ssl crt {both}{h2}" if args.tls else ""
    configuration.write_text(
        f"global\n maxconn 5000\n nbthread {workers}\n"
        "defaults\n mode http\n timeout client 120s\n timeout server 120s\n timeout connect 5s\n"
        f" timeout http-request 60s\nfrontend f\n bind 127.0.0.1:{port}{tls}\n default_backend b\n"
        f"backend b\n server a 127.0.0.1:{upstream}\n"
    )
    return ["haproxy", "-db", "-f", configuration], None


def resident_kib(pid):
    found = re.search(r"VmRSS:\s*(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text())
    if not found:
        raise SystemExit("the proxy is gone")
    return int(found[1])


def frames(connection):
    """The frames that come: kind, flags, stream."""
    came = connection.makefile("rb")
    while head := came.read(9):
        came.read(int.from_bytes(head[:3], "big"))
        yield head[3], head[4], int.from_bytes(head[5:9], "big")
    raise SystemExit("the connection ended")


def begin_http2(connection, asks):
    """Sends the preface, and a request if `asks`; waits until the proxy has taken the settings, and answered."""
    connection.sendall(PREFACE + SETTINGS_ACK + (FIRST if asks else b""))
    waits = {"settings", "answer"} if asks else {"settings"}
    for kind, flags, stream in frames(connection):
        if kind == 4 and flags & 1:
            waits.discard("settings")
        if kind in (0, 1) and stream == 1 and flags & 1:
            waits.discard("answer")
        if not waits:
            return


def hold(args, kind, count, port):
    held = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if args.h2:
        context.set_alpn_protocols(["h2"])
    for number in range(count):
        connection = socket.socket()
        if number % 100 == 99:
            # The listener's queue is not to overflow.
            time.sleep(0.01)
        if kind in ("reader", "upload", "chunked"):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
        connection.connect(("127.0.0.1", port))
        if args.tls:
            connection = context.wrap_socket(connection, server_hostname="localhost")
        held.append(connection)
        if args.h2:
            begin_http2(connection, kind == "idle")
    if args.h2:
        return held
    plain = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
    large = b"GET / HTTP/1.1\r\nHost: a\r\n" + b"".join(
        b"X-%d: %s\r\n" % (number, b"x" * 990) for number in range(HEAD // 1000)
    )
    first = {
        "idle": plain,
        "idle-head": large + b"\r\n",
        "idle-upload": b"POST /read HTTP/1.1\r\nHost: a\r\nContent-Length: 200000\r\n\r\n" + bytes(200_000),
        "idle-download": b"GET /1mb HTTP/1.1\r\nHost: a\r\n\r\n",
        "head": large,
        "reader": b"GET /big HTTP/1.1\r\nHost: a\r\n\r\n",
        "upload": b"POST /stall HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % BIG,
        "chunked": b"POST /stall HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n" % BIG,
    }.get(kind, b"")
    # A batch at a time, so that all of them are under way at once and none waits for the application.
    for begin in range(0, count, 100):
        batch = held[begin : begin + 100]
        for connection in batch:
            connection.sendall(first)
        if kind.startswith("idle"):
            for connection in batch:
                answered(connection)
    if kind in ("upload", "chunked"):
        for connection in held:
            connection.setblocking(False)
        quiet = 0
        while quiet < 20:
            moved = 0
            for connection in held:
                try:
                    moved += connection.send(bytes(65_536))
                except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                    pass
                except OSError as error:
                    raise SystemExit(f"an upload was cut: {error}")
            quiet = 0 if moved else quiet + 1
            time.sleep(0.05)
    return held


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary", nargs="?", default="target/release/weir")
    parser.add_argument("--proxy", default="weir")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--workers", default="1")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--h2", action="store_true")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    args = parser.parse_args()
    if args.h2 and (not args.tls or not {*args.kinds.split(",")} <= {"nothing", "idle"}):
        parser.error("--h2 takes --tls and --kinds nothing,idle")
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    upstream = start_application()
    for proxy in args.proxy.split(","):
        for workers in args.workers.split(","):
            # One process of nginx has one worker.
            if proxy != "nginx" or workers == "1":
                measure(args, proxy, workers, upstream)


def growth(args, kind, port, pid):
    """KiB a connection: while they are held, and after they are closed."""
    # The first requests make what is made once.
    for connection in hold(args, "idle", 20, port):
        connection.close()
    time.sleep(1)
    before = resident_kib(pid)
    held = hold(args, kind, args.count, port)
    time.sleep(5)
    grown = resident_kib(pid) - before
    for connection in held:
        connection.close()
    time.sleep(5)
    return grown / args.count, (resident_kib(pid) - before) / args.count


def measure(args, proxy, workers, upstream):
    print(f"{proxy}, {workers} worker(s), {args.count} of each kind, KiB a connection")
    print(f"{'kind':14} {'held':>8} {'after':>8}")
    for kind in args.kinds.split(","):
        with tempfile.TemporaryDirectory() as name:
            directory, port = pathlib.Path(name), free_port()
            said = directory / "stderr"
            command, environment = prepared(args, proxy, workers, port, upstream, directory)
            with open(said, "wb") as output, running(command, env=environment, stderr=output) as process:
                try:
                    wait_for(proxy, lambda: connected(port))
                    held, after = growth(args, kind, port, process.pid)
                except (SystemExit, OSError) as error:
                    words = said.read_text()[-2000:]
                    raise SystemExit(f"{kind}: {error}; exit status {process.poll()}; it said: {words}") from error
            print(f"{kind:14} {held:8.1f} {after:8.1f}", flush=True)


if __name__ == "__main__":
    main()
