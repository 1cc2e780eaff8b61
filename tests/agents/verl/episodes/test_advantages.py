"""A policy small enough to enumerate: each estimator's expected gradient is compared with the true gradient.

An episode has up to three turns of one token. At each turn the policy stops or continues in one of two ways. Every
choice has its own reward, and later turns pay more. After the second way of the first turn there is no third turn.
"""

import itertools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import torch
from verl.trainer.ppo.core_algos import agg_loss, compute_grpo_outcome_advantage, get_adv_estimator_fn

from turntree.agents.verl.episodes.advantages import TURN_RETURNS, turn_returns

STOP = 0
REWARDS = torch.tensor([[0.5, 0.0, -0.25], [0.0, 1.0, 0.25], [2.0, -1.0, 0.5]], dtype=torch.float64)
LOGITS = torch.tensor([[0.3, 0.5, -0.2], [-0.4, 0.1, 0.6], [0.2, 0.0, -0.7]], dtype=torch.float64)
TURNS = 3
LENGTH = 2 * TURNS  # a token of the environment after each turn


class Path(NamedTuple):
    choices: tuple[int, ...]

    def spread(self, values: list[torch.Tensor]) -> torch.Tensor:
        row = torch.zeros(LENGTH, dtype=torch.float64)
        row[0 : 2 * len(values) : 2] = torch.stack(values)
        return row

    @property
    def rewards(self) -> torch.Tensor:
        return self.spread([REWARDS[turn, choice] for turn, choice in enumerate(self.choices)])

    @property
    def mask(self) -> torch.Tensor:
        return self.spread([torch.ones(()) for _ in self.choices])

    def log_probs(self, logits: torch.Tensor) -> torch.Tensor:
        laws = logits.log_softmax(-1)
        return self.spread([laws[turn, choice] for turn, choice in enumerate(self.choices)])


def paths(before: tuple[int, ...] = ()) -> list[Path]:
    found = []
    for choice in range(3):
        now = (*before, choice)
        last = choice == STOP or len(now) == TURNS or (len(now) == 2 and now[0] == 2)
        found += [Path(now)] if last else paths(now)
    return found


PATHS = paths()

Estimator = Callable[..., tuple[torch.Tensor, torch.Tensor]]


def true_gradient() -> torch.Tensor:
    logits = LOGITS.clone().requires_grad_()
    value = sum(path.log_probs(logits).sum().exp() * path.rewards.sum() for path in PATHS)
    return torch.autograd.grad(value, logits)[0]


def expected_gradient(estimator: Estimator, *, size: int, aggregation: str = "seq-mean-token-sum-norm") -> torch.Tensor:
    # Over every group of ``size`` samples of one task, weighted by its probability.
    logits = LOGITS.clone().requires_grad_()
    spoken = {path: path.log_probs(logits) for path in PATHS}
    weighed = torch.zeros((), dtype=torch.float64)
    for group in itertools.product(PATHS, repeat=size):
        log_probs = torch.stack([spoken[path] for path in group])
        rewards, mask = torch.stack([path.rewards for path in group]), torch.stack([path.mask for path in group])
        advantages, _ = estimator(rewards, mask, np.array(["task"] * size))
        # Its gradient at the sampling policy is that of PPO's clipped loss.
        loss = agg_loss(-advantages * log_probs, mask, aggregation, loss_scale_factor=1)
        weighed = weighed - loss * log_probs.detach().sum().exp()
    return torch.autograd.grad(weighed, logits)[0]


def turn_index_normalised(rewards: torch.Tensor, mask: torch.Tensor, index: object) -> tuple[torch.Tensor, ...]:
    # The control: returns-to-go minus the mean of the samples that reached the same turn.
    to_go = rewards.flip(-1).cumsum(-1).flip(-1)
    reached = mask.sum(0).clamp(min=1)
    return (to_go - (to_go * mask).sum(0) / reached) * mask, to_go


def whole_returns(rewards: torch.Tensor, mask: torch.Tensor, index: object) -> tuple[torch.Tensor, ...]:
    return compute_grpo_outcome_advantage(rewards, mask, index)  # type: ignore[no-any-return]


def misdirection(estimate: torch.Tensor) -> float:
    # Sine of the angle to the true gradient; 0 for any estimate that is right up to a factor.
    cosine = torch.nn.functional.cosine_similarity(estimate.flatten(), true_gradient().flatten(), dim=0)
    return float((1 - cosine**2).clamp(min=0).sqrt())


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_expected_gradient_is_the_true_one(size: int) -> None:
    assert torch.allclose(expected_gradient(turn_returns, size=size), true_gradient(), atol=1e-12)


@pytest.mark.parametrize(
    ("estimator", "aggregation"),
    [
        (turn_index_normalised, "seq-mean-token-sum-norm"),
        *[(whole_returns, "seq-mean-token-sum-norm"), (turn_returns, "token-mean")],
        (turn_returns, "seq-mean-token-mean"),
    ],
    ids=["normalised by turn", "divided by the spread", "mean over tokens", "mean over an episode's tokens"],
)
def test_other_ways_point_elsewhere(estimator: Estimator, aggregation: str) -> None:
    assert misdirection(expected_gradient(turn_returns, size=2)) < 1e-9
    assert misdirection(expected_gradient(estimator, size=2, aggregation=aggregation)) > 0.02


def test_a_turn_is_credited_with_what_came_from_it_on() -> None:
    rewards = torch.tensor([[1.0, 0.0, 2.0], [0.0, 0.0, 4.0]])
    mask = torch.tensor([[1, 0, 1], [1, 1, 1]])
    advantages, returns = turn_returns(rewards, mask, np.array(["a", "a"]))
    assert advantages.tolist() == [[3 - 4, 0, 2 - 4], [4 - 3, 4 - 3, 4 - 3]]
    assert returns.tolist() == [[3, 0, 2], [4, 4, 4]]
    assert get_adv_estimator_fn(TURN_RETURNS) is turn_returns


def test_a_masked_sample_is_in_no_baseline_and_tasks_are_apart() -> None:
    rewards = torch.tensor([[1.0], [3.0], [100.0], [7.0]])
    mask = torch.tensor([[1], [1], [0], [1]])
    advantages, _ = turn_returns(rewards, mask, np.array(["a", "a", "a", "b"]))
    assert advantages.flatten().tolist() == [-2, 2, 0, 7]
