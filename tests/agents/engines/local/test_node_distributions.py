import numpy as np
import pytest
import torch
from laws.token_counts import token_counts, token_counts_on_paths
from tables import table

from turntree.agents.engines.local.node_distributions import (
    NodeDistributions,
    Penalties,
    chosen_logprobs,
    entropies,
    most_probable,
)
from turntree.agents.engines.local.request import Request
from turntree.agents.engines.protocol import Sampling
from turntree.spec_tree import DialogueState, DraftBatch
from turntree.spec_tree.rules.transforms import Transforms, distribution
from turntree.spec_tree.rules.verify import root

SIZE = 24
SAMPLINGS = [Sampling(**settings) for settings in table(__file__, "samplings")]


def requests(rng: np.random.Generator) -> list[Request]:
    rows = []
    for sampling in SAMPLINGS:
        prompt = rng.integers(0, SIZE, size=6).tolist()
        state = DialogueState.from_tokens(prompt)
        row = Request(prompt=prompt, sampling=sampling, state=state, seed=0, deliver=lambda _: None)
        row.tokens += rng.integers(0, 6, size=int(rng.integers(0, 7))).tolist()
        rows.append(row)
    return rows


def trees(rng: np.random.Generator) -> DraftBatch:
    rows = len(SAMPLINGS)
    one = np.array([3, 3, 5, 1, 3]), np.array([-1, 0, 1, -1, 3]), np.array([1, 2, 3, 1, 2])
    tokens, parents, depths = (np.tile(a, rows).astype(np.int32) for a in one)
    tokens = rng.permuted(np.arange(SIZE, dtype=np.int32))[tokens]
    return DraftBatch(
        tokens=tokens, parents=parents, depths=depths, probabilities=np.ones(len(tokens), np.float32),
        offsets=5 * np.arange(rows + 1),
    )  # fmt: skip


def expected_laws(rows: list[Request], draft: DraftBatch, logits: np.ndarray) -> np.ndarray:
    found = []
    for b, row in enumerate(rows):
        nodes = slice(int(draft.offsets[b]), int(draft.offsets[b + 1]))
        output = token_counts(row.tokens[len(row.prompt) :], SIZE)
        along = token_counts_on_paths(draft.tokens[nodes], draft.parents[nodes], output)
        how = Transforms(**{name: getattr(row.sampling, name) for name in Transforms.__dataclass_fields__})
        first = int(root(draft)[b])
        found.append(distribution(logits[first : first + 6], how, prompt=token_counts(row.prompt, SIZE), output=along))
    return np.concatenate(found)


def drawn(rng: np.random.Generator) -> tuple[list[Request], DraftBatch, np.ndarray]:
    return requests(rng), trees(rng), rng.normal(size=(len(SAMPLINGS) * 6, SIZE)) * 2


@pytest.mark.parametrize("seed", range(5))
def test_every_nodes_distribution_is_the_reference(seed):
    rng = np.random.default_rng(seed)
    rows, draft, logits = drawn(rng)
    distributions = NodeDistributions(rows, draft, torch.from_numpy(logits))
    expected = expected_laws(rows, draft, logits)
    np.testing.assert_allclose(distributions.at(None).softmax(-1), expected, atol=1e-12)
    some = rng.permutation(len(logits))[:20]
    np.testing.assert_allclose(distributions.at(some).softmax(-1), expected[some], atol=1e-12)
    np.testing.assert_array_equal(distributions.logits, logits)


def test_a_path_that_is_not_counted_is_noticed(monkeypatch):
    """Control: penalties of the row's last token at all its nodes."""
    rows, draft, logits = drawn(np.random.default_rng(0))
    right = Penalties.apply
    monkeypatch.setattr(Penalties, "apply", lambda self, x, rows, nodes: right(self, x, rows, self.roots[rows]))
    found = NodeDistributions(rows, draft, torch.from_numpy(logits)).at(None).softmax(-1).numpy()
    wrong = np.abs(found - expected_laws(rows, draft, logits)).max(-1).reshape(len(rows), 6).max(-1) > 1e-6
    penalised = [s.repetition_penalty != 1 or bool(s.presence_penalty or s.frequency_penalty) for s in SAMPLINGS]
    assert (wrong <= penalised).all()
    assert wrong.sum() >= 4


def test_the_policys_own_logprobs_know_nothing_but_the_temperature():
    rng = np.random.default_rng(1)
    rows, draft, logits = drawn(rng)
    nodes, tokens = root(draft), rng.integers(0, SIZE, size=len(rows))
    scale = np.array([s.temperature or 1.0 for s in SAMPLINGS])[:, None]
    own = torch.log_softmax(torch.from_numpy(logits[nodes] / scale), -1)[range(len(rows)), tokens]
    found = NodeDistributions(rows, draft, torch.from_numpy(logits)).policy_logprobs(nodes, tokens)
    np.testing.assert_allclose(found, own, atol=1e-12)


def test_entropies_and_top_tokens_are_those_of_the_distribution():
    p = np.array([[0.5, 0.25, 0.25, 0.0], [0.0, 0.0, 1.0, 0.0]])
    entropy, variance = entropies(torch.from_numpy(p))
    surprise = np.log([2.0, 4.0, 4.0])
    np.testing.assert_allclose(entropy, [p[0, :3] @ surprise, 0.0], atol=1e-12)
    np.testing.assert_allclose(variance, [p[0, :3] @ surprise**2 - (p[0, :3] @ surprise) ** 2, 0.0], atol=1e-12)
    top = most_probable(torch.from_numpy(p), 2)
    assert top.ids[:, 0].tolist() == [0, 2]
    np.testing.assert_allclose(top.logprobs, [np.log([0.5, 0.25]), [0.0, -np.inf]], rtol=1e-6)


def test_a_logprob_far_below_the_smallest_float_is_not_lost():
    logits = torch.tensor([[0.0, -500.0]])
    assert chosen_logprobs(logits, np.array([1])).tolist() == [-500.0]
