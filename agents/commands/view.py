"""``turntree view``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def view_command(
    run: Annotated[Path, typer.Argument(help="Folder of a run, or a file of episodes (`turntree eval --out`).")],
    beside: Annotated[
        Path | None, typer.Argument(metavar="[OTHER]", help="Another one: the same tasks beside each other.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The page; view.html in the run's folder without it.")] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(help="Model directory or id whose tokenizer reads the tokens; the run's own without it."),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Serve the page on this machine; it follows the run until Ctrl-C.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of --watch; 0 takes a free one.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print for machines.")] = False,
) -> None:
    """Make one HTML page of a run: episodes, tokens, trees, curves. It needs no network.

    Example: turntree view runs/demo

    Example: turntree view before.jsonl after.jsonl --out both.html

    Example: turntree view runs/demo --watch
    """
    from rich.console import Console

    from turntree.agents.viewer.page import view
    from turntree.agents.viewer.source import Source

    if watch:
        _watch([run] if beside is None else [run, beside], tokenizer, port, as_json)
        return
    source = Source.open(run)
    target = out or (run / "view.html" if run.is_dir() else run.with_suffix(".html"))
    other = None if beside is None else Source.open(beside)
    viewed = view(source, target, beside=other, tokenizer=source.tokenizer(tokenizer))
    console = Console()
    if as_json:
        console.print_json(
            json.dumps({"page": str(target), "episodes": viewed.episodes, "token_texts": viewed.token_texts})
        )
        return
    console.print(f"wrote {target}: {viewed.episodes} episodes", highlight=False, markup=False, soft_wrap=True)
    if not viewed.token_texts:
        console.print("tokens are shown as numbers; name the model with --tokenizer", highlight=False)


def _watch(paths: list[Path], tokenizer: str | None, port: int, as_json: bool) -> None:
    """Serve the page until Ctrl-C."""
    from turntree.agents.errors import RecordError
    from turntree.agents.viewer.live import LivePage, live_server
    from turntree.agents.viewer.source import Source

    try:
        reader = Source.open(paths[0]).tokenizer(tokenizer)
    except RecordError:  # no episode yet
        reader = None
    with live_server(LivePage(paths, tokenizer=reader), port) as server:
        url = f"http://127.0.0.1:{server.server_port}/"
        typer.echo(
            json.dumps({"url": url}) if as_json else f"{url} follows {', '.join(map(str, paths))}; Ctrl-C ends it"
        )
        server.serve_forever()
