from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import takewhile
from typing import Any, Self
from uuid import uuid4

from turntree.agents.engines.protocol import Completion, DraftStats, Sampling, Scores, TurnRequest
from turntree.agents.engines.reverified import replay, reverifiable
from turntree.agents.engines.served.dialect import Dialect
from turntree.agents.engines.token_logprobs import check_scorable, reshapes, scores
from turntree.agents.errors import EngineAborted


class PrecomputedRequests:
    """Mix-in for engines with priority scheduling: turns sampled before they are needed run last, can be aborted."""

    def __init__(self, *, priorities: bool, setting: str) -> None:
        """Store whether the engine schedules by priority, and the setting that enables it, for messages."""
        self._priorities, self._setting = priorities, setting
        self._ahead: dict[str, None] = {}  #: ids of running precomputed requests, oldest first

    async def abort_precomputed(self, most: int | None = None) -> None:
        """Abort up to ``most`` (``None``: all) precomputed requests, newest first; they keep their tokens.

        A request that has not reached the engine yet may escape: call again until all have ended.
        """
        names = [*reversed(self._ahead)][:most]
        if names:
            await self._abort(names)

    async def _abort(self, names: Sequence[str]) -> None:
        # Unknown ids must be ignored.
        raise NotImplementedError

    def _check_ahead(self, request: TurnRequest) -> None:
        if request.precomputed_for and not self._priorities:
            raise ValueError(
                f"a turn precomputed for step {request.precomputed_for} needs an engine with priority scheduling, so "
                f"that it runs after all other turns; start the engine with {self._setting}"
            )

    @contextmanager
    def _noted(self, name: str, *, ahead: bool) -> Iterator[None]:  # keeps a precomputed request's id while it runs
        if ahead:
            self._ahead[name] = None
        try:
            yield
        finally:
            self._ahead.pop(name, None)


