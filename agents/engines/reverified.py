"""Re-verification: check a turn-level draft in one pass over prompt and draft, for engines that process prompts.

This pass samples the policy's own token at each position of the draft, with the noise of the turn's seed. The turn
takes these tokens up to and including the first one that differs from the draft. The engine samples the rest as
usual. The result is the turn that plain decoding samples with the same seed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Sequence
from dataclasses import replace
from itertools import takewhile

from turntree.agents.engines.protocol import Completion, DraftStats, FinishReason, TurnRequest
from turntree.agents.engines.splice import join

#: samples a token at each position of a request's ``draft``, as if all earlier draft tokens had been sampled. Returns
#: as many tokens as the draft has, no tokens if aborted, or ``None`` if the engine cannot re-verify
Reverify = Callable[[TurnRequest], Awaitable[Completion | None]]
#: samples the rest of a turn; the second argument is how many of the prompt's last tokens already belong to the turn
Continue = Callable[[TurnRequest, int], Awaitable[Completion]]


def reverifiable(request: TurnRequest, *, passes_from: int) -> bool:
    """Return whether verifying the whole draft in one pass is valid here and saves passes.

    ``passes_from`` is the number of draft tokens that decoding verifies in one pass. Penalties are not supported: they
    depend on the turn's earlier tokens, which a pass over a prompt does not count. Nor are recorded top tokens.
    """
    sampling = request.sampling
    penalised = sampling.repetition_penalty != 1 or sampling.presence_penalty or sampling.frequency_penalty
    noise = sampling.seed is not None and sampling.temperature > 0
    return noise and not penalised and not sampling.top_logprobs and len(usable(request)) > passes_from


def usable(request: TurnRequest) -> list[int]:
    """Return the draft, cut at the turn's token limit and after the first stop token."""
    stops = request.sampling.stop_token_ids
    draft = [int(token) for token in request.draft[: request.sampling.max_tokens]]
    return draft[: next((position + 1 for position, token in enumerate(draft) if token in stops), len(draft))]


async def replay(request: TurnRequest, reverify: Reverify, continue_turn: Continue) -> Completion:
    """Return the turn of ``request``. Its draft is re-verified in one pass if the engine can do so."""
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
    """Return the whole turn if the re-verifying pass already ended the turn, else an empty list.

    ``drawn`` has the tokens sampled at the draft's positions and possibly one more; ``most`` is the turn's token limit.
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
    """Return the length of the common prefix of two turns."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))
