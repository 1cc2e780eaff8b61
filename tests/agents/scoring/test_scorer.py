import asyncio
import sys
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from machine_speed import patience
from tables import table

from turntree.agents.scoring.policy_sample import ENVIRONMENT_REWARD
from turntree.agents.scoring.scorer import Scored, Scorer
from turntree.rewards import RewardDefinitionError, Sample, UnknownAnswerFormat, UnknownReward, reward

pytestmark = pytest.mark.usefixtures("own_rewards")


def sample(text: str, gold: str = "5", **changes: Any) -> Sample:
    return Sample(turns=(text,), gold=gold, **{"data_source": "math", **changes})


UNREADABLE = sample("it is 5", gold="\\frac{")


def only(scorer: Scorer, one: Sample) -> Scored:
    return scorer.score([one])[0]


def test_weights_add_up_and_a_weight_of_0_is_a_metric() -> None:
    scorer = Scorer({"answer": 1, "answer_format": {"weight": 0.5, "high": 0.5}, "few_turns": 0})
    right = only(scorer, sample("\\boxed{5}"))
    assert right.reward == 1.25
    assert right.parts == {"answer": 1.0, "answer_format": 0.5, "few_turns": 1.0}
    assert scorer.names == ("answer", "answer_format", "few_turns")
    scorer = Scorer({"environment": 1})
    assert only(scorer, sample("", metadata={ENVIRONMENT_REWARD: 0.5})).reward == 0.5
    assert only(scorer, sample("")).reward is None


@pytest.mark.parametrize(("weights", "open_one", "decided"), [((1, 0.1), None, 1.1), ((0, 1), 1.0, 1.0)])
def test_what_cannot_be_graded_has_no_reward_unless_it_is_a_metric_alone(weights, open_one, decided):
    scorer = Scorer(dict(zip(("answer", "finished"), weights, strict=True)))
    scored = only(scorer, UNREADABLE)
    assert (scored.reward, scored.ungraded) == (open_one, ("answer",))
    assert only(scorer, sample("it is 5")).reward == decided


def test_a_data_set_without_rules_is_refused_unless_others_are_declared() -> None:
    strange = sample("#### 5", data_source="my-set")
    with pytest.raises(
        UnknownAnswerFormat, match=r"'my-set' has no answer format.*answer_format. to one of math, gsm8k"
    ):
        Scorer({"answer": 1}).score([strange])
    with pytest.raises(UnknownAnswerFormat, match="'mth'"):
        Scorer({"answer": 1}, answer_format="mth")
    assert only(Scorer({"answer": 1}, answer_format="math"), strange).reward == 1.0
    assert only(Scorer({"finished": 1}), strange).reward == 1.0
    # The data set's own rules go before the declared ones.
    option = sample("The answer is (B).", gold="B", data_source="mmlu-stem")
    assert only(Scorer({"answer": 1}, answer_format="aime"), option).reward == 1.0


def test_group_rewards_are_given_the_samples_of_a_task() -> None:
    @reward("shortest", group=True)
    def shortest(samples: Sequence[Sample]) -> list[float]:
        least = min(len(one.answer_text) for one in samples)
        return [float(len(one.answer_text) == least) for one in samples]

    scorer = Scorer({"answer": 1, "shortest": 0.5})
    assert scorer.group_names == ("shortest",)
    scored = scorer.score([sample("5", task_id="a"), sample("it is 5", task_id="a"), sample("it is 5", task_id="b")])
    assert [one.reward for one in scored] == [1.5, 1.0, 1.5]
    scored = scorer.score([sample("5", task_id=""), sample("it is 5", task_id="")])
    assert [one.reward for one in scored] == [1.5, 1.5], "without a task nobody is a sibling"


async def test_the_event_loop_goes_on_while_rewards_are_computed() -> None:
    begun, ended = asyncio.Event(), threading.Event()
    tell = partial(asyncio.get_running_loop().call_soon_threadsafe, begun.set)

    @reward("slow")
    def slow(_: Sample) -> float:
        tell()
        return float(ended.wait(patience(10)))

    waiting = asyncio.create_task(Scorer({"slow": 1}).ascore([sample("5")]))
    await begun.wait()
    ended.set()
    assert (await waiting)[0].reward == 1.0


async def test_both_ways_score_alike() -> None:
    samples = [sample("#### 5"), sample("#### 6"), UNREADABLE, sample("\\boxed{\\frac{10}{2}}")]
    scorer = Scorer({"answer": 1, "answer_format": 0.1})
    one, other = scorer.score(samples), await scorer.ascore(samples)
    assert [(s.reward, s.parts, s.ungraded) for s in one] == [(s.reward, s.parts, s.ungraded) for s in other]


def test_a_module_is_imported_for_its_reward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_rewards.py").write_text(
        "from turntree.rewards import reward\n\n\n@reward('always')\ndef always(sample):\n    return 1.0\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert only(Scorer({"my_rewards:always": 0.5}), sample("")).reward == 0.5
    sys.modules.pop("my_rewards")


@pytest.mark.parametrize(("rewards", "kind", "message"), table(__file__, "impossible_rewards"))
def test_rewards_that_cannot_be_are_refused(rewards: Any, kind: str, message: str) -> None:
    with pytest.raises({"unknown": UnknownReward, "wrong": RewardDefinitionError}[kind], match=message):
        Scorer(rewards)
