"""The page of a run: one self-contained HTML file.

The page's script writes run data as text, never as markup.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from turntree.agents.files import keep_apart, write_whole
from turntree.agents.viewer.curves import curves
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
        beside: Another run; episodes of the same tasks are shown side by side.
        tokenizer: Tokenizer of the run's model; without one, tokens are shown as ids.

    Raises:
        RecordError: If ``run`` holds no episodes, or damaged ones.
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
    """Return the page of one run, or of two side by side.

    Args:
        growing: Whether the runs are still being written; incomplete lines are then skipped.

    Raises:
        RecordError: If a run holds no episodes, or damaged ones.
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
