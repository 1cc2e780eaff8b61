"""Verification of a stored turn under the current policy by one scoring pass.

The result is the beginning of a turn: the accepted tokens, and the token drawn at the first rejected position. The
caller samples the rest. ``acceptance`` implements the rule: coins (uniform random numbers) accept tokens by the ratio
of new to old probability.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from turntree.agents.engines.protocol import (
    Completion,
    DraftStats,
    FinishReason,
    Sampling,
    Scores,
    ScoringEngine,
    TopLogprobs,
)
from turntree.agents.turn_drafts.acceptance import (
    KnownDistribution,
    behaviour_of,
    kept_tokens,
    redraw_known,
    redraw_wider,
    risen_mass,
)
from turntree.spec_tree.rules.ledger import StoredTurn
from turntree.spec_tree.rules.level import Level
from turntree.spec_tree.rules.noise import uniform
from turntree.spec_tree.rules.top_k import OTHER

#: Factor on the number of requested top tokens, each time that the known top tokens did not settle a draw. On two
#: cores, vLLM reports 64 of 151,936 tokens in 37 ms, 1,024 in 56 ms, 16,384 in 305 ms and all in 2.5 s.
_WIDENING = 16
_MAX_REDRAWS = 8  #: Most coins for one rejection: the first, and 7 for wider passes (16 ** 7 exceeds any vocabulary).


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioRule:
    """Acceptance of a stored turn's tokens by the ratio of new to old probability."""

    lenience: float  #: factor on the ratio; 1 is exact
    top: int  #: number of most probable tokens to record at each position
    vocabulary: int  #: size of the policy's vocabulary
    seed: int  #: seed of the coins, used for nothing else


class Verification(NamedTuple):
    """The verified beginning of a turn."""

    #: Accepted tokens and, after a rejection, the token drawn there. Its finish reason is a placeholder.
    head: Completion
    kept: int  #: number of accepted tokens
    wider: int  #: extra passes that requested more top tokens, to settle the draw after the rejection


async def verify(
    engine: ScoringEngine,
    prompt: tuple[int, ...],
    turn: StoredTurn,
    offered: Sequence[int],
    sampling: Sampling,
    rule: RatioRule,
    level: Level,
) -> Verification:
    """Keep the ``offered`` first tokens of a stored turn that the current policy accepts.

    ``prompt`` is the turn's prompt. ``sampling`` must have the transforms with which the stored turn was drawn.
    """
    top, lenience = rule.top, rule.lenience
    scores = await engine.score(prompt, offered, sampling, top=top)
    assert scores.top is not None
    count = len(offered)
    coins = uniform(np.array(rule.seed, np.uint64), np.arange(count + _MAX_REDRAWS))
    tokens = np.array(offered, np.int64)
    # One coin for each offered token; the rest are for the redraw after a rejection.
    kept = kept_tokens(turn, tokens, scores, coins[:count], lenience)
    exact = list(scores.logprobs[:kept])
    policy = list((scores.policy_logprobs or scores.logprobs)[:kept])
    passes, wider = 1, 0
    if kept < count:
        before = prompt + tuple(offered[:kept])
        now, width = KnownDistribution.of(scores.top, kept), top
        drawn = redraw_known(now, turn, kept, float(coins[count]), lenience)
        while drawn.token == OTHER:
            # Too little of p is known at the rejected position: score there again, with more tokens.
            wider, width = wider + 1, width * _WIDENING
            known, now = now, await _distribution(engine, before, offered[kept], sampling, width, rule.vocabulary)
            drawn = redraw_wider(now, known, turn, kept, drawn.left, float(coins[count + wider]), lenience)
        tokens[kept] = drawn.token
        exact.append(float(np.log(now.p[now.ids == drawn.token][0])))
        passes += wider
        policy += exact[-1:]
        if _reshapes(sampling):
            # `now` is the distribution after all transforms; the policy's own probability takes another pass.
            passes += 1
            policy[-1:] = (await engine.score(before, (drawn.token,), sampling)).policy_logprobs or exact[-1:]
    emitted = tokens[: len(exact)]
    tops = TopLogprobs(ids=scores.top.ids[: len(exact)], logprobs=scores.top.logprobs[: len(exact)])
    logprobs = tuple(exact)
    if lenience != 1.0:
        drawn_by, tops = behaviour_of(emitted, exact, turn, tops, lenience)
        logprobs = tuple(drawn_by.tolist())
    # The monitors do not test a lenient rule: it is biased by design.
    sums = _sums(emitted, exact, turn, scores) if lenience == 1.0 else DraftStats()
    head = Completion(
        token_ids=tuple(emitted.tolist()),
        logprobs=tuple(policy),
        finish_reason=FinishReason.LENGTH,
        draft=replace(sums, verify_steps=passes, drafted=count, accepted=kept),
        accepted=(True,) * kept + (False,) * (len(emitted) - kept),
        cached_tokens=scores.cached_tokens,
        weights_version=scores.weights_version,
        levels=str(level) * len(emitted),
        behaviour_logprobs=logprobs,
        top=tops,
    )
    return Verification(head, kept, wider)


def _sums(tokens: NDArray[np.int64], logprobs: Sequence[float], turn: StoredTurn, scores: Scores) -> DraftStats:
    count = len(tokens)
    risen = risen_mass(tokens, turn, scores)
    known = bool(scores.entropy)
    return DraftStats(
        tested=count,
        matched=risen.matched,
        expected=risen.expected,
        variance=risen.variance,
        surprise=-float(sum(logprobs)) if known else 0.0,
        entropy=float(sum(scores.entropy[:count])),
        entropy_variance=float(sum(scores.entropy_variance[:count])),
    )


def _reshapes(sampling: Sampling) -> bool:
    return sampling.top_p < 1 or sampling.top_k != -1 or sampling.min_p > 0 or sampling.repetition_penalty != 1


async def _distribution(
    engine: ScoringEngine, prompt: tuple[int, ...], token: int, sampling: Sampling, width: int, vocabulary: int
) -> KnownDistribution:
    # The token after the prompt is arbitrary: only the distribution before it is read.
    top = (await engine.score(prompt, (token,), sampling, top=min(width, vocabulary))).top
    assert top is not None
    return KnownDistribution.of(top, 0, whole=width >= vocabulary)
