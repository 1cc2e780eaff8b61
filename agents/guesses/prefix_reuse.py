"""An engine that begins a turn with tokens that an earlier trajectory sampled at the same state.

It wraps any engine that can score given tokens. Turns are keyed by the exact
tokens of the prompt and by the sampler's transforms. Reuse therefore goes on
across a tool call exactly as long as the observation is reproduced, and a turn
drawn at another temperature is never used. Three modes:

- ``replay``: the turn is drawn again with its own seed, the stored tokens being
  the draft. The output is what that seed samples under the current policy.
- ``exact``: one pass scores the stored turn; its tokens are accepted by the ratio
  of new to old probability, the token at the first rejection is drawn from the
  residual distribution, the rest is sampled. Any number of recorded tokens is
  exact (``top_law``).
- ``lenient``: SPEC-RL's rule (arXiv 2509.23232). Level D, and recorded with the
  distribution that drew each token.

Invariant: a stored turn is used once, in a later step than its own, and chosen
without looking at its tokens (``ledger``). Coins and noise are new in every
step of an object's life, even if the caller's seeds repeat.

With ``early`` the passes over an episode's later stored turns begin with its first
one (``foresight``): an episode that is reproduced whole then waits for the passes of
one turn, not of all. What is sampled does not depend on it.

Call ``close_step`` after every update of the policy. Not covered: turns that are
sampled while the policy is updated (asynchronous training).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from turntree.agents.engines.judged import shared
from turntree.agents.engines.protocol import (
    Completion,
    FinishReason,
    Sampling,
    Scores,
    ScoringEngine,
    TurnRequest,
    derive_seed,
)
from turntree.agents.engines.splice import join, narrowed
from turntree.agents.guesses.config import ReuseConfig, ReuseMode
from turntree.agents.guesses.early_passes import EarlyPasses
from turntree.agents.guesses.foresight import Foresight
from turntree.agents.guesses.turn_storage import offer, storage_key, stored_turn, within
from turntree.agents.guesses.turn_verification import verify
from turntree.spec_tree import DialogueState
from turntree.spec_tree.rules.ledger import Ledger, StoredTurn, Ticket
from turntree.spec_tree.rules.level import Level, worst_level

Remember = Callable[[DialogueState, Sequence[int]], None]
"""Inserts a whole turn into a store of drafts."""
Ready = Callable[[Sequence[int], Sampling], bool]
"""Whether a precomputed turn is held."""


@dataclass(slots=True, kw_only=True)
class ReuseStats:
    """Counters since creation."""

    turns: int = 0
    """Turns requested."""
    tickets: int = 0
    """Turns that began with a stored turn."""
    offered: int = 0
    """Stored tokens that were verified."""
    reused: int = 0
    """Stored tokens that were accepted."""
    whole: int = 0
    """Turns in which all stored tokens were accepted."""
    wider: int = 0
    """Passes that asked for more of the policy's distribution after a rejection."""
    early: int = 0
    """Passes over stored turns that began before their turn was requested."""
    early_used: int = 0
    """Of these, those whose turn was requested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """One requested turn."""

    prompt: tuple[int, ...]
    sampling: Sampling
    state: DialogueState | None
    base: int
    """Seed of all the turn's randomness."""


class _Done(NamedTuple):
    """A finished turn."""

    completion: Completion
    seed: int | None
    """The seed of all its noise, if there was one."""


