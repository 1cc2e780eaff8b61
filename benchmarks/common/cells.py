from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from common.provenance import command_line
from common.script import keep


class Cells:
    """The rows of one machine, and the commands that measured them.

    New rows replace the rows of the same batch size.
    """

    def __init__(self, file: Path | None, *, machine: str, how: str) -> None:
        """Describe a run before it measures.

        Args:
            file: Output, ``None`` to keep nothing.
            machine: Machine and versions.
            how: What a reader must know about the figures.

        Raises:
            ValueError: If the file has rows of another machine.
        """
        self._file, self._machine, self._how = file, machine, how
        if (there := self._read()["machine"]) != machine:
            raise ValueError(f"{file} holds rows of {there!r}, this is {machine!r}: name another file or move that one")

    def put(self, rows: Sequence[Any]) -> None:
        """Write rows (dataclasses) of some batch sizes; their order within an epoch stays."""
        if self._file is None:
            return
        old, new = self._read(), [asdict(row) for row in rows]
        measured = {row["batch"] for row in new}
        kept = [row for row in old["rows"] if row["batch"] not in measured]
        every = sorted(kept + new, key=lambda row: (row["batch"], row["epoch"]))
        command = command_line()
        commands = [*(c for c in old["commands"] if c != command), command]
        table = {"machine": self._machine, "how": self._how, "commands": commands, "rows": every}
        keep(self._file, table)

    def _read(self) -> dict[str, Any]:
        if self._file is None or not self._file.exists():
            return {"machine": self._machine, "commands": [], "rows": []}
        found: dict[str, Any] = json.loads(self._file.read_text())
        return found
