"""Convert turntree's engine section to vLLM's arguments under verl.

Drafts are configured in one place for all engines, ``engine_kwargs.turntree.speculation`` and ``.forest``. For
``rollout.name=vllm`` they become vLLM's ``speculative_config`` and ``additional_config``, which verl passes on.
"""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig, OmegaConf

from turntree.agents.engines.vllm.settings import DrafterSettings, speculative_config
from turntree.agents.verl.config.engine_section import (
    ROLLOUT,
    asking_setting,
    check_priority,
    drafts_of,
    fit_context,
    two_drafters,
)
from turntree.agents.verl.config.sections import ConfigError
from turntree.agents.verl.config.settings import EngineSettings, PlaySettings


def fit_vllm(config: DictConfig, run: PlaySettings) -> None:
    """Put turntree's drafter into vLLM's arguments; other engines are left unchanged."""
    if OmegaConf.select(config, f"{ROLLOUT}.name") != "vllm":
        return
    fit_context(config)
    settings = drafts_of(config, "vllm", "vLLM", run)
    asking = asking_setting(run)
    if asking:
        _fit_scoring(config, asking)
        if run.run_ahead.enabled:
            check_priority(config, f"{ROLLOUT}.engine_kwargs.vllm.scheduling_policy", "priority")
            OmegaConf.update(config, f"{ROLLOUT}.scheduling_policy", "priority", force_add=True)
    if settings is None:
        return
    if OmegaConf.select(config, f"{ROLLOUT}.engine_kwargs.vllm.speculative_config") is not None:
        raise two_drafters(f"{ROLLOUT}.engine_kwargs.vllm.speculative_config", "vLLM")
    for key, value in _arguments(settings).items():
        OmegaConf.update(config, f"{ROLLOUT}.engine_kwargs.vllm.{key}", value, force_add=True)


def _fit_scoring(config: DictConfig, asking: str) -> None:
    mode = OmegaConf.select(config, f"{ROLLOUT}.logprobs_mode")
    if mode != "processed_logprobs":
        raise ConfigError(
            f"{asking} needs the log-probabilities after temperature and truncation; set "
            f"{ROLLOUT}.logprobs_mode=processed_logprobs, got {mode}"
        )
    most = f"{ROLLOUT}.engine_kwargs.vllm.max_logprobs"
    if OmegaConf.select(config, most) is None:  # -1: the whole vocabulary
        OmegaConf.update(config, most, -1, force_add=True)


def _arguments(settings: EngineSettings) -> dict[str, Any]:
    speculation = settings.speculation
    assert speculation is not None
    drafter = DrafterSettings(
        min_probability=speculation.min_probability,
        adaptive=speculation.adaptive,
        max_step_tokens=speculation.max_step_nodes,
        forest=settings.forest,
    )
    return {
        "speculative_config": speculative_config(min(speculation.max_nodes, speculation.max_depth)),
        "additional_config": drafter.to_additional_config(),
    }
