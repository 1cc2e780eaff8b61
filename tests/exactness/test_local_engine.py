"""Seeded turns equal plain decoding token for token in float64, and other turns follow the model's distribution.

Two-token turns after two forced prefixes are counted against the joint distribution of the model's own forward pass.
The test is chi-square at level 1e-3; a bias of total variation .05 after each prefix would be noticed with probability
above .99, as ``test_the_power_is_as_stated`` computes.
"""

from typing import NamedTuple

import numpy as np
import pytest
from cores import AdversarialForest, FixedForest, run_core, tiny_llama
from plain_decoding import ends_rightly, laws_along, plain_tokens
from scipy.stats import chi2, ncx2

from turntree.agents.engines.local import Speculation
from turntree.agents.engines.local import sampling as emission
from turntree.agents.engines.local.node_distributions import Penalties
from turntree.agents.engines.protocol import Completion, Sampling
from turntree.spec_tree.rules.verify import root

SIZE, CASES = 32, 20
MODELS = [*range(3), *(pytest.param(number, marks=pytest.mark.release) for number in range(3, 10))]


class Case(NamedTuple):
    prompt: list[int]
    sampling: Sampling
    turn_draft: list[int]


def random_sampling(rng: np.random.Generator) -> Sampling:
    # Each transform occurs in about every third request.

    def sometimes(value, otherwise):
        return value if rng.random() < 0.35 else otherwise

    return Sampling(
        temperature=sometimes(0.0, 1.0) if rng.random() < 0.2 else float(rng.uniform(0.5, 1.5)),
        top_p=sometimes(float(rng.uniform(0.3, 0.95)), 1.0),
        top_k=sometimes(int(rng.integers(1, 12)), -1),
        min_p=sometimes(float(rng.uniform(0.0, 0.3)), 0.0),
        repetition_penalty=sometimes(float(rng.uniform(0.7, 1.8)), 1.0),
        presence_penalty=sometimes(float(rng.uniform(-1, 2)), 0.0),
        frequency_penalty=sometimes(float(rng.uniform(-1, 2)), 0.0),
        max_tokens=int(rng.integers(3, 15)),
        stop_token_ids=sometimes((int(rng.integers(SIZE)),), ()),
        seed=int(rng.integers(1 << 63)) * 2,
    )


def random_turn_draft(rng: np.random.Generator, turn: tuple[int, ...]) -> list[int]:
    # Nothing, the turn itself, the turn with a wrong token, or anything; then possibly more tokens.
    turn_draft = list(turn)
    kind = rng.integers(4)
    if kind == 0:
        return []
    if kind == 1:
        turn_draft[rng.integers(len(turn_draft))] = int(rng.integers(SIZE))
    if kind == 2:
        turn_draft = rng.integers(0, SIZE, size=6).tolist()
    return turn_draft + rng.integers(0, SIZE, size=int(rng.integers(4))).tolist()


def random_model(number: int):
    return tiny_llama(SIZE, seed=number, sharpness=1.5 + 0.2 * (number % 8))


def random_cases(number: int) -> list[Case]:
    rng = np.random.default_rng(number)
    prompts = [rng.integers(0, SIZE, size=int(rng.integers(1, 30))).tolist() for _ in range(CASES)]
    samplings = [random_sampling(rng) for _ in range(CASES)]
    turns = run_core(random_model(number), prompts, samplings.__getitem__)
    turn_drafts = [random_turn_draft(rng, turn.token_ids) for turn in turns]
    return [Case(*parts) for parts in zip(prompts, samplings, turn_drafts, strict=True)]


def speculated(number: int, cases: list[Case]) -> list[Completion]:
    # Random order, arrivals, batch and chunk sizes, and drafts of all kinds.
    rng = np.random.default_rng([number, 1])
    order = rng.permutation(len(cases))
    turns = run_core(
        random_model(number),
        [cases[i].prompt for i in order],
        lambda i: cases[order[i]].sampling,
        turn_drafts=lambda i: cases[order[i]].turn_draft,
        arrivals=lambda i: i // 4,
        forest=AdversarialForest(SIZE, seed=number) if number % 5 else None,
        speculation=Speculation(max_nodes=8, adaptive=False) if number % 5 else None,
        max_batch=int(rng.integers(3, 16)),
        prefill_chunk=int(rng.choice([4, 9, 1024])),
        max_context=64,
    )
    return [turns[index] for index in np.argsort(order)]


