from dataclasses import replace

import numpy as np
import pytest
import torch
from cores import FixedForest, run_core, tiny_llama
from plain_decoding import laws_along

from turntree.agents.engines.local import Speculation
from turntree.agents.engines.local import sampling as emission
from turntree.agents.engines.protocol import Sampling

SAMPLINGS = [Sampling(max_tokens=12), Sampling(max_tokens=12, temperature=0.8, top_k=8, frequency_penalty=0.3)]


@pytest.mark.parametrize("eager", [True, False])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_sums_are_those_of_the_distributions_along_the_turn(prompts, monkeypatch, sampling, eager):
    monkeypatch.setattr(emission, "EAGER", 1 << 40 if eager else 0)
    model = tiny_llama()
    forest = FixedForest([4, 9, 4], [-1, -1, 0], [1, 1, 2])
    turns = run_core(model, prompts, sampling, forest=forest, speculation=Speculation(adaptive=False))
    assert sum(t.draft.matched for t in turns) > 0
    reference = tiny_llama()
    for prompt, turn in zip(prompts, turns, strict=True):
        p = laws_along(reference, prompt, turn.token_ids, sampling)[:-1]
        with np.errstate(divide="ignore", invalid="ignore"):
            surprise = np.where(p > 0, -np.log(p), 0.0)
        entropy = (p * surprise).sum(-1)
        assert turn.draft.entropy == pytest.approx(entropy.sum(), abs=1e-9)
        spread = (p * surprise**2).sum(-1) - entropy**2
        assert turn.draft.entropy_variance == pytest.approx(spread.sum(), abs=1e-9)
        drawn = surprise[range(len(p)), list(turn.token_ids)]
        assert turn.draft.surprise == pytest.approx(drawn.sum(), abs=1e-9)
        np.testing.assert_allclose(turn.behaviour_logprobs, -drawn, atol=1e-9)
        tested, matched, expected, variance = drafted_children(p, turn.token_ids)
        assert (turn.draft.tested, turn.draft.matched) == (tested, matched)
        assert turn.draft.expected == pytest.approx(expected, abs=1e-9)
        assert turn.draft.variance == pytest.approx(variance, abs=1e-9)


def drafted_children(p: np.ndarray, tokens: tuple[int, ...]) -> tuple[int, int, float, float]:
    """Return tested positions, matches, mass and variance if every step drafts 4, 9, and 4 again after 4."""
    tested, matched, masses, at = 0, 0, [], 0
    while at < len(tokens):
        left = len(tokens) - at
        children = [{4, 9}, {4}] if left > 2 else [{4, 9}] if left > 1 else []
        for wanted in children:
            tested += 1
            masses.append(p[at, list(wanted)].sum())
            hit = tokens[at] in wanted
            matched += hit
            at += 1
            if not hit or tokens[at - 1] == 9:
                break
        else:
            at += 1
            continue
        if hit:
            at += 1
    return tested, matched, sum(masses), sum(m * (1 - m) for m in masses)


def test_a_draft_is_not_tested(prompts):
    model = tiny_llama()
    plain = run_core(model, prompts, Sampling(max_tokens=12))
    turns = run_core(model, prompts, Sampling(max_tokens=12), turn_drafts=lambda i: plain[i].token_ids)
    assert sum(t.draft.accepted for t in turns) == 110
    assert sum(t.draft.tested + t.draft.matched for t in turns) == 0
    assert sum(t.draft.expected for t in turns) == 0
    assert sum(t.draft.entropy for t in turns) == pytest.approx(sum(t.draft.entropy for t in plain), abs=1e-8)


def z_scores(turns) -> tuple[float, float]:
    def total(name: str) -> float:
        return sum(getattr(t.draft, name) for t in turns)

    return (
        (total("matched") - total("expected")) / total("variance") ** 0.5,
        (total("surprise") - total("entropy")) / total("entropy_variance") ** 0.5,
    )


def scored_run():
    """Run 4,800 tokens, each drawn where token 0 was drafted, unless the turn was at its end."""
    return run_core(
        tiny_llama(8, sharpness=2.0), [[i % 8, 3] for i in range(400)], Sampling(max_tokens=12), max_batch=400,
        forest=FixedForest([0], [-1], [1]), speculation=Speculation(adaptive=False),
    )  # fmt: skip


def test_an_exact_engine_has_small_z_scores():
    assert max(map(abs, z_scores(scored_run()))) < 4


def test_an_engine_that_favours_drafts_is_noticed_by_its_acceptance(monkeypatch):
    """Control: a factor on the drafted token."""
    right, favour = emission.race, torch.tensor([1.5] + [1.0] * 7)
    monkeypatch.setattr(emission, "race", lambda p, seeds, at: right(p * favour, seeds, at))
    assert z_scores(scored_run())[0] > 4


def test_an_engine_that_is_too_sure_is_noticed_by_its_surprise(monkeypatch):
    """Control: a temperature that was not requested."""
    right = emission.race
    monkeypatch.setattr(emission, "race", lambda p, seeds, at: right(p**1.3, seeds, at))
    assert z_scores(scored_run())[1] < -4


def test_without_monitors_nothing_is_summed_and_nothing_else_changes(prompts):
    model, sampling = tiny_llama(), Sampling(max_tokens=12, top_logprobs=2)
    settings = {"speculation": Speculation(adaptive=False)}
    with_sums = run_core(model, prompts, sampling, forest=FixedForest([4], [-1], [1]), **settings)
    without = run_core(model, prompts, sampling, forest=FixedForest([4], [-1], [1]), monitors=False, **settings)
    none = {"tested": 0, "matched": 0, "expected": 0.0, "variance": 0.0}
    none |= {"surprise": 0.0, "entropy": 0.0, "entropy_variance": 0.0}
    assert without == [replace(t, draft=replace(t.draft, **none)) for t in with_sums]
    assert without != with_sums
