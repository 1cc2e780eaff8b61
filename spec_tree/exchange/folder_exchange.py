"""An exchange through a folder visible to all processes, for those that share nothing else.

Every swap writes a file, whole or not at all, and reads the files of others that
were not read before. A member keeps its own files within a limit. Whoever may
write into the folder can write anything: what is no regular file, too long or
damaged is counted, named once in the log and left out. Files of a member's
earlier lives count as its own for the limit, and are read like another's, so that
a restarted process finds its turns again.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import socket
import stat
import time
from pathlib import Path
from typing import Self

import numpy as np

from turntree.spec_tree.array_file import read_regular
from turntree.spec_tree.errors import DamagedFile
from turntree.spec_tree.exchange.exchange import ExchangeLost, Swapped
from turntree.spec_tree.exchange.turn_batch import DamagedBatch, TurnBatch

logger = logging.getLogger(__name__)

FOLDER = "TURNTREE_EXCHANGE"
"""Environment variable that names the folder for processes without an explicit one."""
_ENDING = ".turns"
_MOST_BYTES = 1 << 23
"""Bytes of a file; more turns are given in several."""
_MOST_AT_ONCE = 1 << 26
"""Bytes of files that are read in one exchange, the oldest first."""


class FolderExchange:
    """A member's access to the folder.

    Args:
        folder: Created if missing.
        name: Name of the member: letters, digits, ``_`` and ``.``; the same in each life of a process.
        max_bytes: Most bytes of this member's files, the newest kept.

    Raises:
        ValueError: If the name or the limit is invalid.
    """

    def __init__(self, folder: str | os.PathLike[str], name: str, *, max_bytes: int = 1 << 28) -> None:
        if not re.fullmatch(r"[\w.]+", name):
            raise ValueError(f"a member's name has letters, digits, _ and . alone, got {name!r}")
        if max_bytes < 1:
            raise ValueError(f"max_bytes must be positive, got {max_bytes}")
        self.folder = Path(folder)
        self.name = name
        self.max_bytes = max_bytes
        self._life = secrets.token_hex(6)
        self._known = 0
        self._read: set[str] = set()
        self.damaged = 0
        """Files that were left out because they are no batches of turns."""

    @classmethod
    def from_environment(cls) -> Self | None:
        """This process's access to the folder that ``TURNTREE_EXCHANGE`` names; ``None`` where it names none."""
        folder = os.environ.get(FOLDER)
        return cls(folder, f"{socket.gethostname().replace('-', '_')}.{os.getpid()}") if folder else None

    def swap(self, own: TurnBatch, first: int) -> Swapped:
        """As ``Exchange.swap``."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            new = own.select(np.arange(len(own)) >= self._known - first)  # an earlier call may have failed half way
            self._known = max(self._known, first)
            for part in new.parts(_MOST_BYTES // 2):
                if len(part):
                    self._write(part)
                    self._known += len(part)
            return Swapped(self._new())
        except OSError as error:
            raise ExchangeLost(f"the folder {self.folder} cannot be used: {error}") from error

    def _write(self, own: TurnBatch) -> None:
        # Nanoseconds first, so that names sort by age over all lives of a member.
        path = self.folder / f"{self.name}-{time.time_ns():020d}-{self._life}-{self._known}{_ENDING}"
        partial = path.with_suffix(".partial")
        partial.write_bytes(own.to_bytes())
        partial.replace(path)
        mine = {file: file.lstat() for file in sorted(self.folder.glob(f"{self.name}-*{_ENDING}"))}
        sizes = {file: status.st_size for file, status in mine.items() if stat.S_ISREG(status.st_mode)}
        excess = sum(sizes.values()) - self.max_bytes
        for file, size in sizes.items():
            if excess <= 0:
                break
            excess -= size
            file.unlink(missing_ok=True)

    def _new(self) -> list[TurnBatch]:
        """The turns in files of others that were not read before, as many as one call reads."""
        names = {entry.name for entry in self.folder.glob(f"*{_ENDING}")}
        self._read &= names
        fresh = [name for name in names - self._read if name.split("-")[2:3] != [self._life]]
        batches, room = [], _MOST_AT_ONCE
        for name in sorted(fresh, key=lambda name: name.split("-")[1:2]):
            if room <= 0:
                break  # the next call goes on
            self._read.add(name)
            try:
                data = read_regular(self.folder / name, most=_MOST_BYTES, links=False)
                room -= len(data)
                batches.append(TurnBatch.from_bytes(data))
            except FileNotFoundError:
                continue  # its owner deleted it
            except (DamagedFile, DamagedBatch, OSError) as error:
                self.damaged += 1
                logger.warning("%r in %s is left out: %s", name, self.folder, error)
        return batches
