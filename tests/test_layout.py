"""The house: imports point down, the packages that promise to be light are light."""

from __future__ import annotations

import ast
import doctest
import importlib
import pkgutil
import tomllib
from pathlib import Path

import pytest
from interpreter import python

ROOT = Path(__file__).resolve().parents[1]
ALLOWED = {
    "spec_tree": {"spec_tree"},
    "rewards": {"rewards"},
    "envs": {"envs", "rewards"},
    "agents": {"agents", "envs", "rewards", "spec_tree", "configs"},
}
ENGINES = {"vllm", "sglang"}
"""Engines that have environments of their own."""
HEAVY = {"torch", "transformers", "verl", "vllm", "sglang", "ray"}


def imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names.add(node.module or "")
    return names


@pytest.mark.parametrize("package", ALLOWED)
def test_imports_only_point_down(package):
    for path in (ROOT / package).rglob("*.py"):
        for name in imports(path):
            if name.startswith("turntree."):
                assert name.split(".")[1] in ALLOWED[package], f"{path.relative_to(ROOT)} imports {name}"
            if package != "agents":
                assert name.split(".")[0] not in HEAVY, f"{path.relative_to(ROOT)} imports {name}"


def test_the_rule_above_sees_every_kind_of_import(tmp_path):
    source = tmp_path / "m.py"
    source.write_text("import torch\ndef f():\n    from turntree.agents.rollout import rollout\n")
    assert imports(source) == {"torch", "turntree.agents.rollout"}


@pytest.mark.parametrize("package", ["turntree.envs", "turntree.rewards", "turntree.spec_tree"])
def test_light_packages_load_nothing_heavy(package):
    heavy = HEAVY | {"numba", "datasets", "pyarrow", "tokenizers"}
    code = f"import sys, {package}; print(sorted({heavy!r} & set(sys.modules)))"
    assert python("-c", code, check=True).stdout.strip() == "[]"


def test_every_data_file_of_a_package_is_installed_with_it():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    for package, folder in project["package-dir"].items():
        patterns = [*project["package-data"].get(package, []), "*.py"]
        for path in (ROOT / folder).iterdir():
            if path.is_file():
                assert any(path.match(pattern) for pattern in patterns), f"{package} leaves {path.name} behind"


def test_every_folder_with_files_is_a_package():  # setuptools warns of one that is not, in many lines
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert list(project["package-dir"]) == project["packages"]
    for package in (*ALLOWED, "configs"):
        for path in (ROOT / package).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                assert str(path.parent.relative_to(ROOT)) in project["package-dir"].values()


def modules() -> list[str]:
    found = []
    for package in ALLOWED:
        root = importlib.import_module(f"turntree.{package}")
        found += [m.name for m in pkgutil.walk_packages(root.__path__, f"turntree.{package}.")]
    return [name for name in found if ".verl" not in name]


@pytest.mark.parametrize("name", modules())
def test_doctests(name):
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in ENGINES:
            raise
        pytest.skip(f"{error.name} is not installed here; see make test-vllm, make test-sglang")
    assert doctest.testmod(module, optionflags=doctest.ELLIPSIS).failed == 0


def test_only_deadlines_read_a_clock():
    """A test that compared seconds would fail on a slower machine; deadlines follow the machine."""
    clocks = {"perf_counter", "monotonic", "process_time", "thread_time"}
    readers = set()
    for path in (ROOT / "tests").rglob("*.py"):
        if any(
            isinstance(node, ast.Attribute) and node.attr in clocks for node in ast.walk(ast.parse(path.read_text()))
        ):
            readers.add(path.name)
    assert readers == {"machine_speed.py", "served.py", "cpu_sglang.py", "test_bad_input.py"}
