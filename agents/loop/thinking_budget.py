"""Limits a turn's thoughts, with any engine: a thought that is too long is closed, and the answer follows.

A turn is requested in two pieces: the tokens within the limit, then the rest. If the thought is still open, the tokens
that close it come between the pieces; they are marked as forced, so nothing is learnt from them. Invariant: each piece
is sampled from the policy's own distribution. With a seed, the first piece has the noise of the turn without a limit;
the second piece has a seed derived from the turn's.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from turntree.agents.engines.protocol import (
    Completion,
    Engine,
    FinishReason,
    TopLogprobs,
    TurnRequest,
    derive_seed,
)
from turntree.agents.engines.splice import join
from turntree.agents.loop.renderer import Renderer
from turntree.spec_tree import DialogueState


class ThinkingBudget:
    """An ``Engine`` whose thoughts are limited to ``renderer.max_thinking_tokens``."""

    def __init__(self, engine: Engine, renderer: Renderer) -> None:
        assert renderer.max_thinking_tokens is not None
        assert renderer.template.thought is not None
        self._engine, self._renderer = engine, renderer
        self._most, self._thought = renderer.max_thinking_tokens, renderer.template.thought
        self._closing = renderer.template.tokens(self._thought.closing)
        self._opened = renderer.template.opened

    async def generate(self, request: TurnRequest) -> Completion:
        """Sample one turn. A turn without tokens left for an answer is cut off as without a limit."""
        sampling = request.sampling
        if sampling.max_tokens <= self._most:
            return await self._engine.generate(request)
        head = await self._engine.generate(replace(request, sampling=replace(sampling, max_tokens=self._most)))
        if head.finish_reason is not FinishReason.LENGTH or len(head.token_ids) < self._most:
            return head
        thinks = self._thought.is_open(self._opened + self._renderer.decode(head.token_ids, special_tokens=True))
        forced = self._closing if thinks else ()
        left = sampling.max_tokens - self._most - len(forced)
        if left < 1:
            return head
        if request.watch is not None and forced and request.watch(forced):
            return _closed(head, forced)
        prompt = (*request.prompt_ids, *head.token_ids, *forced)
        state = request.state and replace(request.state, exact=DialogueState.from_tokens(prompt).exact)
        seed = None if sampling.seed is None else derive_seed(sampling.seed, 1)
        rest = replace(sampling, max_tokens=left, seed=seed)
        tail = await self._engine.generate(replace(request, prompt_ids=prompt, sampling=rest, state=state, draft=()))
        if tail.finish_reason is FinishReason.ABORT:
            return tail
        # A weight update may come between the pieces; the turn is as old as its oldest tokens.
        oldest = min(head.weights_version, tail.weights_version)
        return replace(join(_closed(head, forced), tail), weights_version=oldest)


def within_budget(engine: Engine, renderer: Renderer) -> Engine:
    return engine if renderer.max_thinking_tokens is None else ThinkingBudget(engine, renderer)


def _closed(head: Completion, forced: tuple[int, ...]) -> Completion:
    # The closing tokens were not sampled: probability 1, and no top tokens.
    if not forced:
        return head
    count, top = len(forced), head.top
    if top is not None:
        wide = count, top.ids.shape[1]
        top = TopLogprobs(ids=np.zeros(wide, np.int32), logprobs=np.full(wide, -np.inf, np.float32))
    closing = Completion(
        token_ids=forced,
        logprobs=(0.0,) * count,
        finish_reason=FinishReason.STOP,
        behaviour_logprobs=(0.0,) * count if head.behaviour_logprobs else (),
        weights_version=head.weights_version,
        top=top,
        forced=(True,) * count,
    )
    return join(head, closing)
