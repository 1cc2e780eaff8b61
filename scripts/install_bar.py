"""Show pip's installation as the progress bar that ``turntree demo`` continues: packages found, then installed.

    pip install ... | python scripts/install_bar.py PINS SITE_PACKAGES

Only pip's standard output is read; its errors are printed as usual. A terminal shows one bar that is redrawn; elsewhere
a line is printed every half minute. Nothing outside the standard library is imported.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

WIDTH = 40
TITLE = "installing"
REDRAW, RETELL = 0.5, 30.0
"""Seconds between two pictures of the bar, and between two lines where there is no terminal."""


class Installation:
    def __init__(self, pins: Path, site_packages: Path) -> None:
        # Must start before pip does: packages that are already installed do not count.
        lines = pins.read_text(encoding="utf-8").splitlines()
        self._pinned = sum("==" in line and not line.startswith("#") for line in lines)
        self._site = site_packages
        self._before = self._in_place()
        self._found: set[str] = set()
        self.note = ""  #: the latest package

    def read(self, line: str) -> None:
        if found := re.match(r"\s*Collecting ([\w.-]+)", line):
            self.note = found[1]
            self._found.add(found[1].lower())
        elif line.startswith("Installing collected packages"):
            self.note = "unpacking"

    @property
    def total(self) -> int:
        # Each pinned package is found once and installed once.
        return 2 * self._pinned

    @property
    def done(self) -> int:
        return min(len(self._found) + self._in_place() - self._before, self.total)

    def _in_place(self) -> int:
        return sum(1 for _ in self._site.glob("*.dist-info"))


def bar(done: int, total: int, seconds: float, note: str) -> str:
    """One line in the columns of the demo's own bars.

    >>> bar(1, 4, 75.0, "torch")
    'installing ━━━━━━━━━━                               1/4 0:01:15 torch'
    """
    filled = WIDTH * done // total if total else WIDTH
    minutes, rest = divmod(int(seconds), 60)
    return f"{TITLE} {'━' * filled:<{WIDTH}} {done}/{total} 0:{minutes:02}:{rest:02} {note}".rstrip()


def show(lines: Iterable[str], installation: Installation, out: TextIO) -> None:
    began, ended = time.monotonic(), threading.Event()
    terminal = out.isatty()

    def draw(note: str, done: int) -> None:
        text = bar(done, installation.total, time.monotonic() - began, note)
        print(f"\r\x1b[2K{text}" if terminal else text, end="" if terminal else "\n", file=out, flush=True)

    def redraw() -> None:
        while not ended.wait(REDRAW if terminal else RETELL):
            draw(installation.note, installation.done)

    drawing = threading.Thread(target=redraw, daemon=True)
    drawing.start()
    for line in lines:
        installation.read(line)
    ended.set()
    drawing.join()
    draw("", installation.done)
    if terminal:
        print(file=out)


if __name__ == "__main__":
    show(sys.stdin, Installation(Path(sys.argv[1]), Path(sys.argv[2])), sys.stdout)
