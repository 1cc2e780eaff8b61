from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turntree.rewards import Part, Reward, RewardDefinitionError, Rubric, Sample, UnknownReward


def constant(name: str, value: float | None, *, decides: bool = False) -> Reward:
    return Reward(name=name, function=lambda sample: value, decides=decides)


def test_the_reward_is_the_weighted_sum_of_clamped_parts() -> None:
    rubric = Rubric(
        [
            Part(reward=constant("right", 1.0, decides=True), weight=2.0),
            Part(reward=constant("form", 9.0), weight=0.5),
            Part(reward=constant("waste", -3.0), weight=0.1, low=-1.0, high=0.0),
        ]
    )
    result = rubric.score([Sample(turns=("x",))])[0]
    assert result.parts == {"right": 1.0, "form": 1.0, "waste": -1.0}
    assert result.reward == pytest.approx(2.0 + 0.5 - 0.1)


def test_weight_zero_is_a_metric_only_and_what_is_ungraded_is_named_not_zero() -> None:
    parts = [Part(reward=constant("right", 1.0, decides=True)), Part(reward=constant("length", 1.0), weight=0)]
    result = Rubric([*parts, Part(reward=constant("open", None, decides=True))]).score([Sample(turns=("x",))])[0]
    assert (result.reward, result.parts) == (1.0, {"right": 1.0, "length": 1.0})
    assert result.ungraded == ("open",)


def test_a_rubric_that_is_broken_or_in_which_form_beats_a_right_answer_is_refused() -> None:
    with pytest.raises(RewardDefinitionError, match="form alone"):
        Rubric([Part(reward=constant("right", 1.0, decides=True)), Part(reward=constant("form", 1.0))])
    with pytest.raises(RewardDefinitionError, match="at least one"):
        Rubric([])
    with pytest.raises(RewardDefinitionError, match="once"):
        Rubric([Part(reward="answer"), Part(reward="answer")])
    with pytest.raises(RewardDefinitionError, match="low"):
        Part(reward="answer", low=1, high=0)
    with pytest.raises(UnknownReward, match="did you mean 'answer'"):
        Rubric([Part(reward="answr")])


@given(
    values=st.tuples(st.floats(-9, 9), st.floats(-9, 9), st.floats(-9, 9), st.floats(-9, 9)),
    weights=st.tuples(st.floats(-0.49, 0.49), st.floats(-0.49, 0.49)),
)
def test_form_never_beats_a_right_answer(values: tuple[float, ...], weights: tuple[float, ...]) -> None:
    def total(right: float, forms: Sequence[float]) -> float:
        parts = [Part(reward=constant("right", right, decides=True))]
        parts += [
            Part(reward=constant(str(index), form), weight=weight)
            for index, (form, weight) in enumerate(zip(forms, weights, strict=True))
        ]
        return Rubric(parts).score([Sample(turns=("x",))])[0].reward

    assert total(1.0, values[:2]) > total(0.0, values[2:])


def test_group_rewards_see_the_samples_of_one_task_only() -> None:
    seen: list[list[str]] = []

    def rank(samples: Sequence[Sample]) -> list[float]:
        seen.append([sample.answer_text for sample in samples])
        return [index / len(samples) for index in range(len(samples))]

    rubric = Rubric([Part(reward=Reward(name="rank", function=rank, group=True))])
    samples = [Sample(turns=(text,), task_id=task) for text, task in (("a", "1"), ("b", "2"), ("c", "1"), ("d", ""))]
    assert [result.reward for result in rubric.score(samples)] == [0.0, 0.0, 0.5, 0.0]
    assert seen == [["a", "c"], ["b"], ["d"]]


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        (Reward(name="short", function=lambda samples: [], group=True), "0 values for 1 samples"),
        (constant("odd", float("nan")), "'odd'"),
        (constant("odd", float("inf")), "'odd'"),
    ],
)
def test_a_reward_that_returns_no_number_or_too_few_is_refused(broken: Reward, complaint: str) -> None:
    with pytest.raises(RewardDefinitionError, match=complaint):
        Rubric([Part(reward=broken)]).score([Sample(turns=("x",))])
