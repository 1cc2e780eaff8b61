from collections.abc import Callable
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

pytestmark = pytest.mark.usefixtures("own_rewards")


def test_a_registered_function_is_found_by_its_name_which_is_given_once() -> None:
    @reward("of-this-test", decides=True)
    def quarter(sample: Sample) -> float:
        return 0.25

    found = get_reward("of-this-test")
    assert found.decides
    assert found.values([Sample(turns=())]) == [0.25]
    assert "of-this-test" in reward_names()
    reward("taken")(lambda sample: 0.0)
    with pytest.raises(RewardDefinitionError, match="already registered"):
        reward("taken")(lambda sample: 1.0)
    with pytest.raises(UnknownReward, match="did you mean 'answer'"):
        get_reward("anwser")


def length(sample: Sample) -> float:
    return float(len(sample.answer_text))


AS_REWARD = Reward(name="whole", function=length, decides=True)


@pytest.fixture
def plugged(monkeypatch: pytest.MonkeyPatch) -> Callable[[object], None]:
    def install(loaded: object) -> None:
        entry = EntryPoint(name="plugged", value="somewhere:it", group=registry.GROUP)
        monkeypatch.setattr(registry, "entry_points", lambda **wanted: [entry])
        monkeypatch.setattr(EntryPoint, "load", lambda entry: loaded)

    return install


@pytest.mark.parametrize("loaded", [length, AS_REWARD])
def test_installed_packages_bring_rewards(plugged: Callable[[object], None], loaded: object) -> None:
    plugged(loaded)
    assert get_reward("plugged").values([Sample(turns=("abc",))]) == [3.0]
    assert "plugged" in reward_names()


def test_an_entry_point_that_is_no_function_is_refused(plugged: Callable[[object], None]) -> None:
    plugged(5)
    with pytest.raises(RewardDefinitionError, match="no function"):
        get_reward("plugged")
