"""Memory of a model that verl's FSDP2 engine trains, on one GPU.

Weights, gradients and Adam's two moments are float32 and sharded among all GPUs (``model_dtype: fp32``, ``fsdp_size:
-1``): ZeRO stage 3 (Rajbhandari et al., ZeRO, 2020, section 5), with 4 + 4 + 8 bytes a parameter. Computation is in
bfloat16; a layer's weights are gathered before it runs, together with the next layer's. The output layer (or the tied
embedding, which FSDP2's root keeps gathered) counts on top, since its backward pass coincides with the logits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from turntree.agents.verl.memory.shapes import ModelShape

_LOGIT = 4  #: bytes a logit: bfloat16 twice, as output and gradient, or scaled by the temperature


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerMemory:
    """Memory of a model in training on one GPU, bytes."""

    shape: ModelShape
    gpus: int  #: GPUs that share the model's state
    tokens: int  #: tokens of a micro-batch of the update
    forward_tokens: int  #: tokens of a micro-batch without gradients
    weights_wait: bool  #: verl's ``param_offload``: weights are in host memory while unused
    moments_wait: bool  #: verl's ``optimizer_offload``: so are Adam's moments outside of the update
    streamed: bool  #: verl's ``offload_policy``: state stays on the host, where Adam runs; layers are copied to run
    checkpointing: bool  #: whether the backward pass recomputes each layer from its input
    logits: bool = True  #: false for a critic, which ends in one value

    @classmethod
    def read(cls, shape: ModelShape, *, gpus: int, tokens: int, forward_tokens: int, fsdp: Any, model: Any) -> Self:
        """Read a model's memory from verl's sections."""
        return cls(
            shape=shape,
            gpus=gpus,
            tokens=tokens,
            forward_tokens=forward_tokens,
            weights_wait=fsdp.param_offload,
            moments_wait=fsdp.optimizer_offload,
            streamed=fsdp.offload_policy,
            checkpointing=model.enable_gradient_checkpointing,
        )

    @property
    def state(self) -> int:
        """Return the bytes of this GPU's share of weights, of gradients, or of one of Adam's moments."""
        return 4 * self.shape.parameters // self.gpus

    @property
    def weights(self) -> int:
        return 0 if self.streamed else self.state

    @property
    def moments(self) -> int:
        return 0 if self.streamed else 2 * self.state

    @property
    def between(self) -> int:
        """Return the bytes that stay while the model is unused."""
        return (0 if self.weights_wait else self.weights) + self.waiting_moments

    @property
    def waiting_moments(self) -> int:
        return 0 if self.moments_wait else self.moments

    @property
    def forward(self) -> int:
        """Return the work space of a pass without gradients: gathered weights, a layer's tensors, logits."""
        return self._gathered + self.forward_tokens * (self.shape.tape + self._logits)

    @property
    def backward(self) -> int:
        """Return the work space of a pass with gradients.

        On top of ``forward``: inputs or tapes of all layers, gradients of one layer's tensors, and gradients of a
        layer's and the output layer's weights in bfloat16 and, for the reduction, in float32.
        """
        shape = self.shape
        kept = 2 * shape.hidden_size if self.checkpointing else shape.tape
        tensors = self.tokens * (kept * shape.num_hidden_layers + 2 * shape.tape + self._logits)
        return tensors + self._gathered + 6 * (shape.layer + self._output)

    @property
    def gradients(self) -> int:
        return 0 if self.streamed else self.state

    @property
    def step(self) -> int:
        # Adam takes the root of all second moments at once: DTensors use torch's foreach implementation
        # (``_multi_tensor_adam``). With ``offload_policy`` Adam runs on the host.
        return 0 if self.streamed else self.state  # the step's root

    @property
    def host(self) -> int:
        if self.streamed:
            return 4 * self.state
        return (self.state if self.weights_wait else 0) + (2 * self.state if self.moments_wait else 0)

    @property
    def _output(self) -> int:
        return self.shape.embedding if self.logits else 0

    @property
    def _gathered(self) -> int:
        return 2 * (2 * self.shape.layer + self._output)

    @property
    def _logits(self) -> int:
        return _LOGIT * self.shape.vocab_size if self.logits else 0
