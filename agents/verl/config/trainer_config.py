"""Fit the options of verl's trainer to each other and to the machine: micro-batches, attention, DAPO's filter."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Container

from omegaconf import DictConfig, OmegaConf

from turntree.agents.verl.config.sections import ConfigError, plain

logger = logging.getLogger(__name__)

#: keys with the tokens of a micro-batch; a key that is an interpolation comes after the key that it refers to
MICRO_BATCHES = (
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
    "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu",
    "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu",
    "critic.ppo_max_token_len_per_gpu",
)
_MODELS = ("actor_rollout_ref.model", "critic.model")
_IMPLEMENTATION = "override_config.attn_implementation"


def longest_row(config: DictConfig) -> int:
    """Return the tokens of the longest row."""
    return int(config.data.max_prompt_length + config.data.max_response_length)


def fit_rows(config: DictConfig, given: Container[str]) -> None:
    """Raise micro-batch sizes to the longest row, which cannot be split; refuse ``given`` sizes that are smaller."""
    actor = config.actor_rollout_ref.actor
    if not actor.use_dynamic_bsz:
        return
    longest = longest_row(config)
    share = -(-longest // (actor.ulysses_sequence_parallel_size or 1))
    for key in MICRO_BATCHES:
        tokens = OmegaConf.select(config, key)
        if tokens >= share:
            continue
        if key in given:
            # verl itself would only fail at the first update.
            raise ConfigError(
                f"{key} must be at least the longest row, data.max_prompt_length + data.max_response_length = {longest}"
                f" tokens, got {tokens}; raise {key}, or lower the other two"
            )
        OmegaConf.update(config, key, share)


def flash_attention_error() -> str:
    """Return why flash attention cannot be imported; empty if it can."""
    try:
        # verl imports this module with use_remove_padding. Only an import detects a wheel built for another torch.
        importlib.import_module("flash_attn.bert_padding")
    except (ImportError, OSError) as error:
        return f"{error}".partition("\n")[0]
    return ""


def fit_attention(config: DictConfig) -> None:
    """Switch to PyTorch's attention and padded rows if flash attention cannot be imported on a GPU."""
    # verl's defaults ask for flash attention, and verl would fail only after Ray has started.
    asking = [model for model in _MODELS if _asks_for_flash_attention(config, model)]
    if config.trainer.device == "cpu" or not asking:
        return
    error = flash_attention_error()
    if not error:
        return
    for model in asking:
        OmegaConf.update(config, f"{model}.use_remove_padding", False)
        if OmegaConf.select(config, f"{model}.{_IMPLEMENTATION}") in (None, "flash_attention_2"):
            OmegaConf.update(config, f"{model}.{_IMPLEMENTATION}", "sdpa", force_add=True)
    logger.warning(
        "flash-attn cannot be imported (%s): the training uses use_remove_padding=false and attn_implementation=sdpa, "
        "which is slower; a critic needs flash-attn. requirements/gpu-*.txt names its wheel",
        error,
    )


def _asks_for_flash_attention(config: DictConfig, model: str) -> bool:
    implementation = OmegaConf.select(config, f"{model}.{_IMPLEMENTATION}")
    removes_padding = bool(OmegaConf.select(config, f"{model}.use_remove_padding"))
    return removes_padding or implementation in (None, "flash_attention_2")


def fit_filter(config: DictConfig) -> None:
    """Pass the settings of DAPO's filter to the sampler; keys set in ``sampler_kwargs`` take precedence."""
    # verl passes the filter's settings only to its own sampler, never to a custom sampler.
    sampler, filters = config.trainer.v1.sampler, config.algorithm.filter_groups
    if filters.enable and sampler.custom_sampler.path:
        settings = {"filter_groups_metric": filters.metric, "train_batch_size": config.data.train_batch_size}
        limits = {key: filters[key] for key in ("max_inflight_gen_batches", "max_num_gen_batches") if filters[key]}
        sampler.sampler_kwargs = {**settings, **limits, **plain(sampler.sampler_kwargs)}