class ServedTurns(PrecomputedRequests, ABC):
    """A ``ScoringEngine`` over the requests of an external engine, which a subclass sends."""

    gated = False  #: whether weight updates abort all requests first, so that an answer has the version at its end

    def __init__(
        self, dialect: Dialect, *, max_context: int | None, vocabulary: int | None, priorities: bool = False
    ) -> None:
        """Set the limits of the engine; ``None`` for an unknown vocabulary, or if the engine bounds the context.

        ``priorities`` tells whether the engine schedules by priority, as precomputed turns need.
        """
        super().__init__(priorities=priorities, setting=dialect.priority_setting)
        self.max_context = max_context
        self.version = 0
        self._dialect = dialect
        self._vocabulary = vocabulary
        self._engine_reverifies: bool | None = None

    @property
    def vocabulary(self) -> int:
        """Size of the model's vocabulary.

        Raises:
            ValueError: If it is unknown.
        """
        if self._vocabulary is None:
            raise ValueError("the server does not report the size of its model's vocabulary; pass vocabulary=")
        return self._vocabulary

    def close(self) -> None:
        """Release what the engine holds. May be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _updated(self, version: int | None) -> None:
        self.version = self.version + 1 if version is None else version

    @abstractmethod
    async def _ask(self, name: str, asked: Any) -> Any:
        """Return the answer to one request as the dialect wrote it; ``None`` if the request never began."""

    async def _counters(self, name: str, tokens: int) -> DraftStats | None:
        # ``None``: the answer itself has the counters
        return None

    async def _reverifies(self) -> bool:
        # whether the engine draws at the positions of a draft
        return True

    async def generate(self, request: TurnRequest) -> Completion:
        """Sample one turn.

        With a seed the turn depends only on policy and seed, and a draft sampled with the same seed is replayed: in one
        pass if that saves passes (``reverified``), else by turntree's drafter. Without either, the draft is ignored.

        Raises:
            UnsupportedSampling: If the engine cannot sample with these parameters.
            ValueError: If the prompt is empty or fills the context, or if a turn is precomputed and the engine does not
                schedule by priority.
        """
        self._check_ahead(request)
        request = self._truncated(request)
        # The pass over the prompt can re-verify the whole draft; decoding would verify it only after that pass.
        if reverifiable(request, passes_from=1) and await self._can_reverify(request.sampling):
            return await replay(request, self._reverify, self._sample)
        return await self._sample(request)

    def _truncated(self, request: TurnRequest) -> TurnRequest:
        prompt = checked_prompt(request.prompt_ids, self.max_context, self._vocabulary)
        sampling, known = request.sampling, range(self._vocabulary or 1 << 31)
        draft = tuple(takewhile(known.__contains__, map(int, request.draft)))
        if self.max_context is not None:
            left = self.max_context - len(prompt)
            sampling = replace(sampling, max_tokens=min(sampling.max_tokens, left))
            draft = draft[: left - self._dialect.spare]
        return replace(request, prompt_ids=prompt, draft=draft, sampling=sampling)

    async def _can_reverify(self, sampling: Sampling) -> bool:
        # With an unknown context length, prompt and draft together might be too long.
        if self.max_context is None or not self._dialect.reverifies(sampling):
            return False
        if self._engine_reverifies is None:
            self._engine_reverifies = await self._reverifies()
        return self._engine_reverifies

    async def _reverify(self, request: TurnRequest) -> Completion | None:
        _, answer, version = await self._run(self._dialect.reverify(request), ahead=request.precomputed_for > 0)
        drawn = self._dialect.drawn(answer, request)
        return None if drawn is None else replace(drawn, weights_version=version)

    async def _sample(self, request: TurnRequest, given: int = 0) -> Completion:
        name, answer, version = await self._run(self._dialect.turn(request, given), ahead=request.precomputed_for > 0)
        turn = replace(self._dialect.completion(answer, request.sampling), weights_version=version)
        counters = None if answer is None else await self._counters(name, len(turn.token_ids))
        return turn if counters is None else replace(turn, draft=counters)

    async def _run(self, asked: Any, *, ahead: bool = False) -> tuple[str, Any, int]:
        # returns the request's id, its answer, and the version of the weights that gave it
        name, version_at_start = f"turntree-{uuid4().hex}", self.version
        with self._noted(name, ahead=ahead):
            answer = await self._ask(name, asked)
        version = self.version if self.gated else version_at_start
        again = self._dialect.again(asked, answer)
        return (name, answer, version) if again is None else await self._run(again, ahead=ahead)

    async def score(
        self, prompt_ids: Sequence[int], token_ids: Sequence[int], sampling: Sampling, *, top: int = 0
    ) -> Scores:
        """Score given tokens by one pass over prompt and tokens.

        At temperature 1 without top-p, top-k and min-p the engine returns ``top`` log-probabilities per token; else
        it returns one for each token of the vocabulary, and the distribution is computed here.

        Raises:
            ValueError: If ``sampling`` has a penalty, the prompt is empty, or no further token fits the context.
            EngineAborted: If all requests were aborted meanwhile.
        """
        check_scorable(sampling)
        known, tokens = len(checked_prompt(prompt_ids, self.max_context)), [int(token) for token in token_ids]
        whole = checked_prompt([*prompt_ids, *tokens], self.max_context, self._vocabulary)
        width = self.vocabulary if reshapes(sampling) else top
        _, answer, version = await self._run(self._dialect.scoring(whole, known, width))
        found = self._dialect.scored(answer, tokens, width)
        if found is None:
            raise EngineAborted(f"scoring {len(tokens)} tokens stopped: the request was aborted")
        readings, cached = found
        return scores(readings, tokens, sampling, top=top, cached_tokens=cached, weights_version=version)


def checked_prompt(tokens: Sequence[int], max_context: int | None, vocabulary: int | None = None) -> list[int]:
    """Return prompt and given tokens as Python integers, or raise before an engine's process sees them.

    Raises:
        ValueError: If there are no tokens, if no token can be sampled after them, or if a token is unknown, which would
            crash the engine's process.
    """
    if not tokens:
        raise ValueError("the prompt is empty; the policy needs at least one token")
    if max_context is not None and len(tokens) >= max_context:
        raise ValueError(
            f"prompt and given tokens are {len(tokens)}, max_context is {max_context}: no token is left to sample; "
            "raise max_context or shorten the dialogue"
        )
    found = [int(token) for token in tokens]
    last = (vocabulary or 1 << 31) - 1
    if min(found) < 0 or max(found) > last:
        strange = next(token for token in found if not 0 <= token <= last)
        raise ValueError(f"prompt and given tokens hold token {strange}, the model knows 0 to {last}")
    return found
