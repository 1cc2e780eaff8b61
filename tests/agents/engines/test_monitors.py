import logging

import numpy as np
import pytest
from recording_engine import a_turn

from turntree.agents.engines.monitors import ALARM, Monitors
from turntree.agents.engines.protocol import Completion, DraftStats, FinishReason
from turntree.spec_tree.rules.monitor import surprise

RNG = np.random.default_rng(0)


def turn(levels: str = "", *, shift: float = 0.0, count: int = 200) -> Completion:
    """Draw from random distributions with a drafted token each; ``shift`` sharpens the distributions drawn from."""
    distributions = RNG.dirichlet(np.ones(5), count)
    sharp = distributions ** (1 + shift)
    sharp /= sharp.sum(1, keepdims=True)
    drawn = np.array([RNG.choice(5, p=p) for p in sharp])
    mass = distributions[:, 0]
    moments = surprise(distributions)
    return Completion(
        token_ids=tuple(drawn.tolist()),
        logprobs=(0.0,) * count,
        finish_reason=FinishReason.LENGTH,
        levels=levels,
        draft=DraftStats(
            tested=count,
            matched=int((drawn == 0).sum()),
            expected=float(mass.sum()),
            variance=float((mass * (1 - mass)).sum()),
            surprise=-float(np.log(distributions[np.arange(count), drawn]).sum()),
            entropy=float(moments.entropy.sum()),
            entropy_variance=float(moments.variance.sum()),
        ),
    )


def test_exact_turns_stay_quiet_and_a_sampler_that_is_too_sharp_is_named(caplog: pytest.LogCaptureFixture) -> None:
    monitors = Monitors()
    monitors.add(turn() for _ in range(5))
    with caplog.at_level(logging.WARNING):
        scores = monitors.close_step()
    assert set(scores) == {"exactness/exact_acceptance_z", "exactness/exact_entropy_z"}
    assert all(abs(score) < ALARM for score in scores.values())
    assert not caplog.records
    monitors.add(turn(shift=0.5) for _ in range(5))
    with caplog.at_level(logging.WARNING):
        assert monitors.close_step()["exactness/exact_entropy_z"] < -ALARM
    assert "exactness/exact_entropy_z" in caplog.text


def test_levels_are_watched_apart_lenience_is_not_and_a_step_begins_at_zero() -> None:
    monitors = Monitors()
    monitors.add([turn("A" * 200), turn("B" * 200), turn("C" * 5 + "A" * 195), turn("D" + "A" * 199, shift=3)])
    scores = monitors.close_step()
    assert {name.split("_")[0] for name in scores} == {"exactness/exact", "exactness/trained"}
    assert all(abs(score) < ALARM for score in scores.values())
    monitors = Monitors()
    monitors.add([turn(shift=3)])
    monitors.close_step()
    assert monitors.close_step() == {}
    monitors.add([a_turn(1)])
    assert monitors.close_step() == {}


def test_noise_of_a_turn_reverified_after_an_update_is_not_new() -> None:
    # Re-verified turns return in each step, and their own tokens would count as their drafts.
    monitors = Monitors()
    assert monitors.first_use(3)
    for _ in range(2):
        monitors.close_step()
        assert not monitors.first_use(3)
    assert monitors.first_use(4)
    assert monitors.first_use(None)
    assert monitors.first_use(None)
    monitors.close_step()
    monitors.close_step()
    assert monitors.first_use(3)
