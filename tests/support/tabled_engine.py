"""An exact engine over a function from contexts to probabilities."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from turntree.agents.engines.protocol import (
    Completion,
    DraftStats,
    FinishReason,
    Sampling,
    Scores,
    TopLogprobs,
    TurnRequest,
)
from turntree.spec_tree.rules.monitor import surprise
from turntree.spec_tree.rules.noise import exponential
from turntree.spec_tree.rules.transforms import Transforms, distribution
from turntree.spec_tree.rules.verify import race

Law = Callable[[tuple[int, ...]], NDArray[np.float64]]


async def others_first() -> None:
    await asyncio.sleep(0)


@dataclass
class TabledEngine:
    """Draw from ``policy(context)`` with seeded clocks, and count what a real engine would compute.

    Shorter turns finish first.
    """

    policy: Law
    version: int = 0
    context: int = 10_000
    passes: int = 0
    drawn: list[tuple[tuple[int, ...], Sampling]] = field(default_factory=list)
    scored: list[tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=list)
    fresh: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    edit: Callable[[Completion], Completion] = lambda turn: turn
    before_score: Callable[[], Awaitable[None]] = others_first

    def law(self, context: tuple[int, ...], sampling: Sampling, bare: bool = False) -> NDArray[np.float64]:
        settings = {name: getattr(sampling, name) for name in ("temperature", "top_p", "top_k", "min_p")}
        if bare:
            settings = {"temperature": sampling.temperature or 1.0}
        if Transforms(**settings) == Transforms():
            return self.policy(context)
        with np.errstate(divide="ignore"):
            return distribution(np.log(self.policy(context)), Transforms(**settings))

    async def generate(self, request: TurnRequest) -> Completion:
        prompt, sampling, draft = tuple(request.prompt_ids), request.sampling, request.draft
        assert len(prompt) < self.context, "no room is left to sample"
        seed = int(self.fresh.integers(1 << 63)) if sampling.seed is None else sampling.seed
        self.drawn.append((prompt, sampling))
        out: list[int] = []
        laws, bare = [], []
        matched = 0
        reason = FinishReason.LENGTH
        while len(out) < min(sampling.max_tokens, self.context - len(prompt)):
            p = self.law(prompt + tuple(out), sampling)
            clocks = exponential(np.array(seed, np.uint64), np.array(len(out)), np.arange(len(p)))
            token = int(race(p, clocks))
            matched += matched == len(out) and len(out) < len(draft) and draft[len(out)] == token
            laws.append(p)
            bare.append(self.law(prompt + tuple(out), sampling, bare=True)[token])
            out.append(token)
            await others_first()
            if token in sampling.stop_token_ids:
                reason = FinishReason.STOP
                break
        passes = len(out) - matched + (matched == len(out))
        self.passes += passes
        moments = surprise(np.array(laws))
        own = np.log([p[token] for p, token in zip(laws, out, strict=True)])
        sums = {"entropy": float(moments.entropy.sum()), "entropy_variance": float(moments.variance.sum())}
        counts = {"verify_steps": passes, "drafted": len(draft), "accepted": matched}
        turn = Completion(
            token_ids=tuple(out),
            logprobs=tuple(np.log(bare).tolist()),
            finish_reason=reason,
            draft=DraftStats(surprise=-float(own.sum()), **counts, **sums),
            weights_version=self.version,
            behaviour_logprobs=tuple(own.tolist()),
            top=_top(laws, sampling.top_logprobs),
        )
        return self.edit(turn)

    async def score(
        self, prompt_ids: Sequence[int], token_ids: Sequence[int], sampling: Sampling, *, top: int = 0
    ) -> Scores:
        context, tokens = tuple(prompt_ids), tuple(token_ids)
        self.scored.append((context, tokens))
        await self.before_score()
        self.passes += 1
        laws = [self.law(context + tokens[:position], sampling) for position in range(len(tokens) + 1)]
        bare = [self.law(context + tokens[:position], sampling, bare=True) for position in range(len(tokens))]
        moments = surprise(np.array(laws[:-1]))
        with np.errstate(divide="ignore"):
            return Scores(
                logprobs=tuple(float(np.log(p[t])) for p, t in zip(laws, tokens, strict=False)),
                policy_logprobs=tuple(float(np.log(p[t])) for p, t in zip(bare, tokens, strict=True)),
                entropy=tuple(moments.entropy.tolist()),
                entropy_variance=tuple(moments.variance.tolist()),
                top=_top(laws, top),
                weights_version=self.version,
            )


def _top(laws: list[NDArray[np.float64]], k: int) -> TopLogprobs | None:
    if k == 0:
        return None
    p = np.array(laws)
    order = np.argsort(-p, axis=1, kind="stable")[:, :k]
    with np.errstate(divide="ignore"):
        logprobs = np.log(np.take_along_axis(p, order, 1))
    return TopLogprobs(ids=order.astype(np.int32), logprobs=logprobs.astype(np.float32))


def random_policy(seed: int, vocabulary: int, concentration: float = 1.0) -> Law:
    """Return a policy with a Dirichlet distribution for every context, determined by the context alone."""
    laws: dict[tuple[int, ...], NDArray[np.float64]] = {}

    def policy(context: tuple[int, ...]) -> NDArray[np.float64]:
        if context not in laws:
            rng = np.random.default_rng([seed, *context])
            laws[context] = rng.dirichlet(np.full(vocabulary, concentration))
        return laws[context]

    return policy
