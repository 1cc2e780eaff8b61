"""Check the layers: imports point down, and packages that promise few imports keep to them."""

import ast
import doctest
import importlib
import pkgutil
import re
import runpy
import subprocess
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from interpreter import python
from tables import table

import turntree.agents

ROOT = Path(__file__).resolve().parents[1]
ALLOWED = {
    "spec_tree": {"spec_tree"},
    "rewards": {"rewards"},
    "envs": {"envs", "rewards"},
    "agents": {"agents", "envs", "rewards", "spec_tree", "configs"},
}
ENGINES = {"vllm", "sglang", "triton"}
"""Engines that have environments of their own, and Triton, which is in some of these."""
HEAVY = {"torch", "transformers", "verl", "vllm", "sglang", "ray"}


@cache
def import_nodes(path: Path) -> tuple[ast.Import | ast.ImportFrom, ...]:
    return tuple(n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Import | ast.ImportFrom))


def imports(path: Path, *, members: bool = False) -> set[str]:
    """Modules that a file imports, anywhere in it; with ``members`` also what it takes out of them, behind a dot."""
    names: set[str] = set()
    for node in import_nodes(path):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        else:
            assert node.level == 0, f"{path}: imports are absolute"
            names |= {f"{node.module}.{alias.name}" for alias in node.names} if members else {node.module or ""}
    return names


LAYERS = table(__file__, "layers")


@cache
def imported(root: Path, package: str) -> dict[str, set[str]]:
    """Each module of a package with those of the package that it imports, as paths without suffix."""
    found: dict[str, set[str]] = {}
    modules = {path.relative_to(root / package).with_suffix("").as_posix() for path in (root / package).rglob("*.py")}
    for module in modules:
        found[module] = set()
        for name in imports(root / package / f"{module}.py", members=True):
            if name.split(".")[:2] == ["turntree", package]:
                inner = "/".join(name.split(".")[2:])
                outer = inner.rpartition("/")[0]
                named = (inner, f"{inner}/__init__", outer, f"{outer}/__init__", "__init__")
                found[module] |= {next(one for one in named if one in modules)} - {module}
    return found


def upward(root: Path, package: str, layers: str) -> set[str]:
    """Imports of a package that do not point down, and modules without a layer."""
    layer = {part: n for n, line in enumerate(layers.strip().splitlines()) for part in line.split()}

    def package_of(module: str) -> str:
        while module and module not in layer:
            module = module.rpartition("/")[0]
        return module

    wrong = set()
    for module, names in imported(root, package).items():
        part = package_of(module)
        if not part:
            wrong |= set() if module.endswith("__init__") else {f"{package}/{module} has no layer"}
            continue
        for name in names:
            other = package_of(name)
            if other and other != part and layer[other] >= layer[part]:
                wrong.add(f"{package}/{module} imports {package}/{name}")
    return wrong


def circle(graph: dict[str, set[str]]) -> tuple[str, ...]:
    """Modules that import each other around, or nothing."""
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        return tuple(error.args[1])
    return ()


@pytest.mark.parametrize("package", ALLOWED)
def test_imports_only_point_down(package):
    for path in (ROOT / package).rglob("*.py"):
        for name in imports(path):
            if name.startswith("turntree."):
                assert name.split(".")[1] in ALLOWED[package], f"{path.relative_to(ROOT)} imports {name}"
            if package != "agents":
                assert name.split(".")[0] not in HEAVY, f"{path.relative_to(ROOT)} imports {name}"
    assert not upward(ROOT, package, LAYERS[package])
    assert not circle(imported(ROOT, package))


def test_the_rules_above_see_every_kind_of_import_and_every_circle(tmp_path):
    source = tmp_path / "m.py"
    source.write_text("import torch\ndef f():\n    from turntree.agents.loop.rollout import rollout\n")
    assert imports(source) == {"torch", "turntree.agents.loop.rollout"}
    for folder in ("tree/low", "tree/high"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "tree/low/stone.py").write_text("def f():\n    from turntree.tree.high import roof\n")
    (tmp_path / "tree/high/roof.py").write_text("import turntree.tree.low.stone\n")
    (tmp_path / "tree/garden.py").write_text("")
    said = {"tree/garden has no layer", "tree/low/stone imports tree/high/roof"}
    assert upward(tmp_path, "tree", "low\nhigh") == said
    assert {*circle(imported(tmp_path, "tree"))} == {"high/roof", "low/stone"}


