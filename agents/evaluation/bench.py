"""Measures speed with and without speculation on the same tasks and seeds.

Two engines of one kind are open at once and play each epoch in alternating order, so that other load on the machine
affects both engines. Every epoch samples each task anew with a fixed policy.

Invariant: both times of a ratio come from one process and exclude the warm-up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from math import nan
from time import perf_counter
from typing import Any, NamedTuple

from turntree.agents.engines.engine_choice import EngineChoice, open_engine
from turntree.agents.engines.protocol import Engine, derive_seed
from turntree.agents.episodes.episode import Episode
from turntree.agents.errors import EngineFailed
from turntree.agents.evaluation.evaluate import Playing, evaluate
from turntree.agents.evaluation.run import Planned
from turntree.agents.loop.renderer import Renderer


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:  # what one engine needed for its episodes
    tokens: int
    verify_steps: int  #: for each request, the forward passes that sampled for it; summed over requests
    seconds: float  #: wall time, including the environments
    drafting_seconds: float | None  #: part of ``seconds`` in the drafter; None without a drafter
    passes: int | None  #: forward passes of the whole batch; None without a drafter

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    @property
    def tokens_per_forward_pass(self) -> float:
        return self.tokens / self.verify_steps if self.verify_steps else nan

    @property
    def drafter_ms(self) -> float | None:
        # Milliseconds per forward pass.
        return 1000 * self.drafting_seconds / self.passes if self.drafting_seconds is not None and self.passes else None

    def __add__(self, other: Spent) -> Spent:
        def both(first: Any, second: Any) -> Any:
            return None if first is None or second is None else first + second

        return Spent(
            tokens=self.tokens + other.tokens,
            verify_steps=self.verify_steps + other.verify_steps,
            seconds=self.seconds + other.seconds,
            drafting_seconds=both(self.drafting_seconds, other.drafting_seconds),
            passes=both(self.passes, other.passes),
        )


class Epoch(NamedTuple):  # one epoch, played without drafts (plain) and with drafts (drafted)
    plain: Spent
    drafted: Spent
    turns: int  #: number of compared turns: in each episode, up to and including the first turn that differs
    equal: int  #: compared turns with equal tokens

    @property
    def ratio(self) -> float:  # of tokens per second, with drafts / without drafts
        return self.drafted.tokens_per_second / self.plain.tokens_per_second


def whole(epochs: Sequence[Epoch]) -> Epoch:  # the sum of all epochs
    total, *rest = epochs
    for epoch in rest:
        total = Epoch(
            total.plain + epoch.plain,
            total.drafted + epoch.drafted,
            total.turns + epoch.turns,
            total.equal + epoch.equal,
        )
    return total


async def bench(
    planned: Planned,
    choice: EngineChoice,
    renderer: Renderer,
    *,
    epochs: int,
    concurrency: int,
    seed: int,
    on_played: Callable[[], object] = lambda: None,
) -> list[Epoch]:
    """Play ``epochs`` epochs with each of two engines.

    Args:
        choice: The engine; ``speculate`` is set here.
        seed: Seed of tasks and sampling; each epoch derives its own seed.

    Raises:
        UsageError: If the engine returns no tokens.
        EngineFailed: If an episode failed, because its time would be meaningless.
    """
    async with AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(open_engine(replace(choice, speculate=speculate)))
            for speculate in (False, True)
        ]
        # Warm up: some kernels are compiled at first use.
        for engine in engines:
            await _play(planned, engine, renderer, seed=derive_seed(seed, 0), concurrency=2, warm_up=True)
        epochs_played = []
        for number in range(1, epochs + 1):
            # Alternate, so that a slow drift of the machine's speed cancels out.
            order = engines if number % 2 else engines[::-1]
            played = {}
            for engine in order:
                played[id(engine)] = await _measure(
                    planned, engine, renderer, seed=derive_seed(seed, number), concurrency=concurrency
                )
                on_played()
            (plain, sampled), (drafted, sampled_again) = (played[id(engine)] for engine in engines)
            turns, equal = _count_equal_turns(sampled, sampled_again)
            epochs_played.append(Epoch(plain, drafted, turns, equal))
    return epochs_played


async def _measure(
    planned: Planned, engine: Engine, renderer: Renderer, *, seed: int, concurrency: int
) -> tuple[Spent, list[Episode]]:
    before, began = _drafter(engine), perf_counter()
    episodes = await _play(planned, engine, renderer, seed=seed, concurrency=concurrency)
    seconds, after = perf_counter() - began, _drafter(engine)
    turns = [turn.completion for episode in episodes for turn in episode.turns]
    spent = Spent(
        tokens=sum(len(turn.token_ids) for turn in turns),
        verify_steps=sum(turn.draft.verify_steps for turn in turns),
        seconds=seconds,
        drafting_seconds=None if before is None or after is None else after.seconds - before.seconds,
        passes=None if before is None or after is None else after.passes - before.passes,
    )
    return spent, episodes


async def _play(
    planned: Planned, engine: Engine, renderer: Renderer, *, seed: int, concurrency: int, warm_up: bool = False
) -> list[Episode]:
    indices, playing = range(planned.count), planned.configure(Playing(seed=seed, concurrency=concurrency))
    if warm_up:
        indices = range(planned.count, planned.count + 1) if planned.more_tasks else range(1)
        playing = replace(playing, samples=2)
    episodes = await evaluate(planned.make_env, engine, renderer, indices, playing)
    failed = [episode.failure for episode in episodes if episode.failure]
    if failed:
        raise EngineFailed(f"{len(failed)} of {len(episodes)} episodes failed; first failure: {failed[0]}")
    return episodes


class _Drafter(NamedTuple):
    passes: int
    seconds: float


def _drafter(engine: Any) -> _Drafter | None:
    # Engines name their counters differently; None if nothing is drafted.
    if hasattr(engine, "stats"):
        stats = engine.stats()
        return _Drafter(stats.forward_passes, stats.draft_seconds) if stats.drafted or stats.draft_seconds else None
    figures = engine.figures() if hasattr(engine, "figures") else {}
    if not figures:
        return None
    return _Drafter(int(figures["steps"]), float(figures.get("draft_seconds", 0.0)))


def _count_equal_turns(sampled: Sequence[Episode], other: Sequence[Episode]) -> tuple[int, int]:
    turns = equal = 0
    for plain, drafted in zip(sampled, other, strict=True):
        for left, right in zip(plain.turns, drafted.turns, strict=False):
            turns += 1
            # Later turns have different prompts and cannot be compared.
            if left.completion.token_ids != right.completion.token_ids:
                break
            equal += 1
    return turns, equal
