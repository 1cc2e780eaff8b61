import pytest

from turntree.spec_tree import ForestConfig, SpecForest
from turntree.spec_tree.state import DialogueState


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rollouts_per_state": 0}, "rollouts_per_state must be at least 1, got 0"),
        ({"max_tokens": 0}, "max_tokens must be at least 1, got 0"),
        ({"levels": ()}, "must begin with the rung 'exact'"),
        ({"levels": (("env", 3, 1.0),)}, "must begin with the rung 'exact'"),
        ({"levels": (("exact", 3, 1.0), ("world", 3, 1.0))}, "one of exact, tools, task, env; got 'world'"),
        ({"levels": (("exact", 0, 1.0),)}, "must be positive"),
        ({"levels": (("exact", 3, 0.0),)}, "must be positive"),
        ({"levels": (("exact", 3, 1.0), ("env", 4, 1.0))}, "from narrow to wide"),
        ({"levels": (("exact", 3, 1.0), ("env", 3, 1.0), ("task", 2, 1.0))}, "from narrow to wide"),
    ],
)
def test_a_wrong_setting_says_what_was_expected(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ForestConfig(**settings)  # type: ignore[arg-type]


def test_settings_from_a_file_become_immutable() -> None:
    config = ForestConfig(end_tokens=[3, 4], levels=[["exact", 4, 1.0], ["env", 2, 1.0]])  # type: ignore[arg-type]
    assert config.end_tokens == frozenset({3, 4})
    assert config.levels == (("exact", 4, 1.0), ("env", 2, 1.0))
    hash(config)


def test_rungs_that_a_state_does_not_know_are_left_out() -> None:
    forest = SpecForest()
    forest.insert(DialogueState.from_tokens([1]), [1, 2])
    alone = forest.stats().contexts
    forest.clear()
    forest.insert(DialogueState.from_tokens([1], task="t", tools="x", env="e"), [1, 2])
    assert forest.stats().contexts > alone
