"""Run parts of the tests in parallel, each to its end, and sum them up: `make test`.

    python scripts/run_tests.py PART... [-- NAME=VALUE...]    # parts are targets of the Makefile, the rest is make's
    python scripts/run_tests.py --times PART...    # also writes each file's CPU seconds to tests/cpu_seconds.toml

A part waits for an engine or Ray a third of the time, so there is one part more than processors. Each part's output
goes to build/tests/PART.log. The terminal shows each part's progress and pytest's summary, and for a failure the test,
its last lines and the command that reruns it. Nothing outside the standard library is imported.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cpu_account import Account

LOGS = Path("build/tests")
TIMES = Path("tests/cpu_seconds.toml")
RETELL, POLL = 120.0, 0.4
"""Seconds between two lines of how far the parts are, and between two looks at them."""
#: variable with the file in which a part's tests name the running test; also marks the part's processes
NOW = "TURNTREE_TEST_FILE"
FIRST = "kernels"  #: runs before the other parts: it compiles what all parts would compile at the same time
MEMORY = 5  #: GB that a part may need: a training with its Ray, or engines in three processes
#: measured duration of installing an environment on two cores
INSTALLS = {"cpu": "2.4 GB, 3 minutes", "vllm-0.28": "0.9 GB, 1 minute", "vllm-0.24": "4.2 GB, 3 minutes"}
CLOSING = re.compile(r"^=+ (.* in [\d.]+s.*|no tests ran.*) =+$", re.MULTILINE)
COUNT = re.compile(r"(\d+) (passed|failed|skipped|error)")
SKIP = re.compile(r"^SKIPPED \[(\d+)\] [^ ]+: (.*)$", re.MULTILINE)
BROKEN = re.compile(r"^(?:FAILED|ERROR) (\S+\.py(?:::\S.*?)?)(?: - (.*))?$", re.MULTILINE)
WORDS, TAIL = 3, 15
"""Lines of a failure, and of a part that fails without one."""


@dataclass
class Part:
    """One target of the Makefile, running or ended."""

    name: str
    log: Path
    process: subprocess.Popen[bytes]
    account: Account
    began: float = field(default_factory=time.monotonic)
    minutes: float = 0.0

    @property
    def text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    @property
    def counts(self) -> Counter[str]:
        # Tests by outcome, over all its runs of pytest.
        found = (COUNT.findall(line) for line in CLOSING.findall(self.text))
        return sum((Counter({kind: int(number) for number, kind in line}) for line in found), Counter[str]())

    @property
    def seconds(self) -> Counter[str]:
        # CPU seconds by test file; imports are counted under ``imports``.
        return self.account.seconds

    def look(self) -> bool:
        """Count what its processes used since the last look; return whether it has ended."""
        ended = self.process.poll() is not None
        now = self.log.with_suffix(".now")
        self.account.look(now.read_text() if now.exists() else "imports")
        return ended

    @property
    def broken(self) -> dict[str, str]:
        text = self.text
        return {test: last_words(text, test) or words for test, words in BROKEN.findall(text)}

    @property
    def failed(self) -> bool:
        # A part without any selected test has not failed.
        none = re.search(r"^make.*Error 5$", self.text, re.MULTILINE)
        return self.process.returncode != 0 and not (none and not self.broken)


def last_words(text: str, test: str) -> str:
    """The first lines of an error in pytest's account of a failed test.

    >>> last_words("___ test_x[1] ___\\n>   assert 1 == 2\\nE   assert 1 == 2\\n\\nf.py:3: Error\\n", "f.py::test_x[1]")
    'assert 1 == 2'
    """
    name = re.escape(test.partition("::")[2].replace("::", "."))
    account = re.search(rf"^_+ (?:ERROR at \w+ of )?{name} _+$(.*?)(?=^[_=]{{3,}} |\Z)", text, re.MULTILINE | re.DOTALL)
    lines = re.findall(r"^E +(.*)$", account[1], re.MULTILINE) if account and name else []
    return "\n".join(lines[:WORDS])


def alone(part: str, test: str, assigned: Sequence[str]) -> str:
    """Return the command that reruns a failed test with all its parameters."""
    target = "test-fast" if part.startswith("test-fast") else part
    return shlex.join(["make", target, f"TESTS={test.partition('[')[0]}", *assigned])


def missing(names: Iterable[str]) -> list[str]:
    found = [
        (name, subprocess.run(["scripts/venv.sh", "-n", name], capture_output=True, check=False)) for name in names
    ]
    return [name for name, done in found if done.returncode == 1]


def at_once(processors: int, available: float) -> int:
    """Parts that run side by side where so many GB of memory are available.

    >>> at_once(2, 20.3), at_once(2, 11.0), at_once(8, 2.0)
    (3, 2, 1)
    """
    return max(1, min(processors + 1, int(available // MEMORY)))


def available() -> float:
    # GB of memory.
    (line,) = (line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable"))
    return int(line.split()[1]) / 1e6


def run(parts: Sequence[str], assigned: Sequence[str], lanes: int) -> list[Part]:
    LOGS.mkdir(parents=True, exist_ok=True)
    waiting, last_line = list(parts), time.monotonic()
    running: list[Part] = []
    ended: list[Part] = []
    while waiting or running:
        while waiting and len(running) < lanes:
            running.append(start(waiting.pop(0), assigned))
        time.sleep(POLL)
        for part in [part for part in running if part.look()]:
            running.remove(part)
            part.minutes = (time.monotonic() - part.began) / 60
            ended.append(part)
            tell_end(part)
        if time.monotonic() - last_line > RETELL:
            last_line = time.monotonic()
            print("  ".join(f"{part.name} {reached(part.text)}" for part in running), flush=True)
    return ended


def start(name: str, assigned: Sequence[str]) -> Part:
    print(f"{name} begins", flush=True)
    log = LOGS / f"{name}.log"
    now = log.with_suffix(".now").resolve()
    now.unlink(missing_ok=True)
    with log.open("wb") as out:
        command = ["make", "--no-print-directory", name, *assigned]
        variables = {**os.environ, NOW: str(now)}
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=variables)
    return Part(name, log, process, Account(f"{NOW}={now}"))


def reached(text: str) -> str:
    shares = re.findall(r"\[ *(\d+%)\]$", text, re.MULTILINE)
    return shares[-1] if shares else "begins"


def tell_end(part: Part) -> None:
    for closing in CLOSING.finditer(part.text):
        print(closing[0])
    how = "FAILED, the other parts go on" if part.failed else "done"
    print(f"{part.name} {how}, {part.minutes:.1f} minutes; its output: {part.log}", flush=True)


def tell_all(ended: Sequence[Part], assigned: Sequence[str]) -> None:
    skips: Counter[str] = Counter()
    for part in ended:
        for number, reason in SKIP.findall(part.text):
            skips[reason.removeprefix("Skipped: ")] += int(number)
    if skips:
        print("\nskipped, by reason:")
        for reason, number in skips.most_common():
            print(f"{number:6}  {reason}")
    for part in (part for part in ended if part.failed):
        print(f"\n{part.name} FAILED")
        for test, words in part.broken.items():
            print(f"  {test}\n    " + words.replace("\n", "\n    ") + f"\n    {alone(part.name, test, assigned)}")
        if not part.broken:
            print("    " + "\n    ".join(part.text.splitlines()[-TAIL:]) + f"\n    make {part.name}")
    print(f"\n{'part':20} {'passed':>7} {'failed':>7} {'skipped':>8} {'minutes':>8} {'CPU minutes':>12}")
    for part in ended:
        counts = part.counts
        bad = counts["failed"] + counts["error"] or ("yes" if part.failed else 0)
        row = f"{part.name:20} {counts['passed']:7} {bad:>7} {counts['skipped']:8}"
        print(f"{row} {part.minutes:8.1f} {part.seconds.total() / 60:12.1f}")


def write_times(seconds: Counter[str]) -> None:
    """Write each file's whole CPU seconds below the comment lines at the head of the table."""
    head, mark, _ = TIMES.read_text().partition("[seconds]\n")
    files = sorted(path.as_posix() for path in Path("tests").rglob("test_*.py"))
    TIMES.write_text(head + mark + "".join(f'"{name}" = {round(seconds[name])}\n' for name in ["imports", *files]))


def main(words: Sequence[str]) -> int:
    parts = [word for word in words if "=" not in word and not word.startswith("--")]
    assigned = [word for word in words if "=" in word]
    engines = [
        name for word in assigned if word.startswith(("VLLM=", "SGLANG=")) for name in word.split("=")[1].split()
    ]
    lacking = missing(["cpu", "site", *engines])
    for name in lacking:
        size = INSTALLS.get(name)
        print(f"to be installed once: {name}" + (f", {size} on two cores" if size else ""), flush=True)
    lanes = at_once(os.cpu_count() or 1, available())
    print(f"{len(parts)} parts, {lanes} at a time; about 18 minutes on two cores", flush=True)
    ahead = [part for part in parts if part == FIRST and "cpu" not in lacking]  # other parts install theirs meanwhile
    ended = run(ahead, assigned, lanes) + run([part for part in parts if part not in ahead], assigned, lanes)
    tell_all(ended, assigned)
    failed = any(part.failed for part in ended)
    if "--times" in words and not failed:
        write_times(sum((part.seconds for part in ended), Counter[str]()))
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
