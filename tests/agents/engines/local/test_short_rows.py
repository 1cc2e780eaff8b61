from dataclasses import replace

import numpy as np
import pytest
import torch
from draft_trees import random_trees
from transformers import LlamaConfig, LlamaForCausalLM

from turntree.agents.engines.local.forward import compiled
from turntree.agents.engines.local.forward.attention import attend
from turntree.agents.engines.local.forward.model import Policy
from turntree.agents.engines.local.forward.plan import StepPlan, attention_plan, plan_step
from turntree.agents.engines.local.forward.slots import SlotCache
from turntree.spec_tree import DraftBatch

SLOTS, COLUMNS, HEADS, KEY_HEADS, SIZE = 12, 96, 6, 2, 8
CPU = torch.device("cpu")


SHORT = 600  #: most columns that any row but the one with the long prompt sees


class Layer(torch.nn.Module):
    layer_idx = 0


def random_step(seed: int, rows: int = 5) -> StepPlan:
    rng = np.random.default_rng(seed)
    pending = rng.integers(1, 4, rows)
    pending[-1] = 40
    draft = random_trees(rng, rows, 8)
    return plan_step(
        slot=np.sort(rng.permutation(SLOTS)[:rows]),
        computed=rng.integers(0, 40, rows),
        pending=pending,
        pending_tokens=[[1] * n for n in pending.tolist()],
        draft=draft,
    )


def alone(step: StepPlan, row: int) -> StepPlan:
    nodes = slice(int(step.draft.offsets[row]), int(step.draft.offsets[row + 1]))
    draft = DraftBatch(
        tokens=step.draft.tokens[nodes], parents=step.draft.parents[nodes], depths=step.draft.depths[nodes],
        probabilities=step.draft.probabilities[nodes], offsets=np.array([0, nodes.stop - nodes.start]),
    )  # fmt: skip
    at = slice(row, row + 1)
    return plan_step(
        slot=step.slot[at], computed=step.computed[at], pending=step.pending[at],
        pending_tokens=[[1] * int(step.pending[row])], draft=draft,
    )  # fmt: skip


def mixed(step: StepPlan, new: torch.Tensor, *, short: bool, window: int | None = None) -> torch.Tensor:
    """Attend to new queries, keys and values, shape (tokens, 3, heads, size)."""
    cache = SlotCache(SLOTS, COLUMNS)
    query, key, value = (part.transpose(0, 1)[None] for part in new.unbind(1))
    torch.manual_seed(1)
    shape = SLOTS, KEY_HEADS, COLUMNS, SIZE
    kept, other = torch.randn(2, *shape, dtype=torch.float64).to(new.dtype)
    cache.layers[0] = kept, other
    plan = attention_plan(step, cache, windows=window is not None, device=CPU, looped=SHORT * short)
    few = slice(None, KEY_HEADS)
    return attend(Layer(), query, key[:, few], value[:, few], None, sliding_window=window, turntree_plan=plan)[0][0]


def tokens_of(step: StepPlan, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(len(step.tokens), 3, HEADS, SIZE, dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("seed", range(8))
def test_compiled_rows_attend_as_the_segments_do(seed: int, window: int | None) -> None:
    step = random_step(seed)
    new = tokens_of(step)
    segments, loops = (mixed(step, new, short=short, window=window) for short in (False, True))
    torch.testing.assert_close(loops, segments, rtol=0, atol=1e-12)


def test_nodes_that_do_not_see_their_ancestors_are_noticed() -> None:
    """Control of the test above."""
    step = random_step(0)
    new = tokens_of(step)
    blind = replace(step, ancestors=np.zeros_like(step.ancestors))
    assert len(step.branching) > 0
    assert not torch.allclose(mixed(blind, new, short=True), mixed(step, new, short=True), atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("threads", [1, 3])
def test_neither_the_rest_of_the_batch_nor_threads_change_a_bit_of_a_short_row(threads, dtype, monkeypatch):
    step = random_step(3)
    new = tokens_of(step, dtype)
    rows = range(len(step.slot) - 1)
    mine = [slice(int(step.start[row]), int(step.start[row + 1])) for row in rows]
    each = [mixed(alone(step, row), new[mine[row]], short=True) for row in rows]
    whole = mixed(step, new, short=True)
    monkeypatch.setattr(compiled, "_SHARE", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    together = mixed(step, new, short=True)
    assert torch.equal(together, whole)
    for row in rows:
        assert torch.equal(each[row], together[mine[row]])


def test_a_row_that_sees_a_column_of_its_neighbour_changes_with_it() -> None:
    """Control of the test above."""
    step = random_step(3)
    new = tokens_of(step)
    slot = step.slot.copy()
    slot[0] = slot[1]
    assert not torch.equal(mixed(replace(step, slot=slot), new, short=True)[0], mixed(step, new, short=True)[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 8, 500])
def test_scores_of_any_size_are_weighed_as_by_softmax(size: int, dtype: torch.dtype) -> None:
    step = random_step(4)
    new = tokens_of(step)
    new[:, 0] *= size
    right = mixed(step, new, short=False)
    torch.testing.assert_close(mixed(step, new.to(dtype), short=True).double(), right, rtol=0, atol=3e-5 * size)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nan_stays_nan(dtype: torch.dtype) -> None:
    step = random_step(0)
    new = tokens_of(step, dtype)
    new[0, 0, 0, 0] = float("nan")
    out = mixed(step, new, short=True)
    assert out[0, 0].isnan().all()
    assert not out[1:].isnan().any()


@pytest.mark.parametrize(
    ("dtype", "key_heads", "most"),
    [
        (torch.float32, 4, compiled.MOST_SEEN),
        (torch.float64, 2, compiled.MOST_SEEN // 2),
        (torch.bfloat16, 4, 0),
        (torch.float16, 4, 0),
    ],
)
def test_rows_are_compiled_in_single_and_double_precision(dtype: torch.dtype, key_heads: int, most: int) -> None:
    shape = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 8}
    config = LlamaConfig(num_attention_heads=4, num_key_value_heads=key_heads, **shape)
    assert Policy(LlamaForCausalLM(config).to(dtype)).looped == most
