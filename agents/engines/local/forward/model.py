"""The policy: a Hugging Face decoder run through its own forward pass, with turntree's attention."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from turntree.agents.engines.local.forward import attention, compiled
from turntree.agents.engines.local.forward.linear import Blocked, block, join_norms
from turntree.agents.engines.local.forward.plan import attention_plan, plan_step
from turntree.agents.engines.local.forward.slots import SlotCache
from turntree.agents.errors import EngineFailed, MissingExtra
from turntree.spec_tree import DraftBatch


class Policy:
    """A causal language model that the engine can run."""

    def __init__(self, model: nn.Module) -> None:
        """Take over ``model``, a ``transformers`` causal language model; nothing else can run it afterwards.

        Replaces the model's attention, and on the CPU also its large linear layers and norms (``forward.linear``).

        Raises:
            ValueError: If the model's attention cannot be replaced.
        """
        self.model = model.eval().requires_grad_(False)
        config: Any = model.config
        if not getattr(model, "_supports_attention_backend", False):
            raise ValueError(
                f"the local engine must replace the attention of {type(model).__name__}, which does not support it "
                "(_supports_attention_backend is not set); use a decoder of the Llama, Qwen, Mistral, Gemma 3 or "
                "SmolLM families, or the vLLM or SGLang engine"
            )
        _register()
        model.set_attn_implementation(attention.NAME)  # type: ignore[operator]
        text = config.get_text_config()
        # whether some layers use sliding-window attention
        self.windows = bool(getattr(text, "sliding_window", None)) and getattr(text, "use_sliding_window", True)
        self.vocabulary = int(text.vocab_size)
        #: directory or Hugging Face id that the model was loaded from, or empty
        self.name = str(getattr(config, "_name_or_path", ""))
        self.end_tokens = _end_tokens(model)  #: end tokens named by the model's own settings
        self.max_positions = int(getattr(text, "max_position_embeddings", 0)) or None
        self._loaded_device = self.device
        self._blocked: dict[str, list[Blocked]] = {}  #: layers to fill when a weight is updated, by the weight's name
        #: a row uses the compiled attention loops if its tokens see at most this many columns in total; 0: no row does
        self.looped = 0
        dtype, heads = next(model.parameters()).dtype, int(text.num_attention_heads)
        if dtype in compiled.DTYPES:
            self.looped = compiled.MOST_SEEN * int(getattr(text, "num_key_value_heads", None) or heads) // heads
            if self._loaded_device.type == "cpu":
                compiled.warm_up(dtype)
                self._blocked = block(model)
                join_norms(model)

    @classmethod
    def load(cls, path: str | Path, *, dtype: str, device: str) -> Policy:
        """Load a model from a directory or a Hugging Face id.

        Raises:
            FileNotFoundError: If ``path`` looks like a directory and does not exist.
            ValueError: If ``device`` is a GPU and PyTorch sees none.
            EngineFailed: If the weights do not fit the configuration, or the memory.
        """
        torch_device = _device(device)
        try:
            from transformers import AutoModelForCausalLM
        except ImportError as error:
            raise MissingExtra("the local engine", "local") from error
        if not Path(path).is_dir() and (Path(path).is_absolute() or str(path).startswith(".")):
            raise FileNotFoundError(
                f"no model directory at {path}; give a directory in Hugging Face format or a model id"
            )
        try:
            model = AutoModelForCausalLM.from_pretrained(str(path), dtype=getattr(torch, dtype))
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            raise EngineFailed(f"the weights of {path} do not fit its config.json, or the memory: {reason}") from error
        moved: Any = model
        return cls(moved.to(torch_device))

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def weight_bytes(self) -> int:
        return sum(weight.nbytes for weight in self.model.parameters())

    @torch.inference_mode()
    def token_bytes(self) -> int:
        """Return the size of one token's keys and values, bytes, measured by running the model on one token."""
        one, none = np.ones(1, np.int64), np.zeros(1, np.int64)
        step = plan_step(slot=none, computed=none, pending=one, pending_tokens=[[0]], draft=DraftBatch.empty(1))
        cache = SlotCache(1, 1)
        plan = attention_plan(step, cache, windows=self.windows, device=self.device, looped=self.looped)
        zero = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.logits(zero, zero, zero, plan)
        return cache.bytes

    def leave_device(self) -> None:
        """Move the weights to the host's memory and release unused memory of the device."""
        self.model.to("cpu")
        if self._loaded_device.type == "cuda":
            torch.cuda.empty_cache()

    def return_to_device(self) -> None:
        self.model.to(self._loaded_device)

    def logits(self, tokens: Tensor, positions: Tensor, keep: Tensor, plan: attention.AttentionPlan) -> Tensor:
        """Run the model over the tokens of a step, laid out as one sequence; return logits, shape (n, vocabulary).

        ``tokens`` and ``positions`` are int64 of shape (tokens,); ``keep`` has the indices of the n tokens whose logits
        are needed.
        """
        output = self.model(
            input_ids=tokens[None],
            position_ids=positions[None],
            use_cache=False,
            logits_to_keep=keep,
            turntree_plan=plan,
        )
        logits: Tensor = output.logits[0]
        return logits

    def update(self, named: Iterable[tuple[str, Tensor]]) -> int:
        """Copy new weights by their names in ``state_dict`` in place and return the number of tensors.

        Raises:
            KeyError: If a name is unknown; the weights before it have been copied then.
            ValueError: If a shape differs.
        """
        own = self.model.state_dict()
        copied = 0
        with torch.no_grad():
            for name, value in named:
                target = own.get(name)
                if target is None:
                    near = difflib.get_close_matches(name, own, n=1)
                    hint = f"; did you mean {near[0]!r}?" if near else ""
                    raise KeyError(f"the model has no weight {name!r}{hint}")
                if target.shape != value.shape:
                    raise ValueError(f"weight {name!r} has shape {tuple(target.shape)}, got {tuple(value.shape)}")
                if name in self._blocked:
                    for layer in self._blocked[name]:
                        layer.fill(value)
                else:
                    target.copy_(value)
                copied += 1
        return copied


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "unset")
        raise ValueError(
            f"device={name} needs a GPU, but PyTorch {torch.__version__} sees none (CUDA_VISIBLE_DEVICES is "
            f"{visible!r}); use device=cpu or auto, or install a build of PyTorch for CUDA"
        )
    return device


def _end_tokens(model: nn.Module) -> frozenset[int]:
    for settings in (getattr(model, "generation_config", None), model.config):
        ends: Any = getattr(settings, "eos_token_id", None)
        if ends is not None:
            return frozenset(ends if isinstance(ends, (list, tuple)) else [ends])
    return frozenset()


def _register() -> None:
    from transformers import AttentionInterface

    AttentionInterface.register(attention.NAME, attention.attend)