class PrefixReuse:
    """An ``Engine`` around a ``ScoringEngine``; see the module's docstring.

    Args:
        engine: Scores and samples.
        config: How earlier turns are reused.
        vocabulary: Size of the policy's vocabulary.
        max_context: Most tokens of prompt and response together that the engine takes; ``None`` is no bound.
        remember: Called with each turn of which a part was reused, as the engine itself saw only the rest of
            it: a forest's ``insert``.
        ready: Tells whether ``engine`` holds a precomputed turn for a prompt and a sampling; such a turn is
            preferred to a stored one.
        seed: For turns that bring none; ``None`` is fresh entropy.
    """

    def __init__(
        self,
        engine: ScoringEngine,
        config: ReuseConfig,
        *,
        vocabulary: int,
        max_context: int | None = None,
        remember: Remember | None = None,
        ready: Ready | None = None,
        seed: int | None = None,
    ) -> None:
        self.engine = engine
        self.config = config
        self.ledger = Ledger(max_tokens=config.max_tokens)
        self.stats = ReuseStats()
        self._vocabulary = vocabulary
        self._max_context = max_context
        self._width = min(config.top_k, vocabulary)
        self._remember = remember
        self._ready = ready
        self._early = EarlyPasses(engine)
        self._foresight = Foresight()
        self._seeds = np.random.default_rng(seed)

    def close_step(self, *, trained: bool = True) -> None:
        """The policy was updated: the turns so far can be reused from now on.

        Args:
            trained: Whether it may have been trained on them.
        """
        self.ledger.close_step(trained=trained)
        self._early.drop()
        self._foresight.close_step()

    async def end_early(self) -> None:
        """End the passes that began early; returns when none runs. Call it before the engine sleeps or is updated."""
        await asyncio.gather(*self._early.drop(), return_exceptions=True)

    async def generate(self, request: TurnRequest) -> Completion:
        """Sample one turn, beginning with a stored one if there is one.

        The request's own draft is used where no turn is stored. A request without ``reuse`` goes to the engine.

        Raises:
            ValueError: If ``sampling`` has a penalty that counts the turn's own tokens and the mode scores.
        """
        if self.config.mode is ReuseMode.NONE or not request.reuse:
            return await self.engine.generate(request)
        asked = self._ask(request.prompt_ids, request.sampling, request.state)
        self.stats.turns += 1
        dialogue = asked.state if self.config.early and asked.state is not None and asked.state.task else None
        if dialogue is not None:
            self._foresight.reach(asked.prompt, dialogue)
        ticket = self._ticket(asked)
        if ticket is None:
            done = await self._sample(asked, draft=request.draft)
        else:
            if dialogue is not None:
                await self._begin_later(asked, ticket.turn)
            done = await (self._replay if self.config.mode is ReuseMode.REPLAY else self._verify)(asked, ticket)
        if dialogue is not None:
            expected = () if ticket is None else ticket.turn.tokens.tolist()
            self._foresight.end(asked.prompt, done.completion.token_ids, expected, dialogue)
        self._store(asked, done, emitted=True)
        return replace(done.completion, top=narrowed(done.completion.top, request.sampling.top_logprobs))

    async def sample_ahead(self, prompt_ids: Sequence[int], sampling: Sampling) -> None:
        """Sample a turn for a later step and return nothing: reusing it then is level B.

        Args:
            prompt_ids: Token ids, shape (prompt,).
            sampling: Sampling parameters, as the later step will request.
        """
        if self.config.mode is ReuseMode.NONE:
            return
        asked = self._ask(prompt_ids, sampling, None)
        # The running step may request the same seed, and the policy be trained on what that noise samples.
        asked = replace(asked, base=derive_seed(asked.base, 5))
        self._store(asked, await self._sample(asked), emitted=False)

    def base_seed(self, seed: int, *, after: int = 0) -> int:
        """Seed of the noise of a turn requested with ``seed`` when ``after`` more steps are closed."""
        # A caller that repeats the same seeds in every epoch must not get the same coins.
        step = self.ledger.step + after
        return seed if step == 0 else derive_seed(seed, step)

    async def score(
        self, prompt_ids: Sequence[int], token_ids: Sequence[int], sampling: Sampling, *, top: int = 0
    ) -> Scores:
        """The engine's own ``score``."""
        return await self.engine.score(tuple(prompt_ids), token_ids, sampling, top=top)

    def _ask(self, prompt_ids: Sequence[int], sampling: Sampling, state: DialogueState | None) -> _Asked:
        scores = self.config.mode in (ReuseMode.EXACT, ReuseMode.LENIENT)
        if scores and (sampling.presence_penalty or sampling.frequency_penalty):
            raise ValueError(
                f"reuse mode {self.config.mode} continues a turn as a new prompt, which presence_penalty and "
                "frequency_penalty would not count; set both to 0 or use mode replay"
            )
        if self._max_context is not None and len(prompt_ids) < self._max_context:
            # A continued turn must know where the context ends: no prompt may fill it.
            room = self._max_context - len(prompt_ids)
            sampling = replace(sampling, max_tokens=min(sampling.max_tokens, room))
        seed = int(self._seeds.integers(1 << 63)) if sampling.seed is None else sampling.seed
        return _Asked(prompt=tuple(prompt_ids), sampling=sampling, state=state, base=self.base_seed(seed))

    async def _begin_later(self, asked: _Asked, turn: StoredTurn) -> None:
        """Begin the passes over the stored turns of the episode's later prompts, if ``turn`` is what is said now."""
        later = self._foresight.after(asked.prompt, turn, lambda prompt: self.ledger.waiting(_key(asked, prompt)))
        # The last prompt holds all others: an engine that computes it first has theirs in its cache.
        for prompt, turns in reversed(list(later)):
            any(self._begin_pass(asked, prompt, stored) for stored in turns)
        self.stats.early = self._early.begun
        await asyncio.sleep(0)

    def _begin_pass(self, asked: _Asked, prompt: tuple[int, ...], turn: StoredTurn) -> bool:
        """Begin what a request of ``prompt`` does with a stored turn; ``False`` if it is begun already."""
        sampling = replace(asked.sampling, max_tokens=turn.room)
        if self.config.mode is not ReuseMode.REPLAY:
            return self._early.begin_scores(prompt, offer(turn, sampling).tokens, sampling, self._width)
        return self._early.begin_turn(self._redraw(prompt, sampling, within(asked.state, prompt), turn))

    def _ticket(self, asked: _Asked) -> Ticket | None:
        if self._is_no_draw(asked):
            return None
        if _fraction(asked.base, 1) < self.config.fresh:
            return None
        if self._ready is not None and self._ready(asked.prompt, replace(asked.sampling, seed=asked.base)):
            return None
        return self.ledger.take(_key(asked), pick=derive_seed(asked.base, 2))

    def _is_no_draw(self, asked: _Asked) -> bool:
        """Whether the turn is greedy and so has no probability ratio to be judged by."""
        return asked.sampling.temperature == 0 and self.config.mode is not ReuseMode.REPLAY

    async def _sample(self, asked: _Asked, *, draft: Sequence[int] = ()) -> _Done:
        sampling = self._recording(asked.sampling, seed=asked.base)
        completion = await self.engine.generate(TurnRequest(asked.prompt, sampling, state=asked.state, draft=draft))
        return _Done(completion, asked.base)

    async def _replay(self, asked: _Asked, ticket: Ticket) -> _Done:
        stored, sampling = ticket.turn, asked.sampling
        completion = await self._early.generate(self._redraw(asked.prompt, sampling, asked.state, stored))
        self.stats.early_used = self._early.used
        # The noise of the whole turn has been used before, also where the tokens differ; and a store of drafts has
        # seen its earlier tokens, so that acceptance of drafts tells nothing about exactness.
        levels = str(ticket.level) * len(completion.token_ids)
        untested = replace(completion.draft, tested=0, matched=0, expected=0.0, variance=0.0)
        same = shared(stored.tokens.tolist(), completion.token_ids)
        self._count(min(len(stored.tokens), sampling.max_tokens), same)
        return _Done(replace(completion, levels=levels, draft=untested), stored.seed)

    def _redraw(
        self, prompt: tuple[int, ...], sampling: Sampling, state: DialogueState | None, turn: StoredTurn
    ) -> TurnRequest:
        """The request that draws a stored turn again, with its own noise."""
        draft = turn.tokens[: sampling.max_tokens].tolist()
        return TurnRequest(prompt, self._recording(sampling, seed=turn.seed), state=state, draft=draft)

    async def _verify(self, asked: _Asked, ticket: Ticket) -> _Done:
        sampling, offered = asked.sampling, offer(ticket.turn, asked.sampling)
        verified = await verify(
            self._early,
            asked.prompt,
            ticket.turn,
            offered.tokens,
            sampling,
            top=self._width,
            vocabulary=self._vocabulary,
            lenience=self.config.lenience,
            level=Level.D if self.config.mode is ReuseMode.LENIENT else ticket.level,
            seed=derive_seed(asked.base, 3, ticket.number),
        )
        self._count(len(offered.tokens), verified.kept)
        self.stats.early_used = self._early.used
        self.stats.wider += verified.wider
        head = verified.head
        if head.token_ids[-1] in sampling.stop_token_ids:
            done = replace(head, finish_reason=FinishReason.STOP)
        elif len(head.token_ids) == offered.most:
            done = replace(head, finish_reason=FinishReason.LENGTH)
        else:
            prompt, left = asked.prompt + head.token_ids, offered.most - len(head.token_ids)
            rest = replace(self._recording(sampling, seed=derive_seed(asked.base, 4)), max_tokens=left)
            done = join(head, await self.engine.generate(TurnRequest(prompt, rest, state=within(asked.state, prompt))))
        given_up = done.finish_reason is FinishReason.ABORT
        if self._remember is not None and asked.state is not None and not given_up:
            self._remember(asked.state, done.token_ids)
        return _Done(done, None)

    def _recording(self, sampling: Sampling, *, seed: int | None) -> Sampling:
        """``sampling`` with the recording that a turn needs to be stored."""
        top = 0 if self.config.mode is ReuseMode.REPLAY else self._width
        return replace(sampling, seed=seed, top_logprobs=max(top, sampling.top_logprobs))

    def _store(self, asked: _Asked, done: _Done, *, emitted: bool) -> None:
        completion, width = done.completion, 0 if self.config.mode is ReuseMode.REPLAY else self._width
        turn = stored_turn(completion, asked.sampling, seed=done.seed, width=width)
        if turn is None or self._is_no_draw(asked):
            return
        # A turn made from one that the policy was trained on is no better than that turn.
        trained = worst_level(completion.levels) in (Level.C, Level.D)
        # One seed each: an episode that is tried again is not a second draw.
        self.ledger.add(_key(asked), turn, rank=derive_seed(asked.base, 6), emitted=emitted, trained=trained)

    def _count(self, offered: int, kept: int) -> None:
        self.stats.tickets += 1
        self.stats.offered += offered
        self.stats.reused += kept
        self.stats.whole += kept == offered


def _key(asked: _Asked, prompt: tuple[int, ...] | None = None) -> tuple[float, ...]:
    return storage_key(asked.prompt if prompt is None else prompt, asked.sampling)


def _fraction(*parts: int) -> float:
    """A number in [0, 1) that depends on ``parts``."""
    return derive_seed(*parts) / (1 << 63)
