"""Verification of a stored turn under the current policy, in one scoring pass.

The result is the beginning of a turn: the accepted tokens and the one drawn
after them, with all that a completion reports. The rule is in ``acceptance``.
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
    KnownLaw,
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

_WIDER = 16
"""How many times as many tokens of a distribution are asked for where those known were not enough. On two cores vLLM
reports 64 tokens of 151,936 in 37 ms, 1,024 in 56 ms, 16,384 in 305 ms and all of them in 2.5 s."""
_ROWS = 8
"""Most coins that a rejection needs: one for each width up to any vocabulary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioRule:
    """How tokens of a stored turn are kept: by the ratio of new to old probability."""

    lenience: float
    """Factor on the ratio; 1 is exact."""
    top: int
    """Most probable tokens to record at each position."""
    vocabulary: int
    """Size of the policy's vocabulary."""
    seed: int
    """Seed of the coins; used for nothing else."""


class Verification(NamedTuple):
    """The verified beginning of a turn."""

    head: Completion
    """Accepted tokens and, after a rejection, the one drawn there; its finish reason means nothing."""
    kept: int
    """Number of accepted tokens."""
    wider: int
    """Passes that asked for more of the policy's distribution after the rejection."""


async def verify(
    engine: ScoringEngine,
    prompt: tuple[int, ...],
    turn: StoredTurn,
    offered: Sequence[int],
    sampling: Sampling,
    rule: RatioRule,
    level: Level,
) -> Verification:
    """Keep the tokens of a stored turn that the current policy accepts.

    Args:
        prompt: Token ids before the turn.
        offered: Its first tokens, as many as may be emitted; at least one.
        sampling: How tokens are drawn now; the turn was drawn with the same transforms.
    """
    top, lenience = rule.top, rule.lenience
    scores = await engine.score(prompt, offered, sampling, top=top)
    assert scores.top is not None
    count = len(offered)
    coins = uniform(np.array(rule.seed, np.uint64), np.arange(count + _ROWS))
    tokens = np.array(offered, np.int64)
    kept = kept_tokens(turn, tokens, scores, coins[:count], lenience)
    exact = list(scores.logprobs[:kept])
    policy = list((scores.policy_logprobs or scores.logprobs)[:kept])
    passes, wider = 1, 0
    if kept < count:
        before = prompt + tuple(offered[:kept])
        now, width = KnownLaw.of(scores.top, kept), top
        drawn = redraw_known(now, turn, kept, float(coins[count]), lenience)
        while drawn.token == OTHER:
            wider, width = wider + 1, width * _WIDER
            known, now = now, await _law(engine, before, offered[kept], sampling, width, rule.vocabulary)
            drawn = redraw_wider(now, known, turn, kept, drawn.left, float(coins[count + wider]), lenience)
        token = drawn.token
        exact.append(float(np.log(now.p[now.ids == token][0])))
        passes += wider
        if _reshapes(sampling):
            policy += (await engine.score(before, (token,), sampling)).policy_logprobs or exact[-1:]
            passes += 1
        else:
            policy.append(exact[-1])
        tokens[kept] = token
    emitted = tokens[: len(exact)]
    tops = TopLogprobs(ids=scores.top.ids[: len(exact)], logprobs=scores.top.logprobs[: len(exact)])
    logprobs = tuple(exact)
    if lenience != 1.0:
        drawn_by, tops = behaviour_of(emitted, exact, turn, tops, lenience)
        logprobs = tuple(drawn_by.tolist())
    # A lenient rule has no sums: it is biased by design.
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
    """The monitors' sums over the tokens that an exact rule emitted."""
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
    """Whether the transforms change the distribution beyond the policy's at its temperature."""
    return sampling.top_p < 1 or sampling.top_k != -1 or sampling.min_p > 0 or sampling.repetition_penalty != 1


async def _law(
    engine: ScoringEngine, prompt: tuple[int, ...], token: int, sampling: Sampling, width: int, vocabulary: int
) -> KnownLaw:
    """The policy's distribution after ``prompt``, so many tokens of it; ``token`` is any token."""
    top = (await engine.score(prompt, (token,), sampling, top=min(width, vocabulary))).top
    assert top is not None
    return KnownLaw.of(top, 0, whole=width >= vocabulary)
