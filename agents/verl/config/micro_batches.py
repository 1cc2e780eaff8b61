"""Micro-batches by tokens: they hold the longest row at least, which cannot be divided; verl itself would find that out
at the first update.

Not here: the memory that they take (``memory``, of GPUs; ``docs/training.md``).
"""

from __future__ import annotations

from collections.abc import Container

from omegaconf import DictConfig, OmegaConf

from turntree.agents.verl.config.sections import ConfigError

MICRO_BATCHES = (
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
    "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu",
    "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu",
    "critic.ppo_max_token_len_per_gpu",
)
"""verl's keys with the tokens of a micro-batch; where one is an interpolation it comes after what it refers to."""


def longest_row(config: DictConfig) -> int:
    """Tokens of the longest row."""
    return int(config.data.max_prompt_length + config.data.max_response_length)


def fit_rows(config: DictConfig, given: Container[str]) -> None:
    """Raise the micro-batches of the options to the longest row.

    Args:
        config: verl's whole configuration, modified in place.
        given: Keys that the user has set.

    Raises:
        ConfigError: If a micro-batch that the user has set is smaller.
    """
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
            raise ConfigError(
                f"{key} is at least the longest row, data.max_prompt_length + data.max_response_length = {longest} "
                f"tokens, got {tokens}; raise it, or lower those"
            )
        OmegaConf.update(config, key, share)
