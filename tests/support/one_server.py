"""turntree's server of the policy without Ray and verl around it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from omegaconf import OmegaConf

from turntree.agents.verl.server import TurntreeServer


def start_server(model: Path, *, run: dict[str, Any], **engine: Any) -> TurntreeServer:
    """A server in this process.

    Args:
        model: Folder of the policy.
        run: The run's settings, ``rollout.custom.turntree``.
        engine: Fields of ``rollout.engine_kwargs.turntree``.
    """
    config = SimpleNamespace(
        engine_kwargs={"turntree": {"threads": 1, **engine}},
        custom=OmegaConf.create({"turntree": run}),
        response_length=8,
        prompt_length=24,
        max_model_len=None,
        max_num_seqs=4,
        dtype="float32",
        seed=0,
    )
    return TurntreeServer(config, OmegaConf.create({"path": str(model)}), 0)
