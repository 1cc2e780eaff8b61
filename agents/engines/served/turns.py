from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any, Self
from uuid import uuid4

from turntree.agents.engines.protocol import Completion, DraftStats, Sampling, Scores, TurnRequest
from turntree.agents.engines.reverified import replay, reverifiable
from turntree.agents.engines.served.dialect import Dialect
from turntree.agents.engines.served.precomputed import PrecomputedRequests
from turntree.agents.engines.served.prompt_check import checked_prompt
from turntree.agents.engines.token_logprobs import check_scorable, reshapes, scores
from turntree.agents.errors import EngineAborted


class ServedTurns(PrecomputedRequests, ABC):
    """A ``ScoringEngine`` over the requests of an external engine, which a subclass sends."""

    #: weight updates abort all requests and hold back new ones, so a request is of the version at its end, not its
    #: start
    gated = False

    def __init__(
        self, dialect: Dialect, *, max_context: int | None, vocabulary: int | None, priorities: bool = False
    ) -> None:
        """Set the limits of the engine.

        Args:
            dialect: Writes its requests and reads its answers.
            max_context: Maximum tokens of prompt and response; ``None`` leaves the bound to the engine.
            vocabulary: Size of the model's vocabulary; ``None`` if unknown.
            priorities: Whether the engine schedules by priority, as precomputed turns need.
        """
        super().__init__(priorities=priorities, setting=dialect.priority_setting)
        self.max_context = max_context
        self.version = 0
        self._dialect = dialect
        self._vocabulary = vocabulary
        self._judging: bool | None = None

    @property
    def vocabulary(self) -> int:
        """Size of the model's vocabulary.

        Raises:
            ValueError: If it is unknown.
        """
        if self._vocabulary is None:
            raise ValueError("the server does not say how many tokens its model knows; give vocabulary=")
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

    async def _judges(self) -> bool:
        # whether the engine draws at the positions of a draft
        return True

    async def generate(self, request: TurnRequest) -> Completion:
        """Sample one turn.

        With a seed the turn depends only on policy and seed, and a draft sampled with the same seed is replayed: in one
        pass if that saves any (``reverified``), else by turntree's drafter. Other engines ignore the draft.

        Raises:
            UnsupportedSampling: If the engine cannot sample with these parameters.
            ValueError: If the prompt is empty or fills the context, or if a turn is precomputed and the engine does not
                schedule by priority.
        """
        self._check_ahead(request)
        request = self._fitting(request)
        # Decoding verifies drafts in a pass of its own, after that over the prompt, which can judge the whole draft.
        if reverifiable(request, passes_from=1) and await self._can_reverify(request.sampling):
            return await replay(request, self._judge, self._sample)
        return await self._sample(request)

    def _fitting(self, request: TurnRequest) -> TurnRequest:
        prompt = checked_prompt(request.prompt_ids, self.max_context, self._vocabulary)
        sampling, known = request.sampling, range(self._vocabulary or 1 << 31)
        draft = tuple(takewhile(known.__contains__, map(int, request.draft)))
        if self.max_context is not None:
            room = self.max_context - len(prompt)
            sampling = replace(sampling, max_tokens=min(sampling.max_tokens, room))
            draft = draft[: room - self._dialect.spare]
        return replace(request, prompt_ids=prompt, draft=draft, sampling=sampling)

    async def _can_reverify(self, sampling: Sampling) -> bool:
        if self.max_context is None or not self._dialect.reverifies(
            sampling
        ):  # a prompt with the draft may be too long
            return False
        if self._judging is None:
            self._judging = await self._judges()
        return self._judging

    async def _judge(self, request: TurnRequest) -> Completion | None:
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
        name, begun = f"turntree-{uuid4().hex}", self.version
        with self._noted(name, ahead=ahead):
            answer = await self._ask(name, asked)
        version = self.version if self.gated else begun
        again = self._dialect.again(asked, answer)
        return (name, answer, version) if again is None else await self._run(again, ahead=ahead)

    async def score(
        self, prompt_ids: Sequence[int], token_ids: Sequence[int], sampling: Sampling, *, top: int = 0
    ) -> Scores:
        """Score given tokens by one pass over prompt and tokens.

        At temperature 1 without top-p, top-k and min-p the pass returns ``top`` numbers per token. Otherwise it returns
        the whole vocabulary's, from which the distribution is computed here.

        Args:
            prompt_ids: Token ids, shape (prompt,).
            token_ids: Tokens after the prompt, shape (tokens,).
            sampling: Its transforms define the distribution.
            top: Most probable tokens recorded at each position and after the last token.

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
            raise EngineAborted(f"scoring {len(tokens)} tokens stopped as requests were aborted")
        readings, cached = found
        return scores(readings, tokens, sampling, top=top, cached_tokens=cached, weights_version=version)
