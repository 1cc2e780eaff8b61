"""What one GPU holds of a model that verl's FSDP2 engine trains.

Weights, gradients and Adam's two moments are float32 and sharded among all GPUs (``model_dtype: fp32``, ``fsdp_size:
-1``): ZeRO stage 3 (Rajbhandari et al., ZeRO, 2020, section 5), with 4 + 4 + 8 bytes a parameter. What computes is
bfloat16: a layer's weights are gathered before it runs and the next layer's beside it. The output layer (the tied
embedding, which FSDP2's root keeps gathered) is counted beside both, as its backward pass is where logits are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from turntree.agents.verl.memory.shapes import ModelShape

_LOGIT = 4
"""Bytes a logit: bfloat16 twice, as it comes and as a gradient, or scaled by the temperature."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerMemory:
    """Memory of a model in training on one GPU, bytes."""

    shape: ModelShape
    """Shape of the model."""
    gpus: int
    """GPUs that share the model's state."""
    tokens: int
    """Tokens of a micro-batch of the update."""
    forward_tokens: int
    """Tokens of a micro-batch of a pass without gradients."""
    weights_wait: bool
    """verl's ``param_offload``: the weights are in the host's memory between the phases that use them."""
    moments_wait: bool
    """verl's ``optimizer_offload``: Adam's moments are there outside of the update."""
    streamed: bool
    """verl's ``offload_policy``: state stays in the host's memory, where Adam runs; layers are copied when they run."""
    checkpointing: bool
    """Whether a layer is computed again in the backward pass, and only its input is kept."""
    logits: bool = True
    """Whether the model ends in logits; a critic ends in one value."""

    @classmethod
    def read(cls, shape: ModelShape, *, gpus: int, tokens: int, forward_tokens: int, fsdp: Any, model: Any) -> Self:
        """The memory of a model, by verl's sections.

        Args:
            shape: Shape of the model.
            tokens: Tokens of a micro-batch of the update.
            forward_tokens: Tokens of a micro-batch of a pass without gradients.
        """
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
        """A float32 number for each parameter of this GPU's share: weights, gradients, or one of Adam's moments."""
        return 4 * self.shape.parameters // self.gpus

    @property
    def weights(self) -> int:
        """Sharded weights while they are used."""
        return 0 if self.streamed else self.state

    @property
    def moments(self) -> int:
        """Adam's moments in the update."""
        return 0 if self.streamed else 2 * self.state

    @property
    def between(self) -> int:
        """What stays while the model is not used."""
        return (0 if self.weights_wait else self.weights) + self.waiting_moments

    @property
    def waiting_moments(self) -> int:
        """Adam's moments outside of the update."""
        return 0 if self.moments_wait else self.moments

    @property
    def forward(self) -> int:
        """Work space of a pass without gradients: gathered weights, one layer's tensors, logits."""
        return self._gathered + self.forward_tokens * (self.shape.tape + self._logits)

    @property
    def backward(self) -> int:
        """Work space of a pass with gradients: as ``forward``, with inputs or tapes of all layers, gradients of one
        layer's tensors, and gradients of a layer's weights and the output layer's in bfloat16 and, to be reduced,
        in float32."""
        shape = self.shape
        kept = 2 * shape.hidden_size if self.checkpointing else shape.tape
        tensors = self.tokens * (kept * shape.num_hidden_layers + 2 * shape.tape + self._logits)
        return tensors + self._gathered + 6 * (shape.layer + self._output)

    @property
    def gradients(self) -> int:
        """Sharded gradients."""
        return 0 if self.streamed else self.state

    @property
    def step(self) -> int:
        """Adam's root of the second moments of all parameters at once: DTensors take torch's foreach implementation
        (``_multi_tensor_adam``); with ``offload_policy`` it runs on the host."""
        return 0 if self.streamed else self.state  # the step's root

    @property
    def host(self) -> int:
        """What the host's memory holds for this GPU."""
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
