"""The phases of a training until its first step ends, reported by the processes that enter them.

A process appends the words of a phase to the file that ``VARIABLE`` names, if it is set; ``turntree train`` sets it and
reads the file. Nothing depends on these words: a phase that nobody tells, as with a sampler of one's own, is missing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from turntree.agents.verl.records.recording import RunFolder, append_line
from turntree.agents.verl.records.step_reports import NewLines

VARIABLE = "TURNTREE_PHASES"
"""Variable of the environment with the path of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A phase that has begun."""

    words: str
    """What is done in it."""
    seconds: float
    """Time since the training was asked for."""

    def __str__(self) -> str:
        return f"{self.seconds:6.1f} s  {self.words}"


def note_phase(words: str) -> None:
    """Tell that a phase begins; does nothing in a process that ``turntree train`` has not started."""
    path = os.environ.get(VARIABLE)
    if path:
        append_line(Path(path), {"phase": words})


class PhaseReader:
    """Reads the phases that a run has reported since the last call.

    Args:
        folder: Folder of the run; what an earlier start has reported is removed.
        began: ``perf_counter()`` when the training was asked for.
    """

    def __init__(self, folder: RunFolder, began: float) -> None:
        folder.phases.unlink(missing_ok=True)
        self._lines = NewLines(folder.phases)
        self._told: set[str] = set()
        self._began = began

    def phase(self, words: str) -> Phase:
        """A phase of this process, which begins now."""
        return Phase(words=words, seconds=perf_counter() - self._began)

    def new(self) -> Iterator[Phase]:
        """The phases that other processes have entered, each once: a validation is several batches."""
        for words in (line["phase"] for line in self._lines.new()):
            if words not in self._told:
                self._told.add(words)
                yield self.phase(words)
