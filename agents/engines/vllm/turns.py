"""Turns and scores over vLLM's requests, shared by the engine in this process and verl's server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any
from uuid import uuid4

from turntree.agents.engines.judged import judgeable, replay
from turntree.agents.engines.precomputed import PrecomputedRequests
from turntree.agents.engines.prompt_check import checked_prompt
from turntree.agents.engines.protocol import Completion, DraftStats, FinishReason, Sampling, Scores, TurnRequest
from turntree.agents.engines.request_wire import request_entries
from turntree.agents.engines.token_logprobs import TokenLogprobs, check_scorable, reshapes, scores
from turntree.agents.engines.vllm.outputs import aborted, completion
from turntree.agents.engines.vllm.parameters import parameters, scoring_parameters
from turntree.agents.errors import EngineAborted

_PRECOMPUTED = 1
"""Priority of a precomputed turn's requests; vLLM schedules higher numbers later, and gives all others 0."""


class VllmTurns(PrecomputedRequests, ABC):
    """A ``ScoringEngine`` over requests that a subclass sends. vLLM must run with
    ``logprobs_mode=processed_logprobs`` and ``max_logprobs=-1``."""

    priority_setting = "scheduling_policy=priority"

    def __init__(self, *, max_context: int, vocabulary: int, draft_tokens: int, priorities: bool = False) -> None:
        """Set the limits of the engine.

        Args:
            max_context: Most tokens of prompt and response together.
            vocabulary: Size of the model's vocabulary.
            draft_tokens: Greatest length of a draft that the engine verifies, 0 if it verifies none.
            priorities: Whether the engine schedules by priority, as precomputed turns need.
        """
        super().__init__(priorities=priorities)
        self.max_context = max_context
        self.vocabulary = vocabulary
        """Size of the model's vocabulary."""
        self.version = 0
        """Version of the policy's weights."""
        self._draft_tokens = draft_tokens

    @abstractmethod
    async def _ask(self, name: str, prompt: list[int], fields: dict[str, Any], priority: int) -> Any:
        """The final output of one request; ``None`` if it was never begun.

        Args:
            name: Id of the request.
            prompt: Token ids, shape (prompt,).
            fields: Of vLLM's ``SamplingParams``, see ``sampling_params``.
            priority: vLLM's.
        """

    @abstractmethod
    async def _draft_stats(self, name: str, tokens: int) -> DraftStats:
        """The drafter's counters of a request that sampled so many tokens."""

    async def generate(self, request: TurnRequest) -> Completion:
        """Sample one turn.

        With a seed the turn depends on the policy and the seed alone, and a draft that was sampled with the same
        seed is replayed (``seeded_draws``): in one pass over all of it where that saves any, else by turntree's
        drafter, if vLLM has it.

        Raises:
            UnsupportedSampling: If vLLM cannot sample with these parameters.
            ValueError: If the prompt is empty, or leaves no room in the context, or a turn is for a later step and
                vLLM does not schedule by priority.
        """
        self._check_ahead(request)
        prompt = checked_prompt(request.prompt_ids, self.max_context, self.vocabulary)
        room = min(request.sampling.max_tokens, self.max_context - len(prompt))
        known = tuple(takewhile(lambda token: 0 <= token < self.vocabulary, request.draft))
        request = replace(request, prompt_ids=prompt, draft=known, sampling=replace(request.sampling, max_tokens=room))
        # Decoding verifies drafts in a pass of its own, after that over the prompt, which can judge the whole guess.
        if judgeable(request, passes_from=1) and not request.sampling.min_p:
            return await replay(request, self._judge, self._sample)
        return await self._sample(request)

    async def _sample(self, request: TurnRequest, given: int = 0) -> Completion:
        """Sample a turn, or its rest after the ``given`` tokens at the end of the prompt."""
        sampling, prompt = request.sampling, list(request.prompt_ids)
        fields = parameters(sampling, speculates=self._draft_tokens > 0)
        fields["extra_args"] = request_entries(
            state=request.state, seed=sampling.seed, draft=request.draft, given=given
        )
        version = self.version
        name, output = await self._run_request(prompt, fields, ahead=request.ahead_for > 0)
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

    async def _judge(self, request: TurnRequest) -> Completion:
        """The token that the policy draws at each position of the draft; see ``judged_prompts``."""
        *given, _ = request.draft  # the last one's place is where the request samples
        fields = parameters(replace(request.sampling, max_tokens=1), speculates=self._draft_tokens > 0)
        fields["extra_args"] = request_entries(
            state=request.state,
            seed=request.sampling.seed,
            given=len(given),
            judged=True,
            most=request.sampling.max_tokens,
        )
        fields["prompt_logprobs"] = 0
        version, prompt = self.version, [*request.prompt_ids, *given]
        output = await self._passed(prompt, fields, known=len(request.prompt_ids), ahead=request.ahead_for > 0)
        if output is None or output.prompt_logprobs is None or not output.outputs or not output.outputs[0].token_ids:
            return aborted(version)
        judged, sampled = output.prompt_logprobs, output.outputs[0]
        logprobs = (*judged.logprobs[-len(given) :], sampled.logprobs.logprobs[0])
        return Completion(
            token_ids=(*judged.token_ids[-len(given) :], *sampled.token_ids),
            logprobs=logprobs,
            behaviour_logprobs=logprobs,
            finish_reason=FinishReason.LENGTH,
            cached_tokens=min(output.num_cached_tokens or 0, len(request.prompt_ids)),
            weights_version=version,
        )

    async def _passed(self, prompt: list[int], fields: dict[str, Any], *, known: int, ahead: bool = False) -> Any:
        """The output of one pass over a prompt with results at each position from that of token ``known`` on.

        Keys and values may come from the cache as far as nothing is asked for there: vLLM computes nothing at cached
        tokens, and reports afterwards how many there were.
        """
        _, output = await self._run_request(prompt, {**fields, "skip_reading_prefix_cache": False}, ahead=ahead)
        if output is not None and (output.num_cached_tokens or 0) >= known:
            _, output = await self._run_request(prompt, {**fields, "skip_reading_prefix_cache": True}, ahead=ahead)
        return output

    async def _run_request(self, prompt: list[int], fields: dict[str, Any], *, ahead: bool) -> tuple[str, Any]:
        """The id and the final output of one request."""
        name = f"turntree-{uuid4().hex}"
        with self._noted(name, ahead=ahead):
            return name, await self._ask(name, prompt, fields, _PRECOMPUTED if ahead else 0)

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
        whole = checked_prompt((*prompt_ids, *token_ids), self.max_context, self.vocabulary)
        checked_prompt(prompt_ids, self.max_context)
        width = self.vocabulary if reshapes(sampling) else top
        fields = scoring_parameters(width)
        version = self.version
        output = await self._passed(whole, fields, known=len(prompt_ids))
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


def schedules_by_priority(engine: Any) -> bool:
    """Whether vLLM's ``AsyncLLM`` gives the places of requests with a higher number to others."""
    return bool(engine.vllm_config.scheduler_config.policy == "priority")


def sampling_params(fields: dict[str, Any]) -> Any:
    """vLLM's ``SamplingParams`` of a request whose ids and log-probabilities alone are read, and at its end."""
    from vllm import SamplingParams

    return read_at_end(SamplingParams(**fields))


def read_at_end(parameters: Any) -> Any:
    """Let vLLM make a request's ids and log-probabilities alone, and give them at its end; texts that end it are looked
    for still. The tokens and numbers are the same.

    Args:
        parameters: vLLM's ``SamplingParams``, modified in place.
    """
    from vllm.sampling_params import RequestOutputKind

    parameters.output_kind = RequestOutputKind.FINAL_ONLY
    parameters.detokenize = bool(parameters.stop)
    parameters.flat_logprobs = True
    return parameters
