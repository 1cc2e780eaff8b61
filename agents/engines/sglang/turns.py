"""Turns and scores over SGLang's requests, shared by the engine in this process and the client of a server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from turntree.agents.engines.prompt_check import checked_prompt
from turntree.agents.engines.protocol import Completion, FinishReason, Sampling, Scores, TurnRequest
from turntree.agents.engines.sglang.answers import completion, scored
from turntree.agents.engines.sglang.parameters import scoring_request, turn_arguments
from turntree.agents.engines.token_logprobs import check_scorable, reshapes, scores
from turntree.agents.errors import EngineAborted


class SglangTurns(ABC):
    """A ``ScoringEngine`` over requests that a subclass sends."""

    def __init__(self, *, max_context: int | None, vocabulary: int | None, speculates: bool) -> None:
        """Set the limits of the engine.

        Args:
            max_context: Most tokens of prompt and response together; ``None`` leaves the bound to SGLang.
            vocabulary: Size of the model's vocabulary; ``None`` if unknown.
            speculates: Whether the engine may verify drafts.
        """
        self.max_context = max_context
        self.version = 0
        """Version of the policy's weights."""
        self._vocabulary = vocabulary
        self._speculates = speculates

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
        """SGLang's answer to one request."""

    async def generate(self, request: TurnRequest) -> Completion:
        """Sample one turn.

        With a seed the turn depends on the policy and the seed alone, and a draft that was sampled with the same
        seed is replayed (``draws``). A draft needs turntree's worker; any other ignores it.

        Raises:
            UnsupportedSampling: If SGLang cannot sample with these parameters.
            ValueError: If the prompt is empty, or leaves no room in the context.
        """
        prompt = checked_prompt(request.prompt_ids, self.max_context)
        version = self.version
        arguments = turn_arguments(
            replace(request, prompt_ids=prompt),
            room=None if self.max_context is None else self.max_context - len(prompt),
            speculates=self._speculates,
            vocabulary=self._vocabulary,
        )
        answer = await self._ask(arguments)
        return completion(answer, request.sampling, weights_version=version, vocabulary=self._vocabulary)

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
        checked_prompt([*prompt, *tokens], self.max_context)
        version = self.version
        width = self.vocabulary if reshapes(sampling) else top
        answer = await self._ask(scoring_request(prompt, tokens, width))
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
