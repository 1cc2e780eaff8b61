from __future__ import annotations

import argparse
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from turntree.agents.files import write_whole


def arguments(about: str | None, file: str = "--json") -> argparse.ArgumentParser:
    """Return a parser that shows the script's docstring and takes ``file``, the path of the results."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(file, type=Path, help="keep the figures as JSON here")
    return parser


def titled(about: Mapping[str, Any]) -> str:
    return f"{about['machine']}; {about['versions']}\n{about['command']}"


def show(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], words: Collection[str] = ()) -> None:
    """Print a table, with numbers right-aligned and the columns ``words`` left-aligned."""
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="left" if column in words else "right")
    for row in rows:
        table.add_row(*map(str, row))
    Console(width=170).print(table)


def keep(file: Path | None, figures: Mapping[str, Any]) -> None:
    """Write the figures as JSON, atomically; do nothing if ``file`` is ``None``."""
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps(figures, indent=1, ensure_ascii=False) + "\n")
