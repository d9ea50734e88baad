"""Asks over TLS with httpx: a pool of kept connections, uploads, a stream. Arguments: URL, authority."""

import ssl
import sys

import httpx

url, authority = sys.argv[1:]
context = ssl.create_default_context(cafile=authority)
limits = httpx.Limits(max_connections=4, max_keepalive_connections=4)
with httpx.Client(verify=context, limits=limits, timeout=20) as client:
    for number in range(40):
        answer = client.get(f"{url}/pool-{number}")
        assert answer.status_code == 200, answer
        assert answer.http_version == "HTTP/1.1", answer.http_version
    body = bytes(range(256)) * 8000
    answer = client.post(f"{url}/upload", content=body)
    assert answer.content == body
    pieces = (body[begin : begin + 10_000] for begin in range(0, len(body), 10_000))
    answer = client.post(f"{url}/chunked", content=pieces)
    assert answer.content == body
    with client.stream("POST", f"{url}/stream", content=body) as answer:
        assert b"".join(answer.iter_bytes()) == body
print("good")
