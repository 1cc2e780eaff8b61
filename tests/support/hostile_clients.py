"""Requests that no honest client sends: broken, wrongly typed, too large, cut off, or abandoned."""

import json
import random
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

from machine_speed import patience

Wrong = Any
_WRONG: tuple[Wrong, ...] = (
    None, True, -1, 0, 1.5, 10**30, "", "x", [], {}, [[]], [None], {"a": []}, "\ud800", "\x00", [{}], [1, "a"], -0.0,
)  # fmt: skip
_PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/sessions/s/reward")
_FIELDS = (
    "model", "messages", "prompt", "n", "stop", "temperature", "top_p", "top_k", "max_tokens", "seed", "stream",
    "tools", "tool_choice", "logprobs", "top_logprobs", "stream_options", "response_format", "logit_bias", "reward",
    "by", "parts",
)  # fmt: skip


def valid(rng: random.Random) -> dict[str, Any]:
    tag = f"hostile {rng.randrange(1 << 30)}"
    return {
        "model": "tiny",
        "messages": [{"role": "user", "content": tag}],
        "max_tokens": 16,
        "seed": rng.randrange(99),
    }


def request(body: bytes, path: str = _PATHS[0], *, length: int | None = None, headers: bytes = b"") -> bytes:
    size = len(body) if length is None else length
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n".encode() + headers + b"\r\n" + body


def broken_json(rng: random.Random) -> bytes:
    text = json.dumps(valid(rng)).encode()
    cut = rng.randrange(len(text))
    spoilt = [text[:cut], text[:cut] + bytes([rng.randrange(256)]) + text[cut + 1 :], rng.randbytes(cut), b"[" * 50_000]
    return request(rng.choice([*spoilt, b"NaN", b"", b'{"a":1}{"a":2}', b"\xff\xfe" + text]), rng.choice(_PATHS))


def wrong_types(rng: random.Random) -> bytes:
    body = valid(rng)
    for _ in range(rng.randrange(1, 4)):
        body[rng.choice(_FIELDS)] = rng.choice(_WRONG)
    if rng.random() < 0.3:
        body["messages"] = [{"role": rng.choice(["user", "tool", "x", 1]), "content": rng.choice(_WRONG)}]
    body["n"] = body.get("n") if rng.random() < 0.5 else 1
    return request(json.dumps(body).encode("utf-8", "surrogatepass"), rng.choice(_PATHS))


def huge(rng: random.Random) -> bytes:
    kind = rng.randrange(4)
    if kind == 0:
        return request(b"", length=1 << 40)
    if kind == 1:
        return request(b"x" * (1 << 20) + b"y", headers=b"X-A: b\r\n")
    if kind == 2:
        return request(json.dumps({**valid(rng), "messages": [{"role": "user", "content": "a"}] * 5000}).encode())
    return b"GET / HTTP/1.1\r\nX-A: " + b"a" * (1 << 17) + b"\r\n\r\n"


def no_request(rng: random.Random) -> bytes:
    chunked = request(b"x", headers=b"Transfer-Encoding: chunked\r\n")
    return rng.choice([rng.randbytes(100) + b"\r\n\r\n", b"GET\r\n\r\n", chunked])


WHOLE: tuple[Callable[[random.Random], bytes], ...] = (broken_json, wrong_types, huge, no_request)


def attack(port: int, count: int, seed: int) -> Iterator[int]:
    """Send hostile requests, some of which stay open to the end; yield each answer's status, 0 for none."""
    rng = random.Random(seed)
    with ExitStack() as left_open:
        for _ in range(count):
            client = socket.create_connection(("127.0.0.1", port), timeout=patience(60))
            kind = rng.random()
            if kind < 0.5:
                with client:
                    yield _status(client, rng.choice(WHOLE)(rng))
            elif kind < 0.65:  # a part of a request, and nothing more
                sent = request(json.dumps(valid(rng)).encode())
                client.sendall(sent[: rng.randrange(len(sent))])
                left_open.enter_context(client) if rng.random() < 0.2 else _reset(client, rng)
                yield 0
            else:  # gone while the answer is made or sent
                body = {**valid(rng), "stream": rng.random() < 0.7, "n": rng.choice([1, 1, 3])}
                client.sendall(request(json.dumps(body).encode()))
                if rng.random() < 0.5:
                    client.recv(rng.randrange(1, 400))
                _reset(client, rng)
                yield 0


def _status(client: socket.socket, sent: bytes) -> int:
    try:
        client.sendall(sent)
        answer = client.recv(65536)
    except OSError:  # closed before all of it was taken
        return 0
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0


def _reset(client: socket.socket, rng: random.Random) -> None:
    # Half of the time with a RST instead of an orderly close.
    if rng.random() < 0.5:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
