"""What the Python programs of the benches start: nginx as the application, weir, and whatever else runs meanwhile."""

import contextlib
import http.client
import os
import socket
import subprocess
import time


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def connected(port):
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def answered(connection):
    """Reads an answer to its end; its status."""
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    answer.read()
    return answer.status


def wait_for(what, found, seconds=20):
    """What `found` returns, once it is something."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
            if value := found():
                return value
        time.sleep(0.02)
    raise SystemExit(f"benches: {what} was waited for in vain")


@contextlib.contextmanager
def running(command, **more):
    """A program that is ended by SIGTERM, and waited for."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, **quiet | more)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(120)


@contextlib.contextmanager
def application(directory):
    """nginx, which answers at this port of its own."""
    port = free_port()
    (directory / "nginx.conf").write_text(
        f"worker_processes 1; daemon off; pid {directory}/nginx.pid; error_log /dev/null;\n"
        "events { worker_connections 512; }\nhttp { access_log off; keepalive_requests 1000000;\n"
        f"  keepalive_timeout 600s; server {{ listen 127.0.0.1:{port}; location / {{ return 200 'a small answer'; }} }} }}\n"
    )
    with running(["nginx", "-c", directory / "nginx.conf", "-p", directory, "-e", "/dev/null"]):
        wait_for("nginx", lambda: connected(port))
        yield port


def redis_server(port):
    """The command of a redis-server that keeps nothing on disk."""
    return ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]


def fleet_settings(port, directory):
    """What makes weir an instance of the fleet whose engine listens at this port; the key lies in `directory`."""
    key = directory / "fleet.key"
    if not key.exists():
        key.touch(mode=0o600)
        key.write_text("a-key-of-the-benches,-of-32-characters-and-more\n")
    return {"WAF_FLEET": f"valkey://127.0.0.1:{port}", "WAF_FLEET_KEY_FILE": str(key)}


def settings(port, upstream, state, **more):
    """The environment of weir: one worker, nobody is asked about clients, no log; and `more`."""
    return {
        "PATH": os.environ["PATH"],
        "WAF_LISTEN": f"127.0.0.1:{port}",
        "WAF_UPSTREAM": f"http://127.0.0.1:{upstream}",
        "WAF_STATE_DIR": str(state),
        "WAF_WORKERS": "1",
        "WAF_LOOKUP_SOURCE": "off",
        "WAF_LOG_REQUESTS": "off",
        **more,
    }
