"""Conversion of turns to SGLang's requests, for an engine in this process, a remote server and verl's server."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from turntree.agents.engines.protocol import Completion, FinishReason, Sampling, TurnRequest
from turntree.agents.engines.request_wire import turn_entries
from turntree.agents.engines.served.dialect import UnsupportedSampling, sampling_fields
from turntree.agents.engines.sglang import answers
from turntree.agents.engines.sglang.wire import OURS, REVERIFIES
from turntree.agents.engines.token_logprobs import TokenLogprobs

_IDLE_SECONDS = 60.0  #: seconds that running requests may take to end before the cache is emptied
_RECORDED = 64  #: number of most probable tokens to request if the distribution after top-p or min-p must be computed
#: Arguments with which SGLang schedules by priority, higher numbers first. Without the second argument, requests that
#: name no priority would come last.
PRIORITIES = {"enable_priority_scheduling": True, "default_priority_value": 0}


class SglangDialect:
    """The ``Dialect`` of SGLang: the arguments of a request except its id."""

    priority_setting: ClassVar[str] = "enable_priority_scheduling=true and default_priority_value=0"
    spare: ClassVar[int] = 1  #: SGLang always samples one token after a re-verified draft
    #: Priority of precomputed turns (generated before their caller asks). The default priority is higher by more than
    #: SGLang's preemption threshold, so other requests may preempt them.
    precomputed: ClassVar[int] = -1000

    def __init__(self, *, speculates: bool, vocabulary: int | None) -> None:
        self.speculates = speculates
        self.vocabulary = vocabulary

    def reverifies(self, sampling: Sampling) -> bool:
        return True

    def turn(self, request: TurnRequest, given: int) -> dict[str, Any]:
        sampling = request.sampling
        penalties = (sampling.repetition_penalty != 1, sampling.presence_penalty != 0, sampling.frequency_penalty != 0)
        if self.speculates and any(penalties):
            raise UnsupportedSampling(
                "SGLang applies the same penalties to all nodes of a draft tree; got repetition_penalty="
                f"{sampling.repetition_penalty}, presence_penalty={sampling.presence_penalty}, frequency_penalty="
                f"{sampling.frequency_penalty}; use 1, 0 and 0, or an engine without speculation (draft_tokens=0)"
            )
        return {
            "input_ids": list(request.prompt_ids),
            "sampling_params": {
                **sampling_fields(sampling),
                "top_k": sampling.top_k,
                "max_new_tokens": sampling.max_tokens,
                "custom_params": {OURS: True, **turn_entries(request, given=given)},
            },
            "return_logprob": True,
            "top_logprobs_num": self._recorded(sampling),
        } | ({"priority": self.precomputed} if request.precomputed_for else {})

    def reverify(self, request: TurnRequest) -> dict[str, Any]:
        # The draft becomes the end of the prompt, and SGLang samples one token after it.
        prompt, turn_draft = list(request.prompt_ids), list(request.draft)
        with_draft = replace(
            request, prompt_ids=[*prompt, *turn_draft], sampling=replace(request.sampling, max_tokens=1)
        )
        arguments = self.turn(with_draft, 0)
        entries = turn_entries(request, given=len(turn_draft), reverified=True)
        arguments["sampling_params"]["custom_params"] = {OURS: True, **entries}
        # `drawing.reverify` returns each drawn token in place of the two most probable tokens.
        return arguments | {"logprob_start_len": len(prompt) - 1, "top_logprobs_num": 2}

    def scoring(self, whole: Sequence[int], known: int, top: int) -> dict[str, Any]:
        return {
            "input_ids": list(whole),
            "sampling_params": {"temperature": 1.0, "max_new_tokens": 1, "ignore_eos": True},
            "return_logprob": True,
            "logprob_start_len": known - 1,
            "top_logprobs_num": top,
        }

    def again(self, asked: Any, answer: Any) -> None:
        """Return ``None``: SGLang's answers are complete, so no request is repeated."""

    def completion(self, answer: Mapping[str, Any], sampling: Sampling) -> Completion:
        return answers.completion(answer, sampling, vocabulary=self.vocabulary)

    def drawn(self, answer: Mapping[str, Any], request: TurnRequest) -> Completion | None:
        return answers.reverified(answer, len(request.draft), request.sampling)

    def scored(self, answer: Mapping[str, Any], tokens: Sequence[int], top: int) -> tuple[TokenLogprobs, int] | None:
        info = answer["meta_info"]
        if (info.get("finish_reason") or {}).get("type") not in (FinishReason.LENGTH, FinishReason.STOP):
            return None
        return answers.scored(answer, len(tokens), top), info.get("cached_tokens") or 0

    def _recorded(self, sampling: Sampling) -> int:
        if not sampling.top_logprobs or not answers.cuts(sampling):
            return sampling.top_logprobs
        # If one token more than top_k is recorded, the recorded tokens include every kept token.
        count = max(sampling.top_logprobs, sampling.top_k + 1, _RECORDED)
        return count if self.vocabulary is None else min(count, self.vocabulary)


def reverifies_drafts(states: Sequence[Mapping[str, Any]]) -> bool:
    # `states` are the internal states of SGLang's schedulers; without turntree, the key is missing.
    return next((bool(state.get(REVERIFIES, False)) for state in states), False)


def wait_until(flushed: Callable[[], bool]) -> None:
    """Call ``flushed`` until it returns ``True``: SGLang refuses to empty its cache while requests run or just ended.

    Raises:
        TimeoutError: If running requests did not end.
    """
    deadline = time.monotonic() + _IDLE_SECONDS
    while not flushed():
        if time.monotonic() > deadline:
            raise TimeoutError(f"requests were still running after {_IDLE_SECONDS:.0f} s; abort them first")
        time.sleep(0.05)
