"""Turns that an update of the weights interrupts, requested again until they are whole.

An aborted turn comes back with the tokens that it has. They are the draft of the same
request: the new policy draws a token at each of their positions with the turn's own
noise, keeps them up to the first that it would not have drawn, and goes on from there.
Since a token is a function of the distribution and of (seed, position), the finished turn
is the one that the new policy alone samples with that seed, whenever the update came.

Invariant: but for ``keep``, all tokens of a turn are of one version of the weights, and
noise that the policy was trained on is never labelled exact (``trained``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace

from turntree.agents.engines.protocol import Completion, Engine, FinishReason, TurnRequest, derive_seed
from turntree.agents.engines.reverified import shared
from turntree.agents.engines.splice import join
from turntree.agents.resuming.lost_turns import LostTurns
from turntree.agents.resuming.resume_config import OnResume
from turntree.agents.resuming.resume_counts import ResumeCounts
from turntree.spec_tree import DialogueState
from turntree.spec_tree.rules.level import Level
from turntree.spec_tree.rules.seen_seeds import SeenSeeds

Seeds = Collection[int] | SeenSeeds
"""Seeds that the policy was trained on."""

_AGAIN_SECONDS = 0.05
"""Time after which an aborted turn is requested again; its server holds it until it has the new weights."""


async def pause() -> None:
    """What an aborted turn waits for by itself; the gate of its server is the rest."""
    await asyncio.sleep(_AGAIN_SECONDS)


class InterruptedTurns:
    """An ``Engine`` whose turns are never aborted; see the module's docstring.

    Args:
        engine: Samples the turns; its noise is a function of the seed.
        on_resume: ``keep`` believes an interrupted turn's tokens, all else judges them.
        counts: Where interruptions are counted.
        trained: Seeds of noise that the policy was trained on.
        wait: Awaited after each abort.
    """

    def __init__(
        self,
        engine: Engine,
        on_resume: OnResume,
        counts: ResumeCounts,
        *,
        trained: Seeds = (),
        wait: Callable[[], Awaitable[None]] = pause,
    ) -> None:
        self._engine = LostTurns(engine, counts)
        self._keeps = on_resume is OnResume.KEEP
        self._counts = counts
        self._trained = trained
        self._wait = wait

    async def generate(self, request: TurnRequest) -> Completion:
        """Sample one turn to its end, whatever interrupts it."""
        turn = await self._engine.generate(request)
        while turn.finish_reason is FinishReason.ABORT:
            self._counts.interruptions += 1
            await self._wait()
            turn = await (self._go_on if self._keeps else self._judge)(request, turn)
        return turn

    async def _judge(self, request: TurnRequest, before: Completion) -> Completion:
        if request.sampling.seed is None or not before.token_ids:
            return await self._engine.generate(request)
        turn = await reverify(self._engine, request, before.token_ids, self._counts, trained=self._trained)
        if turn.finish_reason is not FinishReason.ABORT:
            return turn
        return replace(turn, token_ids=longer(before.token_ids, turn.token_ids))

    async def _go_on(self, request: TurnRequest, before: Completion) -> Completion:
        """verl's way: sampled on behind tokens of other weights, with noise of its own."""
        sampling, count = request.sampling, len(before.token_ids)
        if not count:
            return await self._engine.generate(request)
        prompt = (*request.prompt_ids, *before.token_ids)
        seed = None if sampling.seed is None else derive_seed(sampling.seed, count)
        rest = replace(sampling, seed=seed, max_tokens=sampling.max_tokens - count)
        if rest.max_tokens < 1:
            return replace(before, finish_reason=FinishReason.LENGTH)
        state = request.state and replace(request.state, exact=DialogueState.from_tokens(prompt).exact)
        after = await self._engine.generate(
            replace(request, prompt_ids=prompt, sampling=rest, state=state, draft=request.draft[count:])
        )
        return joined(before, after)


async def reverify(
    engine: Engine,
    request: TurnRequest,
    tokens: Sequence[int],
    counts: ResumeCounts,
    *,
    trained: Seeds = (),
) -> Completion:
    """The turn that the engine's policy samples with the request's seed, ``tokens`` being the draft.

    Args:
        engine: Samples the turn.
        request: The turn as it was first requested.
        tokens: What another policy sampled for it, or the beginning, shape (tokens,).
        counts: Where it is counted, unless it is aborted.
        trained: Seeds of noise that the policy was trained on: such a turn is level C.
    """
    begun = time.perf_counter()
    turn = await engine.generate(replace(request, draft=tokens))
    counts.reverify_seconds += time.perf_counter() - begun
    if turn.finish_reason is FinishReason.ABORT:
        return turn
    kept = shared(tokens, turn.token_ids)
    counts.reverified_turns += 1
    counts.offered += len(tokens)
    counts.kept += kept
    counts.dropped += len(tokens) - kept
    counts.passes_saved += max(0, len(turn.token_ids) - turn.draft.verify_steps)
    seed = request.sampling.seed
    level = Level.C if seed is not None and seed in trained else Level.B
    # The store of drafts has seen tokens of this noise.
    return replace(turn, levels=str(level) * len(turn.token_ids), draft=turn.draft.untested())


def longer(turn_draft: Sequence[int], reverified: Sequence[int]) -> tuple[int, ...]:
    """The draft after a judgement that was itself interrupted: what was verified again, and what it had not come to.

    >>> longer((1, 2, 3), (1,)), longer((1, 2, 3), (1, 4))
    ((1, 2, 3), (1, 4))
    """
    rest = turn_draft[len(reverified) :] if shared(turn_draft, reverified) == len(reverified) else ()
    return (*reverified, *rest)


def joined(before: Completion, after: Completion) -> Completion:
    """One turn of two policies: ``after`` goes on behind ``before``. Each token keeps its version."""
    if before.behaviour_logprobs or after.behaviour_logprobs:
        before, after = (replace(of, behaviour_logprobs=of.behaviour_logprobs or of.logprobs) for of in (before, after))
    return replace(join(before, after), versions=versions_of(before) + versions_of(after))


def versions_of(turn: Completion) -> tuple[int, ...]:
    """Version of the weights that sampled each token, shape (tokens,)."""
    return turn.versions or (turn.weights_version,) * len(turn.token_ids)
