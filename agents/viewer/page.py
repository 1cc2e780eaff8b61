"""The page of a run: one self-contained HTML file.

The run's contents are packed data, which the page's script writes as text
and never as markup. The file replaces an old one when it is complete.
"""

from __future__ import annotations

import re
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from turntree.agents.files import keep_apart, write_whole
from turntree.agents.viewer.curves import curves
from turntree.agents.viewer.pack import CHUNK, pack, squeeze
from turntree.agents.viewer.source import Source
from turntree.agents.viewer.token_bytes import token_bytes


class Viewed(NamedTuple):
    """The result of writing a page."""

    path: Path
    """Path of the page."""
    episodes: int
    """Number of episodes in it."""
    token_texts: bool
    """Whether tokens are shown as text; else as numbers."""


def view(run: Path | Source, out: Path, *, tokenizer: Any = None) -> Viewed:
    """Write the page of ``run``.

    Args:
        run: Folder of a training run, or a file of episodes; or the same, opened.
        out: Path of the page.
        tokenizer: A Hugging Face tokenizer, that of the run's model; without one tokens are shown as numbers.

    Raises:
        RecordError: If ``run`` holds no episodes, or damaged ones.
        UsageError: If ``out`` is a file of the run.
        OSError: If a file cannot be read or written; an old page is then kept.
    """
    source = run if isinstance(run, Source) else Source.open(run)
    keep_apart(out, source.inputs)
    packed = pack(source.records())
    texts = {} if tokenizer is None else token_bytes(tokenizer, packed.tokens)
    head = {
        "title": source.path.resolve().name,
        "chunk": CHUNK,
        "columns": packed.columns,
        "states": packed.states,
        "tokens": {str(number): text.decode("latin-1") for number, text in texts.items()},
    }
    charts = "".join(
        f"<figure><figcaption>{escape(curve.title)}</figcaption>{curve.svg}</figure>" for curve in curves(source)
    )
    chunks = [_data(f"chunk-{number}", chunk) for number, chunk in enumerate(packed.chunks)]
    parts = {
        "title": escape(source.path.resolve().name),
        "style": _asset("page.css"),
        "script": _asset("page.js"),
        "charts": charts,
        "data": "\n".join([_data("head", squeeze(head)), *chunks]),
    }
    page = re.sub(r"<!--(\w+)-->", lambda match: parts[match[1]], _asset("page.html"))
    write_whole(out, page)
    return Viewed(out, len(packed.columns["reward"]), bool(texts))


def _asset(name: str) -> str:
    return resources.files("turntree.agents.viewer").joinpath(name).read_text(encoding="utf-8")


def _data(name: str, packed: str) -> str:
    return f'<script type="application/gzip+base64" id="{name}">{packed}</script>'
