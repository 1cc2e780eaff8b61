"""Connections that are silent, slow or broken hold nothing, and SIGTERM ends the server in order."""

from __future__ import annotations

import contextlib
import json
import socket
from typing import Any

import pytest
from gateways import SpokenEngine, gateway_at
from machine_speed import eventually, patience

from turntree.agents.errors import UsageError
from turntree.agents.gateway.http.server import listen
from turntree.agents.gateway.http.settings import GatewaySettings
from turntree.agents.loop.renderer import Renderer

BODY = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "x"}]}).encode()
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(BODY)


@pytest.fixture
def engine(chatml: Any) -> SpokenEngine:
    return SpokenEngine(chatml)


def ended(client: socket.socket) -> bytes:
    """What the server sent until it closed the connection."""
    client.settimeout(patience(20))
    said = b""
    try:
        while part := client.recv(65536):
            said += part
    except ConnectionResetError:
        pass
    return said


@pytest.mark.parametrize("sent", [b"", b"POST /v1/cha", HEAD[:-2], b"GET /health HTTP/1.1\r\nHost: a\r\n\r\nGET /hea"])
def test_a_connection_whose_request_does_not_come_is_closed(engine: SpokenEngine, renderer: Renderer, sent: bytes):
    with gateway_at(engine, renderer, read_seconds=0.3) as served:
        with socket.create_connection(("127.0.0.1", served.port)) as client:
            client.sendall(sent)
            ended(client)
        assert served.chat("x").status_code == 200


def test_a_body_that_does_not_come_is_408(engine: SpokenEngine, renderer: Renderer):
    with gateway_at(engine, renderer, read_seconds=0.3) as served:
        with socket.create_connection(("127.0.0.1", served.port)) as client:
            client.sendall(HEAD + BODY[:10])
            assert ended(client).startswith(b"HTTP/1.1 408")
        assert engine.asked == []


def test_a_request_in_progress_is_not_taken_for_silence(engine: SpokenEngine, renderer: Renderer):
    engine.held = True
    with (
        gateway_at(engine, renderer, read_seconds=0.2) as served,
        socket.create_connection(("127.0.0.1", served.port)) as client,
    ):
        client.sendall(HEAD + BODY)
        eventually(lambda: engine.live == 1)
        client.settimeout(1.0)
        with pytest.raises(TimeoutError):
            client.recv(1)
        engine.held = False
        client.settimeout(patience(20))
        assert client.recv(15) == b"HTTP/1.1 200 OK"


def test_a_client_that_takes_nothing_is_cut_off(engine: SpokenEngine, renderer: Renderer):
    with gateway_at(engine, renderer, read_seconds=0.3, max_context=1 << 16) as served:
        engine.say = lambda prompt: "one two three four " * 400
        body = json.dumps({**json.loads(BODY), "stream": True, "n": 8}).encode()
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            client.connect(("127.0.0.1", served.port))
            client.sendall(HEAD.replace(b"%d" % len(BODY), b"%d" % len(body)) + body)
            eventually(lambda: "turntree_clients_gone_total 1" in served.client.get("/metrics").text, 5)
        served.idle()


@pytest.mark.parametrize(
    "sent",
    [b"\x00\x01\x02\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"A" * (1 << 17), HEAD[:-2] + b"Content-Length: x\r\n\r\n"],
)
def test_what_is_no_http_is_closed(engine: SpokenEngine, renderer: Renderer, sent: bytes):
    with gateway_at(engine, renderer, read_seconds=0.5) as served:
        with socket.create_connection(("127.0.0.1", served.port)) as client:
            with contextlib.suppress(OSError):
                client.sendall(sent)
            assert ended(client)[:10] in (b"", b"HTTP/1.1 4")
        assert served.chat("x").status_code == 200


def test_an_address_of_others_needs_a_key():
    for host in ("0.0.0.0", "::", "192.168.0.1", "example.org"):
        with pytest.raises(UsageError, match="--api-key"):
            GatewaySettings(model="m", max_context=8, host=host)
        GatewaySettings(model="m", max_context=8, host=host, api_key="k")
    for host in ("127.0.0.1", "::1", "localhost"):
        GatewaySettings(model="m", max_context=8, host=host)


def test_a_port_that_is_taken_is_named():
    settings = GatewaySettings(model="m", max_context=8, port=0)
    with listen(settings) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"cannot listen at 127.0.0.1:{port}"):
            listen(GatewaySettings(model="m", max_context=8, port=port))