def plainly_decoded(number: int, cases: list[Case], turns: list[Completion]) -> list[bool]:
    model = random_model(number)
    return [
        plain_tokens(model, case.prompt, turn.token_ids, case.sampling, case.sampling.seed) == turn.token_ids
        and ends_rightly(turn.token_ids, case.sampling)
        for case, turn in zip(cases, turns, strict=True)
    ]


@pytest.mark.parametrize("number", MODELS)
def test_drafts_batches_and_order_never_change_a_seeded_turn(number):
    cases = random_cases(number)
    turns = speculated(number, cases)
    assert all(plainly_decoded(number, cases, turns))
    assert sum(t.draft.accepted for t in turns) > 20, "drafts must have been accepted"


def test_noise_keyed_by_the_place_in_the_draft_is_noticed(monkeypatch):
    """Control: noise that does not depend on the token's position alone."""
    cases = random_cases(1)
    right = emission.race
    monkeypatch.setattr(emission, "race", lambda p, seeds, positions: right(p, seeds, np.arange(len(p))))
    assert sum(plainly_decoded(1, cases, speculated(1, cases))) < CASES // 2


def test_penalties_that_forget_the_path_are_noticed(monkeypatch):
    """Control: every node is penalised as if it followed the last sampled token."""
    cases = random_cases(1)
    right = Penalties.apply
    monkeypatch.setattr(Penalties, "apply", lambda self, x, rows, nodes: right(self, x, rows, self.roots[rows]))
    assert not all(plainly_decoded(1, cases, speculated(1, cases)))


FEW, DRAWS, LEVEL = 5, 6000, 1e-3
PREFIXES = ([1, 2, 3], [4, 4])
FREEDOM = len(PREFIXES) * (FEW * FEW - 1)


def model():
    return tiny_llama(FEW, seed=1, sharpness=1.5)


def joint_law(prefix: list[int]) -> np.ndarray:
    # Of the next two tokens, shape (FEW * FEW,).
    own = model()
    laws = [laws_along(own, prefix, [token], Sampling()) for token in range(FEW)]
    return np.concatenate([laws[token][0, token] * laws[token][1] for token in range(FEW)])


def p_value(monkeypatch, *, eager: bool, turn_drafts: bool = False, draws: int = DRAWS) -> float:
    monkeypatch.setattr(emission, "EAGER", 1 << 40 if eager else 0)
    statistic = 0.0
    for number, prefix in enumerate(PREFIXES):
        expected = joint_law(prefix) * draws
        assert expected.min() > 5
        turns = run_core(
            model(), [prefix] * draws, lambda i, n=number: Sampling(max_tokens=2, seed=i + n * draws),
            turn_drafts=lambda i: [i % FEW, 0] if turn_drafts else (), max_batch=draws, parked_slots=0, max_context=8,
            forest=FixedForest([0, 3, 1], [-1, -1, 0], [1, 1, 2]), speculation=Speculation(max_nodes=3, adaptive=False),
        )  # fmt: skip
        assert sum(sum(t.accepted) for t in turns) > draws / 5, "the drafts must have been accepted often"
        observed = np.bincount([a * FEW + b for a, b in (t.token_ids for t in turns)], minlength=FEW * FEW)
        statistic += float(((observed - expected) ** 2 / expected).sum())
    return float(chi2.sf(statistic, FREEDOM))


@pytest.mark.parametrize(("eager", "turn_drafts"), [(True, True), (False, False)])
def test_drafted_turns_follow_the_models_law(monkeypatch, eager, turn_drafts):
    assert p_value(monkeypatch, eager=eager, turn_drafts=turn_drafts) > LEVEL


def test_the_power_is_as_stated():
    noncentrality = len(PREFIXES) * DRAWS * 4 * 0.05**2  # chi-square distance is at least 4 TV^2
    assert ncx2.sf(chi2.isf(LEVEL, FREEDOM), FREEDOM, noncentrality) > 0.99


def test_resampling_from_the_full_law_after_a_rejection_is_noticed(monkeypatch):
    """Control: after a rejection, draw again from p instead of keeping the drawn token."""
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
    """Control: fixed coins; each token alone is distributed correctly, the pair is not."""
    right = emission.race
    monkeypatch.setattr(emission, "race", lambda p, seeds, positions: right(p, seeds, np.zeros_like(positions)))
    assert p_value(monkeypatch, eager=True, draws=2000) < 1e-6
