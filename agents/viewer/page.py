"""The page of a run: one self-contained HTML file, or served while the run is still growing.

The page's script writes run data as text, never as markup. A served page polls ``stamp``, a digest of the files' sizes
and times, and reloads its data when the digest changes. Only requests with a loopback Host header are answered, so that
another site's page cannot read a run through a browser.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2b
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from turntree.agents.errors import RecordError
from turntree.agents.files import keep_apart, write_whole
from turntree.agents.viewer.chart import curves
from turntree.agents.viewer.pack import CHUNK, compress, pack
from turntree.agents.viewer.source import Source
from turntree.agents.viewer.token_bytes import token_bytes


class Viewed(NamedTuple):
    path: Path
    episodes: int
    token_texts: bool  #: whether tokens are shown as text rather than ids


def view(run: Path | Source, out: Path, *, other_run: Source | None = None, tokenizer: Any = None) -> Viewed:
    """Write the page of ``run``.

    Args:
        run: Run folder, episode file or opened source.
        other_run: Another run; episodes of the same tasks are shown side by side.
        tokenizer: Tokenizer of the run's model; ``None`` shows tokens as ids.

    Raises:
        RecordError: If ``run`` holds no episodes, or damaged episodes.
        UsageError: If ``out`` is a file of the run.
        OSError: If a file cannot be read or written; an old page is kept.
    """
    source = run if isinstance(run, Source) else Source.open(run)
    runs = [source] if other_run is None else [source, other_run]
    for source_run in runs:
        keep_apart(out, source_run.inputs)
    text, episodes, texts = render(runs, tokenizer=tokenizer)
    write_whole(out, text)
    return Viewed(out, episodes, texts)


class Page(NamedTuple):
    text: str  #: HTML
    episodes: int
    token_texts: bool  #: whether tokens are shown as text rather than ids


def render(runs: Sequence[Source], *, tokenizer: Any = None, growing: bool = False) -> Page:
    """Return the page of one run, or of two runs side by side.

    Args:
        growing: Whether the runs are still being written; incomplete lines are then skipped.
    """
    packed = pack(*(run.records(growing=growing) for run in runs))
    names = [run.path.resolve().name for run in runs]
    texts = {} if tokenizer is None else token_bytes(tokenizer, packed.tokens)
    head = {
        "runs": names,
        "chunk": CHUNK,
        "columns": packed.columns,
        "states": packed.states,
        "tokens": {str(number): text.decode("latin-1") for number, text in texts.items()},
    }
    charts = "".join(
        f"<figure><figcaption>{escape(curve.title if len(runs) == 1 else f'{name}: {curve.title}')}</figcaption>"
        f"{curve.svg}</figure>"
        for name, run in zip(names, runs, strict=True)
        for curve in curves(run)
    )
    chunks = [_data(f"chunk-{number}", chunk) for number, chunk in enumerate(packed.chunks)]
    parts = {
        "title": escape(" and ".join(names)),
        "style": _asset("page.css"),
        # A page opened as a file has no server to poll.
        "script": _asset("page.js") + (_asset("follow.js") if growing else ""),
        "charts": charts,
        "data": "\n".join([_data("head", compress(head)), *chunks]),
    }
    page = re.sub(r"<!--(\w+)-->", lambda match: parts[match[1]], _asset("page.html"))
    return Page(page, len(packed.columns["reward"]), bool(texts))


def _asset(name: str) -> str:
    return resources.files("turntree.agents.viewer").joinpath(name).read_text(encoding="utf-8")


def _data(name: str, packed: str) -> str:
    return f'<script type="application/gzip+base64" id="{name}">{packed}</script>'


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
    """

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            # Guards against DNS rebinding.
            host = self.headers.get("Host", "").rpartition(":")[0]
            endpoint = {"/": ("text/html", page.text), "/stamp": ("text/plain", page.stamp)}.get(self.path)
            if host not in ("127.0.0.1", "localhost") or endpoint is None:
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            body = endpoint[1]().encode()
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", f"{endpoint[0]}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing: the page polls every two seconds."""

    return ThreadingHTTPServer(("127.0.0.1", port), Answers)
