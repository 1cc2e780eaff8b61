"""Precomputation of the next step's rollouts in idle slots of the engine.

An engine around an engine. A precomputed turn has the seed that its step will
use; when the step requests it, the precomputed tokens are the guess that the
current policy verifies in one pass (seeded replay). The output is what that seed
samples under that policy, token for token; the guess only decides how many
passes it takes. The policy was not trained on the turn, so it is level B.

Invariant: a requested turn never waits for a precomputed one. A turn that loses
its slot, to a requested one or to an update of the weights, keeps its tokens as
the guess that it continues from.

Not covered: sampling without a seed, which has no noise to precompute with.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Protocol

from turntree.agents.engines.protocol import Completion, FinishReason, Sampling, Scores, ScoringEngine, TurnRequest
from turntree.agents.guesses.config import RunAheadConfig
from turntree.agents.guesses.precomputed_stock import RunAheadStock
from turntree.agents.guesses.turn_storage import storage_key
from turntree.spec_tree.rules.level import Level


class AheadEngine(ScoringEngine, Protocol):
    """An engine that also takes turns for later steps."""

    async def generate(self, request: TurnRequest) -> Completion:
        """As ``Engine.generate``, with ``TurnRequest.ahead_for``."""
        ...

    async def abort_ahead(self) -> object:
        """End all precomputed turns with the tokens that they have."""
        ...


@dataclass(slots=True, kw_only=True)
class RunAheadStats:
    """Counters since creation."""

    turns: int = 0
    """Precomputed turns begun."""
    tokens: int = 0
    """Tokens precomputed."""
    offered: int = 0
    """Precomputed tokens that were verified for their step."""
    promoted: int = 0
    """Precomputed tokens that became part of rollouts."""
    wasted: int = 0
    """Precomputed tokens that were rejected or never requested."""
    preempted: int = 0
    """Times that a precomputed turn gave its slot to a requested one."""
    refused: int = 0
    """Turns not promoted because the policy was trained on their noise."""


class RunAhead:
    """An ``Engine`` that also precomputes turns of later steps; see the module's docstring.

    Args:
        engine: Samples the turns.
        config: How much is precomputed.
        stock: Turns precomputed before, from a snapshot.
    """

    def __init__(self, engine: AheadEngine, config: RunAheadConfig, stock: RunAheadStock | None = None) -> None:
        self.engine = engine
        self.config = config
        self.stock = RunAheadStock(max_tokens=config.max_tokens) if stock is None else stock
        self._stats = RunAheadStats()
        self._step = 0
        self._spent = 0
        self._going = True
        self._asked = 0
        self._changed = asyncio.Event()
        self._running: dict[asyncio.Task[Completion], int] = {}
        self._making: dict[tuple[Hashable, int], asyncio.Future[Completion]] = {}

    @property
    def stats(self) -> RunAheadStats:
        """Counters since creation."""
        counts, own = self.stock.counts, self._stats
        return replace(own, refused=counts.refused, wasted=own.offered - own.promoted + counts.dropped)

    async def generate(self, request: TurnRequest) -> Completion:
        """Sample one turn that is needed now; its own draft is used where nothing was precomputed."""
        prompt, sampling, seed = tuple(request.prompt_ids), request.sampling, request.sampling.seed
        if seed is None:
            return await self.engine.generate(request)
        made = self.stock.take(storage_key(prompt, sampling), seed)
        used = self.stock.used(seed)
        self.stock.show(seed)
        if made is not None:
            request = replace(request, draft=made.tokens[: sampling.max_tokens])
        completion = await self.engine.generate(request)
        if made is not None:
            self._stats.offered += len(made.tokens)
            self._stats.promoted += _shared(made.tokens, completion.token_ids)
        if not used:
            return completion
        # The noise has been used, and a store of drafts may have seen its tokens: drafts tell nothing about exactness.
        level = Level.C if seed in self.stock.trained else Level.B
        untested = replace(completion.draft, tested=0, matched=0, expected=0.0, variance=0.0)
        return replace(completion, levels=str(level) * len(completion.token_ids), draft=untested)

    async def sample_ahead(self, request: TurnRequest) -> Completion:
        """Sample a turn for the later step that the request names.

        Args:
            request: The turn as that step will request it, the seed included.

        Returns:
            The turn; aborted, with the tokens that it has, if its step has begun or the budget is spent.

        Raises:
            ValueError: If there is no seed.
        """
        seed = request.sampling.seed
        if seed is None:
            raise ValueError("a turn is precomputed with the seed that its step will use; sampling.seed is None")
        task = asyncio.current_task()
        assert task is not None
        request = replace(request, prompt_ids=tuple(request.prompt_ids))
        place = storage_key(request.prompt_ids, request.sampling), seed
        if place in self._making:  # its caller has asked, left, and asked again
            return await asyncio.shield(self._making[place])
        made: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._making[place], self._running[task] = made, request.ahead_for
        try:
            made.set_result(await self._make(request, *place))
        except Exception as error:
            made.set_exception(error)
        finally:
            del self._running[task], self._making[place]
        return await made

    async def _make(self, request: TurnRequest, key: Hashable, seed: int) -> Completion:
        step = request.ahead_for
        made = Completion(token_ids=(), logprobs=(), finish_reason=FinishReason.ABORT)
        begun = False
        while await self._may_go_on(step):
            kept = self.stock.peek(key, seed)
            self.stock.use(seed, step)
            self._stats.turns += not begun
            begun = True
            made = await self._ask(replace(request, draft=kept))
            new = len(made.token_ids) - _shared(kept, made.token_ids)
            self._stats.tokens += new
            self._spent += new
            if made.finish_reason is not FinishReason.ABORT:
                self.stock.put(key, seed, made.token_ids, step=step)
                return made
            if new:  # without new tokens, not all of the guess was verified
                self.stock.put(key, seed, made.token_ids, step=step)
            self._stats.preempted += self._going and step > self._step
        return replace(made, finish_reason=FinishReason.ABORT)

    async def _ask(self, request: TurnRequest) -> Completion:
        self._asked += 1
        try:
            return await self.engine.generate(request)
        finally:
            self._asked -= 1
            self._tell()

    async def _may_go_on(self, step: int) -> bool:
        while step > self._step and not self._going:
            await self._changed.wait()
        return step > self._step and (self.config.tokens is None or self._spent < self.config.tokens)

    def _tell(self) -> None:
        """Wake all that wait for a change."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def begin_step(self, step: int) -> None:
        """Training step ``step`` is about to request its turns: nothing is precomputed for it any longer.

        Returns once the turns being precomputed for it are in the stock.
        """
        self._step = max(step, self._step)
        self._tell()
        late = [task for task, wanted in self._running.items() if wanted <= self._step]
        if late:
            await self.engine.abort_ahead()
            await asyncio.wait(late)

    @property
    def going(self) -> bool:
        """Whether turns are precomputed, not paused."""
        return self._going

    async def pause(self) -> None:
        """Precompute nothing until ``resume``. Returns once the turns under way are in the stock."""
        self._going = False
        if self._asked:
            await self.engine.abort_ahead()
        while self._asked:
            await self._changed.wait()

    def resume(self) -> None:
        """Precompute turns again."""
        self._going = True
        self._tell()

    def close_step(self, step: int) -> None:
        """The policy was trained on the turns of training step ``step`` and those before."""
        self._step = max(step, self._step)
        self._spent = 0
        self.stock.close_step(step)
        self._tell()

    def ready(self, prompt_ids: Sequence[int], sampling: Sampling) -> bool:
        """Whether a precomputed turn is held that ``generate`` would promote."""
        seed = sampling.seed
        return seed is not None and self.stock.holds(storage_key(prompt_ids, sampling), seed)

    async def score(
        self, prompt_ids: Sequence[int], token_ids: Sequence[int], sampling: Sampling, *, top: int = 0
    ) -> Scores:
        """The engine's own ``score``."""
        return await self.engine.score(tuple(prompt_ids), token_ids, sampling, top=top)


def _shared(first: Sequence[int], second: Sequence[int]) -> int:
    """Length of the common prefix."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))
