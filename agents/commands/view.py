from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turntree.agents.commands.options import JsonOption

if TYPE_CHECKING:
    from turntree.spec_tree import TreeNode


_TokenizerOption = Annotated[
    str | None, typer.Option(help="Model folder or id of the tokenizer; default: the run's model.")
]


def view_command(
    run: Annotated[Path, typer.Argument(help="Run folder, or episode file (`turntree eval --out`).")],
    other_run: Annotated[
        Path | None, typer.Argument(metavar="[OTHER]", help="Another run; the same tasks are shown side by side.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="HTML file; default: view.html in the run folder.")] = None,
    tokenizer: _TokenizerOption = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Serve the page on this machine and update it until Ctrl-C.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of --watch; 0 picks a free one.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Create one HTML page of a run: episodes, tokens, trees, curves. The page needs no network.

    Example: turntree view runs/demo

    Example: turntree view before.jsonl after.jsonl --out both.html

    Example: turntree view runs/demo --watch
    """
    from rich.console import Console

    from turntree.agents.viewer.page import view
    from turntree.agents.viewer.source import Source

    if watch:
        _watch([run] if other_run is None else [run, other_run], tokenizer, port, as_json)
        return
    source = Source.open(run)
    target = out or (run / "view.html" if run.is_dir() else run.with_suffix(".html"))
    other = None if other_run is None else Source.open(other_run)
    viewed = view(source, target, other_run=other, tokenizer=source.tokenizer(tokenizer))
    console = Console()
    if as_json:
        console.print_json(
            json.dumps({"page": str(target), "episodes": viewed.episodes, "token_texts": viewed.token_texts})
        )
        return
    console.print(f"wrote {target}: {viewed.episodes} episodes", highlight=False, markup=False, soft_wrap=True)
    if not viewed.token_texts:
        console.print("tokens are shown as ids; name the model with --tokenizer to show text", highlight=False)


def _watch(paths: list[Path], tokenizer: str | None, port: int, as_json: bool) -> None:
    from turntree.agents.errors import RecordError
    from turntree.agents.viewer.page import LivePage, live_server
    from turntree.agents.viewer.source import Source

    try:
        reader = Source.open(paths[0]).tokenizer(tokenizer)
    except RecordError:
        # No episode has ended yet.
        reader = None
    with live_server(LivePage(paths, tokenizer=reader), port) as server:
        url = f"http://127.0.0.1:{server.server_port}/"
        typer.echo(
            json.dumps({"url": url}) if as_json else f"{url} follows {', '.join(map(str, paths))}; press Ctrl-C to stop"
        )
        server.serve_forever()


def tree_command(
    run: Annotated[Path, typer.Argument(help="Run folder, or episode file.")],
    task: Annotated[str | None, typer.Option(help="Task id; default: the first task.")] = None,
    turn: Annotated[int, typer.Option(min=0, help="Turn index, from 0; the most frequent state is shown.")] = 0,
    tokenizer: _TokenizerOption = None,
    width: Annotated[int, typer.Option(min=1, help="Children to show per fork.")] = 8,
    as_json: JsonOption = False,
) -> None:
    """Print the prefix tree of the turns sampled at one dialogue state of a run.

    Example: turntree tree runs/demo --task arithmetic/train/1 --turn 1
    """
    from rich.console import Console
    from rich.text import Text
    from rich.tree import Tree

    from turntree.agents.viewer.source import Source
    from turntree.agents.viewer.state_turns import Branch, branches, state_turns
    from turntree.agents.viewer.token_bytes import token_bytes
    from turntree.spec_tree import TreeNode

    source = Source.open(run)
    found = state_turns(source.records(), task=task, turn=turn)
    root = TreeNode.from_turns([list(sampled) for sampled in found.turns])
    reader = source.tokenizer(tokenizer)
    known = {} if reader is None else token_bytes(reader, {token for sampled in found.turns for token in sampled})
    console = Console()
    if as_json:
        console.print_json(json.dumps({"task": found.task, "turns": len(found.turns), **_flat(root)}))
        return

    def text(token: int) -> str:
        return known[token].decode("utf-8", "replace") if token in known else f"⟨{token}⟩"

    def grow(at: Tree, branch: Branch) -> None:
        for child in branch.children:
            grow(at.add(Text.assemble((f"{child.count}x {child.share:.0%}", "dim"), " ", child.text)), child)
        if branch.hidden:
            at.add(f"[dim]{branch.hidden} more[/dim]")

    title = f"{found.task}, turn {turn}: {len(found.turns)} of {found.all_turns} turns started from this state"
    drawn = Tree(Text(title))
    top = branches(root, text, widest=width)
    # All turns share a prefix, which becomes the only branch.
    if top.text:
        top = Branch(text="", count=top.count, share=1.0, children=(top,))
    grow(drawn, top)
    console.print(drawn)


def _flat(root: TreeNode) -> dict[str, list[int]]:
    # Flat lists, parents before children: the tree may be deeper than JSON readers allow.
    nodes: dict[str, list[int]] = {"tokens": [], "parents": [], "counts": []}
    stack = [(root, -1)]
    while stack:
        node, parent = stack.pop()
        index = len(nodes["tokens"])
        for name, value in (("tokens", node.token), ("parents", parent), ("counts", node.count)):
            nodes[name].append(value)
        stack.extend((child, index) for child in reversed(node.children))
    return nodes
