"""Plant one fault after another in a copy of the tree and report which faults the tests notice.

A guarantee without a test that can fail is worthless. ``tests/mutants.toml`` lists one-line faults in the code behind
the guarantees, with the tests that must notice them; a fault that these tests miss is a survivor.

    make test-mutants                      # all faults
    make test-mutants MUTANTS="--only coin"

The tree itself stays unchanged: its files, except those that git ignores, are copied once into a temporary folder with
an environment that imports the copy. A fault counts as noticed only if tests fail (pytest's exit status 1). Tests that
cannot run, and modules that can no longer be imported, are errors of the table. Exit status: 1 if a fault survived, 2
if the table is wrong.
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
PACKAGES = ("agents", "configs", "envs", "rewards", "spec_tree")  #: folders that are packages of ``turntree``
MARKS = "not slow and not vllm and not sglang and not site and not interop"
UNIMPORTABLE = 70  #: status of ``_RUN`` if the faulty module cannot be imported
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
    """A fault that cannot be planted, or tests that cannot run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    name: str  #: the fault as a sentence
    file: str  #: relative to the tree
    old: str  #: text that occurs once in the file
    new: str  #: its replacement
    tests: tuple[str, ...]  #: files or node ids of pytest
    select: str = ""  #: pytest's ``-k``; empty for all
    hangs: bool = False  #: whether the tests notice the fault by hanging

    def applied(self, text: str) -> str:
        found = text.count(self.old)
        if found != 1 or self.old == self.new or "\n" in self.old + self.new:
            raise TableError(f"{self.name!r}: its text must be of one line, and once in {self.file}, not {found} times")
        return text.replace(self.old, self.new)


class Verdict(NamedTuple):
    killed: bool
    by: str
    seconds: float


def read_table(path: Path) -> list[Mutant]:
    rows = tomllib.loads(path.read_text())["mutant"]
    return [Mutant(**{**row, "tests": tuple(row["tests"])}) for row in rows]


class Copy:
    """A copy of the tree and an environment that imports from the copy."""

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
        """Return pytest's status and output; the status is ``None`` if it was stopped."""
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
        """Plant the fault, run its tests, and remove the fault."""
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
    # A fault in compiled kernels must not replace the compiled cache.
    text = path.read_text()
    return "numba" in text or "compiled import" in text or path.name == "layout.py"


def _selection(mutant: Mutant) -> list[str]:
    return [*mutant.tests, *(["-k", mutant.select] if mutant.select else [])]


def check_without_faults(copy: Copy, mutants: list[Mutant]) -> None:
    """Check that every named test passes without a fault."""
    whole = sorted({test for mutant in mutants if not mutant.select for test in mutant.tests})
    some = {tuple(_selection(mutant)) for mutant in mutants if mutant.select and not {*mutant.tests} <= {*whole}}
    for selection in filter(None, [whole, *map(list, sorted(some))]):
        status, output = copy.run(None, selection, 3600)
        if status != 0:
            raise TableError(f"without a fault, {' '.join(selection)} ends with {status}\n{output[-3000:]}")


def main(arguments: list[str] | None = None) -> int:
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
