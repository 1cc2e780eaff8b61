"""Re-verification of a turn-level draft in one pass, for engines that process prompts.

The draft is appended to the prompt, and one pass over both draws the policy's own token at each position of the
draft, from the turn's noise. These tokens are the turn up to the first one that differs from the draft. The rest
is sampled as usual. The turn is the one that plain decoding samples with the same seed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Sequence
from dataclasses import replace
from itertools import takewhile

from turntree.agents.engines.protocol import Completion, DraftStats, FinishReason, TurnRequest
from turntree.agents.engines.splice import join

#: draws a token at each position of a request's ``draft``, as if all draft tokens before it had been sampled. The
#: completion has as many tokens, or none if aborted; ``None`` if the engine cannot do it
Reverify = Callable[[TurnRequest], Awaitable[Completion | None]]
#: samples the rest of a turn whose first tokens (the second argument is their number) end the request's prompt
Continue = Callable[[TurnRequest, int], Awaitable[Completion]]


def reverifiable(request: TurnRequest, *, passes_from: int) -> bool:
    """Return whether verifying the whole draft in one pass is valid here and saves passes.

    ``passes_from`` is the number of draft tokens that decoding verifies in one pass. Not valid with penalties, which
    depend on earlier tokens that a pass over a prompt does not count, nor with recorded top tokens.
    """
    sampling = request.sampling
    penalised = sampling.repetition_penalty != 1 or sampling.presence_penalty or sampling.frequency_penalty
    noise = sampling.seed is not None and sampling.temperature > 0
    return noise and not penalised and not sampling.top_logprobs and len(usable(request)) > passes_from


def usable(request: TurnRequest) -> list[int]:
    """Return the draft up to the turn's token limit and its first stop token."""
    stops = request.sampling.stop_token_ids
    draft = [int(token) for token in request.draft[: request.sampling.max_tokens]]
    return draft[: next((position + 1 for position, token in enumerate(draft) if token in stops), len(draft))]


async def replay(request: TurnRequest, reverify: Reverify, continue_turn: Continue) -> Completion:
    """Return the turn of ``request``, with its draft re-verified in one pass if the engine can do so."""
    turn_draft, sampling = usable(request), request.sampling
    drawn = await reverify(replace(request, draft=turn_draft))
    if drawn is None:
        return await continue_turn(request, 0)
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
    tail = await continue_turn(rest, len(head.token_ids))
    if tail.weights_version != drawn.weights_version and tail.finish_reason is not FinishReason.ABORT:
        # A weight update came between the turn's two requests. A turn belongs to one policy, so sample it again.
        return await continue_turn(replace(request, draft=()), 0)
    done = join(head, tail)
    return done if drawn.levels else replace(done, levels="")


def ended_turn(turn_draft: Sequence[int], drawn: Sequence[int], stops: Container[int], most: int) -> list[int]:
    """Return the turn if the re-verifying pass ended it, else an empty list.

    ``drawn`` has the tokens drawn at the draft's positions and possibly one more; ``most`` is the turn's token limit.
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
        accepted=tuple(position < same for position in range(len(tokens))),
        draft=DraftStats(verify_steps=1, drafted=drafted, accepted=same),
    )


def shared(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the length of the common prefix."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))
