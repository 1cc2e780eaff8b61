"""Advantages for episodes with turn rewards: ``algorithm.adv_estimator=turn_returns`` in verl.

A token is credited with the rewards of its own and later turns, minus the mean episode reward of the task's other
samples:

    A[i, t] = sum of sample i's rewards at t and later - mean over samples j != i of sample j's episode reward

The baseline is the same at every token and independent of sample i, so it adds nothing to the expected gradient. The
estimator is unbiased for any number of turns, as long as the loss gives every token the same constant weight
(``loss_agg_mode=seq-mean-token-sum-norm``). The common alternative normalises turn k's reward among the samples that
have a turn k. That alternative is biased, because a later turn's weight depends on how many samples reached the turn.
"""

from __future__ import annotations

from typing import Any

import torch
from verl.trainer.ppo.core_algos import register_adv_est

TURN_RETURNS = "turn_returns"  #: value of ``algorithm.adv_estimator``


def turn_returns(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: Any, config: Any = None, **unused: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute returns-to-go minus the mean episode reward of the task's other samples.

    Args:
        token_level_rewards: Shape (samples, tokens); a turn's reward is on its last token.
        response_mask: Shape (samples, tokens), 1 for sampled tokens. A row of zeros is a masked sample, which no
            baseline includes.
        index: Task of each sample, shape (samples,).
        config: verl's section ``algorithm``; unused.

    Returns:
        Advantages and returns, both of shape (samples, tokens), 0 for tokens that were not sampled.
    """
    to_go = token_level_rewards.flip(-1).cumsum(-1).flip(-1)
    episode_rewards = to_go[:, 0]
    unmasked = response_mask.bool().any(-1)
    baseline = torch.zeros_like(episode_rewards)
    tasks = [str(task) for task in index]
    for task in set(tasks):
        members = torch.tensor([name == task for name in tasks], device=episode_rewards.device) & unmasked
        siblings = int(members.sum()) - 1
        if siblings > 0:
            baseline[members] = (episode_rewards[members].sum() - episode_rewards[members]) / siblings
    mask = response_mask.to(to_go.dtype)
    return (to_go - baseline.unsqueeze(-1)) * mask, to_go * mask


register_adv_est(TURN_RETURNS)(turn_returns)
