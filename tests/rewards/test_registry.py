from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from turntree.rewards import (
    Reward,
    RewardDefinitionError,
    Sample,
    UnknownReward,
    get_reward,
    registry,
    reward,
    reward_names,
)


@pytest.fixture(autouse=True)
def own_registrations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))


def test_a_registered_function_is_found_by_its_name() -> None:
    @reward("of-this-test", decides=True)
    def judged(sample: Sample) -> float:
        return 0.25

    found = get_reward("of-this-test")
    assert found.decides
    assert found.values([Sample(turns=())]) == [0.25]
    assert "of-this-test" in reward_names()


def test_a_name_is_given_once() -> None:
    reward("taken")(lambda sample: 0.0)
    with pytest.raises(RewardDefinitionError, match="already registered"):
        reward("taken")(lambda sample: 1.0)


def test_an_unknown_name_gets_the_nearest_one() -> None:
    with pytest.raises(UnknownReward, match="did you mean 'answer'"):
        get_reward("anwser")


def length(sample: Sample) -> float:
    return float(len(sample.answer_text))


NOT_CALLABLE = 5
AS_REWARD = Reward(name="whole", function=length, decides=True)


def entry_points_with(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    entry = EntryPoint(name=name, value=value, group=registry.GROUP)
    entries = lambda **wanted: [entry] if wanted.get("name", name) == name else []  # noqa: E731
    monkeypatch.setattr(registry, "entry_points", entries)


@pytest.mark.parametrize("attribute", ["length", "AS_REWARD"])
def test_installed_packages_bring_rewards(monkeypatch: pytest.MonkeyPatch, attribute: str) -> None:
    monkeypatch.setattr(EntryPoint, "load", lambda entry: globals()[attribute])
    entry_points_with(monkeypatch, "plugged", f"somewhere:{attribute}")
    assert get_reward("plugged").values([Sample(turns=("abc",))]) == [3.0]
    assert "plugged" in reward_names()


def test_an_entry_point_that_is_no_function_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EntryPoint, "load", lambda entry: NOT_CALLABLE)
    entry_points_with(monkeypatch, "broken", "somewhere:NOT_CALLABLE")
    with pytest.raises(RewardDefinitionError, match="no function"):
        get_reward("broken")
