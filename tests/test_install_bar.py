"""The progress bar of an installation: scripts/venv.sh pipes pip's output to scripts/install_bar.py."""

import io
import subprocess
import sys
from pathlib import Path

import pytest
from machine_speed import patience

SCRIPT = Path(__file__).parents[1] / "scripts" / "install_bar.py"
sys.path.insert(0, str(SCRIPT.parent))

from install_bar import Installation, bar, show  # noqa: E402


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def site(tmp_path):
    # A folder of packages in which pip itself is already installed.
    folder = tmp_path / "site-packages"
    (folder / "pip-25.dist-info").mkdir(parents=True)
    return folder


@pytest.fixture
def installation(tmp_path, site):
    pins = tmp_path / "pins.txt"
    pins.write_text("# extra: test\n# Editable (x==1)\nnumpy==2.0\ntorch==2.13\n")
    return Installation(pins, site)


def pip(site):
    # pip's output while it installs two packages, one of them listed twice.
    yield "Collecting numpy==2.0 (from x)\n"
    yield "  Collecting NumPy (from torch)\n"
    yield "Collecting torch==2.13\n"
    yield "Installing collected packages: numpy, torch\n"
    for name in ("numpy", "torch"):
        (site / f"{name}-2.dist-info").mkdir()


def test_packages_count_when_they_are_found_and_when_they_are_in_place(installation, site):
    counts, notes = [], []
    for line in pip(site):
        installation.read(line)
        counts.append(installation.done)
        notes.append(installation.note)
    assert counts == [1, 1, 2, 2]
    assert (notes[2], notes[3]) == ("torch", "unpacking")
    assert (installation.done, installation.total) == (4, 4)


def test_a_terminal_gets_one_line_that_is_drawn_over_itself_and_a_file_gets_lines(installation, site):
    terminal, file = Terminal(), io.StringIO()
    show(pip(site), installation, terminal)
    assert terminal.getvalue().count("\n") == 1
    assert "4/4" in terminal.getvalue()
    show([], installation, file)
    assert "\r" not in file.getvalue()
    assert "\x1b" not in file.getvalue()
    assert file.getvalue().endswith("\n")


def test_it_ends_with_pip_and_pips_failure_stays_one(tmp_path, site):
    pins = tmp_path / "pins.txt"
    pins.write_text("numpy==2.0\n")
    piped = f"set -o pipefail; (echo 'Collecting numpy'; exit 3) | {sys.executable} {SCRIPT} {pins} {site}"
    ended = subprocess.run(["bash", "-c", piped], capture_output=True, text=True, timeout=patience(60), check=False)
    assert ended.returncode == 3
    assert "1/2" in ended.stdout


def test_the_bar_is_full_at_the_end_and_never_fuller():
    assert bar(4, 4, 0, "").count("━") == bar(0, 0, 0, "").count("━") == 40
    assert bar(0, 4, 0, "").count("━") == 0
