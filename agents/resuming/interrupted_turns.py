"""Repeat the request of a turn that a weight update interrupts, until the turn is complete.

An aborted turn returns its tokens so far. These tokens become the draft of the repeated request, and the new policy
re-verifies them: it draws each position with the turn's own noise, keeps the draft up to the first difference and
samples the rest. A token depends only on the distribution, the seed and the position. The finished turn is therefore
the one that the new policy alone samples.

Invariant: except with ``OnResume.KEEP``, one weights version samples all tokens of a turn. Turns with a seed that the
policy was already trained on (``trained``) are never labelled exact.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, fields, replace

from turntree.agents.engines.protocol import Completion, Engine, FinishReason, TurnRequest, derive_seed
from turntree.agents.engines.reverified import shared
from turntree.agents.engines.splice import join
from turntree.agents.errors import EngineLost
from turntree.agents.resuming.resume_config import OnResume
from turntree.spec_tree import DialogueState
from turntree.spec_tree.rules.level import Level
from turntree.spec_tree.rules.seen_seeds import SeenSeeds

logger = logging.getLogger(__name__)

Seeds = Collection[int] | SeenSeeds  #: seeds that the policy was trained on
ATTEMPTS = 2  #: per request; few, because a request that kills its engine must not kill all engines
_AGAIN_SECONDS = 0.05  #: wait before a repeated request; the server holds the request until the new weights arrive


@dataclass(slots=True, kw_only=True)
class ResumeCounts:
    """Counters of turns and episodes that weight updates interrupted."""

    interruptions: int = 0  #: turns aborted by a weight update
    reverified_turns: int = 0  #: turns re-verified by a newer policy
    offered: int = 0  #: draft tokens of the re-verified turns
    kept: int = 0  #: offered tokens that the newer policy draws with the same noise
    dropped: int = 0  #: draft tokens from the first changed one on, and tokens of the episode's later turns
    passes_saved: int = 0  #: forward passes saved, compared with plain decoding of the same tokens
    reverify_seconds: float = 0.0  #: time spent in re-verification requests
    rewinds: int = 0  #: times that an episode resumed from a turn before its last turn
    lost_turns: int = 0  #: turns requested again because the engine process died
    stale_episodes: int = 0  #: episodes with an earlier policy's turns: their environment cannot be restored

    def add(self, other: ResumeCounts) -> None:
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


class RetryingEngine:
    """An ``Engine`` that requests a turn once more if the engine process dies.

    Weights, prompt and seed determine a turn, so a repeated request returns the same turn. The router picks another
    engine or waits until the engine has restarted.
    """

    def __init__(self, engine: Engine, counts: ResumeCounts) -> None:
        self._engine = engine
        self._counts = counts

    async def generate(self, request: TurnRequest) -> Completion:
        for _ in range(ATTEMPTS - 1):
            try:
                return await self._engine.generate(request)
            except EngineLost as error:
                self._counts.lost_turns += 1
                # Not a warning: the loss of the replica is already logged as one, for all of its turns.
                logger.info("requesting a turn again: %s", error)
        return await self._engine.generate(request)


async def pause() -> None:
    """Wait before an aborted turn is requested again."""
    await asyncio.sleep(_AGAIN_SECONDS)


class InterruptedTurns:
    """An ``Engine`` whose turns are never aborted.

    Args:
        engine: Samples the turns; its noise must be a function of the seed.
        on_resume: ``keep`` keeps an interrupted turn's tokens unchecked; the other values re-verify the tokens.
        trained: Seeds whose turns the policy was already trained on.
        wait: Awaited after each abort, before the turn is requested again.
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
        self._engine = RetryingEngine(engine, counts)
        self._keeps = on_resume is OnResume.KEEP
        self._counts = counts
        self._trained = trained
        self._wait = wait

    async def generate(self, request: TurnRequest) -> Completion:
        turn = await self._engine.generate(request)
        while turn.finish_reason is FinishReason.ABORT:
            self._counts.interruptions += 1
            await self._wait()
            turn = await (self._continue if self._keeps else self._reverify)(request, turn)
        return turn

    async def _reverify(self, request: TurnRequest, before: Completion) -> Completion:
        if request.sampling.seed is None or not before.token_ids:
            return await self._engine.generate(request)
        return await reverify(self._engine, request, before.token_ids, self._counts, trained=self._trained)

    async def _continue(self, request: TurnRequest, before: Completion) -> Completion:
        # As in verl, the new weights continue the turn after tokens that the old weights sampled.
        sampling, count = request.sampling, len(before.token_ids)
        if not count:
            return await self._engine.generate(request)
        prompt = (*request.prompt_ids, *before.token_ids)
        # The rest is a new request, whose positions start at 0. With the turn's own seed it would reuse the noise of
        # the turn's first tokens.
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
    engine: Engine, request: TurnRequest, tokens: Sequence[int], counts: ResumeCounts, *, trained: Seeds = ()
) -> Completion:
    """Return the turn that the engine's policy samples with the request's seed, using ``tokens`` as its draft.

    An aborted turn has the tokens of the next draft (``longer``).

    Args:
        tokens: The turn, or its first tokens, as another policy sampled it, shape (tokens,).
        counts: Updated unless the turn is aborted.
        trained: Seeds whose turns the policy was already trained on. A turn with such a seed gets exactness level C
            (exact in the marginal only), any other turn level B (exact given the policy).
    """
    started = time.perf_counter()
    turn = await engine.generate(replace(request, draft=tokens))
    counts.reverify_seconds += time.perf_counter() - started
    if turn.finish_reason is FinishReason.ABORT:
        return replace(turn, token_ids=longer(tokens, turn.token_ids))
    kept = shared(tokens, turn.token_ids)  # length of the common prefix
    counts.reverified_turns += 1
    counts.offered += len(tokens)
    counts.kept += kept
    counts.dropped += len(tokens) - kept
    counts.passes_saved += max(0, len(turn.token_ids) - turn.draft.verify_steps)
    seed = request.sampling.seed
    level = Level.C if seed is not None and seed in trained else Level.B
    # ``untested`` keeps the turn out of the exactness checks: the draft store may hold tokens that the same noise drew,
    # so the acceptance rate proves nothing.
    return replace(turn, levels=str(level) * len(turn.token_ids), draft=turn.draft.untested())


def longer(turn_draft: Sequence[int], reverified: Sequence[int]) -> tuple[int, ...]:
    """Return the draft to continue an interrupted re-verification with: verified tokens, then the unverified rest.

    >>> longer((1, 2, 3), (1,)), longer((1, 2, 3), (1, 4))
    ((1, 2, 3), (1, 4))
    """
    rest = turn_draft[len(reverified) :] if shared(turn_draft, reverified) == len(reverified) else ()
    return (*reverified, *rest)


def joined(before: Completion, after: Completion) -> Completion:
    """Join the two parts of a turn that two policies sampled; each token keeps its weights version."""
    if before.behaviour_logprobs or after.behaviour_logprobs:
        before, after = (replace(of, behaviour_logprobs=of.behaviour_logprobs or of.logprobs) for of in (before, after))
    return replace(join(before, after), versions=versions_of(before) + versions_of(after))


def versions_of(turn: Completion) -> tuple[int, ...]:
    """Return the weights version that sampled each token, shape (tokens,)."""
    return turn.versions or (turn.weights_version,) * len(turn.token_ids)
