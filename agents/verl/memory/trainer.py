"""Memory of a model that verl's FSDP2 engine trains, on one GPU.

Weights, gradients and Adam's two moments are float32 and sharded among all GPUs (``model_dtype: fp32``, ``fsdp_size:
-1``): ZeRO stage 3 (Rajbhandari et al., ZeRO, 2020, section 5), with 4 + 4 + 8 bytes per parameter. Computation is in
bfloat16. FSDP2 gathers the weights of a layer and of the next layer before the layer runs. The gathered output layer
(or tied embedding, which FSDP2's root keeps gathered) is added, because its backward pass runs while the logits exist.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from turntree.agents.verl.memory.shapes import ModelShape

_LOGIT = 4  #: bytes per logit: two bfloat16 tensors, the logits and their gradient (or the tempered logits)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerMemory:
    """Memory of a model in training on one GPU, bytes."""

    shape: ModelShape
    gpus: int  #: GPUs that share the model's state
    tokens: int  #: tokens of a micro-batch of the update
    forward_tokens: int  #: tokens of a micro-batch without gradients
    weights_wait: bool  #: verl's ``param_offload``: weights wait in host memory while unused
    moments_wait: bool  #: verl's ``optimizer_offload``: Adam's moments wait in host memory outside of the update
    streamed: bool  #: verl's ``offload_policy``: state and Adam are on the host; layers are copied to the GPU to run
    checkpointing: bool  #: whether the backward pass recomputes each layer from its input
    logits: bool = True  #: false for a critic, which outputs one value per token

    @classmethod
    def read(cls, shape: ModelShape, *, gpus: int, tokens: int, forward_tokens: int, fsdp: Any, model: Any) -> Self:
        """Read the fields from verl's sections: ``fsdp`` of the actor or critic, and its ``model``."""
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
        """Return the bytes that stay on the GPU while the model is unused."""
        return (0 if self.weights_wait else self.weights) + self.waiting_moments

    @property
    def waiting_moments(self) -> int:
        return 0 if self.moments_wait else self.moments

    @property
    def forward(self) -> int:
        """Return the bytes of a pass without gradients: gathered weights, one layer's tensors, logits."""
        return self._gathered + self.forward_tokens * (self.shape.tape + self._logits)

    @property
    def backward(self) -> int:
        """Return the bytes of a pass with gradients.

        Beyond ``forward``, the pass keeps each layer's input (with checkpointing) or tape (all tensors that autograd
        keeps). It also holds the gradients of one layer's tensors, and the weight gradients of one layer and the output
        layer: in bfloat16 and, for the reduction, in float32.
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
        # The extra memory of Adam's step: the square roots of all second moments at once, because DTensors use torch's
        # foreach implementation (``_multi_tensor_adam``). With ``offload_policy`` Adam runs on the host.
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
