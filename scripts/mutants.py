"""Put one fault after another into a copy of the tree, and say which of them the tests notice.

A guarantee that no test would miss is none. ``tests/mutants.toml`` names faults of one line each in what
the guarantees rest on, with the tests that must notice them; a fault that they let pass is a survivor.

    make test-mutants                      # all of them
    make test-mutants MUTANTS="--only coin"

The tree itself stays as it is: its files, those aside that git ignores, are copied once, into a temporary
folder with an environment that imports the copy. A fault counts as noticed only where tests fail (pytest's
exit status 1): tests that cannot be run, or a module that cannot be imported any more, are errors of the table.
Status: 1 where a fault survived, 2 where the table is wrong.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("agents", "configs", "envs", "rewards", "spec_tree")
"""Folders that are packages of ``turntree``."""
MARKS = "not slow and not vllm and not sglang and not site and not interop"
UNIMPORTABLE = 70
"""Status of ``_RUN`` where the faulty module cannot be imported."""
_RUN = f"""
import importlib, sys, hypothesis, pytest
phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]  # a smaller example would tell nothing more
hypothesis.settings.register_profile("mutants", phases=phases, derandomize=True, database=None, deadline=None)
hypothesis.settings.load_profile("mutants")
try:
    sys.argv[1] and importlib.import_module(sys.argv[1])
except Exception as error:
    print(repr(error))
    sys.exit({UNIMPORTABLE})
sys.exit(pytest.main(sys.argv[2:]))
"""


class TableError(Exception):
    """A fault that cannot be put in, or tests that cannot be run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A fault of one line, and who must notice it."""

    name: str
    """What it does, as a sentence."""
    file: str
    """Relative to the tree."""
    old: str
    """Text that occurs once in the file."""
    new: str
    """What stands there instead."""
    tests: tuple[str, ...]
    """Files or node ids of pytest."""
    select: str = ""
    """pytest's ``-k``; empty for all."""
    hangs: bool = False
    """Whether the tests notice it by not coming to an end."""

    def applied(self, text: str) -> str:
        """``text`` with the fault in it."""
        found = text.count(self.old)
        if found != 1 or self.old == self.new or "\n" in self.old + self.new:
            raise TableError(f"{self.name!r}: its text must be of one line, and once in {self.file}, not {found} times")
        return text.replace(self.old, self.new)


class Verdict(NamedTuple):
    """The tests' verdict on a fault."""

    killed: bool
    by: str
    seconds: float


def read_table(path: Path) -> list[Mutant]:
    """The faults that ``path`` names."""
    rows = tomllib.loads(path.read_text())["mutant"]
    return [Mutant(**{**row, "tests": tuple(row["tests"])}) for row in rows]


