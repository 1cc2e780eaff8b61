from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import torch

from first_hour.profile import profiled
from first_hour.setting import Row, Setting
from turntree.agents.engines.drafting.race import race, race_by_tensors

CHECKED = 64  #: rows whose winners are compared with the CPU's


def rows(setting: Setting) -> list[Row]:
    """Return milliseconds per call: 256 rows are a plain step, 2,304 have nine positions per request."""
    vocabulary, repeats = setting.of(151_936, 4096), setting.of(20, 3)
    return [_row(setting, count, vocabulary, repeats) for count in setting.of((256, 2304), (8, 72))]


def _row(setting: Setting, count: int, vocabulary: int, repeats: int) -> Row:
    torch.manual_seed(0)
    law = torch.randn(count, vocabulary, device=setting.device).mul_(4).softmax(-1)
    rng = np.random.default_rng(0)
    seeds = rng.integers(0, 1 << 63, count).astype(np.uint64)
    positions = rng.integers(0, 1000, count)
    noise = torch.empty_like(law)

    def unseeded() -> Any:  # as engines draw without seeds
        return law.div(noise.exponential_()).argmax(-1)

    drawn = race(law, seeds, positions)
    few = slice(0, CHECKED)
    wrong = (drawn[few].cpu() != race(law[few].cpu(), seeds[few], positions[few])).sum()
    milliseconds = {
        name: _milliseconds(draw, repeats, setting.device)
        for name, draw in (
            ("race ms", lambda: race(law, seeds, positions)),
            ("by tensors ms", lambda: race_by_tensors(law, seeds, positions)),
            ("unseeded ms", unseeded),
        )
    }

    def once() -> int:
        race(law, seeds, positions)
        return 1

    return {
        "rows": count,
        "vocabulary": vocabulary,
        **milliseconds,
        f"unlike the CPU's of {min(count, CHECKED)}": int(wrong),
        **profiled(once, setting.device),
    }


def _milliseconds(draw: Callable[[], Any], repeats: int, device: str) -> float:
    taken = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        draw()
        if device != "cpu":
            torch.cuda.synchronize()
        taken.append(1e3 * (time.perf_counter() - began))
    return round(median(taken[1:]), 3)
