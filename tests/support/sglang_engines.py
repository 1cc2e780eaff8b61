"""``SglangEngine`` on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cpu_sglang import CPU_ARGS, prepare

from turntree.agents.engines.sglang.config import SglangEngineConfig
from turntree.agents.engines.sglang.engine import SglangEngine
from turntree.agents.engines.sglang.settings import SglangSettings

CONTEXT = 200


def start(model: Path, *, draft_tokens: int = 8, max_batch: int = 16, **arguments: Any) -> SglangEngine:
    """An engine that drafts whatever the store offers."""
    prepare()
    ours = ("dtype", "max_running_requests", "random_seed", "log_level")
    own = {name: value for name, value in CPU_ARGS.items() if name not in ours}
    config = SglangEngineConfig(
        max_batch=max_batch,
        max_context=CONTEXT,
        dtype="float32",
        draft_tokens=draft_tokens,
        speculation=SglangSettings(adaptive=False, min_probability=0.02),
        seed=1,
        engine_args={**own, **arguments},
    )
    return SglangEngine(model, config=config)
