"""SGLang with trees: memory held and released, and greedy turns compared with those without trees.

A batch of 33 lies between two sizes of captured graphs; their padding must not affect other requests.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import torch

from first_hour import models
from first_hour.setting import Row, Setting
from first_hour.turns import differing, played, requests, tokens_per_forward_pass
from turntree.agents.engines.protocol import Completion

BATCHES = (3, 33)
GRAPHS = 32  #: ``cuda_graph_max_bs``
CONTEXT = 2304  #: prompt and response of ``env=gsm8k``, tokens
WIDEST = 9
SUPPORT = Path(__file__).resolve().parents[2] / "tests" / "support"


def rows(setting: Setting) -> list[Row]:
    arguments: dict[str, Any] = {"enable_memory_saver": True, "cuda_graph_max_bs": GRAPHS, "mem_fraction_static": 0.5}
    arguments |= {"attention_backend": "flashinfer", "page_size": 1}
    if setting.device == "cpu":
        sys.path.insert(0, str(SUPPORT))
        from cpu_sglang import beside, prepare

        prepare()
        arguments = beside("dtype", "max_running_requests", "random_seed", "log_level")
    model, found = models.sharp(setting), []
    plain, before = _run(setting, model, arguments, 0)
    found.append({"way": "none", **before})
    drafted, after = _run(setting, model, arguments, WIDEST)
    equal = {
        f"unlike none of {batch}": differing(one, other)
        for batch, one, other in zip(BATCHES, drafted, plain, strict=True)
    }
    found.append(
        {"way": "trees", **after, **equal, "tokens_per_forward_pass": round(tokens_per_forward_pass(drafted[-1]), 2)}
    )
    return found


def _run(setting: Setting, model: Path, arguments: dict[str, Any], width: int) -> tuple[list[list[Completion]], Row]:
    from turntree.agents.engines.sglang.config import SglangEngineConfig
    from turntree.agents.engines.sglang.engine import SglangEngine
    from turntree.agents.engines.sglang.settings import SglangSettings

    config = SglangEngineConfig(
        max_batch=max(BATCHES),
        max_context=setting.of(CONTEXT, 96),
        dtype=setting.dtype,
        draft_tokens=width,
        speculation=SglangSettings(widths=(1,) if width else (), min_probability=0.05, adaptive=False),
        seed=0,
        engine_args=arguments,
    )
    used = {"at first": _used(setting.device)}
    prompts, played_turns = models.prompts_of(model), []
    with SglangEngine(model, config=config) as engine:
        used["started"] = _used(setting.device)
        for batch in BATCHES:
            asked = requests(
                prompts, batch, tokens=setting.of(64, 8), temperature=0, seeded=False, env=f"batch {batch}"
            )
            for _ in range(2 if width else 1):  # a second time from the trees of the first
                engine.reset_prefix_cache()
                turns = asyncio.run(played(engine, asked))
            played_turns.append(turns)
        used["after turns"] = _used(setting.device)
        engine.release_memory()
        used["released"] = _used(setting.device)
        engine.resume_memory()
        used["resumed"] = _used(setting.device)
    return played_turns, {f"{when}, GiB": value for when, value in used.items() if value is not None}


def _used(device: str) -> float | None:
    if device == "cpu":
        return None
    free, total = torch.cuda.mem_get_info(device)
    return round((total - free) / 2**30, 2)
