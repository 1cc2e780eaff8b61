from typing import Any

import pytest
from bridge_results import require_result
from playing import play

from turntree.envs import make, require_conformance
from turntree.envs.bridges.reasoning_gym import ReasoningGym

pytestmark = pytest.mark.interop
NO_GOLD = {"boxnet", "rush_hour"}
HOSTILE = (
    *("So I think it is 12, or so.", "", "####", "\x00", "#### ((", "#### None", "#### [1,2]", '#### {"a": 1}'),
    *("#### exit()", "#### " + "9" * 5000, "#### " + "(" * 5000, "#### 1\n2 3\n", "#### 0.5 ? x"),
)


@pytest.fixture(scope="module")
def played() -> dict[str, list[Any]]:
    # The steps of every data set: the gold answer, if there is one, then each hostile text.
    from reasoning_gym.factory import DATASETS

    def steps(name: str) -> list[Any]:
        env = ReasoningGym(name, size=2, data_seed=1)
        gold = env.task(1).answer
        return [play(env, [text], 1)[0] for text in (f"Thus.\n#### {gold}", *HOSTILE)] if gold else []

    return {name: steps(name) for name in DATASETS if name != "composite"}  # that one puts others together


def test_every_set_with_a_gold_pays_it(played: dict[str, list[Any]]) -> None:
    lost = {name: steps[0][1] for name, steps in played.items() if steps and steps[0][1] != 1.0}
    assert lost == {}
    assert {name for name, steps in played.items() if not steps} == NO_GOLD
    paid = sum(bool(steps) for steps in played.values())
    found = f"{paid} of {len(played)} sets reward their gold answer; the other {len(NO_GOLD)} have none"
    require_result("reasoning-gym", found)


def test_no_text_of_a_policy_raises(played: dict[str, list[Any]]) -> None:
    failures = {step[4]["failure"] for steps in played.values() for step in steps}
    assert failures == {""}


def test_an_answer_of_many_lines_is_read_whole_and_words_after_one_line_do_not_matter() -> None:
    env = ReasoningGym("n_queens", size=2)
    gold = env.task(0).answer
    assert "\n" in gold
    assert play(env, [f"<think>#### 1</think>\n####\n{gold}\n"])[0][1] == 1.0
    assert play(env, [f"#### {gold.splitlines()[0]}"])[0][1] < 0.1
    env = ReasoningGym("chain_sum", size=5, data_seed=1)
    gold = env.task(2).answer
    answers = (f"#### {gold}.", f"#### {gold}\nI am sure.", gold, "#### nothing")
    assert [play(env, [text], 2)[0][1] for text in answers] == [1.0, 1.0, 1.0, 0.0]
    env = ReasoningGym("prime_factorization", size=1)
    with pytest.raises(ValueError, match="invalid literal"):
        env._dataset.score_answer("twelve", env._dataset[0])


@pytest.mark.parametrize("name", ["chain_sum", "sudoku"])
def test_it_keeps_the_rules(name: str) -> None:
    require_conformance(lambda: ReasoningGym(name, size=5, data_seed=1))


def test_a_set_is_made_by_its_name() -> None:
    env = make("reasoning_gym:chain_sum", size=5, data_seed=1)
    assert env.task(2).answer == ReasoningGym("chain_sum", size=5, data_seed=1).task(2).answer
