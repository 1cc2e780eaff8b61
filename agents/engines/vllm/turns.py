"""Turns and scores over vLLM's requests, shared by the engine in this process and verl's server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from turntree.agents.engines.prompt_check import checked_prompt
from turntree.agents.engines.protocol import Completion, DraftStats, Sampling, Scores, TurnRequest
from turntree.agents.engines.request_wire import request_entries
from turntree.agents.engines.token_logprobs import TokenLogprobs, check_scorable, reshapes, scores
from turntree.agents.engines.vllm.outputs import aborted, completion
from turntree.agents.engines.vllm.parameters import parameters, scoring_parameters
from turntree.agents.errors import EngineAborted


class VllmTurns(ABC):
    """A ``ScoringEngine`` over requests that a subclass sends. vLLM must run with
    ``logprobs_mode=processed_logprobs`` and ``max_logprobs=-1``."""

    def __init__(self, *, max_context: int, vocabulary: int, speculates: bool) -> None:
        """Set the limits of the engine.

        Args:
            max_context: Most tokens of prompt and response together.
            vocabulary: Size of the model's vocabulary.
            speculates: Whether the engine may verify drafts.
        """
        self.max_context = max_context
        self.vocabulary = vocabulary
        """Size of the model's vocabulary."""
        self.version = 0
        """Version of the policy's weights."""
        self._speculates = speculates

    @abstractmethod
    async def _ask(self, prompt: list[int], fields: dict[str, Any]) -> tuple[str, Any]:
        """The id and the final output of one request; ``None`` for the output of one that was never begun.

        Args:
            prompt: Token ids, shape (prompt,).
            fields: Of vLLM's ``SamplingParams``, see ``sampling_params``.
        """

    @abstractmethod
    async def _draft_stats(self, name: str, tokens: int) -> DraftStats:
        """The drafter's counters of a request that sampled so many tokens."""

    async def generate(self, request: TurnRequest) -> Completion:
        """Sample one turn.

        With a seed the turn depends on the policy and the seed alone, and a draft that was sampled with the same
        seed is replayed (``seeded_draws``). A draft needs turntree's drafter; any other ignores it.

        Raises:
            UnsupportedSampling: If vLLM cannot sample with these parameters.
            ValueError: If the prompt is empty, or leaves no room in the context.
        """
        sampling = request.sampling
        prompt = checked_prompt(request.prompt_ids, self.max_context)
        fields = parameters(sampling, speculates=self._speculates)
        fields["max_tokens"] = min(sampling.max_tokens, self.max_context - len(prompt))
        fields["extra_args"] = request_entries(state=request.state, seed=sampling.seed, draft=request.draft)
        version = self.version
        name, output = await self._ask(prompt, fields)
        if output is None or not output.outputs:
            return aborted(version)
        said = output.outputs[0]
        found = TokenLogprobs.from_flat(said.logprobs, sampling.top_logprobs)
        return completion(
            said.token_ids,
            found,
            said.finish_reason,
            sampling,
            draft=await self._draft_stats(name, len(said.token_ids)),
            cached_tokens=output.num_cached_tokens or 0,
            weights_version=version,
        )

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
        whole = checked_prompt((*prompt_ids, *token_ids), self.max_context)
        checked_prompt(prompt_ids, self.max_context)
        width = self.vocabulary if reshapes(sampling) else top
        fields = scoring_parameters(width)
        version = self.version
        # Keys and values may come from the cache as far as nothing there is scored: vLLM gives no log-probabilities
        # of cached tokens, and reports afterwards how many there were.
        output = (await self._ask(whole, {**fields, "skip_reading_prefix_cache": False}))[1]
        if output is not None and (output.num_cached_tokens or 0) >= len(prompt_ids):
            output = (await self._ask(whole, {**fields, "skip_reading_prefix_cache": True}))[1]
        if output is None or output.prompt_logprobs is None or not output.outputs or not output.outputs[0].token_ids:
            raise EngineAborted(f"scoring {len(token_ids)} tokens stopped as requests were aborted")
        given = TokenLogprobs.from_flat(output.prompt_logprobs, width, slice(len(prompt_ids), None))
        return scores(
            given.then(TokenLogprobs.from_flat(output.outputs[0].logprobs, width)),
            token_ids,
            sampling,
            top=top,
            cached_tokens=output.num_cached_tokens or 0,
            weights_version=version,
        )


def sampling_params(fields: dict[str, Any]) -> Any:
    """vLLM's ``SamplingParams`` of a request whose ids and log-probabilities alone are read, and at its end."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(**fields, detokenize=False, flat_logprobs=True, output_kind=RequestOutputKind.FINAL_ONLY)
