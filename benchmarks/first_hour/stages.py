"""The stages in the order in which they run: stages that need PyTorch alone come first."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from first_hour.setting import Row, Setting

#: engine -> ways to play recorded dialogues; the first is the baseline
RECORDED = {"vllm": ("stock", "plain", "ours"), "sglang": ("plain", "n-gram", "ours")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    name: str
    module: str
    function: str = "rows"  #: function of the module: from a setting to rows
    given: tuple[Any, ...] = ()
    needs: tuple[str, ...] = ()  #: modules needed besides PyTorch and transformers
    minutes: float
    packages: tuple[str, ...] = ()  #: distributions whose versions are recorded, besides torch and transformers

    @property
    def skipped(self) -> str:
        # Why the stage cannot run here; empty if it can.
        missing = [name for name in self.needs if importlib.util.find_spec(name) is None]
        return f"{' and '.join(missing)} not installed" if missing else ""

    def run(self, setting: Setting) -> list[Row]:
        # Imported here: an engine's modules change the process that imports them.
        measure: Callable[..., list[Row]] = getattr(import_module(f"first_hour.{self.module}"), self.function)
        return measure(setting, *self.given)


def _in(engine: str, name: str, module: str, *given: str, minutes: float) -> Stage:
    return Stage(name=name, module=module, given=given, needs=(engine,), packages=(engine,), minutes=minutes)


STAGES = (
    Stage(name="models", module="models", minutes=5),
    Stage(name="race", module="race", minutes=3),
    Stage(name="local", module="local", function="sharp_rows", minutes=8),
    Stage(name="local-trained", module="local", function="trained_rows", minutes=8),
    Stage(name="launches", module="local", function="launch_rows", minutes=4),
    Stage(name="exact-local", module="exact", given=("local",), minutes=4),
    *(
        _in(engine, f"{engine}-{way}", "recorded", engine, way, minutes=6)
        for engine, ways in RECORDED.items()
        for way in ways
    ),
    _in("vllm", "exact-vllm", "exact", "vllm", minutes=5),
    Stage(name="train", module="training", minutes=12, needs=("vllm", "verl"), packages=("vllm", "verl", "ray")),
    _in("sglang", "sglang", "sglang", minutes=10),
)
