"""``make dist`` builds a wheel with every file, which runs in an environment without anything else."""

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from chat_tokenizers import chatml_tokenizer
from interpreter import python
from machine_speed import patience
from tables import table
from tiny_llama import save_chat_llama

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("agents", "configs", "envs", "rewards", "spec_tree")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSION = PROJECT["version"]
STARTS = table(__file__, "starts")


def shipped() -> set[str]:
    paths = (path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file())
    return {str(path.relative_to(ROOT)) for path in paths if "__pycache__" not in path.parts}


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Built from a copy that lacks the untracked files of a checkout.
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


def test_every_place_that_names_the_version_names_the_same() -> None:
    named = {
        "CITATION.cff": f"\nversion: {VERSION}\n",
        "CHANGELOG.md": f"\n## [{VERSION}] - ",
        "docs/index.md": f"dist/turntree-{VERSION}-py3-none-any.whl",
    }
    assert [name for name, text in named.items() if text not in (ROOT / name).read_text()] == []


def installed(dist: Path, folder: Path, extra: str = "") -> Path:
    venv.create(folder, with_pip=False)
    (wheel,) = dist.glob("*.whl")
    into = ["--python", str(folder / "bin/python"), "install", "--constraint", str(ROOT / "requirements/cpu.txt")]
    python("-m", "pip", "-q", *into, f"{wheel}{extra}", check=True)
    return folder / "bin"


@pytest.mark.release
def test_the_wheel_runs_without_extras(dist: Path, tmp_path: Path) -> None:
    there = installed(dist, tmp_path / "bare")

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
    assert "turntree[train] @ file:" in train.stderr


def test_every_extra_is_started_or_has_an_environment_of_its_own() -> None:
    engines, ours = {"vllm", "sglang"}, {"test"}
    assert {*STARTS} == {*PROJECT["optional-dependencies"]} - engines - ours


@pytest.mark.release
@pytest.mark.parametrize("extra", STARTS)
def test_an_extra_alone_has_all_that_it_is_for(dist: Path, tmp_path: Path, extra: str) -> None:
    there = installed(dist, tmp_path / "bare", f"[{extra}]")
    save_chat_llama(tmp_path / "MODEL", chatml_tokenizer())
    variables = {"SUPPORT": str(ROOT / "tests" / "support"), "README": str(ROOT / "README.md"), "HF_HUB_OFFLINE": "1"}
    env = {**os.environ, **variables, "PATH": f"{there}{os.pathsep}{os.environ['PATH']}"}
    words = ["bash", "-ec", STARTS[extra]]
    done = subprocess.run(
        words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=patience(600), check=False
    )
    shutil.rmtree(there.parent)  # up to gigabytes
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
