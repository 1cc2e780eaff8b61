"""Attention over the slot cache, plugged into any Hugging Face decoder.

The model runs once over the flattened new tokens of all requests, as one sequence; only attention tells rows
(requests) apart. It writes the new keys and values into the slots. Each token sees its own row's earlier tokens, and
its ancestors in the row's draft tree. A step's ``AttentionPlan`` is passed as a keyword argument of the model.

Not supported, and refused: attention that is not softmax over keys (state-space layers), logit soft-capping and
attention sinks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from turntree.agents.engines.local.forward.compiled import CompiledRows
from turntree.agents.engines.local.forward.slots import SlotCache

NAME = "turntree"  #: name of the attention implementation in ``transformers``


@dataclass(slots=True, kw_only=True)
class Segment:
    """Rows of nearby slots, attended to in one call: their keys and values are one view of the cache."""

    first: int  #: first slot
    rows: int  #: number of slots, including rows without new tokens
    width: int  #: new tokens of the longest row
    length: int  #: most columns of the cache that a row sees
    flat: Tensor  #: indices of the segment's tokens among all tokens of the step, shape (tokens,)
    padded: Tensor | None  #: indices of these tokens in the padded layout (rows * width); ``None`` without padding
    mask: Tensor  #: 0 where a query sees a column, else minus infinity, shape (rows, width, length)
    #: position of the query minus that of the column, shape (rows, width, length); only for sliding windows
    distance: Tensor | None = None
    #: results of ``mask_for``
    _folded: dict[tuple[int, int, torch.dtype], Tensor] = field(default_factory=dict)

    def mask_for(self, groups: int, window: int | None, dtype: torch.dtype) -> Tensor:
        """Return the mask with ``groups`` query heads folded into the queries and the sliding window applied.

        Shape (rows, 1, groups * width, length).
        """
        key = (groups, window or 0, dtype)
        if key not in self._folded:
            mask = self.mask
            if window and self.distance is not None:
                mask = mask.masked_fill(self.distance >= window, float("-inf"))
            self._folded[key] = mask.to(dtype).repeat(1, groups, 1)[:, None]
        return self._folded[key]


@dataclass(slots=True, kw_only=True)
class AttentionPlan:
    """Where a step's tokens go in the cache, and which columns they see."""

    cache: SlotCache
    slots: Tensor  #: slot of each token, shape (tokens,)
    columns: Tensor  #: column of each token in its slot, shape (tokens,)
    segments: list[Segment]  #: together cover each token once that the compiled loops do not attend for
    compiled: CompiledRows | None = None  #: all rows, if compiled loops attend for some (CPU, float32 or float64)


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    turntree_plan: AttentionPlan | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend in one layer; ``transformers`` calls this function.

    Shapes: ``query`` (1, heads, tokens, head size), ``key`` and ``value`` (1, key heads, tokens, size); the returned
    values (1, tokens, heads, value size). ``sliding_window`` in ``kwargs`` counts the positions that a token sees,
    including its own.

    Raises:
        NotImplementedError: If the layer needs a soft cap or attention sinks.
        RuntimeError: If the model was not called by the engine.
    """
    if kwargs.get("softcap") is not None or kwargs.get("s_aux") is not None:
        raise NotImplementedError(
            "the local engine does not support logit soft-capping or attention sinks, which "
            f"{type(module).__name__} needs; use the vLLM or SGLang engine for this model"
        )
    if turntree_plan is None:
        raise RuntimeError(
            f"the attention implementation {NAME!r} runs only inside the local engine; load the model with "
            "attn_implementation='sdpa' for anything else"
        )
    plan, window = turntree_plan, kwargs.get("sliding_window")
    heads, tokens = query.shape[1], query.shape[2]
    key_heads, groups = key.shape[1], heads // key.shape[1]
    keys, values = plan.cache.layer(int(module.layer_idx), key, value)  # type: ignore[arg-type]
    queries, new_keys, new_values = (one[0].transpose(0, 1) for one in (query, key, value))
    if plan.compiled is not None:
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        mixed = plan.compiled.attend(queries, new_keys, new_values, keys, values, scale=scale, window=window)
    else:
        keys[plan.slots, :, plan.columns] = new_keys
        values[plan.slots, :, plan.columns] = new_values
        mixed = value.new_empty(tokens, heads, value.shape[-1])
    for part in plan.segments:
        slots = slice(part.first, part.first + part.rows)
        if part.padded is None:
            rows = queries[part.flat]
        else:
            rows = queries.new_zeros(part.rows * part.width, heads, query.shape[-1])
            rows[part.padded] = queries[part.flat]
        folded = rows.view(part.rows, part.width, key_heads, groups, -1).permute(0, 2, 3, 1, 4)
        out = torch.nn.functional.scaled_dot_product_attention(
            folded.reshape(part.rows, key_heads, groups * part.width, -1),
            keys[slots, :, : part.length],
            values[slots, :, : part.length],
            attn_mask=part.mask_for(groups, window, query.dtype),
            scale=scaling,
        )
        out = out.view(part.rows, key_heads, groups, part.width, -1).permute(0, 3, 1, 2, 4)
        out = out.reshape(part.rows * part.width, heads, -1)
        mixed[part.flat] = out if part.padded is None else out[part.padded]
    return mixed[None], None
