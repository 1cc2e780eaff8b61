"""The phases of a training until its first step ends, reported by the processes that enter them.

``turntree train`` sets the environment variable ``VARIABLE`` to the path of a file. Each process appends its phases to
this file, and ``turntree train`` displays them. With a custom sampler, some phases are missing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from turntree.agents.verl.records.recording import RunFolder, append_line
from turntree.agents.verl.records.step_reports import NewLines

VARIABLE = "TURNTREE_PHASES"  #: environment variable with the file's path


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    words: str
    seconds: float  #: since the command began

    def __str__(self) -> str:
        return f"{self.seconds:6.1f} s  {self.words}"


def note_phase(words: str) -> None:
    """Report the start of a phase; do nothing outside ``turntree train``."""
    path = os.environ.get(VARIABLE)
    if path:
        append_line(Path(path), {"phase": words})


class PhaseReader:
    """Reads the phases that a run reports; ``began`` is the ``perf_counter()`` value at the run's start."""

    def __init__(self, folder: RunFolder, began: float) -> None:
        folder.phases.unlink(missing_ok=True)
        self._lines = NewLines(folder.phases)
        self._reported: set[str] = set()
        self._began = began

    def phase(self, words: str) -> Phase:
        return Phase(words=words, seconds=perf_counter() - self._began)

    def new(self) -> Iterator[Phase]:
        """Yield the phases that other processes have entered since the last call, each phase only once."""
        for words in (line["phase"] for line in self._lines.new()):
            if words not in self._reported:  # every batch of a validation reports the same phase
                self._reported.add(words)
                yield self.phase(words)
