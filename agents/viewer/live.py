"""The page of a running training, served on this machine; it follows the run's files.

The open page polls ``stamp``, a digest of the files' sizes and times, and reloads its data when the digest changes.
Only requests with a loopback Host header are answered, so that a foreign page cannot read a run through a browser.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any

from turntree.agents.errors import RecordError
from turntree.agents.viewer.page import render
from turntree.agents.viewer.source import Source

_WAITING = (
    '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="2"><title>turntree</title>'
    "<p>No episode has ended yet. This page reloads itself.</p>"
)


class LivePage:
    """The current page of runs, rendered again only if a file has changed.

    Args:
        paths: Run folders or episode files.
    """

    def __init__(self, paths: Sequence[Path], *, tokenizer: Any = None) -> None:
        self._paths, self._tokenizer = paths, tokenizer
        self._rendered: tuple[str, str] = ("", "")
        self._lock = Lock()

    def stamp(self) -> str:
        digest = blake2b(digest_size=8)
        for path in self._paths:
            for file in sorted(path.rglob("*.jsonl")) if path.is_dir() else [path]:
                if file.exists():
                    digest.update(f"{file} {file.stat().st_size} {file.stat().st_mtime_ns}".encode())
        return digest.hexdigest()

    def text(self) -> str:
        with self._lock:
            stamp = self.stamp()
            if self._rendered[0] != stamp:
                try:
                    runs = [Source.open(path) for path in self._paths]
                    self._rendered = stamp, render(runs, tokenizer=self._tokenizer, growing=True).text
                except RecordError:
                    return _WAITING
            return self._rendered[1]


def live_server(page: LivePage, port: int) -> ThreadingHTTPServer:
    """Return a server of ``page``; ``serve_forever`` runs it.

    Args:
        port: 0 picks a free port.

    Raises:
        OSError: If the port is in use.
    """

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            # Guards against DNS rebinding.
            host = self.headers.get("Host", "").rpartition(":")[0]
            known = {"/": ("text/html", page.text), "/stamp": ("text/plain", page.stamp)}.get(self.path)
            if host not in ("127.0.0.1", "localhost") or known is None:
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            body = known[1]().encode()
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", f"{known[0]}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """The page polls every other second, which is not logged."""

    return ThreadingHTTPServer(("127.0.0.1", port), Answers)
