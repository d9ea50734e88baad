#!/usr/bin/env python3
"""Several instances over one engine: what a client gets that spreads its requests, how long a ban is under way, what
the engine has to do, and what happens while it dies again and again.

    benches/fleet.py target/release/weir spread [--instances 1,2,5,10] [--runs 100] [--picture FILE.svg]
    benches/fleet.py target/release/weir delay [--bans 1000] [--round-trip 80]
    benches/fleet.py target/release/weir loaded [--bans 1000] [--round-trip 80]
    benches/fleet.py target/release/weir engine
    benches/fleet.py target/release/weir flood [--seconds 20]
    benches/fleet.py target/release/weir kills [--seconds 300] [--away 0]
    benches/fleet.py target/release/weir latency [--seconds 120] [--away 0]

It wants redis-server and nginx, haproxy for the peers beside `spread`, wrk for the load of `loaded`; listens on loopback
only, and ends by itself.
Instances, engine and load share the cores of one machine: a time is what that machine made of it.
"""

import argparse
import concurrent.futures
import contextlib
import http.client
import itertools
import json
import math
import pathlib
import queue
import random
import re
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time

from programs import application, connected, fleet_settings, free_port, redis_server, running, settings, wait_for

LIMIT = 200
# FLEET-7: what is sent within 20 ms and three round trips, and one request an instance.
BOUND_SECONDS = 0.020
STATUS = re.compile(rb"HTTP/1\.1 (\d\d\d)")


class Engine:
    """A redis-server of its own, that keeps nothing on disk."""

    def __init__(self):
        self.port = free_port()
        self.process = None

    def __enter__(self):
        self.process = subprocess.Popen(redis_server(self.port), stdout=subprocess.DEVNULL)
        wait_for("redis-server", lambda: self.ask("PING"))
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def restart(self, away):
        """Kills it, and starts it again, empty, so many seconds later."""
        self.__exit__()
        time.sleep(away)
        self.__enter__()

    def ask(self, command):
        with connected(self.port) as connection:
            connection.sendall(f"{command}\r\nQUIT\r\n".encode())
            return connection.makefile().read()

    def number(self, section, name):
        return float(re.search(rf"^{name}:([\d.]+)", self.ask(f"INFO {section}"), re.MULTILINE)[1])

    def round_trip(self):
        """Seconds; the median of a hundred."""
        times = []
        with connected(self.port) as connection:
            for _ in range(100):
                begun = time.perf_counter()
                connection.sendall(b"PING\r\n")
                connection.recv(16)
                times.append(time.perf_counter() - begun)
        return sorted(times)[50]


