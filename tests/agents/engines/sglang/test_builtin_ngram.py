"""The control of the test of laws: SGLang's own n-gram drafts move the law where they are padded, and it notices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cpu_sglang import CPU_ARGS, flush, prepare
from policy_law import PolicyLaw, chi_square
from tiny_llama import save_tiny_llama

from turntree.spec_tree.transforms import Transforms, law

pytestmark = pytest.mark.sglang

PROMPT, LENGTH, ROWS, ROUNDS = [1, 2, 3, 4], 2, 48, 20
PADDING = 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[Any]:
    prepare()
    sglang = pytest.importorskip("sglang", reason="needs SGLang; see make test-sglang")
    arguments = {**CPU_ARGS, "max_running_requests": ROWS}
    made = sglang.Engine(
        model_path=str(folder),
        skip_tokenizer_init=True,
        speculative_algorithm="NGRAM",
        speculative_num_draft_tokens=32,
        speculative_ngram_capacity=100_000,
        **arguments,
    )
    yield made
    made.shutdown()


def test_alike_siblings_that_fill_up_a_tree_move_the_law(engine, folder):
    """SGLang fills a tree up with children of the root that all say token 0, and its rule counts each of them."""
    drawn: Counter[tuple[int, ...]] = Counter()
    for _ in range(ROUNDS):
        flush(engine)  # the corpus forgets, so that there is nothing to draft and the tree is all padding
        sampling = {"temperature": 1.0, "max_new_tokens": LENGTH, "ignore_eos": True}
        out = engine.generate(input_ids=[PROMPT] * ROWS, sampling_params=sampling)
        drawn.update(tuple(o["output_ids"]) for o in out)
    exact = PolicyLaw(folder).turns(PROMPT, LENGTH, lambda logits: law(logits, Transforms()))
    first, second = (_marginal(exact, place) for place in range(LENGTH))
    assert chi_square(_marginal(drawn, 0), first) > 1e-3  # before any draft all is well
    assert chi_square(drawn, exact) < 1e-9
    assert _marginal(drawn, 1)[(PADDING,)] > 3 * ROWS * ROUNDS * second[(PADDING,)]


def _marginal(turns: Any, place: int) -> Any:
    """Of the token at one place, as turns of one token."""
    found: Counter[tuple[int, ...]] = Counter()
    for turn, weight in turns.items():
        found[turn[place : place + 1]] += weight
    return found
