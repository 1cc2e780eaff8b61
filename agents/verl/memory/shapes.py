"""Shapes of models, from a folder's ``config.json`` or, for those that the shipped sizes name, from a table.

Dense decoders with gated feed-forward layers and biases in the projections of queries, keys and values: the Qwen2
and Llama families (Llama has no biases: less than 0.1 % of the parameters). Mixtures of experts are refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from turntree.agents.verl.config.sections import ConfigError
from turntree.envs.data.json_files import read_json


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Sizes of a dense decoder, in the words of its ``config.json``."""

    vocab_size: int
    """Tokens."""
    hidden_size: int
    """Width of the residual stream."""
    intermediate_size: int
    """Width of a feed-forward layer."""
    num_hidden_layers: int
    """Layers."""
    num_attention_heads: int
    """Heads of queries."""
    num_key_value_heads: int
    """Heads of keys and values."""
    head_dim: int = 0
    """Width of a head; 0: ``hidden_size`` shared among the heads."""
    tie_word_embeddings: bool = False
    """Whether the output layer is the embedding."""

    @property
    def kv_width(self) -> int:
        """Width of the keys of a token in a layer, and of the values."""
        return self.num_key_value_heads * self._head

    @property
    def embedding(self) -> int:
        """Parameters of the embedding, and of the output layer."""
        return self.vocab_size * self.hidden_size

    @property
    def layer(self) -> int:
        """Parameters of a layer: attention with biases, gated feed-forward, two norms."""
        hidden, queries = self.hidden_size, self.num_attention_heads * self._head
        attention = (hidden + 1) * (queries + 2 * self.kv_width) + queries * hidden
        return attention + 3 * hidden * self.intermediate_size + 2 * hidden

    @property
    def parameters(self) -> int:
        """Parameters in all."""
        embeddings = self.embedding * (1 if self.tie_word_embeddings else 2)
        return embeddings + self.num_hidden_layers * self.layer + self.hidden_size

    @property
    def tape(self) -> int:
        """Bytes that autograd keeps of a token in a layer, in bfloat16 with float32 in the norms.

        Counted as Korthikanti et al. do (Reducing Activation Recomputation in Large Transformer Models, 2022, section
        4.1), for a gated layer and flash attention, which keeps no scores: of width ``hidden`` two norms' outputs,
        queries before and after rotation, the output of attention and the residual (2 bytes) and the norms' inputs
        (4 bytes, twice); of width ``kv`` keys before and after, and values; four of the feed-forward width.
        """
        return 20 * self.hidden_size + 6 * self.kv_width + 8 * self.intermediate_size

    @property
    def _head(self) -> int:
        return self.head_dim or self.hidden_size // self.num_attention_heads


def _qwen(
    vocabulary: int, hidden: int, inner: int, layers: int, heads: int, kv_heads: int, *, tied: bool
) -> ModelShape:
    return ModelShape(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        tie_word_embeddings=tied,
    )


SHAPES = {
    "Qwen/Qwen2.5-0.5B-Instruct": _qwen(151936, 896, 4864, 24, 14, 2, tied=True),
    "Qwen/Qwen2.5-1.5B-Instruct": _qwen(151936, 1536, 8960, 28, 12, 2, tied=True),
    "Qwen/Qwen2.5-7B-Instruct": _qwen(152064, 3584, 18944, 28, 28, 4, tied=False),
    "Qwen/Qwen2.5-32B-Instruct": _qwen(152064, 5120, 27648, 64, 40, 8, tied=False),
}
"""The models of the shipped sizes, as published in their ``config.json``."""
_NEEDED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")


def shape_of(model: str) -> ModelShape:
    """The shape of a model, without loading it or asking a broker.

    Args:
        model: Folder with a ``config.json``, or a Hugging Face id of ``SHAPES``.

    Raises:
        ConfigError: If the shape is not known, or not that of a dense decoder.
    """
    if model in SHAPES:
        return SHAPES[model]
    file = Path(model).expanduser() / "config.json"
    if not file.is_file():
        raise ConfigError(
            f"the shape of {model} is not known; give a folder with a config.json, or one of {', '.join(SHAPES)}"
        )
    try:
        found = read_json(file)
    except ValueError as error:
        raise ConfigError(f"{file} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{file} holds {found!r:.40}, expected an object")
    if any(key in found for key in ("num_experts", "num_local_experts", "n_routed_experts")):
        raise ConfigError(f"{file} is of a mixture of experts, expected a dense decoder; its memory is not estimated")
    absent = [key for key in _NEEDED if key not in found]
    if absent:
        raise ConfigError(f"{file} has no {', '.join(absent)}, expected the keys of a dense decoder")
    heads = found["num_attention_heads"]
    return ModelShape(
        **{key: found[key] for key in _NEEDED},
        num_key_value_heads=found.get("num_key_value_heads") or heads,
        head_dim=found.get("head_dim") or 0,
        tie_word_embeddings=bool(found.get("tie_word_embeddings")),
    )
