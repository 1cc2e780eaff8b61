"""Define the programs, their faults and their hidden calls.

Invariant: expected results are computed in this process, from the right source, and never enter the sandbox.
"""

from __future__ import annotations

import builtins
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from turntree.envs.errors import DataError
from turntree.envs.repair.calls import outcomes

_FILE = Path(__file__).with_name("programs.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    path: str
    right: str  #: right text, which occurs exactly once in the right file
    wrong: str  #: text that replaces ``right``; occurs exactly once in the faulty file


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    name: str  #: also the name of the module whose functions the hidden calls call
    split: str  #: train or test
    readme: str
    modules: Mapping[str, str]  #: path -> right source
    tests: str  #: tests that the policy sees
    calls: tuple[list[Any], ...]  #: function name and arguments of each hidden call
    faults: tuple[Fault, ...]

    def files(self, fault: int) -> dict[str, str]:
        made = self.faults[fault]
        broken = self.modules[made.path].replace(made.right, made.wrong)
        return {"README.md": self.readme, **self.modules, made.path: broken, f"test_{self.name}.py": self.tests}


@cache
def programs(split: str) -> tuple[Program, ...]:
    found = tuple(_program(row) for row in tomllib.loads(_FILE.read_text("utf-8"))["program"] if row["split"] == split)
    if not found:
        raise ValueError(f"split must be 'train' or 'test', got {split!r}")
    return found


def find_program(name: str) -> Program:
    every = {program.name: program for split in ("train", "test") for program in programs(split)}
    if name not in every:
        raise DataError(f"a task names one of the programs {', '.join(every)}, got {name!r}")
    return every[name]


@cache
def expected(name: str) -> tuple[str, ...]:
    program = find_program(name)
    return tuple(outcomes(program.calls, load(program.modules, name)))


def load(sources: Mapping[str, str], name: str) -> ModuleType:
    # Executes the source in this process, so never call this with the policy's source.
    made: dict[str, ModuleType] = {}

    def find(wanted: str, *arguments: Any) -> ModuleType:
        path = f"{wanted}.py"
        if path not in sources:
            return builtins.__import__(wanted, *arguments)
        if wanted not in made:
            module = made[wanted] = ModuleType(wanted)
            vars(module)["__builtins__"] = {**vars(builtins), "__import__": find}
            exec(compile(sources[path], path, "exec"), vars(module))
        return made[wanted]

    return find(name)


def _program(row: Mapping[str, Any]) -> Program:
    modules = row["modules"]
    faults = tuple(
        Fault(path=next(path for path, text in modules.items() if right in text), right=right, wrong=wrong)
        for right, wrong in row["faults"]
    )
    return Program(
        name=row["name"],
        split=row["split"],
        readme=row["readme"],
        modules=modules,
        tests=row["tests"],
        calls=tuple(row["calls"]),
        faults=faults,
    )
