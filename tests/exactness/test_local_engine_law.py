"""At temperature 1 the local engine's turns follow the model's own law, whatever was drafted.

Two-token turns after two forced prefixes are counted against the joint law of the model's own forward pass. The
test is chi-square at level 1e-3; a bias of total variation .05 after each prefix would be found with probability
above .99, as ``test_the_power_is_as_stated`` computes.
"""

from __future__ import annotations

import numpy as np
import pytest
from cores import FixedForest, run_core, tiny_llama
from plain_decoding import laws_along
from scipy.stats import chi2, ncx2

from turntree.agents.engines.local import Speculation, emission
from turntree.agents.engines.protocol import Sampling
from turntree.spec_tree.verify import root

SIZE, DRAWS, LEVEL = 5, 6000, 1e-3
PREFIXES = ([1, 2, 3], [4, 4])
FREEDOM = len(PREFIXES) * (SIZE * SIZE - 1)


def model():
    return tiny_llama(SIZE, seed=1, sharpness=1.5)


def joint_law(prefix: list[int]) -> np.ndarray:
    """Of the next two tokens, shape (SIZE * SIZE,)."""
    own = model()
    laws = [laws_along(own, prefix, [token], Sampling()) for token in range(SIZE)]
    return np.concatenate([laws[token][0, token] * laws[token][1] for token in range(SIZE)])


def p_value(monkeypatch, *, eager: bool, guesses: bool = False, draws: int = DRAWS) -> float:
    monkeypatch.setattr(emission, "EAGER", 1 << 40 if eager else 0)
    statistic = 0.0
    for number, prefix in enumerate(PREFIXES):
        expected = joint_law(prefix) * draws
        assert expected.min() > 5
        turns = run_core(
            model(), [prefix] * draws, lambda i, n=number: Sampling(max_tokens=2, seed=i + n * draws),
            guesses=lambda i: [i % SIZE, 0] if guesses else (), max_batch=draws, parked_slots=0, max_context=8,
            forest=FixedForest([0, 3, 1], [-1, -1, 0], [1, 1, 2]), speculation=Speculation(max_nodes=3, adaptive=False),
        )  # fmt: skip
        assert sum(sum(t.accepted) for t in turns) > draws / 5, "the drafts must have been accepted often"
        observed = np.bincount([a * SIZE + b for a, b in (t.token_ids for t in turns)], minlength=SIZE * SIZE)
        statistic += float(((observed - expected) ** 2 / expected).sum())
    return float(chi2.sf(statistic, FREEDOM))


@pytest.mark.parametrize(("eager", "guesses"), [(True, True), (False, False)])
def test_drafted_turns_follow_the_models_law(monkeypatch, eager, guesses):
    assert p_value(monkeypatch, eager=eager, guesses=guesses) > LEVEL


def test_the_power_is_as_stated():
    noncentrality = len(PREFIXES) * DRAWS * 4 * 0.05**2  # chi-square distance is at least 4 TV^2
    assert ncx2.sf(chi2.isf(LEVEL, FREEDOM), FREEDOM, noncentrality) > 0.99


def test_resampling_from_the_full_law_after_a_rejection_is_noticed(monkeypatch):
    """Control: after a rejection, draw again from all of p instead of keeping what was drawn."""
    right = emission.sample_then_match

    def broken(draft, draw, room, stops):
        def again(rows, nodes, depth):
            tokens, logprobs = draw(rows, nodes, depth)
            width = int(draft.tokens.max(initial=0)) + 1
            above = np.repeat(root(draft), np.diff(draft.offsets)) + 1 + draft.parents
            drafted = np.isin(nodes * width + tokens, above * width + draft.tokens)
            fresh = draw(rows, nodes, depth + 1000)
            reject = np.isin(nodes, above) & ~drafted
            return np.where(reject, fresh[0], tokens), np.where(reject, fresh[1], logprobs)

        return right(draft, again, room, stops)

    monkeypatch.setattr(emission, "sample_then_match", broken)
    assert p_value(monkeypatch, eager=False, draws=2000) < 1e-6


def test_noise_that_two_positions_share_is_noticed(monkeypatch):
    """Control: fixed coins; each token alone has the right law, the pair has not."""
    right = emission.race
    monkeypatch.setattr(emission, "race", lambda p, seeds, positions: right(p, seeds, np.zeros_like(positions)))
    assert p_value(monkeypatch, eager=True, draws=2000) < 1e-6
