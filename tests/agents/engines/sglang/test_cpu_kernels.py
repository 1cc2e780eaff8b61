"""The stand-ins for SGLang's kernels against the rules of spec_tree."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import numpy as np
import pytest
from cpu_sglang import STAND_INS
from draft_trees import random_trees

from turntree.agents.engines.sglang.worker.rows import TreeRows, tree_rows
from turntree.spec_tree import DraftBatch
from turntree.spec_tree.rules.transforms import Transforms, distribution
from turntree.spec_tree.rules.verify import point_mass_chain, root, sample_then_match

torch = pytest.importorskip("torch")
WIDTH = 6
VOCABULARY = 8


@pytest.fixture(scope="module")
def kernels() -> ModuleType:
    """The stand-in, without leaving its folder in the path: it holds a torchvision too."""
    sys.path.insert(0, str(STAND_INS))
    try:
        return importlib.import_module("sgl_kernel")
    finally:
        sys.path.remove(str(STAND_INS))


def trees(seed: int, rows: int = 4, *, least: int = 0) -> tuple[TreeRows, DraftBatch]:
    draft = random_trees(np.random.default_rng(seed), rows, WIDTH - 1, least=least)
    return tree_rows(draft, np.zeros(rows, np.int64), WIDTH), draft


def outputs(rows: int):
    return (
        torch.zeros(rows * WIDTH + 1, dtype=torch.int32),
        torch.full((rows, WIDTH), -1, dtype=torch.int32),
        torch.zeros(rows, dtype=torch.int32),
    )


def links(rows: TreeRows) -> dict[str, object]:
    return {
        "candidates": torch.from_numpy(rows.tokens),
        "retrive_index": torch.arange(rows.tokens.size).view(rows.tokens.shape),
        "retrive_next_token": torch.from_numpy(rows.child),
        "retrive_next_sibling": torch.from_numpy(rows.sibling),
    }


def sampled(kernels, rows: TreeRows, coins, last, p) -> list[list[int]]:
    """What each row emits by its coins, shape (rows, WIDTH), its last coin and the law at its nodes."""
    predicts, accepted, count = outputs(len(rows.tokens))
    kernels.tree_speculative_sampling_target_only(
        predicts,
        accepted,
        count,
        **links(rows),
        uniform_samples=torch.as_tensor(coins),
        uniform_samples_for_final_sampling=torch.as_tensor(last, dtype=torch.float64),
        target_probs=torch.as_tensor(p),
        draft_probs=torch.zeros(len(rows.tokens), WIDTH, VOCABULARY, dtype=torch.float64),
    )
    return emitted(predicts, accepted)


def emitted(predicts, accept_index) -> list[list[int]]:
    return [predicts[row[row >= 0].long()].tolist() for row in accept_index]


@pytest.mark.parametrize("seed", range(20))
def test_a_walk_down_drawn_tokens_is_sample_then_match(kernels, seed):
    rows, draft = trees(seed)
    said = np.random.default_rng(seed).integers(0, VOCABULARY, rows.tokens.shape)  # 0 is what padding says
    predicts, accepted, count = outputs(4)
    kernels.verify_tree_greedy(predicts, accepted, count, **links(rows), target_predict=torch.from_numpy(said))

    def draw(alive, nodes, depth):
        return said[alive, nodes - root(draft)[alive]], np.zeros(len(alive))

    wanted = sample_then_match(draft, draw, np.full(4, WIDTH), lambda rows, tokens: np.zeros(len(rows), bool))
    assert (count + 1).tolist() == wanted.emitted.tolist()
    assert emitted(predicts, accepted) == [wanted.tokens[:n, row].tolist() for row, n in enumerate(wanted.emitted)]


@pytest.mark.parametrize("seed", range(20))
def test_coins_on_a_chain_are_the_point_mass_rule(kernels, seed):
    rng = np.random.default_rng(seed)
    drafted = rng.integers(0, VOCABULARY, WIDTH - 1)
    p = rng.dirichlet(np.ones(VOCABULARY) * 2, WIDTH)
    p[np.arange(WIDTH - 1), drafted] += 1.0
    p /= p.sum(-1, keepdims=True)
    coins, last = rng.random(WIDTH), float(rng.random())
    parents = np.arange(-1, WIDTH - 1)
    chain = TreeRows(
        tokens=np.concatenate([[0], drafted])[None],
        seen=np.tril(np.ones((1, WIDTH, WIDTH), bool)),
        depths=(parents + 1)[None],
        child=np.append(np.arange(1, WIDTH), -1)[None],
        sibling=np.full((1, WIDTH), -1),
    )

    def inverse(distribution):
        return int(np.searchsorted(np.cumsum(distribution), last * distribution.sum(), side="right"))

    assert sampled(kernels, chain, coins[None], [last], p[None]) == [
        point_mass_chain(p, drafted, coins[: WIDTH - 1], inverse)
    ]


def first_tokens(kernels, siblings: list[int], p: np.ndarray, *, cells: int = 50) -> np.ndarray:
    """The law of the first token of a row whose root has the children ``siblings``, over a grid of coins."""
    coin, last = (g.ravel() for g in np.meshgrid(*[(np.arange(cells) + 0.5) / cells] * 2))
    count = len(siblings)
    tokens = np.array([0, *siblings, *[0] * (WIDTH - 1 - count)])
    child, sibling = np.full(WIDTH, -1), np.full(WIDTH, -1)
    child[0], sibling[1:count] = 1, np.arange(2, count + 1)
    every = len(coin)
    rows = TreeRows(
        tokens=np.tile(tokens, (every, 1)),
        seen=np.zeros((0, 0, 0), bool),
        depths=np.zeros((0, 0), np.int64),
        child=np.tile(child, (every, 1)),
        sibling=np.tile(sibling, (every, 1)),
    )
    coins = np.random.default_rng(0).random((every, WIDTH))
    coins[:, 0] = coin
    drawn = [tokens[0] for tokens in sampled(kernels, rows, coins, last, np.tile(p, (every, WIDTH, 1)))]
    return np.bincount(drawn, minlength=VOCABULARY) / every


LAW = np.array([0.30, 0.25, 0.15, 0.1, 0.08, 0.06, 0.04, 0.02])


@pytest.mark.parametrize("siblings", [[1], [3, 1], [7, 2, 0]])
def test_distinct_siblings_leave_the_law_as_it_is(kernels, siblings):
    assert np.abs(first_tokens(kernels, siblings, LAW) - LAW).sum() < 0.05


def test_siblings_that_come_twice_are_counted_twice_as_in_the_original(kernels):
    assert first_tokens(kernels, [1, 0, 0, 0], LAW)[0] > 2 * LAW[0]


@pytest.mark.parametrize("seed", range(5))
def test_top_k_and_top_p_are_the_transforms_of_the_rules(kernels, seed):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(3, VOCABULARY)) * 2
    p = torch.softmax(torch.from_numpy(logits), -1)
    for k in (1, 3, VOCABULARY):
        wanted = distribution(logits, Transforms(top_k=k))
        assert np.allclose(kernels.top_k_renorm_prob(p, torch.full((3,), k)), wanted)
    for mass in (0.3, 0.9, 1.0):
        wanted = distribution(logits, Transforms(top_p=mass))
        assert np.allclose(kernels.top_p_renorm_prob(p, torch.full((3,), mass, dtype=torch.float64)), wanted)


@pytest.mark.parametrize("seed", range(10))
def test_links_read_off_a_mask_are_those_that_made_it(kernels, seed):
    rows, _ = trees(seed, least=WIDTH - 1)
    size = rows.tokens.shape
    positions, index = torch.empty(rows.tokens.size, dtype=torch.int64), torch.empty(size, dtype=torch.int64)
    child, sibling = torch.empty(size, dtype=torch.int64), torch.empty(size, dtype=torch.int64)
    lengths = torch.tensor([3, 0, 7, 1])
    kernels.reconstruct_indices_from_tree_mask(
        torch.from_numpy(rows.seen).reshape(-1), lengths, positions, index, child, sibling, 4, WIDTH
    )
    assert child.tolist() == rows.child.tolist()
    assert sibling.tolist() == rows.sibling.tolist()
    assert positions.view(size).tolist() == (rows.depths + lengths.numpy()[:, None]).tolist()


def murmur(words: list[int]) -> int:
    """MurmurHash3, 32 bits, in whole numbers."""
    mask, h = 0xFFFFFFFF, 0
    for k in words:
        k = k * 0xCC9E2D51 & mask
        k = (k << 15 | k >> 17) & mask
        h ^= k * 0x1B873593 & mask
        h = (h << 13 | h >> 19) & mask
        h = h * 5 + 0xE6546B64 & mask
    h ^= 16
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        h = (h ^ h >> shift) * factor & mask
    return h


def test_noise_with_a_seed_is_the_hash_of_seed_position_and_token(kernels):
    seeds = torch.tensor([42, 2**40 + 7], dtype=torch.int64)
    hashed = kernels.murmur_hash32(seeds.to(torch.uint64), torch.tensor([5, 900]), torch.arange(7))
    wanted = [[murmur([s & 0xFFFFFFFF, s >> 32, p, c]) for c in range(7)] for s, p in ((42, 5), (2**40 + 7, 900))]
    assert hashed.to(torch.int64).tolist() == wanted


def test_a_kernel_that_is_not_here_says_so_when_it_is_called(kernels):
    kernel = kernels.flash_attention_of_the_future
    with pytest.raises(NotImplementedError, match="has no stand-in"):
        kernel(1)
