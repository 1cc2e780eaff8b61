"""Turns and scores over SGLang's requests, shared by the engine in this process and the client of a server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any
from uuid import uuid4

from turntree.agents.engines.judged import judgeable, replay
from turntree.agents.engines.precomputed import PrecomputedRequests
from turntree.agents.engines.prompt_check import checked_prompt
from turntree.agents.engines.protocol import Completion, FinishReason, Sampling, Scores, TurnRequest
from turntree.agents.engines.sglang.answers import completion, judged, scored
from turntree.agents.engines.sglang.parameters import judging_arguments, scoring_request, turn_arguments
from turntree.agents.engines.sglang.wire import JUDGES
from turntree.agents.engines.token_logprobs import check_scorable, reshapes, scores
from turntree.agents.errors import EngineAborted


class _NotJudged(Exception):
    """SGLang drew no tokens at the positions of a guess."""


_PRECOMPUTED = -1000
"""Priority of a precomputed turn's requests, below ``PRIORITIES`` by more than SGLang's threshold of preemption."""
PRIORITIES = {"enable_priority_scheduling": True, "default_priority_value": 0}
"""Arguments with which SGLang schedules by priority, higher numbers first; without the second one a request without a
number would come last."""


class SglangTurns(PrecomputedRequests, ABC):
    """A ``ScoringEngine`` over requests that a subclass sends."""

    priority_setting = "enable_priority_scheduling=true and default_priority_value=0"

    def __init__(
        self, *, max_context: int | None, vocabulary: int | None, speculates: bool, priorities: bool = False
    ) -> None:
        """Set the limits of the engine.

        Args:
            max_context: Most tokens of prompt and response together; ``None`` leaves the bound to SGLang.
            vocabulary: Size of the model's vocabulary; ``None`` if unknown.
            speculates: Whether the engine may verify drafts.
            priorities: Whether the engine runs with ``PRIORITIES``, as precomputed turns need.
        """
        super().__init__(priorities=priorities)
        self.max_context = max_context
        self.version = 0
        """Version of the policy's weights."""
        self._vocabulary = vocabulary
        self._speculates = speculates
        self._server_judges: bool | None = None

    @property
    def vocabulary(self) -> int:
        """Size of the model's vocabulary.

        Raises:
            ValueError: If it is not known.
        """
        if self._vocabulary is None:
            raise ValueError("the server does not say how many tokens its model knows; give vocabulary=")
        return self._vocabulary

    @abstractmethod
    async def _ask(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """SGLang's answer to one request, whose id is its ``rid``."""

    async def _states(self) -> Sequence[Mapping[str, Any]]:
        """Internal states of SGLang's schedulers; empty if they are not known."""
        return ()

    async def generate(self, request: TurnRequest) -> Completion:
        """Sample one turn.

        With a seed the turn depends on the policy and the seed alone, and a draft that was sampled with the same
        seed is replayed (``draws``), in one pass over all of it where that saves any (``judged``). A draft needs
        turntree's worker or hooks; any other engine ignores it.

        Raises:
            UnsupportedSampling: If SGLang cannot sample with these parameters.
            ValueError: If the prompt is empty, or leaves no room in the context, or a turn is for a later step and
                SGLang does not schedule by priority.
        """
        self._check_ahead(request)
        fitting = self._fitting(request)
        if fitting is None or not await self._judges(fitting):
            return await self._sample(request)
        try:
            turn = await replay(fitting, self._judge, self._sample)
        except _NotJudged:
            return await self._sample(request)
        # Those of judged tokens are known always, those of sampled ones not after cuts.
        whole = len(turn.behaviour_logprobs) == len(turn.token_ids)
        return turn if whole else replace(turn, behaviour_logprobs=())

    def _fitting(self, request: TurnRequest) -> TurnRequest | None:
        """The request within the context, its draft as far as it fits with one token more and is in the vocabulary;
        ``None`` if the context is not known."""
        if self.max_context is None:
            return None
        room = self.max_context - len(checked_prompt(request.prompt_ids, self.max_context, self._vocabulary))
        sampling = replace(request.sampling, max_tokens=min(request.sampling.max_tokens, room))
        known = range(self._vocabulary) if self._vocabulary else range(1 << 31)
        draft = tuple(takewhile(lambda token: token in known, map(int, request.draft[: room - 1])))
        return replace(request, draft=draft, sampling=sampling)

    async def _judges(self, request: TurnRequest) -> bool:
        """Whether the request's draft is judged in one pass; SGLang is asked once whether it can."""
        # Decoding verifies drafts in a pass of its own, after that over the prompt, which can judge the whole guess.
        if not judgeable(request, passes_from=1):
            return False
        if self._server_judges is None:
            self._server_judges = next((bool(state.get(JUDGES, False)) for state in await self._states()), False)
        return self._server_judges

    async def _judge(self, request: TurnRequest) -> Completion:
        version = self.version
        arguments = judging_arguments(request, speculates=self._speculates)
        answer = await self._run_request(arguments, ahead=request.ahead_for > 0)
        drawn = judged(answer, len(request.draft), request.sampling, weights_version=version)
        if drawn is None:
            raise _NotJudged
        return drawn

    async def _sample(self, request: TurnRequest, given: int = 0) -> Completion:
        """Sample a turn whose first ``given`` tokens stand at the end of the prompt."""
        prompt = checked_prompt(request.prompt_ids, self.max_context, self._vocabulary)
        version = self.version
        arguments = turn_arguments(
            replace(request, prompt_ids=prompt),
            room=None if self.max_context is None else self.max_context - len(prompt),
            speculates=self._speculates,
            vocabulary=self._vocabulary,
            given=given,
        )
        answer = await self._run_request(arguments, ahead=request.ahead_for > 0)
        return completion(answer, request.sampling, weights_version=version, vocabulary=self._vocabulary)

    async def _run_request(self, arguments: dict[str, Any], *, ahead: bool = False) -> dict[str, Any]:
        name = uuid4().hex
        later = {"priority": _PRECOMPUTED} if ahead else {}
        with self._noted(name, ahead=ahead):
            return await self._ask({**arguments, **later, "rid": name})

    async def score(
        self, prompt_ids: Sequence[int], token_ids: Sequence[int], sampling: Sampling, *, top: int = 0
    ) -> Scores:
        """Log-probabilities of given tokens, from one pass over prompt and tokens.

        At temperature 1 without top-p, top-k and min-p the pass returns ``top`` numbers a token; otherwise it returns
        the whole vocabulary's, from which the distribution is computed here.

        Args:
            prompt_ids: Token ids, shape (prompt,).
            token_ids: The tokens after the prompt, shape (tokens,).
            sampling: Its transforms define the distribution.
            top: Most probable tokens recorded at each position and after the last token.

        Raises:
            ValueError: If ``sampling`` has a penalty, the prompt is empty, or prompt and tokens do not leave room for
                one more token.
            EngineAborted: If all requests were aborted meanwhile.
        """
        check_scorable(sampling)
        prompt, tokens = checked_prompt(prompt_ids, self.max_context), [int(token) for token in token_ids]
        checked_prompt([*prompt, *tokens], self.max_context, self._vocabulary)
        version = self.version
        width = self.vocabulary if reshapes(sampling) else top
        answer = await self._run_request(scoring_request(prompt, tokens, width))
        info = answer["meta_info"]
        if (info.get("finish_reason") or {}).get("type") not in (FinishReason.LENGTH, FinishReason.STOP):
            raise EngineAborted(f"scoring {len(tokens)} tokens stopped as requests were aborted")
        return scores(
            scored(answer, len(tokens), width),
            tokens,
            sampling,
            top=top,
            cached_tokens=info.get("cached_tokens") or 0,
            weights_version=version,
        )
