import re
import time

import machine_speed
import pytest
from machine_speed import LINEAR, eventually, growth, not_hanging, patience, slowness, soon


@pytest.mark.parametrize(("waiting", "times"), [(0.0, 1), (0.9, 1), (1.1, 2), (5.0, 5)])
def test_a_deadline_grows_with_the_machines_slowness_and_with_who_waits_for_it(waiting, times, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    monkeypatch.setattr("os.getloadavg", lambda: (4 * waiting, 0.0, 0.0))
    assert slowness() >= 1
    assert patience(3) == pytest.approx(3 * slowness() * times, abs=0.1)


def test_linear_work_is_told_from_quadratic() -> None:
    assert growth(lambda n: sum(range(n)), 1_000_000) < LINEAR
    assert growth(lambda n: None, 1_000_000) < LINEAR
    assert growth(lambda n: [sum(range(n)) for _ in range(n)], 4_000) > LINEAR
    assert growth(lambda n: re.search("x*y", "x" * n), 40_000) > LINEAR


def test_one_slow_run_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A garbage collection in the first run once made quadratic work look linear."""
    for slow in range(6):
        for power, linear in ((1, True), (2, False)):
            clock, calls = [0.0], [0]

            def work(size: int, slow: int = slow, power: int = power) -> None:
                clock[0] += size**power * 1e-6 * (100 if calls[0] == slow else 1)  # noqa: B023
                calls[0] += 1  # noqa: B023

            monkeypatch.setattr(machine_speed.time, "thread_time", lambda clock=clock: clock[0])
            assert (growth(work, 4_000_000) < LINEAR) == linear, (slow, power)


@pytest.mark.parametrize("hang", [lambda: time.sleep(1000), lambda: re.match("(x+x+)+y", "x" * 50)])
def test_what_hangs_is_ended(hang: object) -> None:
    with pytest.raises(TimeoutError, match="hangs"), not_hanging(0.05):
        hang()  # type: ignore[operator]


async def test_what_never_holds_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_speed, "patience", lambda seconds: 0.0)
    with pytest.raises(AssertionError, match="in time"):
        eventually(lambda: False)
    with pytest.raises(AssertionError, match="in time"):
        await soon(lambda: False)
    eventually(lambda: True)
    await soon(lambda: True)
