"""The pins of a GPU machine are verl's and can be resolved."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from turntree.agents.commands.gpu_check import pins_of

ROOT = Path(__file__).resolve().parents[1]
ENGINES = ("vllm", "sglang")
#: of the images in docker/; SGLang's wheel needs glibc 2.34
PLATFORM = ("--python-version", "3.12", "--python-platform", "x86_64-manylinux_2_35")


def lines(engine: str) -> list[str]:
    return (ROOT / "requirements" / f"gpu-{engine}.txt").read_text(encoding="utf-8").splitlines()


def pins(engine: str) -> dict[str, str]:
    return dict(line.split("==") for line in lines(engine) if not line.startswith("#"))


def noted(engine: str, word: str) -> list[str]:
    # The lines that ``scripts/gpu_env.sh`` reads from comments.
    return [line.partition(": ")[2] for line in lines(engine) if line.startswith(f"# {word}: ")]


@pytest.mark.parametrize("engine", ENGINES)
def test_the_pins_are_those_of_the_verl_that_the_tests_run(engine: str) -> None:
    pytest.importorskip("verl", reason='training needs verl: pip install -e ".[train]"')
    from importlib.metadata import version

    own = pins(engine)
    assert own.pop(f"verl[{engine}]") == version("verl")
    theirs = pins_of(engine)
    assert own == {name: theirs[name] for name in own}
    assert {"torch", "transformers", engine} <= own.keys()


@pytest.mark.parametrize("engine", ENGINES)
def test_flash_attention_is_the_wheel_for_that_torch_and_the_images_cuda_and_python(engine: str) -> None:
    (wheel,) = noted(engine, "wheel")
    made = re.search(r"flash_attn-([\d.]+)\+cu(\d\d)(\d)torch([\d.]+)-cp(3)(\d+)-", wheel)
    assert made is not None
    version, major, minor, torch, *python = made.groups()
    assert pins(engine)["torch"].startswith(f"{torch}.")
    assert version == pins_of("flash-attn-cu130torch211")["flash-attn"]
    image = (ROOT / "docker" / f"Dockerfile.{engine}").read_text(encoding="utf-8")
    assert f"FROM nvidia/cuda:{major}.{minor}." in image
    assert f"python{'.'.join(python)}-venv" in image
    assert f"scripts/gpu_env.sh {engine} " in image


@pytest.fixture(scope="module")
def uv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("uv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python"]
    done = subprocess.run([*pip, "install", "--quiet", "uv"], capture_output=True, text=True, timeout=300)
    if done.returncode:
        pytest.skip(f"no package index is reached to install uv from: {done.stderr[-300:]}")
    return folder / "bin" / "uv"


def resolved(uv: Path, engine: str, overrides: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    changed = folder / "overrides.txt"
    changed.write_text("\n".join(overrides))
    files = ["pyproject.toml", f"requirements/gpu-{engine}.txt", "--extra", "train", "--override", str(changed)]
    command = [str(uv), "pip", "compile", *files, *PLATFORM, "--no-annotate", "--quiet"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=500, env=os.environ | {"NO_COLOR": "1"}
    )
    if done.returncode and re.search("error sending request|failed to fetch|timed out", done.stderr, re.IGNORECASE):
        pytest.skip(f"no package index is reached to resolve from: {done.stderr[-300:]}")
    return done


@pytest.mark.release
@pytest.mark.parametrize("engine", ENGINES)
def test_the_pins_are_resolved_together_with_turntrees_own_needs(engine: str, uv: Path, tmp_path: Path) -> None:
    overrides = [note.partition(":")[0] for note in noted(engine, "override")]
    done = resolved(uv, engine, overrides, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    found = dict(line.split("==") for line in done.stdout.splitlines() if "==" in line and not line.startswith("#"))
    assert {name: found[name.partition("[")[0]] for name in pins(engine)} == pins(engine)


@pytest.mark.release
def test_sglangs_pin_of_transformers_needs_the_override(uv: Path, tmp_path: Path) -> None:
    """Control."""
    done = resolved(uv, "sglang", [], tmp_path)
    assert done.returncode != 0
    assert "sglang==0.5.12 depends on transformers==5.6.0" in " ".join(done.stderr.split())
