"""Shapes of models, from a folder's ``config.json`` or from a table for the shipped sizes.

Supported: dense decoders with gated feed-forward layers, such as Qwen2 and Llama. Biases in the query, key and value
projections are counted; Llama has none, a difference of less than 0.1 % of the parameters. Mixtures of experts are
refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from turntree.agents.verl.config.sections import ConfigError
from turntree.envs.data.json_files import read_json


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Sizes of a dense decoder, named as in its ``config.json``."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int = 0  #: 0: ``hidden_size`` divided among the heads
    tie_word_embeddings: bool = False

    @property
    def kv_width(self) -> int:
        """Return the size of a token's keys in a layer; its values have the same size."""
        return self.num_key_value_heads * self._head

    @property
    def embedding(self) -> int:
        """Return the number of parameters of the embedding; the output layer has as many."""
        return self.vocab_size * self.hidden_size

    @property
    def layer(self) -> int:
        """Return the number of parameters of a layer: attention with biases, gated feed-forward, two norms."""
        hidden, queries = self.hidden_size, self.num_attention_heads * self._head
        attention = (hidden + 1) * (queries + 2 * self.kv_width) + queries * hidden
        return attention + 3 * hidden * self.intermediate_size + 2 * hidden

    @property
    def parameters(self) -> int:
        embeddings = self.embedding * (1 if self.tie_word_embeddings else 2)
        return embeddings + self.num_hidden_layers * self.layer + self.hidden_size

    @property
    def tape(self) -> int:
        """Return the bytes that autograd keeps per token and layer, in bfloat16 with float32 norms.

        Counted as in Korthikanti et al. (Reducing Activation Recomputation in Large Transformer Models, 2022, section
        4.1), for a gated layer and flash attention, which keeps no scores. Of width ``hidden``: two norms' outputs,
        queries before and after rotation, the attention's output and the residual (2 bytes each), and the norms' inputs
        (4 bytes, twice). Of width ``kv``: keys before and after rotation, and values. Of the feed-forward width: four.
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


#: the models of the shipped sizes, as published in their ``config.json``
SHAPES = {
    "Qwen/Qwen2.5-0.5B-Instruct": _qwen(151936, 896, 4864, 24, 14, 2, tied=True),
    "Qwen/Qwen2.5-1.5B-Instruct": _qwen(151936, 1536, 8960, 28, 12, 2, tied=True),
    "Qwen/Qwen2.5-7B-Instruct": _qwen(152064, 3584, 18944, 28, 28, 4, tied=False),
    "Qwen/Qwen2.5-32B-Instruct": _qwen(152064, 5120, 27648, 64, 40, 8, tied=False),
}
_NEEDED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")


def shape_of(model: str) -> ModelShape:
    """Return the shape of a model without loading it or asking the Hugging Face Hub.

    Args:
        model: Folder with a ``config.json``, or a Hugging Face id of ``SHAPES``.
    """
    if model in SHAPES:
        return SHAPES[model]
    file = Path(model).expanduser() / "config.json"
    if not file.is_file():
        raise ConfigError(
            f"the shape of {model} is not known; give a folder with a config.json, or one of {', '.join(SHAPES)}"
        )
    try:
        values = read_json(file)
    except ValueError as error:
        raise ConfigError(f"{file} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{file} holds {values!r:.40}, expected an object")
    if any(key in values for key in ("num_experts", "num_local_experts", "n_routed_experts")):
        raise ConfigError(
            f"{file} describes a mixture of experts, expected a dense decoder; its memory is not estimated"
        )
    absent = [key for key in _NEEDED if key not in values]
    if absent:
        raise ConfigError(f"{file} has no {', '.join(absent)}, expected the keys of a dense decoder")
    heads = values["num_attention_heads"]
    return ModelShape(
        **{key: values[key] for key in _NEEDED},
        num_key_value_heads=values.get("num_key_value_heads") or heads,
        head_dim=values.get("head_dim") or 0,
        tie_word_embeddings=bool(values.get("tie_word_embeddings")),
    )
