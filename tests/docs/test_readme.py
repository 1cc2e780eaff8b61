import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from machine_speed import patience
from pages import README as TEXT
from pages import ROOT, readme_commands
from tables import table

README = TEXT.read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
NOT_RUN: dict[str, str] = table(__file__, "not_run")  #: commands that are skipped -> the reason

(OUTPUT,) = (block for language, block in BLOCKS if language == "text")


def rates(output: str) -> list[float]:
    return [float(rate) for rate in re.findall(r"^([\d.]+) tokens per forward pass$", output, re.MULTILINE)]


def test_there_are_commands_of_every_kind_in_at_most_120_lines_that_show_a_gain() -> None:
    words = [tuple(line.split()[:2]) for line in readme_commands()]
    verbs = ("model", "new", "check", "eval", "bench", "train", "view", "serve")
    assert {("turntree", verb) for verb in verbs} <= {*words}
    blocks = [language for language, _ in BLOCKS].count("python")
    assert sum(line.startswith("cat > ") for line in readme_commands()) == blocks == 2
    assert {*NOT_RUN} <= {*readme_commands()}
    assert len(README.splitlines()) <= 120
    plain, drafted = rates(OUTPUT)
    assert plain == 1.0 < 1.5 < drafted


@pytest.mark.release
def test_every_command_runs_word_for_word(tmp_path: Path) -> None:
    clone, exports, failed = tmp_path / "turntree", "set -e\n", {}
    subprocess.run(["git", "clone", "-q", ROOT, clone], check=True)

    def run(line: str, **options: Any) -> subprocess.CompletedProcess[str]:
        given = {"cwd": clone, "capture_output": True, "text": True, "timeout": patience(900), "check": False}
        return subprocess.run(["bash", "-c", exports + line], **{**given, **options})

    for line in readme_commands():
        if line in NOT_RUN:
            continue
        if line.startswith("export "):
            exports += line + "\n"
        if line.startswith("turntree serve "):  # until it says where
            line = f"{line} > said & trap 'kill $!' EXIT; until grep -q http said; do kill -0 $!; sleep 0.2; done"
        done = run(line)
        if done.returncode:
            failed[line] = done.stdout[-1000:] + done.stderr[-3000:]
        elif line.startswith("cat > twelve_lines.py"):  # near ties of rounding may fall otherwise on another processor
            assert rates(done.stdout) == pytest.approx(rates(OUTPUT), rel=0.3)
            assert done.stdout.splitlines()[-1] == OUTPUT.splitlines()[-1]
    shutil.rmtree(run("scripts/venv.sh -n cpu").stdout.strip())  # this clone's own layer of the environment
    assert failed == {}
