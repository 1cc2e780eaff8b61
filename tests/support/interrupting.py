"""A local engine whose weights are updated while it samples: at given numbers of tokens, each ending what runs."""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import torch
from cores import CONFIG, tiny_llama

from turntree.agents.engines.local import LocalEngine
from turntree.agents.engines.protocol import Completion, FinishReason, TurnRequest
from turntree.agents.errors import EngineLost
from turntree.spec_tree import SpecForest


def moved(version: int, by: float = 0.1) -> dict[str, Any]:
    """The weights of ``tiny_llama`` after so many small updates."""
    generator = torch.Generator().manual_seed(1)
    state = dict(tiny_llama().state_dict())
    for _ in range(version):
        state = {
            name: value + by * value.abs().mean() * torch.randn(value.shape, generator=generator, dtype=value.dtype)
            for name, value in state.items()
        }
    return state


class InterruptedEngine:
    """An ``Engine``; ``update`` is what waits for it.

    Args:
        moments: Tokens sampled before each update, those of judged drafts included.
        by: How far an update moves the weights.
        version: Version of the weights that it begins with.
        deaths: Numbers of the requests, from 1, under which it dies after it has sampled; it is back at once.
    """

    def __init__(
        self, moments: Sequence[int] = (), *, by: float = 0.1, version: int = 0, deaths: Collection[int] = ()
    ) -> None:
        self.engine = LocalEngine(tiny_llama(), config=CONFIG, forest=SpecForest())
        self._moments = list(moments)
        self._by = by
        self._deaths = deaths
        self.version = version
        self.requests: list[TurnRequest] = []
        self.sampled = 0
        if version:
            self.engine.update_weights(moved(version, by).items(), version=version)

    async def update(self) -> None:
        """The next update, if it is due; else others, that wait as well, go on."""
        await asyncio.sleep(0)
        if self._moments and self.sampled >= self._moments[0]:
            del self._moments[0]
            self.version += 1
            self.engine.update_weights(moved(self.version, self._by).items(), version=self.version)

    async def generate(self, request: TurnRequest) -> Completion:
        """The engine's turn, up to the next update."""
        self.requests.append(request)
        if self._moments and self.sampled >= self._moments[0]:
            return Completion(token_ids=(), logprobs=(), finish_reason=FinishReason.ABORT, weights_version=self.version)
        turn = await self.engine.generate(replace(request, watch=self._watch))
        if len(self.requests) in self._deaths:
            raise EngineLost("it was killed")
        cut = self._moments and self.sampled >= self._moments[0] and turn.token_ids[-1] not in _stops(request)
        whole = len(turn.token_ids) == request.sampling.max_tokens
        return replace(turn, finish_reason=FinishReason.ABORT) if cut and not whole else turn

    def _watch(self, tokens: Sequence[int]) -> bool:
        self.sampled += len(tokens)
        return bool(self._moments) and self.sampled >= self._moments[0]


def _stops(request: TurnRequest) -> tuple[int, ...]:
    return request.sampling.stop_token_ids
