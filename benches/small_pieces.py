#!/usr/bin/env python3
"""What the pieces of a body cost: processor time of the proxy for one upload, in each form.

    benches/small_pieces.py target/release/weir [--proxy weir|nginx|haproxy] [--rounds 5]

The same proxies as in held_connections.py, before an application that reads everything. The figure
is the processor time that the process used meanwhile, user and system, the least of the rounds: what
else the machine does makes it larger only. A body that ends with 400 is what CONN-9 asks for.
Loopback only; ends by itself.
"""

import argparse
import asyncio
import os
import pathlib
import socket
import tempfile
import threading
import time

import held_connections

HEAD = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Type: text/plain\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
SIZE = 2_000_000


def chunks(size, count):
    return CHUNKED + (b"%x\r\n" % size + b"x" * size + b"\r\n") * count + b"0\r\n\r\n"


FORMS = {
    "2 MB in one": HEAD + b"Content-Length: %d\r\n\r\n" % SIZE + b"x" * SIZE,
    "2 MB in chunks of 16 KiB": chunks(16_384, SIZE // 16_384),
    "2 MB in chunks of 100 B": chunks(100, SIZE // 100),
    "150,000 chunks of 2 B": chunks(2, 150_000),
    "60,000 chunks of 1 B": chunks(1, 60_000),
    "300,000 chunks of 1 B": chunks(1, 300_000),
}


class Application(asyncio.Protocol):
    """Answers once a body has ended, told by its last bytes: every form ends with x, or with the last
    chunk."""

    def connection_made(self, transport):
        self.transport = transport
        self.begin()

    def begin(self):
        self.head = b""
        self.left = None
        self.tail = b""

    def data_received(self, data):
        if b"\r\n\r\n" not in self.head:
            self.head += data
            if b"\r\n\r\n" not in self.head:
                return
            head, _, data = self.head.partition(b"\r\n\r\n")
            length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            self.left = int(length[0].split(b":")[1]) if length else None
        if self.left is None:
            self.tail = (self.tail + data)[-5:]
            if self.tail != b"0\r\n\r\n":
                return
        else:
            self.left -= len(data)
            if self.left:
                return
        self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        self.begin()


def start_application():
    ports = []
    there = threading.Event()

    async def serve():
        server = await asyncio.get_running_loop().create_server(Application, "127.0.0.1", 0)
        ports.append(server.sockets[0].getsockname()[1])
        there.set()
        await server.serve_forever()

    threading.Thread(target=lambda: asyncio.run(serve()), daemon=True).start()
    there.wait()
    return ports[0]


def processor_seconds(pid):
    threads = pathlib.Path(f"/proc/{pid}/task").iterdir()
    return sum(int((each / "schedstat").read_text().split()[0]) for each in threads) / 1e9


def upload(port, body):
    """The status of the answer."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        sender = threading.Thread(target=send, args=(connection, body))
        sender.start()
        answer = connection.recv(65_536)
        sender.join()
    return answer.split(b" ")[1].decode()


def send(connection, body):
    try:
        connection.sendall(body)
    except OSError:
        pass  # It was answered before its end.


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary", nargs="?", default="target/release/weir")
    parser.add_argument("--proxy", default="weir", choices=["weir", "nginx", "haproxy"])
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    args.set, args.tls, args.h2 = [], False, False
    upstream = start_application()
    with tempfile.TemporaryDirectory() as directory:
        process, port = held_connections.start(args, args.proxy, 1, upstream, pathlib.Path(directory))
        try:
            print(f"{args.proxy}, processor milliseconds an upload, least of {args.rounds}")
            for name, body in FORMS.items():
                used = []
                for _ in range(args.rounds):
                    before = processor_seconds(process.pid)
                    status = upload(port, body)
                    time.sleep(0.2)
                    used.append(processor_seconds(process.pid) - before)
                print(f"{name:26} {min(used) * 1000:8.1f}  {status}", flush=True)
        finally:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
