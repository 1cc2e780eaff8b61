"""Account the CPU seconds of a command and all its processes to names, from periodic reads of /proc.

A process that its parent waits for passes its seconds on to the parent. Of a process that nobody waits for, such as
Ray's workers, the seconds of the last look stay counted. A process that starts and ends between two looks without being
waited for is missed. Nothing outside the standard library is imported.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeAlias

TICKS = os.sysconf("SC_CLK_TCK")

Key: TypeAlias = tuple[int, int]  #: process id and start time, since ids are reused


class Used(NamedTuple):
    parent: int
    own: float
    waited: float  #: of children that it has waited for, and of their descendants


@dataclass
class Account:
    """CPU seconds by name, of processes that inherited a variable and of their descendants."""

    variable: str  #: ``NAME=VALUE``, as in an environment
    seconds: Counter[str] = field(default_factory=Counter)
    _last: dict[Key, Used] = field(default_factory=dict)
    _others: set[Key] = field(default_factory=set)

    def look(self, name: str) -> None:
        """Count the seconds since the last look for ``name``."""
        now = self._processes()
        self.seconds[name] += (
            sum(one.own + one.waited for one in now.values())
            - sum(one.own + one.waited for one in self._last.values())
            + _lost(self._last, now)
        )
        self._last = now

    def _processes(self) -> dict[Key, Used]:
        found: dict[Key, Used] = {}
        for path in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
            try:
                words = (path / "stat").read_text(errors="replace").rpartition(")")[2].split()
                key = int(path.name), int(words[19])
                if key in self._others:
                    continue
                used = Used(int(words[1]), *(sum(map(int, words[at : at + 2])) / TICKS for at in (11, 13)))
                if key in self._last or self._is_ours(path, used.parent, found):
                    found[key] = used
                else:
                    self._others.add(key)
            except OSError:  # it has ended, or is another user's
                continue
        return found

    def _is_ours(self, path: Path, parent: int, found: dict[Key, Used]) -> bool:
        inherited = self.variable.encode() in (path / "environ").read_bytes().split(b"\0")
        return inherited or any(pid == parent for pid, _ in found)


def _lost(last: dict[Key, Used], now: dict[Key, Used]) -> float:
    # Seconds of ended processes that no living process has waited for.
    by_pid = {key[0]: key for key in last}
    ended: Counter[Key | None] = Counter()
    for key, used in last.items():
        if key in now:
            continue
        above = by_pid.get(used.parent)
        while above is not None and above not in now:
            above = by_pid.get(last[above].parent)
        ended[above] += used.own + used.waited  # type: ignore[assignment]
    return sum(
        max(0.0, seconds - (now[heir].waited - last[heir].waited if heir else 0.0)) for heir, seconds in ended.items()
    )
