"""Stand-in for the package ``bfcl-eval``: two small APIs, and six APIs without functions.

Like the package's own APIs, these keep references to their arguments, change process-wide settings, raise, and search
folders that may contain themselves. Computations that take the package minutes are left out.
"""

import decimal
import inspect
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import mpmath
import pytest

from turntree.envs.bfcl import apis

SHARED_CARD = {"balance": 100}  #: shared by all worlds with a long context, as in the package
#: runs a test with the stand-in and, in the interop environment, with the package
both = pytest.mark.parametrize(
    "package", ["stand-in", pytest.param("bfcl-eval", marks=pytest.mark.interop)], indirect=True
)
_KINDS = {int: "integer", float: "float", str: "string", list: "array"}


class Folder:
    def __init__(self, parent: Any = None) -> None:
        self.parent = parent
        self.contents: dict[str, Any] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Folder) and self.contents == other.contents


class GorillaFileSystem:
    def _load_scenario(self, scenario: dict[str, Any], long_context: bool = False) -> None:
        self.root = self._current_dir = Folder()
        for folder in scenario.get("root", {}).values():
            for name, file in folder.pop("contents").items():
                self.root.contents[name] = file["content"]

    def _put(self, source: str, destination: str) -> Folder:
        # Into the folder called ``destination`` if there is one, else under that new name.
        here = self._current_dir
        folder, name = (here.contents[destination], source) if destination in here.contents else (here, destination)
        made = folder.contents[name] = Folder(folder)
        return made

    def cd(self, folder: str) -> None:
        self._current_dir = self._current_dir.parent if folder == ".." else self._current_dir.contents[folder]

    def mkdir(self, dir_name: str) -> None:
        self._current_dir.contents[dir_name] = Folder(self._current_dir)

    def mv(self, source: str, destination: str) -> dict[str, str]:
        item = self._current_dir.contents.pop(source)
        self._put(source, destination).contents = item.contents
        return {"result": f"{source} moved"}

    def cp(self, source: str, destination: str) -> dict[str, str]:
        item, made = self._current_dir.contents[source], self._put(source, destination)
        made.contents = dict(item.contents)
        return {"result": f"{source} copied"}

    def find(self, path: str = ".") -> dict[str, list[str]]:
        def paths(item: Any, path: str) -> list[str]:
            below = item.contents.items() if isinstance(item, Folder) else ()
            return [path, *(one for name, child in below for one in paths(child, f"{path}/{name}"))]

        return {"matches": paths(self._current_dir, path)[1:]}

    def du(self) -> dict[str, str]:
        def size(item: Any) -> int:
            return sum(map(size, item.contents.values())) if isinstance(item, Folder) else len(item)

        return {"disk_usage": f"{size(self._current_dir)} bytes"}

    def touch(self, file_name: str) -> dict[str, str] | None:
        if file_name in self._current_dir.contents:
            return {"error": f"{file_name} exists"}
        self._current_dir.contents[file_name] = ""
        return None

    def rm(self, file_name: str) -> dict[str, str]:
        del self._current_dir.contents[file_name]
        return {"result": f"{file_name} removed"}

    def wc(self, file_name: str, mode: str = "l") -> dict[str, Any]:
        return {"count": len(self._current_dir.contents[file_name].split()), "type": "words"}


class TravelAPI:
    def _load_scenario(self, scenario: dict[str, Any], long_context: bool = False) -> None:
        self.credit_card_list = {"1": SHARED_CARD} if long_context else {}


class MathAPI:
    def mean(self, numbers: list) -> dict[str, Any]:  # type: ignore[type-arg]
        return {"result": sum(numbers) / len(numbers)}

    def power(self, base: float, exponent: float) -> dict[str, Any]:
        return {"result": base ** min(exponent, 99)}

    def round_number(self, number: float, decimal_places: int = 0) -> dict[str, Any]:
        return {"result": round(float(number), decimal_places)}

    def square_root(self, number: float, precision: int) -> dict[str, Any]:
        decimal.getcontext().prec = precision
        return {"result": object.__new__(Root)}

    def logarithm(self, value: float, base: float, precision: int) -> dict[str, Any]:
        mpmath.mp.dps = precision
        time.sleep(0.001)
        return {"result": mpmath.mp.dps}


class Root:
    def __repr__(self) -> str:
        return "Root('2')"


def _document(name: str, function: Any) -> dict[str, Any]:
    parameters = [one for one in inspect.signature(function).parameters.values() if one.name != "self"]
    properties = {one.name: {"type": _KINDS[one.annotation], "description": "What"} for one in parameters}
    required = [one.name for one in parameters if one.default is one.empty]
    shape = {"type": "dict", "properties": properties, "required": required}
    return {"name": name, "description": f"Do {name}.", "parameters": shape}


def modules(folder: Path) -> dict[str, ModuleType]:
    documents = folder / "data" / "multi_turn_func_doc"
    documents.mkdir(parents=True)
    made = {"bfcl_eval": ModuleType("bfcl_eval")}
    made["bfcl_eval"].__file__ = str(folder / "__init__.py")
    for api, stem in apis.APIS.items():
        cls: Any = globals().get(api, type(api, (), {}))
        functions = {name: one for name, one in vars(cls).items() if inspect.isfunction(one) and name[0] != "_"}
        (documents / f"{stem}.json").write_text("\n".join(json.dumps(_document(*one)) for one in functions.items()))
        name = f"bfcl_eval.eval_checker.multi_turn_eval.func_source_code.{stem}"
        made[name] = ModuleType(name)
        setattr(made[name], api, cls)
    return made


_FOLDER = TemporaryDirectory()


def install() -> None:
    try:
        import bfcl_eval  # noqa: F401
    except ImportError:
        sys.modules.update(modules(Path(_FOLDER.name)))


@pytest.fixture
def package(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Use the stand-in even where the package is installed, unless the test asks for the package."""
    cached = (apis.all_api_tools, apis.tools_of)
    if getattr(request, "param", "stand-in") == "stand-in":
        for name, module in modules(tmp_path).items():
            monkeypatch.setitem(sys.modules, name, module)
    for function in cached:
        function.cache_clear()
    yield
    for function in cached:
        function.cache_clear()
