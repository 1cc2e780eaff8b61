from __future__ import annotations

import asyncio
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

from turntree.agents.engines.protocol import Completion, Engine, FinishReason, TopLogprobs, TurnRequest
from turntree.agents.gateway.http.errors import ApiError
from turntree.agents.gateway.turn_text import TurnText


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTurn:
    prompt_ids: tuple[int, ...]  #: shape (prompt,)
    completion: Completion  #: up to the token that completed a stop string
    text: str  #: without the stop string


class SentPrompts:
    """Tokens that the clients of one API key have sent or received, as hashes of 16-token blocks.

    ``cached_tokens`` in a response counts only these tokens. Otherwise it would reveal prompts of other API keys.
    """

    _BLOCK = 16
    _MAX_BLOCKS = 1 << 16

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, None] = OrderedDict()

    def cached(self, turn: SampledTurn) -> SampledTurn:
        """Limit a turn's cached tokens to the known tokens, and remember the turn."""
        tokens = (*turn.prompt_ids, *turn.completion.token_ids)
        before, known, matches = b"", 0, True  # before: hash of the tokens so far; known: number of known tokens
        for end in range(self._BLOCK, len(tokens) + 1, self._BLOCK):
            block = array("q", tokens[end - self._BLOCK : end]).tobytes()
            before = blake2b(before + block, digest_size=16).digest()
            # A KV cache holds prefixes only, so the first unknown block ends the match.
            matches = matches and before in self._known
            known = end if matches else known
            self._known[before] = None
            self._known.move_to_end(before)
        while len(self._known) > self._MAX_BLOCKS:
            self._known.popitem(last=False)
        count = min(turn.completion.cached_tokens, known, len(turn.prompt_ids))
        return replace(turn, completion=replace(turn.completion, cached_tokens=count))


class _Watch:  # called by the engine with new tokens, in any thread; returns True to end the turn
    def __init__(self, text: TurnText, shown: Callable[[], None] | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._text, self._shown = text, shown

    def __call__(self, tokens: Sequence[int]) -> bool:
        try:
            self._loop.call_soon_threadsafe(self._receive, tuple(tokens))
        except RuntimeError:
            # The event loop is closed, so nobody waits for the turn.
            return True
        return self._text.stopped

    def _receive(self, tokens: tuple[int, ...]) -> None:
        self._text.add(tokens)
        if self._shown is not None:
            self._shown()


async def sample(
    engine: Engine, request: TurnRequest, text: TurnText, shown: Callable[[], None] | None = None
) -> SampledTurn:
    """Sample one turn.

    Args:
        text: Receives the tokens, and ends the turn at a stop string.
        shown: Called whenever ``text`` has grown; ``None`` if the client does not stream.

    Raises:
        ApiError: 400 if the engine refuses the prompt, 503 if it aborted the turn.
    """
    watch = _Watch(text, shown) if shown is not None or text.stops else None
    try:
        done = await engine.generate(replace(request, watch=watch))
    except ValueError as error:
        raise ApiError(400, str(error), param="prompt", code="invalid_value") from error
    if done.finish_reason is FinishReason.ABORT or not done.token_ids:
        raise ApiError(503, "the engine aborted the turn; try again", code="aborted", retry_after=1)
    text.end(done.token_ids[len(text.tokens) :])
    if text.stopped:
        done = _cut(done, len(text.tokens))
    return SampledTurn(prompt_ids=tuple(request.prompt_ids), completion=done, text=text.text)


def _cut(done: Completion, count: int) -> Completion:
    top = done.top and TopLogprobs(ids=done.top.ids[:count], logprobs=done.top.logprobs[:count])
    return replace(
        done,
        token_ids=done.token_ids[:count],
        logprobs=done.logprobs[:count],
        accepted=done.accepted[:count],
        levels=done.levels[:count],
        behaviour_logprobs=done.behaviour_logprobs[:count],
        forced=done.forced[:count],
        top=top,
        finish_reason=FinishReason.STOP,
    )