def test_a_folder_has_at_most_fifteen_modules_and_says_what_it_is_for():
    for package in ALLOWED:
        for folder in {path.parent for path in (ROOT / package).rglob("*.py")}:
            modules = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
            assert len(modules) <= 15, (
                f"{folder.relative_to(ROOT)} has {len(modules)} modules; move some into a subpackage"
            )
            assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text())), f"{folder}: what lives there?"


def grown(root: Path, bounds: dict[str, int]) -> dict[str, float]:
    """The figures of the layout that are above their bounds."""
    found = runpy.run_path(str(ROOT / "scripts/layout_figures.py"))["figures"](root)
    return {name: found[name] for name, most in bounds.items() if found[name] > most}


def test_the_code_does_not_grow_back() -> None:
    """A bound goes down with the code; one that must go up says why in its commit."""
    assert not grown(ROOT, table(__file__, "figures"))


def test_the_test_above_sees_what_grows(tmp_path: Path) -> None:
    (tmp_path / "envs").mkdir()
    lines = "\n".join(f"    x = {number}" for number in range(60))
    (tmp_path / "envs/long.py").write_text(f"def f({', '.join('abcdefgh')}):\n{lines}\n")
    few = {"functions with more than 7 parameters": 0, "functions above 50 lines of code": 0, "longest module": 60}
    assert set(grown(tmp_path, few)) == set(few)


@pytest.mark.parametrize("package", ["turntree.envs", "turntree.rewards", "turntree.spec_tree"])
def test_light_packages_load_nothing_heavy(package):
    heavy = HEAVY | {"numba", "datasets", "pyarrow", "tokenizers"}
    code = f"import sys, {package}; print(sorted({heavy!r} & set(sys.modules)))"
    assert python("-c", code, check=True).stdout.strip() == "[]"


def test_every_public_name_of_the_agents_is_there_and_no_other() -> None:
    for name in turntree.agents.__all__:
        assert getattr(turntree.agents, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = turntree.agents.no_such_name


def in_no_part(root: Path, engine: str) -> set[Path]:
    """Test files with cases for an engine that the Makefile's part for it does not choose."""
    said = ("--eval", f"files: ; @echo $({engine.upper()}_FILES)", "files")
    made = subprocess.check_output(("make", "-sf", ROOT / "Makefile", *said), cwd=root, text=True)
    mark = re.compile(rf"pytest\.mark\.{engine}\b|getattr\(\s*pytest\.mark\b")
    marked = {path for path in (root / "tests").rglob("test_*.py") if mark.search(path.read_text())}
    return marked - {root / name for name in made.split()}


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_every_file_with_cases_for_an_engine_is_in_its_part(engine, tmp_path):
    assert in_no_part(ROOT, engine) == set()
    new = tmp_path / "tests" / "test_new.py"
    new.parent.mkdir()
    for mark, found in (("{}." + engine, set()), ("getattr({}, engine)", set()), ("getattr({}, name)", {new})):
        new.write_text(mark.format("pytest.mark"))
        assert in_no_part(tmp_path, engine) == found


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
    if ">>>" in Path(module.__file__).read_text():  # looking for examples takes most of the time
        assert doctest.testmod(module, optionflags=doctest.ELLIPSIS).failed == 0


def test_only_deadlines_read_a_clock():
    """A test that compared seconds would fail on a slower machine; deadlines follow the machine."""
    clocks = {"perf_counter", "monotonic", "process_time", "thread_time"}
    readers = set()
    for path in (ROOT / "tests").rglob("*.py"):
        text = path.read_text()
        if any(clock in text for clock in clocks) and any(
            isinstance(node, ast.Attribute) and node.attr in clocks for node in ast.walk(ast.parse(text))
        ):
            readers.add(path.name)
    assert readers == {"machine_speed.py", "served.py", "cpu_sglang.py", "test_bad_input.py"}
