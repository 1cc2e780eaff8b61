import pickle

import pytest

from turntree.envs.stopwatch import Stopwatch


def test_a_pickle_keeps_the_seconds_so_far_and_not_the_time_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("turntree.envs.stopwatch.monotonic", lambda: now[0])
    watch = Stopwatch()
    now[0] += 2
    state = pickle.dumps(watch)
    now[0] += 10
    copy = pickle.loads(state)
    now[0] += 3
    assert (watch.seconds, copy.seconds) == (15, 5)
