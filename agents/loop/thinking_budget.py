"""A bound on thoughts, above whatever engine samples: a thought that is too long is closed, and the answer goes on.

A turn is asked for in two pieces: the tokens within the bound, then the rest, after the tokens that close the thought
if it has not ended. Those are part of the turn, and marked as forced, so that nothing is learnt from them. Invariant:
each piece is drawn from the policy's own distribution; with a seed the first has the noise of the turn without a bound,
and the second that of a seed of its own, which depends on the turn's alone.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TypeVar

import numpy as np

from turntree.agents.engines.protocol import (
    Completion,
    DraftStats,
    Engine,
    FinishReason,
    Sampling,
    TopLogprobs,
    TurnRequest,
    derive_seed,
)
from turntree.agents.loop.renderer import Renderer
from turntree.spec_tree import DialogueState

_T = TypeVar("_T")


class ThinkingBudget:
    """An ``Engine`` whose thoughts are bounded.

    Args:
        renderer: Of its model, with ``max_thinking_tokens``.
    """

    def __init__(self, engine: Engine, renderer: Renderer) -> None:
        assert renderer.max_thinking_tokens is not None
        assert renderer.template.thought is not None
        self._engine, self._renderer = engine, renderer
        self._most, self._thought = renderer.max_thinking_tokens, renderer.template.thought
        self._closing = renderer.template.tokens(self._thought.closing)
        self._opened = renderer.template.opened

    async def generate(self, request: TurnRequest) -> Completion:
        """One turn; a turn that leaves no room for an answer after its thought is cut as without a bound."""
        sampling = request.sampling
        if sampling.max_tokens <= self._most:
            return await self._engine.generate(request)
        head = await self._engine.generate(replace(request, sampling=replace(sampling, max_tokens=self._most)))
        if head.finish_reason is not FinishReason.LENGTH or len(head.token_ids) < self._most:
            return head
        thinks = self._thought.is_open(self._opened + self._renderer.decode(head.token_ids, special_tokens=True))
        forced = self._closing if thinks else ()
        room = sampling.max_tokens - self._most - len(forced)
        if room < 1:
            return head
        if request.watch is not None and forced and request.watch(forced):
            return replace(_joined(head, forced, None), finish_reason=FinishReason.STOP)
        prompt = (*request.prompt_ids, *head.token_ids, *forced)
        state = request.state and replace(request.state, exact=DialogueState.from_tokens(prompt).exact)
        tail = await self._engine.generate(
            replace(
                request,
                prompt_ids=prompt,
                sampling=_rest(sampling, room),
                state=state,
                draft=(),
                foresee=request.foresee and request.foresee.after((*head.token_ids, *forced)),
            )
        )
        return tail if tail.finish_reason is FinishReason.ABORT else _joined(head, forced, tail)


def within_budget(engine: Engine, renderer: Renderer) -> Engine:
    """The engine itself, or one whose thoughts end as ``renderer.max_thinking_tokens`` says."""
    return engine if renderer.max_thinking_tokens is None else ThinkingBudget(engine, renderer)


def _rest(sampling: Sampling, room: int) -> Sampling:
    seed = sampling.seed
    return replace(sampling, max_tokens=room, seed=None if seed is None else derive_seed(seed, 1))


def _joined(head: Completion, forced: tuple[int, ...], tail: Completion | None) -> Completion:
    """One turn of its pieces; ``tail`` is ``None`` if nothing was sampled after the forced tokens."""
    last = tail or replace(head, token_ids=(), logprobs=(), accepted=(), levels="", behaviour_logprobs=(), top=None)
    count, zeros = len(forced), (0.0,) * len(forced)
    marks = (False,) * len(head.token_ids), (True,) * count, (False,) * len(last.token_ids)
    stats = {f.name: getattr(head.draft, f.name) + getattr(last.draft, f.name) for f in fields(DraftStats)}
    return replace(
        last,
        token_ids=head.token_ids + forced + last.token_ids,
        logprobs=head.logprobs + zeros + last.logprobs,
        draft=DraftStats(**stats) if tail else head.draft,
        accepted=_whole(head.accepted, head, False) + (False,) * count + _whole(last.accepted, last, False)
        if head.accepted or last.accepted
        else (),
        cached_tokens=head.cached_tokens,
        weights_version=min(head.weights_version, last.weights_version),
        versions=_whole(head.versions, head, head.weights_version)
        + (head.weights_version,) * count
        + _whole(last.versions, last, last.weights_version)
        if head.versions or last.versions
        else (),
        levels="".join([*_whole(tuple(head.levels), head, "A"), "A" * count, *_whole(tuple(last.levels), last, "A")])
        if head.levels or last.levels
        else "",
        behaviour_logprobs=(head.behaviour_logprobs or head.logprobs)
        + zeros
        + (last.behaviour_logprobs or last.logprobs)
        if head.behaviour_logprobs or last.behaviour_logprobs
        else (),
        top=_joined_tops(head.top, count, last.top),
        forced=tuple(mark for part in marks for mark in part) if forced else (),
    )


def _whole(values: tuple[_T, ...], piece: Completion, value: _T) -> tuple[_T, ...]:
    return values or (value,) * len(piece.token_ids)


def _joined_tops(head: TopLogprobs | None, count: int, tail: TopLogprobs | None) -> TopLogprobs | None:
    if head is None:
        return None
    wide = head.ids.shape[1]
    blank = TopLogprobs(ids=np.zeros((count, wide), np.int32), logprobs=np.full((count, wide), -np.inf, np.float32))
    parts = [part for part in (head, blank, tail) if part is not None]
    return TopLogprobs(
        ids=np.concatenate([part.ids for part in parts]), logprobs=np.concatenate([part.logprobs for part in parts])
    )
