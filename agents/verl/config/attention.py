"""Trainings on GPUs without flash attention, which verl's defaults ask for: it would say so after the start of Ray."""

from __future__ import annotations

import importlib
import logging

from omegaconf import DictConfig, OmegaConf

logger = logging.getLogger(__name__)

_MODELS = ("actor_rollout_ref.model", "critic.model")
_IMPLEMENTATION = "override_config.attn_implementation"


def flash_attention_error() -> str:
    """Why flash attention cannot be imported; empty where it can. A wheel for another torch is found by that alone."""
    try:
        importlib.import_module("flash_attn.bert_padding")  # what verl takes of it with use_remove_padding
    except (ImportError, OSError) as error:
        return f"{error}".partition("\n")[0]
    return ""


def fit_attention(config: DictConfig) -> None:
    """Let a training on GPUs take PyTorch's attention and padded rows where flash attention cannot be imported.

    Args:
        config: verl's whole configuration, modified in place.
    """
    asks = [model for model in _MODELS if _asks(config, model)]
    if config.trainer.device == "cpu" or not asks:
        return
    error = flash_attention_error()
    if not error:
        return
    for model in asks:
        OmegaConf.update(config, f"{model}.use_remove_padding", False)
        if OmegaConf.select(config, f"{model}.{_IMPLEMENTATION}") in (None, "flash_attention_2"):
            OmegaConf.update(config, f"{model}.{_IMPLEMENTATION}", "sdpa", force_add=True)
    logger.warning(
        "flash-attn cannot be imported (%s): the training takes use_remove_padding=false and attn_implementation=sdpa, "
        "which is slower; a critic cannot do without it. Its wheel is named in requirements/gpu-*.txt",
        error,
    )


def _asks(config: DictConfig, model: str) -> bool:
    implementation = OmegaConf.select(config, f"{model}.{_IMPLEMENTATION}")
    return bool(OmegaConf.select(config, f"{model}.use_remove_padding")) or implementation in (
        None,
        "flash_attention_2",
    )
