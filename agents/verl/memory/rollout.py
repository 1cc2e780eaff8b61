"""Memory of the rollout engine on one GPU, awake and asleep.

An engine takes a share of the GPU (``gpu_memory_utilization``) for weights, keys and values. vLLM's share includes
activations and captured graphs (``determine_available_memory``). Verifying drafts needs memory beyond the share: vLLM
profiles one token per request (``gpu_model_runner.py``, ``_dummy_sampler_run``); SGLang and the local engine do not
profile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omegaconf import OmegaConf

from turntree.agents.engines.sglang.settings import SglangSettings, graph_sizes
from turntree.agents.verl.config.settings import EngineSettings
from turntree.agents.verl.memory.shapes import ModelShape

# Float32 tensors of the logits' shape in a verifying pass: logits, processed logits, and probabilities or noise.
_VERIFIED = 3
# Prompt tokens of a pass: verl's ``max_num_batched_tokens``, SGLang's ``chunked_prefill_size`` on a GPU with 80 GB.
_CHUNK = 8192
_WORKSPACE = 512 * 2**20  #: SGLang's ``SGLANG_FLASHINFER_WORKSPACE_SIZE`` for Qwen2, bytes; all widths share it
#: a FlashInfer wrapper's ``_int_workspace_buffer``, bytes; each width and captured batch size has its own
_PLAN = 8 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutMemory:
    """Memory of an engine on one GPU, bytes."""

    share: int  #: weights, keys and values while awake; vLLM's share includes the activations
    weights: int  #: part of ``share``
    verification: int  #: tensors of a pass that verifies drafts
    buffers: int  #: SGLang's graphs and attention outside of ``share``, kept while asleep
    activations: int  #: of a pass over prompts
    profiled: bool  #: whether ``share`` includes the activations
    token: int  #: keys and values of one token
    context: int  #: tokens of the longest episode

    @property
    def awake(self) -> int:
        """Return the bytes held while sampling."""
        return self.share + self.verification + self.buffers + (0 if self.profiled else self.activations)

    @property
    def tokens(self) -> int:
        """Return how many tokens' keys and values fit."""
        return max(0, self.share - self.weights - (self.activations if self.profiled else 0)) // self.token


def rollout_memory(config: Any, shape: ModelShape, gpu: int) -> RolloutMemory:
    """Return the memory of the configured engine on a GPU of ``gpu`` bytes."""
    rollout = config.actor_rollout_ref.rollout
    ranks = rollout.tensor_model_parallel_size
    settings = EngineSettings.of(rollout)
    width = 1 if settings.speculation is None else 1 + settings.speculation.max_nodes
    batch = rollout.max_num_seqs
    context = rollout.max_model_len or rollout.prompt_length + rollout.response_length
    sglang = rollout.name == "sglang"
    graphs = 0
    if sglang and not rollout.enforce_eager:
        own = OmegaConf.select(rollout, "engine_kwargs.sglang.cuda_graph_max_bs")
        graphs = sglang_buffers(shape, batch=batch, captured=own or batch, width=width, context=context)
    copies = _VERIFIED - bool(graphs)  # captured graphs keep the logits in ``buffers``
    return RolloutMemory(
        share=int(rollout.gpu_memory_utilization * gpu),
        weights=2 * shape.parameters // ranks,
        verification=copies * 4 * batch * width * shape.vocab_size,
        buffers=graphs + (_WORKSPACE if sglang else 0),
        activations=_CHUNK * shape.tape // ranks,
        profiled=rollout.name == "vllm",
        token=2 * 2 * shape.kv_width * shape.num_hidden_layers // ranks,
        context=context,
    )


def sglang_buffers(
    shape: ModelShape, *, batch: int, captured: int, width: int, context: int, widths: tuple[int, ...] | None = None
) -> int:
    """Return the bytes that SGLang 0.5.12 allocates before it serves, without FlashInfer's workspace.

    For each width (tokens per request in a pass): FlashInfer's cache indices (int32) and mask flags (uint8),
    ``max_bs x width x context`` each (``FlashInferAttnBackend.init_cuda_graph_state``), and a plan for each captured
    batch size. For all widths: the logits in float32 (``DecodeInputBuffers``, shared by name) and each request's cache
    positions (``ReqToTokenPool``).
    SGLang's memory saver frees none of these tensors.

    Args:
        batch: ``max_running_requests``.
        captured: ``cuda_graph_max_bs``.
        width: Maximum tokens of a request in a pass: 1 + draft tokens.
        context: ``context_length``.
        widths: Widths with graphs; ``None``: the widths of turntree's worker on an accelerator.
    """
    rows = min(captured, batch)
    each = SglangSettings().widths_within(width, device="cuda") if widths is None else widths
    index = sum(rows * own * context * (4 + 1) for own in each)
    plans = (len(each) * len(graph_sizes(rows)) if width > 1 else captured_sizes(rows)) * _PLAN
    return index + plans + rows * width * shape.vocab_size * 4 + batch * (context + 4) * 4


def captured_sizes(most: int) -> int:
    """Count the batch sizes that SGLang captures without drafts (``ServerArgs._generate_cuda_graph_batch_sizes``).

    >>> captured_sizes(4), captured_sizes(256)
    (3, 36)
    """
    sizes = {1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 512, 16), *range(512, most + 1, 32), most}
    return sum(size <= most for size in sizes)
