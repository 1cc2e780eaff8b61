import pytest

from turntree.envs import Reply


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_rewards_must_be_finite(value: float) -> None:
    with pytest.raises(ValueError, match="reward 'reward' must be a finite number"):
        Reply(reward=value)
    with pytest.raises(ValueError, match="reward 'style' must be a finite number"):
        Reply(rewards={"style": value})


def test_messages_must_be_messages() -> None:
    with pytest.raises(TypeError, match="must hold Message objects, got 'hello'"):
        Reply(messages=["hello"])  # type: ignore[list-item]
