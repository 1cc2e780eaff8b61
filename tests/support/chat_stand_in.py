"""A fake chat-completions server: real HTTP, answers computed by a function."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self


class Answer(NamedTuple):
    body: Any  #: JSON, text, or an iterator of chunks of unknown total length
    status: int = 200
    headers: Mapping[str, str] = {}


def said(content: str | None, *calls: tuple[str, Any], finish_reason: str | None = "stop") -> Answer:
    """Build a chat completion with one choice; arguments that are not text become JSON."""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = [
            {
                "id": f"call_{number}",
                "type": "function",
                "function": {"name": name, "arguments": given if isinstance(given, str) else json.dumps(given)},
            }
            for number, (name, given) in enumerate(calls)
        ]
    return Answer({"choices": [{"message": message, "finish_reason": finish_reason}]})


class ChatStandIn:
    """Serve while entered; record the request bodies in ``asked`` and all headers in ``headers``."""

    def __init__(self, answer: Callable[[dict[str, Any]], Answer], models: Answer | None = None) -> None:
        self.answer = answer
        self.models = models or Answer({"data": [{"id": "small"}]})
        self.asked: list[dict[str, Any]] = []
        self.headers: list[Mapping[str, str]] = []
        self.paths: list[str] = []
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.reply(stand_in.models)

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                stand_in.asked.append(body)
                self.reply(stand_in.answer(body))

            def reply(self, answer: Answer) -> None:
                stand_in.headers.append(dict(self.headers))
                stand_in.paths.append(self.path)
                self.send_response(answer.status)
                if isinstance(answer.body, Iterator):
                    pieces, length = answer.body, {}
                else:
                    text = answer.body if isinstance(answer.body, str) else json.dumps(answer.body)
                    pieces, length = iter([text.encode()]), {"Content-Length": str(len(text.encode()))}
                for name, value in {**length, **answer.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                with suppress(ConnectionError):  # a client that has had enough
                    for piece in pieces:
                        self.wfile.write(piece)

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
