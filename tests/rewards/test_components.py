import pytest
from tables import table

from turntree.rewards import Sample, get_reward
from turntree.rewards.components import (
    answer,
    answer_format,
    few_turns,
    finished,
    shortest_right,
    think_format,
    tool_use,
)


def sample(*turns: str, gold: str = "5", **fields) -> Sample:
    return Sample(turns=turns, gold=gold, **fields)


def test_the_answer_is_graded_in_the_last_turn_only_by_the_answer_format_of_its_data_source() -> None:
    samples = [sample(r"\boxed{5}"), sample(r"\boxed{5}", r"\boxed{6}"), sample(), sample(r"\boxed{5}", gold=r"\mho{(")]
    assert answer(samples) == [1.0, 0.0, 0.0, None]
    samples = [sample("I take (B).", gold="B", data_source="mmlu-stem"), sample("#### 5", data_source="of my own")]
    assert answer(samples) == [1.0, 1.0]


@pytest.mark.parametrize(("component", "text", "value"), table(__file__, "forms"))
def test_a_well_formed_answer_stands_alone_in_its_place_and_thoughts_are_closed_once(component, text, value):
    assert {"answer": answer_format, "thoughts": think_format}[component](sample(text)) == value


def test_the_smaller_components_lie_between_zero_and_one_and_the_answer_alone_decides() -> None:
    assert few_turns(sample("a")) == 1.0
    assert few_turns(sample(*"ab", metadata={"max_turns": 3})) == 0.5
    assert few_turns(sample(*"abcdefghijk")) == 0.0
    assert tool_use(sample("a", tool_calls=4, tool_errors=1)) == 0.75
    assert tool_use(sample("a")) == 0.0
    assert tool_use(sample("a", tool_calls=1, tool_errors=3)) == 0.0
    assert (finished(sample("a")), finished(sample("a", truncated=True))) == (1.0, 0.0)
    assert get_reward("answer").decides
    assert not any(get_reward(name).decides for name in ("answer_format", "think_format", "few_turns", "tool_use"))


def test_the_shortest_right_attempt_is_preferred_and_wrong_ones_get_nothing() -> None:
    samples = [sample("#### 5"), sample("a long way to #### 5"), sample("#### 6"), sample("a way to #### 5")]
    *values, between = shortest_right(samples)
    assert values == [1.0, 0.0, 0.0]
    assert 0 < between < 1
