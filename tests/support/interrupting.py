"""A local engine whose weights are updated after given numbers of tokens, which interrupts the running turns."""

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
    """Return the weights of ``tiny_llama`` after ``version`` small updates."""
    generator = torch.Generator().manual_seed(1)
    state = dict(tiny_llama().state_dict())
    for _ in range(version):
        state = {
            name: value + by * value.abs().mean() * torch.randn(value.shape, generator=generator, dtype=value.dtype)
            for name, value in state.items()
        }
    return state


class InterruptedEngine:
    """An ``Engine`` whose ``update`` is awaited by interrupted turns.

    Args:
        moments: Tokens sampled before each update, including tokens of re-verified drafts.
        by: Size of an update.
        version: Version of the first weights.
        deaths: Numbers of the requests, from 1, during which the engine dies after sampling; it restarts at once.
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
        # If no update is due, other waiting turns get to run.
        await asyncio.sleep(0)
        if self._moments and self.sampled >= self._moments[0]:
            del self._moments[0]
            self.version += 1
            self.engine.update_weights(moved(self.version, self._by).items(), version=self.version)

    async def generate(self, request: TurnRequest) -> Completion:
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
