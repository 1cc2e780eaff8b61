import contextlib
import json
import socket
import subprocess
import sys
from http.client import HTTPConnection

import httpx
import pytest
from gateways import SpokenEngine, gateway_at
from machine_speed import eventually, patience
from starlette.testclient import TestClient

from turntree.agents.errors import UsageError
from turntree.agents.gateway.app import Gateway, make_app
from turntree.agents.gateway.http import server
from turntree.agents.gateway.http.server import listen
from turntree.agents.gateway.http.settings import GatewaySettings
from turntree.agents.loop.renderer import Renderer

BODY = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "x"}]}).encode()
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(BODY)


def ended(client: socket.socket) -> bytes:
    client.settimeout(patience(20))
    result = b""
    try:
        while part := client.recv(65536):
            result += part
    except ConnectionResetError:
        pass
    return result


@pytest.mark.parametrize(
    "sent", [b"", b"POST /v1/cha", HEAD[:-2], b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /hea"]
)
def test_a_connection_whose_request_does_not_come_is_closed(engine: SpokenEngine, renderer: Renderer, sent: bytes):
    with gateway_at(engine, renderer, read_seconds=0.3) as served:
        with socket.create_connection(("127.0.0.1", served.port)) as client:
            client.sendall(sent)
            ended(client)
        assert served.chat("x").status_code == 200


def test_the_first_head_has_less_time_than_a_body(engine: SpokenEngine, renderer: Renderer, monkeypatch):
    monkeypatch.setattr(server, "_HEAD_SECONDS", 0.5)
    with (
        gateway_at(engine, renderer, read_seconds=600.0) as served,
        socket.create_connection(("127.0.0.1", served.port)) as client,
    ):
        assert ended(client) == b""


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


def test_a_name_that_stands_for_an_address_of_others_needs_a_key(monkeypatch: pytest.MonkeyPatch):
    settings = GatewaySettings(model="m", max_context=8, host="localhost", port=0)
    real = socket.create_server
    monkeypatch.setattr(socket, "create_server", lambda address, **how: real(("0.0.0.0", address[1]), **how))
    with pytest.raises(UsageError, match=r"--host localhost resolves to 0\.0\.0\.0, .*--api-key"):
        listen(settings)


def test_earlier_clients_are_served_despite_all_accepted_silent_connections(engine, renderer, monkeypatch):
    monkeypatch.setattr(server, "_MAX_CONNECTIONS", 40)
    monkeypatch.setattr(server, "_HEAD_SECONDS", 600.0)
    with gateway_at(engine, renderer, read_seconds=600.0) as served:
        assert served.chat("x").status_code == 200
        with httpx.Client(base_url=served.url) as another, contextlib.ExitStack() as held:
            silent = [held.enter_context(socket.create_connection(("127.0.0.1", served.port))) for _ in range(60)]
            for beyond in silent[-20:]:
                assert ended(beyond) == b""
            assert not answers(another)
            assert served.chat("x").status_code == 200, "its connection was there before"
        with httpx.Client(base_url=served.url) as another:
            eventually(lambda: answers(another))


LIMITED = """
import asyncio, contextlib, resource
from turntree.agents.gateway.http import server
from turntree.agents.gateway.http.settings import GatewaySettings

async def app(scope, receive, send):
    with contextlib.ExitStack() as held:
        for _ in range(8):
            held.enter_context(open("/dev/null"))
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body"})

resource.setrlimit(resource.RLIMIT_NOFILE, (96, 96))
server._HEAD_SECONDS = 600.0
settings = GatewaySettings(model="m", max_context=8, port=0, read_seconds=600.0)
at = server.listen(settings)
print(at.getsockname()[1], flush=True)
input()
asyncio.run(server.run(app, settings, at, closing=int, ready=int))
"""


def test_under_a_low_limit_of_files_silent_connections_leave_the_process_some():
    # All connect at once: none is accepted yet when the last one connects.
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([sys.executable, "-c", LIMITED], text=True, **pipes) as child, contextlib.ExitStack() as held:
        try:
            address = ("127.0.0.1", int(child.stdout.readline()))
            earlier = held.enter_context(contextlib.closing(HTTPConnection(*address, timeout=patience(20))))
            earlier.connect()
            silent = [held.enter_context(socket.create_connection(address)) for _ in range(120)]
            print(file=child.stdin, flush=True)
            for beyond in silent[47:]:
                assert ended(beyond) == b""
            earlier.request("GET", "/")
            assert earlier.getresponse().status == 200, "it opens files to answer"
        finally:
            child.terminate()
        assert "Too many open files" not in child.stderr.read()


def answers(client: httpx.Client) -> bool:
    try:
        return client.get("/v1/models").status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.parametrize(
    ("headers", "fields", "status"),
    [
        ({"Host": "evil.example"}, {}, 403),
        ({"Host": "evil.example:8000"}, {}, 403),
        ({"Host": "localhost.evil.example"}, {}, 403),
        ({"Host": "127.0.0.1.evil.example"}, {}, 403),
        ({"Host": ""}, {}, 403),
        ({"Host": "[::1"}, {}, 403),
        ({"Host": "[::1]:9"}, {}, 200),
        ({"Host": "LOCALHOST:9"}, {}, 200),
        ({"Host": "127.9.9.9"}, {}, 200),
        ({"Host": "gpu.example"}, {"allowed_hosts": ("gpu.example",)}, 200),
        ({"Host": "other.example"}, {"allowed_hosts": ("gpu.example",)}, 403),
        ({"Host": "gpu.example"}, {"allowed_hosts": ("*",)}, 200),
        ({"Origin": "http://evil.example"}, {}, 403),
        ({"Origin": "null"}, {}, 403),
        ({"Origin": "http://localhost:3000", "Host": "localhost:8000"}, {}, 403),
        ({"Origin": "http://localhost:8000", "Host": "localhost:8000"}, {}, 200),
        ({"Origin": "http://ui.example"}, {"allowed_origins": ("http://ui.example",)}, 200),
        ({"Origin": "http://ui.example.evil"}, {"allowed_origins": ("http://ui.example",)}, 403),
        ({"Origin": "http://ui.example"}, {"allowed_origins": ("*",)}, 200),
    ],
)
def test_a_page_of_somebody_else_is_refused_whatever_name_leads_it_here(engine, renderer, headers, fields, status):
    app = make_app(Gateway(engine, renderer, GatewaySettings(model="tiny", max_context=64, **fields)))
    client = TestClient(app, base_url="http://localhost")
    for path in ("/v1/models", "/health", "/metrics"):
        answer = client.get(path, headers=headers)
        assert answer.status_code == status, answer.text
        if status == 403:
            assert "--allowed-" in answer.json()["error"]["message"]
    if "allowed_origins" in fields and status == 200:
        assert answer.headers["access-control-allow-origin"] in ("*", headers["Origin"])


def test_a_port_that_is_taken_is_named():
    settings = GatewaySettings(model="m", max_context=8, port=0)
    with listen(settings) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"^port {port} of 127.0.0.1 is in use; name another --port[^()]*$"):
            listen(GatewaySettings(model="m", max_context=8, port=port))
