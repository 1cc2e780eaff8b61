"""GRPO without a framework, on turntree's environments and rollout loop.

There is one update per step, so episodes are on-policy apart from the reuse mode. The gradient is that of the mean over
tokens of advantage times log-probability, with an entropy bonus. Tokens of level D are trained on like others, as in
SPEC-RL.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from common.episodes import play_all
from torch import Tensor

from turntree.agents.engines.protocol import Engine, Sampling, derive_seed
from turntree.agents.episodes.episode import Episode
from turntree.agents.episodes.token_view import TokenView
from turntree.agents.loop.renderer import Renderer
from turntree.agents.loop.rollout import rollout
from turntree.agents.verl.episodes.dataset import make_env


@dataclass(frozen=True, kw_only=True)
class Setting:
    env: str
    env_kwargs: dict[str, Any]
    tasks: int  #: per epoch
    batch: int  #: tasks per step
    samples: int  #: episodes per task and step
    learning_rate: float
    entropy: float = 0.01
    temperature: float = 1.0

    def indices(self, step: int) -> list[int]:
        # The same tasks in every epoch.
        steps = self.tasks // self.batch
        first = step % steps * self.batch
        return list(range(first, first + self.batch))

    @property
    def steps_per_epoch(self) -> int:
        return self.tasks // self.batch


@dataclass
class Player:
    """Play the episodes of a step and reuse the environments."""

    setting: Setting
    renderer: Renderer
    envs: list[Any] = field(default_factory=list)

    def play(self, engine: Engine, step: int, seed: int) -> list[Episode]:
        setting = self.setting
        jobs = [(index, sample) for index in setting.indices(step) for sample in range(setting.samples)]
        while len(self.envs) < len(jobs):
            self.envs.append(make_env(setting.env, setting.env_kwargs))

        async def one(env: Any, index: int, sample: int) -> Episode:
            sampling = Sampling(temperature=setting.temperature, seed=derive_seed(seed, step, index, sample))
            return await rollout(env, engine, self.renderer, index=index, seed=index, sampling=sampling)

        episodes = play_all(self.envs[: len(jobs)], jobs, one)
        for episode in episodes:
            if episode.masked:
                raise RuntimeError(f"an episode failed: {episode.failure}")
        return episodes


class Trainer:
    def __init__(self, model: Any, setting: Setting) -> None:
        self.model = model.float()
        self.setting = setting
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=setting.learning_rate, weight_decay=0.0)

    def named(self) -> list[tuple[str, Tensor]]:
        # The names that an engine expects.
        return [(name, value.detach().clone()) for name, value in self.model.state_dict().items()]

    def update(self, episodes: Sequence[Episode], rows: int = 8) -> None:
        advantages = group_advantages([episode.reward for episode in episodes], self.setting.samples)
        views = [TokenView.of(episode) for episode in episodes]
        kept = [(view, advantage) for view, advantage in zip(views, advantages, strict=True) if view.response_ids]
        total = sum(sum(view.mask) for view, _ in kept)
        for first in range(0, len(kept), rows):
            self._backward(kept[first : first + rows], total)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def _backward(self, part: list[tuple[TokenView, float]], total: int) -> None:
        longest = max(len(view.prompt_ids) + len(view.response_ids) for view, _ in part)
        tokens = torch.zeros(len(part), longest, dtype=torch.long)
        weights = torch.zeros(len(part), longest)
        mask = torch.zeros(len(part), longest)
        for row, (view, advantage) in enumerate(part):
            ids = view.prompt_ids + view.response_ids
            tokens[row, : len(ids)] = torch.tensor(ids)
            own = torch.tensor((0,) * len(view.prompt_ids) + view.mask, dtype=torch.float32)
            mask[row, : len(ids)] = own
            weights[row, : len(ids)] = own * advantage
        # Only positions before a token of the policy: a large vocabulary's logits are most of the memory.
        spoken = mask[:, 1:] > 0
        states = self.model.base_model(input_ids=tokens[:, :-1], use_cache=False).last_hidden_state[spoken]
        laws = torch.log_softmax(self.model.get_output_embeddings()(states) / self.setting.temperature, -1)
        chosen = laws.gather(-1, tokens[:, 1:][spoken][:, None])[:, 0]
        entropy = -(laws.exp() * laws).sum(-1)
        gain = (weights[:, 1:][spoken] * chosen).sum() + self.setting.entropy * entropy.sum()
        (-gain / total).backward()


def group_advantages(rewards: Sequence[float], samples: int) -> list[float]:
    """Normalise rewards within each group of ``samples`` neighbours; 0 if all are equal."""
    advantages: list[float] = []
    for first in range(0, len(rewards), samples):
        group = rewards[first : first + samples]
        mean, spread = statistics.fmean(group), statistics.pstdev(group)
        advantages += [(reward - mean) / (spread + 1e-6) if spread > 0 else 0.0 for reward in group]
    return advantages
