"""Replay of a given turn in one pass, for engines that process prompts.

The draft is given with the prompt, and the pass over both draws the policy's own
token at each of its positions, by the turn's noise. They are the turn up to the
first that differs from the draft; the rest is sampled as usual, after the tokens
so far. The turn is the one that plain decoding with the same seed samples.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Sequence
from dataclasses import replace
from itertools import takewhile

from turntree.agents.engines.protocol import Completion, DraftStats, FinishReason, TurnRequest
from turntree.agents.engines.splice import join

Judge = Callable[[TurnRequest], Awaitable[Completion | None]]
"""Draws a token at each position of a request's ``draft``, as if all those before it had been sampled: a completion
of as many tokens, or one that was aborted, with none. ``None`` if the engine drew nothing, as it cannot."""
Continue = Callable[[TurnRequest, int], Awaitable[Completion]]
"""Samples the rest of a turn whose first tokens, so many, stand at the end of the request's prompt."""


def reverifiable(request: TurnRequest, *, passes_from: int) -> bool:
    """Whether one pass over the whole draft saves any, and draws what decoding draws.

    Penalties depend on the tokens before, which a pass over a prompt does not count; and it records no most probable
    tokens.

    Args:
        passes_from: Draft tokens that decoding verifies in one pass.
    """
    sampling = request.sampling
    penalised = sampling.repetition_penalty != 1 or sampling.presence_penalty or sampling.frequency_penalty
    noise = sampling.seed is not None and sampling.temperature > 0
    return noise and not penalised and not sampling.top_logprobs and len(usable(request)) > passes_from


def usable(request: TurnRequest) -> list[int]:
    """The draft up to the turn's greatest length and its first stop token."""
    stops = request.sampling.stop_token_ids
    draft = [int(token) for token in request.draft[: request.sampling.max_tokens]]
    return draft[: next((place + 1 for place, token in enumerate(draft) if token in stops), len(draft))]


async def replay(request: TurnRequest, reverify: Judge, go_on: Continue) -> Completion:
    """The turn of ``request``, its draft verified again in one pass, if the engine does so."""
    turn_draft, sampling = usable(request), request.sampling
    drawn = await reverify(replace(request, draft=turn_draft))
    if drawn is None:
        return await go_on(request, 0)
    if drawn.finish_reason is FinishReason.ABORT:
        return drawn
    same = shared(turn_draft, drawn.token_ids)
    head = _cut(drawn, same + 1, drafted=len(turn_draft), same=same)
    if head.token_ids[-1] in sampling.stop_token_ids:
        return replace(head, finish_reason=FinishReason.STOP)
    left = sampling.max_tokens - len(head.token_ids)
    if not left:
        return replace(head, finish_reason=FinishReason.LENGTH)
    whole = (*request.prompt_ids, *head.token_ids)
    rest = replace(request, prompt_ids=whole, draft=(), sampling=replace(sampling, max_tokens=left))
    tail = await go_on(rest, len(head.token_ids))
    if tail.weights_version != drawn.weights_version and tail.finish_reason is not FinishReason.ABORT:
        # New weights wait for running requests, and between a turn's two none runs: a turn is of one policy.
        return await go_on(replace(request, draft=()), 0)
    done = join(head, tail)
    return done if drawn.levels else replace(done, levels="")


def ended_turn(turn_draft: Sequence[int], drawn: Sequence[int], stops: Container[int], most: int) -> list[int]:
    """The turn if the pass that verified again it ended it, else nothing: another request goes on.

    Args:
        turn_draft: Token ids, shape (draft,).
        drawn: Those drawn at its positions, and after it where one was, shape (draft,) or (draft + 1,).
        most: Its greatest length.
    """
    turn = list(drawn[: shared(turn_draft, drawn) + 1])
    return turn if turn and (turn[-1] in stops or len(turn) >= most) else []


def _cut(drawn: Completion, count: int, *, drafted: int, same: int) -> Completion:
    tokens = drawn.token_ids[:count]
    return replace(
        drawn,
        token_ids=tokens,
        logprobs=drawn.logprobs[:count],
        behaviour_logprobs=drawn.behaviour_logprobs[:count],
        accepted=tuple(place < same for place in range(len(tokens))),
        draft=DraftStats(verify_steps=1, drafted=drafted, accepted=same),
    )


def shared(first: Sequence[int], second: Sequence[int]) -> int:
    """Length of the common prefix."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))
