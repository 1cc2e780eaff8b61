"""vLLM as it is, on its first model runner, and with drafts: what a step costs with and without seeds.

Each way is a stage of its own, in a process of its own: the model runner and the plugins are chosen by the process.
Not covered: whole dialogues, which ``vllm_drafters.py`` plays.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from first_hour import models
from first_hour.profile import profiled
from first_hour.setting import Row, Setting
from first_hour.stages import VLLM_WAYS
from first_hour.turns import played, requests, tokens_per_step

DRAFT = 8
"""Most tokens of a draft of ``vllm_player``'s."""
PROFILED = 32
"""Tokens of a turn that is profiled."""


def rows(setting: Setting, way: str) -> list[Row]:
    """Milliseconds and tokens of a step at each number of requests; the second epoch counts, the third is profiled."""
    from vllm_drafters import CPU

    gpu = setting.device != "cpu"
    for name, value in [("VLLM_ENABLE_V1_MULTIPROCESSING", "0")] if gpu else CPU.items():
        os.environ.setdefault(name, value)
    if way == "stock":
        os.environ["VLLM_PLUGINS"] = ""
    else:
        os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"
    from vllm_player import Spent, Stepped

    model, tokens = models.sharp(setting), setting.of(128, 8)
    prompts, batches = models.prompts_of(model), setting.of((64, 256), (4, 8))
    drafter, seeded = VLLM_WAYS[way]
    arguments: dict[str, Any] = {"dtype": setting.dtype, "enforce_eager": not gpu, "seed": 0}
    if not gpu:
        arguments["block_size"] = 32  # as engine=vllm_cpu has it
    elif "full graphs" in way:
        most = max(batches) * (DRAFT + 1)
        sizes = [*range(1, 9), *range(16, 257, 8), *range(288, most, 32), most]
        arguments["compilation_config"] = {"cudagraph_mode": "FULL", "cudagraph_capture_sizes": sizes}
    longest = max(map(len, prompts)) + tokens + DRAFT + 1
    engine = Stepped(drafter, model, batch=max(batches), arguments=arguments, max_context=longest)
    engine.forget()

    def epoch(batch: int, number: int, tokens: int = tokens) -> Any:
        engine.spent = Spent()
        asked = requests(
            prompts, batch, tokens=tokens, temperature=models.temperature_of(setting), epoch=number, seeded=seeded,
            env=f"batch {batch}",
        )  # fmt: skip
        turns = asyncio.run(played(engine, asked))
        return engine.spent, turns

    def steps(batch: int) -> int:
        spent, _ = epoch(batch, 2, tokens=min(tokens, PROFILED))
        return int(spent.steps)

    found = []
    for batch in batches:
        epoch(batch, 0)
        spent, turns = epoch(batch, 1)
        sampled = sum(len(turn.token_ids) for turn in turns)
        found.append(
            {
                "batch": batch,
                "way": way,
                "tokens_per_second": round(sampled / spent.seconds, 1),
                "tokens_per_step": round(tokens_per_step(turns), 3),
                "step_ms": round(1e3 * spent.seconds / spent.steps, 3),
                "draft_ms": round(1e3 * spent.draft_seconds / spent.steps, 3),
                **profiled(lambda batch=batch: steps(batch), setting.device),
            }
        )
    return found
