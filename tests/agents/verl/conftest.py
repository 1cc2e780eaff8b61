import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from turntree.agents.verl.config.compose import Composition, compose
from turntree.rewards import reward

pytest.importorskip("verl", reason='training needs verl: pip install -e ".[train]"')
os.environ.setdefault("TURNTREE_VERL_CPU", "1")


@pytest.fixture
def rollout_config(tmp_path: Path) -> Any:
    """The part of ``actor_rollout_ref.rollout`` that the player and the loop read."""
    lengths = {"prompt_length": 64, "response_length": 256}
    custom = {"turntree": {"run_dir": str(tmp_path / "run")}}
    return OmegaConf.create({"name": "turntree", "seed": 1, "max_num_seqs": 2, **lengths, "custom": custom})


@pytest.fixture
def row() -> dict[str, Any]:
    kwargs = '{"tool_format": "compact", "system_prompt": "", "describes_tools": true}'
    env = {"env_id": "turntree/Arithmetic-v0", "env_kwargs": kwargs}
    keys = {"index": 3, "global_steps": 5, "uid": "abc"}
    return {**keys, **env, "extra_info": {"index": 3, "split": "train"}}


@pytest.fixture
def rank(own_rewards: None) -> str:
    """Name of a reward that needs all samples of a task."""
    reward("rank", group=True)(lambda samples: [0.0] * len(samples))
    return "rank"


@pytest.fixture
def composed(tiny_model: Path, tmp_path: Path) -> Callable[..., Composition]:
    """Puts a training of the tiny model together, of a shipped configuration or of a file with this text."""

    def put(*overrides: str, config: str | None = "demo", text: str = "") -> Composition:
        if text:
            config = str(tmp_path / "mine.yaml")
            Path(config).write_text(text)
        return compose(config, [f"actor_rollout_ref.model.path={tiny_model}", *overrides])

    return put