class Instance:
    """One that was started with this port and this folder for its state."""

    def __init__(self, port, state):
        self.port, self.state = port, state

    def asked(self, method, path, body=None):
        """The text of an answer over the control socket."""
        with contextlib.closing(http.client.HTTPConnection("localhost")) as connection:
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.settimeout(30)
            connection.sock.connect(str(self.state / "weir.sock"))
            connection.request(method, path, body and json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read().decode()
            if answer.status >= 400:
                raise ValueError(f"{answer.status} {text!r}")
            return text

    def control(self, method, path, body=None):
        return json.loads(self.asked(method, path, body) or "{}")

    def metric(self, name):
        text = self.asked("GET", "/v1/metrics")
        return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? ([\d.e+]+)$", text, re.MULTILINE))


@contextlib.contextmanager
def fleet(binary, count, engine=None, **more):
    """So many instances that are in step; without an engine so many that know nothing of each other."""
    with tempfile.TemporaryDirectory() as name, application(pathlib.Path(name)) as upstream, contextlib.ExitStack() as all:
        instances = [Instance(free_port(), pathlib.Path(name) / f"edge-{number}") for number in range(count)]
        for instance in instances:
            port, state = instance.port, instance.state
            state.mkdir(mode=0o700)
            environment = settings(
                port, upstream, state, WAF_LOG_LEVEL="error", WAF_TRUSTED_PROXIES="127.0.0.1",
                WAF_RATE_LIMIT_PER_MINUTE="off", WAF_RATE_LIMIT_PER_HOUR="off", WAF_RATE_LIMIT_PER_DAY=str(LIMIT),
            ) | more
            if engine:
                environment |= fleet_settings(engine, state.parent) | {"WAF_FLEET_INSTANCE": state.name}
            all.enter_context(running([binary], env=environment))
            wait_for(state.name, lambda: instance.control("GET", "/v1/status"))
        if engine:
            wait_in_step(instances)
        yield instances


def wait_in_step(instances):
    for instance in instances:
        states = lambda: [each["state"] for each in instance.control("GET", "/v1/fleet")["instances"]]
        wait_for("a fleet in step", lambda: states().count("live") == len(instances), 60)


def address(number):
    """That of a client, of a network of its own."""
    return f"10.{number >> 8}.{number & 255}.7"


def get(client, path="/"):
    return f"GET {path} HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: {client}\r\n\r\n".encode()


def ask_all(connection, requests):
    """Sends these requests at once, and waits until each has its answer."""
    connection.sendall(b"".join(requests))
    answers = b""
    while len(STATUS.findall(answers)) < len(requests):
        more = connection.recv(1 << 20)
        if not more:
            raise SystemExit(f"benches/fleet.py: the connection closed after {answers[-300:]!r}")
        answers += more


def paced(ports, rate, most, client, patience):
    """Sends requests over a connection to each port in turn, so many a second, whose clients are told by their numbers.
    Of each answer: which connection it came on, its status, and how many milliseconds after the request was due: what is
    sent late is late, too. A connection that closes is told as a status of nothing, and made anew. Ends with the last
    answer, or when nothing comes for so many seconds after the last request."""
    held, due = [connected(port) for port in ports], [[] for _ in ports]
    begun = time.perf_counter()
    sent = answered = 0
    try:
        while answered < most:
            now = time.perf_counter() - begun
            while sent < most and sent / rate <= now:
                place = sent % len(ports)
                due[place].append(sent / rate)
                with contextlib.suppress(OSError):
                    held[place].sendall(get(client(sent)))
                sent += 1
            wait = max(0, sent / rate - (time.perf_counter() - begun)) if sent < most else patience
            ready, _, _ = select.select(held, [], [], wait)
            if sent == most and not ready:
                return
            for connection in ready:
                place, data = held.index(connection), connection.recv(65_536)
                for status in STATUS.findall(data):
                    answered += 1
                    yield place, status, (time.perf_counter() - begun - due[place].pop(0)) * 1000
                if not data:
                    connection.close()
                    held[place], due[place] = connected(ports[place]), []
                    yield place, None, 0
    finally:
        for connection in held:
            connection.close()


def spread(ports, rate, client):
    """What of a client's requests passes, that go to each port in turn, so many a second, until all refuse it."""
    refused, passed = set(), 0
    for place, status, _ in paced(ports, rate, len(ports) * LIMIT * 3 // 2, lambda _: client, 1):
        passed += status == b"200"
        if status == b"429":
            refused.add(place)
        if len(refused) == len(ports):
            break
    return passed


@contextlib.contextmanager
def haproxy_peers(count):
    """HAProxy's own answer: so many of them, each of which tells the others what it has counted."""
    with tempfile.TemporaryDirectory() as name, application(pathlib.Path(name)) as upstream, contextlib.ExitStack() as all:
        peers = [free_port() for _ in range(count)]
        named = "".join(f"  peer p{number} 127.0.0.1:{port}\n" for number, port in enumerate(peers))
        ports = []
        for number in range(count):
            ports.append(free_port())
            text = (
                "global\n  nbthread 1\ndefaults\n  mode http\n  timeout connect 5s\n  timeout client 60s\n"
                f"  timeout server 60s\npeers fleet\n{named}frontend proxy\n  bind 127.0.0.1:{ports[-1]}\n"
                "  stick-table type ip size 100k expire 1d store http_req_rate(1d) peers fleet\n"
                "  http-request track-sc0 hdr_ip(X-Forwarded-For)\n"
                f"  http-request deny deny_status 429 if {{ sc_http_req_rate(0) gt {LIMIT} }}\n"
                f"  default_backend application\nbackend application\n  server application 127.0.0.1:{upstream}\n"
            )
            file = pathlib.Path(name) / f"{number}.cfg"
            file.write_text(text)
            all.enter_context(running(["haproxy", "-db", "-L", f"p{number}", "-f", file]))
        for port in ports:
            wait_for("haproxy", lambda: connected(port))
        time.sleep(5)
        yield ports


def measure_spread(arguments):
    rates = [20, 50, 100, 200, 500, 1000, 2000, 5000]
    addresses, beyond, lines = map(address, itertools.count()), 0, {}
    print("instances  rate/s  runs  passed: least median most  bound  beyond it")
    for count in arguments.instances:
        with Engine() as engine, fleet(arguments.binary, count, engine.port) as instances:
            ports = [instance.port for instance in instances]
            round_trip = engine.round_trip()
            name = f"{count} instances" if count > 1 else "1 instance"
            lines[name], lines[f"bound of {count}"] = [], []
            runs = max(1, arguments.runs // len(rates))
            for rate in rates:
                bound = LIMIT + rate * (BOUND_SECONDS + 3 * round_trip) + count
                found = sorted(spread(ports, rate, next(addresses)) for _ in range(runs))
                over = sum(passed > bound for passed in found)
                beyond += over
                lines[name].append((rate, found[len(found) // 2] / LIMIT))
                lines[f"bound of {count}"].append((rate, bound / LIMIT))
                if found[0] < LIMIT:
                    raise SystemExit(f"benches/fleet.py: refused after {found[0]} of {LIMIT} requests")
                print(
                    f"{count:9} {rate:7} {runs:5} {found[0]:13} {found[len(found) // 2]:6} {found[-1]:4}"
                    f"  {bound:5.0f} {over:10}", flush=True
                )
    count = arguments.instances[-1]
    for name, started in (
        (f"{count} without a fleet", lambda: fleet(arguments.binary, count)),
        (f"{count} of HAProxy, peers", lambda: haproxy_peers(count)),
    ):
        with started() as instances:
            ports = [getattr(instance, "port", instance) for instance in instances]
            lines[name] = []
            for rate in rates[2:]:
                passed = spread(ports, rate, next(addresses))
                lines[name].append((rate, passed / LIMIT))
                print(f"{name}: {rate} a second, {passed} passed", flush=True)
    print(f"{beyond} runs beyond the bound")
    if arguments.picture:
        arguments.picture.write_text(picture(lines))


def picture(lines):
    """What passed, in limits, over the rate: both axes logarithmic, a line for each name. A bound is dashed."""
    width, height, left, top, right, bottom = 760, 420, 60, 40, 560, 370
    colours = ["#1b6ca8", "#2a9d5c", "#c77d0a", "#b5342b", "#6b4fa0", "#555555"]
    rates = sorted({rate for line in lines.values() for rate, _ in line})
    most = max(share for line in lines.values() for _, share in line)
    most = next(step for step in (1.2, 1.5, 2, 3, 5, 10, 20, 50) if step >= most)
    across = math.log(rates[-1] / rates[0])

    def place(rate, share):
        x = left + (right - left) * math.log(rate / rates[0]) / across
        return f"{x:.1f},{bottom - (bottom - top) * max(0, math.log(share)) / math.log(most):.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="{left}" y="22" font-size="14">Requests of one client that passed, in limits of {LIMIT}</text>',
        f'<text x="{right}" y="{bottom + 36}" text-anchor="end">requests a second, spread over all instances</text>',
    ]
    for share in (1, 1.1, 1.2, 1.5, 2, 3, 5, 10, 20, 50):
        if share <= most:
            x, y = place(rates[0], share).split(",")
            parts.append(f'<path d="M{left},{y}H{right}" stroke="#dddddd"/>')
            parts.append(f'<text x="{left - 8}" y="{float(y) + 4}" text-anchor="end">{share}</text>')
    for rate in rates:
        x, _ = place(rate, 1).split(",")
        parts.append(f'<text x="{x}" y="{bottom + 18}" text-anchor="middle">{rate:,}</text>')
    solid = [name for name in lines if not name.startswith("bound")]
    for number, name in enumerate(solid):
        colour = colours[number % len(colours)]
        points = " ".join(place(*point) for point in lines[name])
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{right + 14}" y="{top + 18 * number + 4}" fill="{colour}">{name}</text>')
        bound = lines.get(f"bound of {name.split()[0]}") if "instance" in name else None
        if bound:
            points = " ".join(place(*point) for point in bound)
            parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-dasharray="3 4"/>')
    parts.append(f'<text x="{right + 14}" y="{top + 18 * len(solid) + 4}">dashed: the bound of each</text>')
    return "\n".join([*parts, "</svg>", ""])


class Relay:
    """Between instances and engine: every byte comes so much later."""

    def __init__(self, port, seconds):
        self.port, self.to, self.delay = free_port(), port, seconds
        listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self.accept, args=(listener,), daemon=True).start()

    def accept(self, listener):
        while True:
            near, _ = listener.accept()
            far = connected(self.to)
            near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self.carry, args=(one, other), daemon=True).start()

    def carry(self, one, other):
        waiting = queue.SimpleQueue()
        threading.Thread(target=self.send, args=(waiting, other), daemon=True).start()
        data = b"-"
        while data:
            try:
                data = one.recv(65_536)
            except OSError:
                data = b""
            waiting.put((time.monotonic() + self.delay, data))

    def send(self, waiting, other):
        data = b"-"
        while data:
            due, data = waiting.get()
            time.sleep(max(0, due - time.monotonic()))
            with contextlib.suppress(OSError):
                other.sendall(data) if data else other.shutdown(socket.SHUT_WR)


def ask(port, path, client):
    """The status lines of an answer to a request of this client."""
    with connected(port) as connection:
        connection.sendall(get(client, path))
        return STATUS.findall(connection.recv(65_536))


def until_refused(port, client):
    """When another instance refuses: it is asked on and on."""
    with connected(port) as connection:
        end = time.monotonic() + 30
        while time.monotonic() < end:
            connection.sendall(get(client))
            if STATUS.findall(connection.recv(65_536)) == [b"429"]:
                return time.perf_counter()
            time.sleep(0.0005)
    raise SystemExit("benches/fleet.py: a ban was waited for in vain")


def told(times):
    """Times in milliseconds."""
    times = sorted(times)
    p50, p99 = (times[int(len(times) * part)] for part in (0.5, 0.99))
    return f"{p50:.2f} ms (p50), {p99:.2f} (p99), {times[-1]:.1f} (longest)"


def measure_delay(arguments):
    for round_trip in [0] if not arguments.round_trip else [0, arguments.round_trip]:
        with Engine() as engine:
            port = Relay(engine.port, round_trip / 2000).port if round_trip else engine.port
            unlimited = {"WAF_RATE_LIMIT_PER_DAY": "off"}
            with fleet(arguments.binary, 2, port, **unlimited) as (one, other):
                delays, bans = [], arguments.bans if not round_trip else arguments.bans // 5
                for number in range(bans):
                    client = address(number)
                    order = {"client": client, "duration": "1h", "reason": "bench"}
                    begun = time.perf_counter()
                    banning = threading.Thread(target=one.control, args=("POST", "/v1/bans", order))
                    banning.start()
                    delays.append((until_refused(other.port, client) - begun) * 1000)
                    banning.join()
                print(
                    f"{bans} bans, {round_trip} ms more there and back: refused at the other instance after the order by "
                    f"{told(delays)}", flush=True
                )


def measure_loaded(arguments):
    """FLEET-11 as it is written: 10,000 bans are held, a hundred are made a second, and both instances have all the
    requests that they can answer. Of the new bans every tenth is watched."""
    with Engine() as engine:
        port = Relay(engine.port, arguments.round_trip / 2000).port if arguments.round_trip else engine.port
        more = {"WAF_RATE_LIMIT_PER_DAY": "off", "WAF_MAX_BANS": "20000"}
        at_once = concurrent.futures.ThreadPoolExecutor(64)
        with at_once, fleet(arguments.binary, 2, port, **more) as (one, other):
            now = time.time()
            stamp = lambda moment: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))
            held = [
                {
                    "netblock": f"172.{16 + (number >> 8 & 15)}.{number & 255}.{number >> 12 << 4}/28",
                    "ban_started": stamp(now), "ban_expires": stamp(now + 86_400), "reason": "held",
                }
                for number in range(10_000)
            ]
            one.control("POST", "/v1/bans/import?force=true", {"version": 1, "bans": held})
            active = lambda instance: instance.control("GET", "/v1/status")["bans"]["active"]
            wait_for("10,000 bans at both", lambda: active(one) == active(other) == 10_000, 60)
            traps = {"version": 1, "traps": [{"name": "bench", "paths": ["/trap"]}]}
            (one.state / "rules.json").write_text(json.dumps(traps))
            wait_for("the trap", lambda: "429" in str(ask(one.port, "/trap", "10.255.255.7")), 60)
            seconds = arguments.bans // 100 + 5
            # Who asks is on another machine, elsewhere.
            load = ["nice", "-n", "10", "wrk", "-t1", "-c8", f"-d{seconds}s", "-H", "X-Forwarded-For: 192.0.2.7"]
            with contextlib.ExitStack() as loads:
                out = [
                    loads.enter_context(running([*load, f"http://127.0.0.1:{each.port}/"], stdout=subprocess.PIPE))
                    for each in (one, other)
                ]
                time.sleep(1)
                watched, others, begun = [], [], time.perf_counter()

                def watch(client):
                    began = time.perf_counter()
                    ask(one.port, "/trap", client)
                    return (until_refused(other.port, client) - began) * 1000

                for number in range(arguments.bans):
                    time.sleep(max(0, begun + number / 100 - time.perf_counter()))
                    client = address(number)
                    if number % 10 == 0:
                        watched.append(at_once.submit(watch, client))
                    else:
                        others.append(at_once.submit(ask, one.port, "/trap", client))
                for each in others:
                    each.result()
                took = time.perf_counter() - begun
                delays = [each.result() for each in watched]
                served = [re.search(r"Requests/sec: *([\d.]+)", each.communicate()[0].decode())[1] for each in out]
            print(
                f"{arguments.bans / took:.0f} bans a second, 10,000 held, {' and '.join(served)} requests a second, "
                f"{arguments.round_trip} ms more there and back: refused at the other instance after the trap by "
                f"{told(delays)} of {len(delays)} watched"
            )


def measure_engine(arguments):
    """Sixty of each client's 200 requests are made at each of two instances: both tell the engine of it."""
    with Engine() as engine, fleet(arguments.binary, 2, engine.port, WAF_FLEET_RATE="10000") as instances:

        def now():
            total = lambda name: sum(instance.metric(name) for instance in instances)
            return {
                "time": time.monotonic(),
                "cpu": engine.number("cpu", "used_cpu_user") + engine.number("cpu", "used_cpu_sys"),
                "received": engine.number("stats", "total_net_input_bytes"),
                "memory": engine.number("memory", "used_memory"),
                "deltas": total("waf_fleet_deltas_total"),
                "batches": total("waf_fleet_batches_total"),
            }

        def between(first, last):
            return {name: last[name] - first[name] for name in first}

        time.sleep(2)
        first = now()
        time.sleep(5)
        idle = between(first, now())

        number = 2000

        def load(instance):
            with connected(instance.port) as connection:
                for client in range(number):
                    ask_all(connection, [get(address(client))] * 60)

        first = now()
        with concurrent.futures.ThreadPoolExecutor() as at_once:
            list(at_once.map(load, instances))
        time.sleep(3)
        used = between(first, now())
        share = used["time"] / idle["time"]
        cpu = used["cpu"] - idle["cpu"] * share
        print(
            f"{number} clients at two instances in {used['time']:.0f} s: {used['deltas']:.0f} deltas in {used['batches']:.0f} "
            f"batches; of the engine's processor time {cpu / used['deltas'] * 1e6:.1f} us a delta, "
            f"{cpu / used['batches'] * 1e6:.1f} a batch; "
            f"{(used['received'] - idle['received'] * share) / used['deltas']:.0f} bytes to it a delta; "
            f"{used['memory'] / number:.0f} bytes of its memory a client. Idle: {idle['cpu'] / idle['time'] * 100:.2f} % of a "
            f"core, {idle['received'] / idle['time']:.0f} bytes a second"
        )


def measure_flood(arguments):
    """Every request is of a client that nobody has seen, and uses half of its limit: as many are told as may be."""
    with Engine() as engine, fleet(arguments.binary, 2, engine.port, WAF_RATE_LIMIT_PER_DAY="2") as instances:
        sent = [0] * len(instances)

        def load(place, instance):
            with connected(instance.port) as connection:
                while time.monotonic() < begun + arguments.seconds:
                    numbers = range(sent[place], sent[place] + 100)
                    client = lambda number: f"10.{128 * place + (number >> 16)}.{number >> 8 & 255}.{number & 255}"
                    ask_all(connection, [get(client(number)) for number in numbers])
                    sent[place] += 100

        time.sleep(2)
        before, begun = engine.number("memory", "used_memory"), time.monotonic()
        counts = sum(instance.metric("waf_fleet_deltas_total") for instance in instances)
        with concurrent.futures.ThreadPoolExecutor() as at_once:
            list(at_once.map(load, range(len(instances)), instances))
        seconds = time.monotonic() - begun
        grown = engine.number("memory", "used_memory") - before
        counts = sum(instance.metric("waf_fleet_deltas_total") for instance in instances) - counts
        each = seconds * len(instances)
        print(
            f"{sum(sent)} new clients at two instances in {seconds:.0f} s: of each {counts / each:.0f} a second told to the "
            f"engine, whose memory grew by {grown / each / 1024:.0f} KiB a second an instance, {grown / counts:.0f} bytes a client"
        )


def measure_kills(arguments):
    """The engine dies and is empty afterwards; visitors come, and bans are made, all the while."""
    failed, answered, acknowledged, ended = [], [0], [], threading.Event()
    limit = {"WAF_RATE_LIMIT_PER_DAY": "1000000"}
    with Engine() as engine, fleet(arguments.binary, 2, engine.port, **limit) as instances:

        def visit(instance):
            connection = http.client.HTTPConnection("127.0.0.1", instance.port, timeout=10)
            while not ended.is_set():
                try:
                    client = f"192.0.{random.randrange(256)}.{random.randrange(256)}"
                    connection.request("GET", "/", headers={"X-Forwarded-For": client})
                    answer = connection.getresponse()
                    answer.read()
                    answered[0] += 1
                    if answer.status != 200:
                        failed.append(answer.status)
                except OSError as error:
                    failed.append(str(error))
                    connection.close()
                time.sleep(0.002)

        def ban():
            number = 0
            while not ended.is_set():
                instance = instances[number % 2]
                order = {"client": address(number), "duration": "1h", "reason": "bench"}
                if instance.control("POST", "/v1/bans", order).get("persisted", True):
                    acknowledged.append(f"10.{number >> 8}.{number & 255}.0/24")
                number += 1
                time.sleep(0.1)

        kills, back, end = 0, [], time.monotonic() + arguments.seconds
        with concurrent.futures.ThreadPoolExecutor(5) as at_once:
            others = [at_once.submit(visit, instance) for instance in instances for _ in range(2)] + [at_once.submit(ban)]
            try:
                while time.monotonic() < end:
                    time.sleep(max(0.5, 5 - arguments.away))
                    engine.restart(arguments.away)
                    kills += 1
                    begun = time.monotonic()
                    wait_in_step(instances)
                    back.append(time.monotonic() - begun)
            finally:
                ended.set()
        for other in others:
            other.result()

        def held(instance):
            return {ban["netblock"] for ban in instance.control("GET", "/v1/bans")["bans"]}

        begun = time.monotonic()
        wait_for("every ban at both", lambda: all(set(acknowledged) <= held(each) for each in instances), 60)
        print(
            f"{kills} kills of the engine in {arguments.seconds} s: {answered[0]} requests answered, {len(failed)} failed "
            f"{failed[:3]}; {len(acknowledged)} bans acknowledged, all at both {time.monotonic() - begun:.2f} s after the "
            f"end; in step again after {sorted(back)[len(back) // 2]:.2f} s (median), {max(back):.2f} s (longest)"
        )
        if failed:
            sys.exit(1)


def waited(port, rate, seconds, failed):
    """Of so many requests a second, of 64 clients over 16 connections, how many milliseconds after its moment each had
    its answer."""
    took = []
    for _, status, late in paced([port] * 16, rate, int(rate * seconds), lambda number: f"192.0.2.{number % 64}", 60):
        if status is None:
            raise SystemExit("benches/fleet.py: a connection closed under requests")
        took.append(late)
        if status != b"200":
            failed.append(status)
    return sorted(took)


def measure_latency(arguments):
    """How long requests take while the engine dies every 5 s, while it lives, and without a fleet: in turns of 10 s."""
    rate, turn = 1000, 10
    # Each client uses two thirds of its limit: the instance tells the engine of it again and again.
    limit = {"WAF_RATE_LIMIT_PER_DAY": "off", "WAF_RATE_LIMIT_PER_MINUTE": "450"}
    with contextlib.ExitStack() as all:
        lives, dies = all.enter_context(Engine()), all.enter_context(Engine())
        kinds = {
            "engine killed": all.enter_context(fleet(arguments.binary, 2, dies.port, **limit)),
            "engine alive": all.enter_context(fleet(arguments.binary, 2, lives.port, **limit)),
            "no fleet": all.enter_context(fleet(arguments.binary, 1, **limit)),
        }
        found, failed, kills = {kind: [] for kind in kinds}, [], 0

        def kill(end):
            nonlocal kills
            time.sleep(2.5)
            while time.monotonic() < end:
                dies.restart(arguments.away)
                kills += 1
                time.sleep(5 - arguments.away)

        for _ in range(max(1, arguments.seconds // turn)):
            for kind, instances in kinds.items():
                killing = threading.Thread(target=kill, args=(time.monotonic() + turn,))
                if kind == "engine killed":
                    killing.start()
                found[kind].append(waited(instances[0].port, rate, turn, failed))
                if kind == "engine killed":
                    killing.join()
        p99 = lambda turn: turn[int(len(turn) * 0.99)]
        for kind, turns in found.items():
            took = [each for turn in turns for each in turn]
            ratios = sorted(p99(one) / p99(other) for one, other in zip(turns, found["no fleet"]))
            print(
                f"{kind}: {len(took)} requests, {rate} a second: {told(took)}; p99 beside that without a fleet, of "
                f"{len(ratios)} turns: "
                f"{ratios[0]:.2f} to {ratios[-1]:.2f}, median {ratios[len(ratios) // 2]:.2f}"
            )
        counts = kinds["engine killed"][0].metric("waf_fleet_deltas_total")
        print(f"{kills} kills of the engine, {counts:.0f} counts told to it, {len(failed)} requests failed {failed[:3]}")
        if failed:
            sys.exit(1)


MEASURES = {
    "spread": measure_spread,
    "delay": measure_delay,
    "loaded": measure_loaded,
    "engine": measure_engine,
    "flood": measure_flood,
    "kills": measure_kills,
    "latency": measure_latency,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary")
    parser.add_argument("part", choices=MEASURES)
    parser.add_argument("--instances", type=lambda text: [int(part) for part in text.split(",")], default=[1, 2, 5, 10])
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--bans", type=int, default=1000)
    parser.add_argument("--round-trip", type=int, default=80, help="ms, of a second row of `delay`, and of `loaded`; 0 for none")
    parser.add_argument("--seconds", type=int, default=300)
    parser.add_argument("--away", type=float, default=0, help="seconds until a killed engine is started again")
    parser.add_argument("--picture", type=pathlib.Path, help="an SVG file of what `spread` finds")
    arguments = parser.parse_args()
    MEASURES[arguments.part](arguments)


main()
