"""What ``make dist`` builds: a wheel with every file, which runs in an environment that has nothing else."""

import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from interpreter import python

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("agents", "configs", "envs", "rewards", "spec_tree")
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def shipped() -> set[str]:
    """The files that an installation needs."""
    paths = (path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file())
    return {str(path.relative_to(ROOT)) for path in paths if "__pycache__" not in path.parts}


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that ``make dist`` fills, of a copy without what else lies in a checkout."""
    copy = tmp_path_factory.mktemp("dist") / "turntree"
    for package in PACKAGES:
        shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "Makefile"):
        shutil.copy(ROOT / name, copy)
    (copy / "scripts").mkdir()
    (copy / "scripts" / "venv.sh").write_text(f"#!/bin/sh\necho {Path(sys.executable).parents[1]}\n")
    (copy / "scripts" / "venv.sh").chmod(0o755)
    subprocess.run(["make", "-s", "dist"], cwd=copy, check=True, capture_output=True)
    return copy / "dist"


def test_wheel_and_sdist_have_every_file_and_no_other(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    assert wheel.name == f"turntree-{VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.startswith(f"turntree-{VERSION}.dist-info/")]
    assert {name.removeprefix("turntree/") for name in names} == shipped()
    (source,) = dist.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert shipped() | {"pyproject.toml", "README.md", "LICENSE"} <= inside


def test_the_wheel_runs_without_extras(dist: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    there = tmp_path / "bare" / "bin"
    (wheel,) = dist.glob("*.whl")
    pins = ["--constraint", str(ROOT / "requirements" / "cpu.txt")]
    python("-m", "pip", "--python", str(there / "python"), "install", "-q", *pins, str(wheel), check=True)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, env={"COLUMNS": "160"}, check=False)

    found = run(str(there / "python"), "-c", "import turntree.envs as e; print(e.__file__, len(e.list_envs()))")
    assert str(tmp_path / "bare") in found.stdout, found.stderr
    listed, doctor = (run(str(there / "turntree"), word) for word in ("list", "doctor"))
    assert "turntree/Arithmetic-v0" in listed.stdout, listed.stderr
    assert doctor.returncode == 0, doctor.stderr
    assert "missing" in doctor.stdout  # torch and all that is left to extras
    checked = run(str(there / "turntree"), "check", "turntree/Arithmetic-v0")
    assert checked.returncode == 0, checked.stderr
    train = run(str(there / "turntree"), "train", "grpo_arithmetic_cpu", "actor_rollout_ref.model.path=m")
    assert (train.returncode, train.stderr.count("\n")) == (2, 1), train.stderr
    assert "turntree[train]" in train.stderr
