"""Seeded turns of the local engine are those of plain decoding, token for token in float64."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from cores import AdversarialForest, run_core, tiny_llama
from plain_decoding import ends_rightly, plain_tokens

from turntree.agents.engines.local import Speculation, emission
from turntree.agents.engines.local.penalties import Penalties
from turntree.agents.engines.protocol import Completion, Sampling

SIZE, CASES = 32, 20
MODELS = range(10)


class Case(NamedTuple):
    prompt: list[int]
    sampling: Sampling
    guess: list[int]


def random_sampling(rng: np.random.Generator) -> Sampling:
    """All transforms come up, each in about every third request."""

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


def random_guess(rng: np.random.Generator, turn: tuple[int, ...]) -> list[int]:
    """Nothing, the turn itself, the turn with a wrong token, or anything, with more behind it."""
    guess = list(turn)
    kind = rng.integers(4)
    if kind == 0:
        return []
    if kind == 1:
        guess[rng.integers(len(guess))] = int(rng.integers(SIZE))
    if kind == 2:
        guess = rng.integers(0, SIZE, size=6).tolist()
    return guess + rng.integers(0, SIZE, size=int(rng.integers(4))).tolist()


def random_model(number: int):
    return tiny_llama(SIZE, seed=number, sharpness=1.5 + 0.2 * (number % 8))


def random_cases(number: int) -> list[Case]:
    rng = np.random.default_rng(number)
    prompts = [rng.integers(0, SIZE, size=int(rng.integers(1, 30))).tolist() for _ in range(CASES)]
    samplings = [random_sampling(rng) for _ in range(CASES)]
    turns = run_core(random_model(number), prompts, samplings.__getitem__)
    guesses = [random_guess(rng, turn.token_ids) for turn in turns]
    return [Case(*parts) for parts in zip(prompts, samplings, guesses, strict=True)]


def speculated(number: int, cases: list[Case]) -> list[Completion]:
    """The turns by the engine: random order, arrivals, batch and chunk sizes, drafts of all kinds."""
    rng = np.random.default_rng([number, 1])
    order = rng.permutation(len(cases))
    turns = run_core(
        random_model(number),
        [cases[i].prompt for i in order],
        lambda i: cases[order[i]].sampling,
        guesses=lambda i: cases[order[i]].guess,
        arrivals=lambda i: i // 4,
        forest=AdversarialForest(SIZE, seed=number, branching=8) if number % 5 else None,
        speculation=Speculation(max_nodes=8, adaptive=False) if number % 5 else None,
        max_batch=int(rng.integers(3, 16)),
        prefill_chunk=int(rng.choice([4, 9, 1024])),
        max_context=64,
    )
    return [turns[place] for place in np.argsort(order)]


def plainly_decoded(number: int, cases: list[Case], turns: list[Completion]) -> list[bool]:
    """Which of the turns are what plain decoding gives."""
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
    """Control: noise that does not move with the position of the token alone."""
    cases = random_cases(1)
    right = emission.race
    monkeypatch.setattr(emission, "race", lambda p, seeds, positions: right(p, seeds, np.arange(len(p))))
    assert sum(plainly_decoded(1, cases, speculated(1, cases))) < CASES // 2


def test_penalties_that_forget_the_path_are_noticed(monkeypatch):
    """Control: every node is penalised as if it stood where the sampled tokens end."""
    cases = random_cases(1)
    right = Penalties.apply
    monkeypatch.setattr(Penalties, "apply", lambda self, x, rows, nodes: right(self, x, rows, self.roots[rows]))
    assert not all(plainly_decoded(1, cases, speculated(1, cases)))