class Copy:
    """The files of a tree beside an environment that imports them from there."""

    def __init__(self, tree: Path, folder: Path) -> None:
        self.folder, self.tree = folder, folder / "tree"
        listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(listing, cwd=tree, capture_output=True, check=True).stdout
        for name in filter(None, listed.decode().split("\0")):
            if (tree / name).exists():
                (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(tree / name, self.tree / name, follow_symlinks=False)
        (folder / "lib/turntree").mkdir(parents=True)
        for package in PACKAGES:
            (folder / "lib/turntree" / package).symlink_to(self.tree / package)
        venv.create(folder / "env", symlinks=True)
        self.python = str(folder / "env/bin/python")
        paths = [str(folder / "lib"), *(path for path in sys.path if path.endswith("site-packages"))]
        (site,) = (folder / "env").glob("lib/python*/site-packages")
        (site / "tree.pth").write_text("\n".join(paths) + "\n")  # those files' own .pth, one to the tree, do not count
        known = next(package for package in PACKAGES if list((self.tree / package).glob("*.py")))
        show = f"import turntree.{known} as package; print(list(package.__path__)[0])"
        shown = subprocess.run([self.python, "-c", show], cwd=folder, capture_output=True, text=True).stdout.strip()
        if shown != str(folder / "lib/turntree" / known):
            raise TableError(f"turntree.{known} comes from {shown or 'nowhere'}, not from the copy")

    def run(self, mutant: Mutant | None, selection: list[str], seconds: float) -> tuple[int | None, str]:
        """Status and output of pytest, ``None`` where it was stopped."""
        path = Path(mutant.file) if mutant else Path()
        module = ".".join(["turntree", *path.with_suffix("").parts]) if path.suffix == ".py" else ""
        arguments = [*selection, "-m", MARKS, "-x", "-q", "-p", "no:cacheprovider"]
        with tempfile.TemporaryDirectory(dir=self.folder) as scratch:
            kernels = scratch if mutant and _is_compiled(self.tree / path) else str(self.folder / "kernels")
            process = subprocess.Popen(
                [self.python, "-c", _RUN, module.removesuffix(".__init__"), *arguments],
                cwd=self.tree,
                env={**os.environ, "NUMBA_CACHE_DIR": kernels},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                output, _ = process.communicate(timeout=seconds)
                return process.returncode, output.decode(errors="replace")
            except subprocess.TimeoutExpired:
                return None, ""
            finally:
                if process.returncode is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.communicate()

    def judge(self, mutant: Mutant, number: int, seconds: float) -> Verdict:
        """Put the fault in, run its tests, and take it out again."""
        path = self.tree / mutant.file
        text, before = path.read_text(), path.stat()
        begun = time.monotonic()
        try:
            path.write_text(mutant.applied(text))
            stamp = before.st_mtime_ns + (number + 1) * 2_000_000_000  # caches look at whole seconds
            os.utime(path, ns=(stamp, stamp))
            status, output = self.run(mutant, _selection(mutant), seconds)
        finally:
            path.write_text(text)
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        failed = re.search(r"^FAILED (.+?)( - .*)?$", output, re.MULTILINE)
        if status not in (0, 1, None) or (status == 1 and not failed) or (status is None and not mutant.hangs):
            came = "no end" if status is None else f"status {status}"
            raise TableError(f"{mutant.name!r}: tests failed or passed were expected, {came} came\n{output[-3000:]}")
        by = failed[1] if failed else "no end" if status is None else "SURVIVED"
        return Verdict(status != 0, by, time.monotonic() - begun)


def _is_compiled(path: Path) -> bool:
    """Whether kernels contain what ``path`` says, so that a fault in it must not replace what was compiled."""
    text = path.read_text()
    return "numba" in text or "compiled import" in text or path.name == "layout.py"


def _selection(mutant: Mutant) -> list[str]:
    return [*mutant.tests, *(["-k", mutant.select] if mutant.select else [])]


def check_without_faults(copy: Copy, mutants: list[Mutant]) -> None:
    """Every test that is named passes as long as there is no fault."""
    whole = sorted({test for mutant in mutants if not mutant.select for test in mutant.tests})
    some = {tuple(_selection(mutant)) for mutant in mutants if mutant.select and not {*mutant.tests} <= {*whole}}
    for selection in filter(None, [whole, *map(list, sorted(some))]):
        status, output = copy.run(None, selection, 3600)
        if status != 0:
            raise TableError(f"without a fault, {' '.join(selection)} ends with {status}\n{output[-3000:]}")


def main(arguments: list[str] | None = None) -> int:
    """Judge the faults; the status to end with."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tree", type=Path, default=ROOT, help="a checkout")
    parser.add_argument("--only", default="", help="a part of the names of the faults to put in")
    parser.add_argument("--file", default="", help="a part of the files' paths")
    parser.add_argument("--seconds", type=float, default=300, help="time for the tests of one fault")
    options = parser.parse_args(arguments)
    table = read_table(options.tree / "tests/mutants.toml")
    mutants = [one for one in table if options.only.lower() in one.name.lower() and options.file in one.file]
    survivors = errors = 0
    with tempfile.TemporaryDirectory(prefix="turntree-mutants-") as folder:
        try:
            copy = Copy(options.tree, Path(folder).resolve())
            check_without_faults(copy, mutants)
        except TableError as error:
            print(error, file=sys.stderr)
            return 2
        for number, mutant in enumerate(mutants):
            try:
                verdict = copy.judge(mutant, number, options.seconds)
            except TableError as error:
                errors += 1
                print(error, flush=True)
                continue
            survivors += not verdict.killed
            print(f"{verdict.seconds:5.1f} s  {mutant.name}\n         {verdict.by}", flush=True)
    print(f"{len(mutants) - survivors - errors} of {len(mutants)} faults were noticed")
    return 2 if errors or not mutants else 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
