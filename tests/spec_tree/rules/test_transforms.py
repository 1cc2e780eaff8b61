import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws.token_counts import token_counts, token_counts_on_paths
from tables import table

from turntree.spec_tree.rules.transforms import Transforms, distribution

LOGITS = np.log(np.array([0.4, 0.1, 0.3, 0.15, 0.05]))


def test_the_distribution_is_the_softmax_temperature_sharpens_it_and_0_is_greedy_with_penalties():
    assert distribution(LOGITS + 7, Transforms()) == pytest.approx([0.4, 0.1, 0.3, 0.15, 0.05])
    squared = np.array([0.4, 0.1, 0.3, 0.15, 0.05]) ** 2
    assert distribution(LOGITS, Transforms(temperature=0.5)) == pytest.approx(squared / squared.sum())
    assert distribution(LOGITS, Transforms(temperature=0)).tolist() == [1, 0, 0, 0, 0]
    transforms = Transforms(temperature=0, presence_penalty=1.0)
    assert distribution(LOGITS, transforms, output=token_counts([0], 5)).tolist() == [0, 0, 1, 0, 0]
    assert set(np.flatnonzero(distribution(np.zeros(4), Transforms(top_k=2)))) == {0, 1}


@pytest.mark.parametrize(("settings", "kept"), table(__file__, "cuts"))
def test_a_cut_keeps_the_likeliest_tokens(settings, kept):
    p = distribution(LOGITS, Transforms(**settings))
    assert np.flatnonzero(p).tolist() == kept
    assert p.sum() == pytest.approx(1)


def test_repetition_pulls_both_signs_down_presence_counts_once_and_frequency_each_time():
    logits = np.array([2.0, -2.0, 2.0, -2.0, 1.0])
    p = distribution(
        logits, Transforms(repetition_penalty=2.0), prompt=token_counts([0], 5), output=token_counts([1, 1], 5)
    )
    expected = np.exp([1.0, -4.0, 2.0, -2.0, 1.0])
    assert p == pytest.approx(expected / expected.sum())
    transforms = Transforms(presence_penalty=0.5, frequency_penalty=0.25)
    p = distribution(np.zeros(3), transforms, prompt=token_counts([2, 2], 3), output=token_counts([0, 0, 0, 1], 3))
    expected = np.exp([-0.5 - 0.75, -0.5 - 0.25, 0.0])
    assert p == pytest.approx(expected / expected.sum())
    p = distribution(np.zeros(2), Transforms(presence_penalty=1.0, temperature=0.5), output=token_counts([0], 2))
    assert p[1] / p[0] == pytest.approx(np.exp(2.0))
    tokens, parents = np.array([1, 2, 1, 1], np.int32), np.array([-1, 0, 0, -1], np.int32)
    counts = token_counts_on_paths(tokens, parents, token_counts([0, 1], 3))
    assert counts.tolist() == [[1, 1, 0], [1, 2, 0], [1, 2, 1], [1, 3, 0], [1, 2, 0]]


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    temperature=st.sampled_from([0.0, 0.7, 1.0, 1.6]),
    top_k=st.sampled_from([-1, 1, 3]),
    top_p=st.sampled_from([0.3, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.2]),
)
def test_the_distributions_of_a_tree_are_those_of_plain_decoding_along_its_paths(
    seed, temperature, top_k, top_p, min_p
):
    rng = np.random.default_rng(seed)
    penalties = {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": -0.2}
    transforms = Transforms(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, **penalties)
    tokens = rng.integers(6, size=5).astype(np.int32)
    parents = np.array([rng.integers(-1, node) if node else -1 for node in range(5)], np.int32)
    prompt, output, logits = rng.integers(6, size=4), rng.integers(6, size=2), rng.normal(size=(6, 6)) * 2
    counts = token_counts_on_paths(tokens, parents, token_counts(output, 6))
    together = distribution(logits, transforms, prompt=token_counts(prompt, 6), output=counts)
    assert together.sum(-1) == pytest.approx(np.ones(6))
    for node in range(-1, 5):
        path, at = list(output), node
        above = []
        while at >= 0:
            above.append(tokens[at])
            at = parents[at]
        alone = distribution(
            logits[1 + node],
            transforms,
            prompt=token_counts(prompt, 6),
            output=token_counts(np.array(path + above[::-1]), 6),
        )
        assert (alone == together[1 + node]).all()


@pytest.mark.parametrize("wrong", table(__file__, "out_of_range"))
def test_a_setting_outside_its_range_is_named(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Transforms(**wrong)
