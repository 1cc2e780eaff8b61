"""Limits the length of thoughts with any engine: closes a thought that is too long, then samples the answer.

A thought is the reasoning that a model writes before its answer. A turn is requested in two pieces: the tokens up to
the limit, then the rest. If the thought is still open at the limit, closing tokens are inserted between the pieces and
marked as forced, so that the closing tokens are not trained on. Invariant: each piece is sampled from the policy's own
distribution. With a seed, the first piece has the tokens of a turn without a limit; the second uses a derived seed.
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
    """An ``Engine`` that limits thoughts to ``renderer.max_thinking_tokens`` tokens."""

    def __init__(self, engine: Engine, renderer: Renderer) -> None:
        assert renderer.max_thinking_tokens is not None
        assert renderer.template.thought is not None
        self._engine, self._renderer = engine, renderer
        self._max_thinking, self._thought = renderer.max_thinking_tokens, renderer.template.thought
        self._closing = renderer.template.tokens(self._thought.closing)
        self._opened = renderer.template.opened

    async def generate(self, request: TurnRequest) -> Completion:
        """Sample one turn. If no tokens remain for an answer, the turn ends at its token limit as usual."""
        sampling = request.sampling
        if sampling.max_tokens <= self._max_thinking:
            return await self._engine.generate(request)
        head = await self._engine.generate(replace(request, sampling=replace(sampling, max_tokens=self._max_thinking)))
        if head.finish_reason is not FinishReason.LENGTH or len(head.token_ids) < self._max_thinking:
            return head
        thinks = self._thought.is_open(self._opened + self._renderer.decode(head.token_ids, special_tokens=True))
        forced = self._closing if thinks else ()
        remaining = sampling.max_tokens - self._max_thinking - len(forced)
        if remaining < 1:
            return head
        if request.watch is not None and forced and request.watch(forced):
            return _closed(head, forced)
        prompt = (*request.prompt_ids, *head.token_ids, *forced)
        state = request.state and replace(request.state, exact=DialogueState.from_tokens(prompt).exact)
        seed = None if sampling.seed is None else derive_seed(sampling.seed, 1)
        rest = replace(sampling, max_tokens=remaining, seed=seed)
        tail = await self._engine.generate(replace(request, prompt_ids=prompt, sampling=rest, state=state, draft=()))
        if tail.finish_reason is FinishReason.ABORT:
            return tail
        # A weight update may come between the pieces, so the turn gets the older weight version.
        oldest = min(head.weights_version, tail.weights_version)
        return replace(join(_closed(head, forced), tail), weights_version=oldest)


def within_budget(engine: Engine, renderer: Renderer) -> Engine:
    return engine if renderer.max_thinking_tokens is None else ThinkingBudget(engine, renderer)


def _closed(head: Completion, forced: tuple[int, ...]) -> Completion:
    # The closing tokens were not sampled, so they get probability 1 and no top tokens.
    if not forced:
        return head
    count, top = len(forced), head.top
    if top is not None:
        shape = count, top.ids.shape[1]
        top = TopLogprobs(ids=np.zeros(shape, np.int32), logprobs=np.full(shape, -np.inf, np.float32))
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
