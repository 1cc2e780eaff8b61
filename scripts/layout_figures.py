"""Print the figures of the layout: lines, lengths, parameters, and how many classes answer for a turn.

python scripts/layout_figures.py [--json] [FOLDER]
"""

from __future__ import annotations

import argparse
import ast
import json
import statistics
from collections.abc import Iterator
from pathlib import Path

PRODUCT = ("agents", "envs", "rewards", "spec_tree")
ADAPTERS = ("agents/engines/served", "agents/engines/vllm", "agents/engines/sglang")
REUSE = ("agents/turn_drafts", "agents/verl/serving", "agents/verl/playing")
Function = ast.FunctionDef | ast.AsyncFunctionDef


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def files(root: Path, *folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (root / folder).rglob("*.py"))


def functions(modules: list[ast.Module]) -> Iterator[Function]:
    for module in modules:
        yield from (node for node in ast.walk(module) if isinstance(node, Function))


def parameters(function: Function) -> int:
    """Return the parameters that a caller may pass, without ``self``."""
    takes = function.args
    names = [one.arg for one in (*takes.posonlyargs, *takes.args, *takes.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def code_lines(function: Function) -> int:
    """Return the lines of a function's body after its docstring."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def attributes(modules: list[ast.Module]) -> Iterator[int]:
    """Return the number of attributes that each class's ``__init__`` sets."""
    for module in modules:
        for node in ast.walk(module):
            if isinstance(node, Function) and node.name == "__init__":
                targets = (one for one in ast.walk(node) if isinstance(one, ast.Attribute))
                stores = (one for one in targets if isinstance(one.ctx, ast.Store))
                yield len({one.attr for one in stores if isinstance(one.value, ast.Name) and one.value.id == "self"})


def generates(module: list[ast.Module]) -> int:
    """Return the methods ``generate(self, request: TurnRequest)``."""

    def takes_a_turn(function: Function) -> bool:
        asked = [one for one in function.args.args if one.arg == "request" and one.annotation is not None]
        return function.name == "generate" and any(ast.unparse(one.annotation or one) == "TurnRequest" for one in asked)

    return sum(map(takes_a_turn, functions(module)))


def figures(root: Path) -> dict[str, float]:
    product = files(root, *PRODUCT)
    modules = [ast.parse(path.read_text(encoding="utf-8")) for path in product]
    lengths = [lines(path) for path in product]
    every = list(functions(modules))
    return {
        "modules": len(product),
        "lines of product": sum(lengths),
        **{f"lines of {name}": sum(map(lines, files(root, name))) for name in (*PRODUCT, "tests", "benchmarks")},
        "lines of the adapters of vLLM and SGLang": sum(map(lines, files(root, *ADAPTERS))),
        "lines of reuse, verl/serving and verl/playing": sum(map(lines, files(root, *REUSE))),
        "median lines of a module": statistics.median(lengths),
        "longest module": max(lengths),
        "modules above 250 lines": sum(length > 250 for length in lengths),
        "definitions of generate(TurnRequest)": generates(modules),
        "functions with more than 7 parameters": sum(parameters(one) > 7 for one in every),
        "functions above 50 lines of code": sum(code_lines(one) > 50 for one in every),
        "classes with more than 12 attributes": sum(count > 12 for count in attributes(modules)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--json", action="store_true", help="a JSON object instead of a table")
    options = parser.parse_args()
    found = figures(options.folder)
    if options.json:
        print(json.dumps(found, indent=1))
    else:
        width = max(map(len, found))
        print(*(f"{name:{width}}  {value:>10,}" for name, value in found.items()), sep="\n")


if __name__ == "__main__":
    main()
