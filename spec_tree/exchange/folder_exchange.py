"""An exchange through a folder visible to all processes, for those that share nothing else.

Every swap writes one file, whole or not at all, and reads the files of others
that were not read before. A member keeps its own files within a limit; a file
that is damaged or gone is left out. Files of a member's earlier lives count as
its own for the limit, and are read like another's, so that a restarted process
finds its turns again.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import socket
import time
from pathlib import Path
from typing import Self

import numpy as np

from turntree.spec_tree.exchange.exchange import ExchangeLost, Swapped
from turntree.spec_tree.exchange.turn_batch import DamagedBatch, TurnBatch

logger = logging.getLogger(__name__)

FOLDER = "TURNTREE_EXCHANGE"
"""Environment variable that names the folder for processes without an explicit one."""
_ENDING = ".turns"


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
            if len(new):
                self._write(new, first)
                self._known = first + len(own)
            return Swapped(self._new())
        except OSError as error:
            raise ExchangeLost(f"the folder {self.folder} cannot be used: {error}") from error

    def _write(self, own: TurnBatch, first: int) -> None:
        # Nanoseconds first, so that names sort by age over all lives of a member.
        path = self.folder / f"{self.name}-{time.time_ns():020d}-{self._life}-{first}{_ENDING}"
        partial = path.with_suffix(".partial")
        partial.write_bytes(own.to_bytes())
        partial.replace(path)
        mine = sorted(self.folder.glob(f"{self.name}-*{_ENDING}"))
        size = sum(file.stat().st_size for file in mine)
        for file in mine:
            if size <= self.max_bytes:
                break
            size -= file.stat().st_size
            file.unlink()

    def _new(self) -> list[TurnBatch]:
        names = {entry.name for entry in self.folder.glob(f"*{_ENDING}")}
        fresh = [name for name in names - self._read if name.split("-")[2:3] != [self._life]]
        self._read = names
        batches = []
        for name in sorted(fresh, key=lambda name: name.split("-")[1:2]):
            try:
                batches.append(TurnBatch.from_bytes((self.folder / name).read_bytes()))
            except FileNotFoundError:
                continue  # its owner deleted it
            except DamagedBatch as error:
                logger.warning("%s is left out: %s", self.folder / name, error)
        return batches
