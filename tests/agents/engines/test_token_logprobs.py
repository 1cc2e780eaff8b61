from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from turntree.agents.engines import token_logprobs as readings
from turntree.agents.engines.protocol import Sampling
from turntree.agents.engines.token_logprobs import TokenLogprobs
from turntree.spec_tree.rules.transforms import Transforms, distribution

VOCABULARY = 5
TOKENS = (3, 1)
LOGITS = np.random.default_rng(0).normal(size=(len(TOKENS) + 1, VOCABULARY)) * 2
MODEL = np.log(distribution(LOGITS, Transforms()))


def flat(width: int, chosen: tuple[int, ...]) -> Any:
    """Lay out log-probabilities as vLLM does: none at first, then each token and the most probable ones."""
    starts, ids, logprobs = [0], [], []
    for row, token in zip(MODEL, chosen, strict=True):
        best = np.argsort(-row)[:width]
        starts.append(len(ids))
        ids += [token, *best.tolist()]
        logprobs += [row[token], *row[best].tolist()]
    return SimpleNamespace(start_indices=starts, token_ids=ids, logprobs=logprobs)


def found(width: int) -> TokenLogprobs:
    return TokenLogprobs.from_flat(flat(width, (*TOKENS, 0)), width, slice(1, None))


def test_flat_logprobs_and_rows_of_a_server_become_the_same_arrays() -> None:
    read = found(2)
    assert read.chosen == pytest.approx([MODEL[0, 3], MODEL[1, 1], MODEL[2, 0]])
    assert read.ids.tolist() == np.argsort(-MODEL)[:, :2].tolist()
    assert read.logprobs == pytest.approx(-np.sort(-MODEL)[:, :2])
    read = TokenLogprobs.from_rows((*TOKENS, 0), [dict(enumerate(row.tolist())) for row in MODEL], 2)
    for one, other in zip(read, found(2), strict=True):
        assert np.allclose(one, other)


def test_at_temperature_one_scores_are_what_the_engine_says() -> None:
    scores = readings.scores(found(2), TOKENS, Sampling(), top=2, cached_tokens=4, weights_version=9)
    assert scores.logprobs == pytest.approx(tuple(MODEL[[0, 1], TOKENS]))
    assert scores.policy_logprobs == ()
    assert (scores.top.ids.shape, scores.cached_tokens, scores.weights_version) == ((3, 2), 4, 9)


@pytest.mark.parametrize(
    "settings", [{"temperature": 0.5}, {"top_p": 0.6}, {"top_k": 2, "temperature": 1.5}, {"min_p": 0.3}]
)
def test_other_distributions_are_computed_from_the_whole_vocabulary(settings: dict[str, float]) -> None:
    sampling = Sampling(**settings)  # type: ignore[arg-type]
    assert readings.reshapes(sampling)
    scores = readings.scores(found(VOCABULARY), TOKENS, sampling, top=2, cached_tokens=0, weights_version=0)
    p = distribution(LOGITS, Transforms(**settings))  # type: ignore[arg-type]
    assert np.exp(scores.logprobs) == pytest.approx(p[[0, 1], TOKENS])
    tempered = distribution(LOGITS, Transforms(temperature=sampling.temperature))
    assert np.exp(scores.policy_logprobs) == pytest.approx(tempered[[0, 1], TOKENS])
    assert scores.entropy == pytest.approx([-(row[row > 0] * np.log(row[row > 0])).sum() for row in p[:2]])
    assert np.exp(scores.top.logprobs) == pytest.approx(-np.sort(-p)[:, :2], abs=1e-6)


@pytest.mark.parametrize("name", ["repetition_penalty", "presence_penalty", "frequency_penalty"])
def test_penalties_cannot_be_scored(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}=1.5"):
        readings.check_scorable(Sampling(**{name: 1.5}))
