from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import engine

from first_hour import models
from first_hour.profile import profiled
from first_hour.setting import Row, Setting
from first_hour.turns import GROUP
from turntree.agents.engines.local import LocalEngineConfig, Speculation
from turntree.agents.engines.local.core import EngineCore
from turntree.agents.engines.local.forward.model import Policy
from turntree.agents.engines.protocol import Sampling
from turntree.spec_tree import ForestConfig, SpecForest


def sharp_rows(setting: Setting) -> list[Row]:
    return _rows(setting, models.sharp(setting), models.temperature_of(setting))


def trained_rows(setting: Setting) -> list[Row]:
    return _rows(setting, models.trained(setting), 1.0)


def _rows(setting: Setting, model: Path, temperature: float) -> list[Row]:
    found: list[Row] = []
    for batch in setting.of((1, 4, 16, 64, 256), (1, 8)):
        args = Namespace(
            model=model, dtype=setting.dtype, device=setting.device, temperature=temperature, nodes=8,
            tokens=setting.of(48, 8), min_probability=0.05, chain=False, repeats=setting.of(3, 1), seed=0,
        )  # fmt: skip
        prompts, tasks = _asked(model, batch)
        found += map(asdict, engine.compare(args, prompts, tasks))
    return found


def _asked(model: Path, batch: int) -> tuple[list[list[int]], list[int]]:
    prompts = models.prompts_of(model)
    tasks = [i // min(GROUP, batch) % len(prompts) for i in range(batch)]
    return [prompts[task] for task in tasks], tasks


def launch_rows(setting: Setting) -> list[Row]:
    model, found = models.sharp(setting), []
    policy = Policy.load(str(model), dtype=setting.dtype, device=setting.device)
    for batch in setting.of((16, 256), (2, 8)):
        prompts, tasks = _asked(model, batch)
        how = Sampling(temperature=models.temperature_of(setting), max_tokens=setting.of(24, 8))
        size = {"max_batch": batch, "max_context": max(map(len, prompts)) + how.max_tokens + 1, "dtype": setting.dtype}
        for way, speculation in (
            ("plain", None),
            ("trees", Speculation(max_nodes=8, min_probability=0.0, adaptive=False)),
        ):
            core = EngineCore(policy, LocalEngineConfig(**size, speculation=speculation), SpecForest(ForestConfig()))

            def steps(seed: int, core: EngineCore = core, asked: Callable[..., None] = engine.run_engine) -> int:
                before = core.stats.forward_passes
                asked(core, prompts, how, tasks, seed)  # noqa: B023
                return core.stats.forward_passes - before

            steps(0)
            core.forget_prefixes()
            found.append({"batch": batch, "way": way, **profiled(lambda run=steps: run(1000), setting.device)})
    return found
