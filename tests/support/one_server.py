from pathlib import Path
from types import SimpleNamespace
from typing import Any

from omegaconf import OmegaConf

from turntree.agents.verl.serving.local import TurntreeServer


def rollout_config(
    run: dict[str, Any] | None = None, *, free_cache_engine: bool = False, **engine: Any
) -> SimpleNamespace:
    """Return what a server reads of verl's ``rollout``, from ``custom.turntree`` and ``engine_kwargs.turntree``."""
    lengths = {"response_length": 8, "prompt_length": 24, "max_model_len": None, "max_num_seqs": 4}
    return SimpleNamespace(
        engine_kwargs={"turntree": {"threads": 1, **engine}},
        custom=OmegaConf.create({} if run is None else {"turntree": run}),
        free_cache_engine=free_cache_engine,
        gpu_memory_utilization=0.5,
        **lengths,
        **{"dtype": "float32", "seed": 0, "get": lambda name, default=None: default},
    )


def start_server(model: Path, *, run: dict[str, Any], **engine: Any) -> TurntreeServer:
    return TurntreeServer(rollout_config(run, **engine), OmegaConf.create({"path": str(model)}), 0)
