import json
import re
from itertools import combinations

import numpy as np
import pytest
from adder import play
from shared_cases import shared_rows
from tables import table

from turntree.agents.episodes.episode import Episode
from turntree.agents.evaluation.metrics import estimate, majority_right, pass_at_k, repeated
from turntree.agents.evaluation.suite import find_suite, read_suite
from turntree.agents.loop.renderer import Renderer
from turntree.envs.catalogue import find_entry


async def said(renderer: Renderer, *texts: str) -> list[Episode]:
    return [(await play(renderer, text))[0] for text in texts]


@pytest.mark.parametrize("right", range(6))
@pytest.mark.parametrize("k", [1, 2, 4, 5])
def test_pass_at_k_is_the_share_of_all_choices_of_k_with_a_right_one(right: int, k: int) -> None:
    chosen = list(combinations([position < right for position in range(5)], k))
    assert pass_at_k(5, right, k) == pytest.approx(sum(map(any, chosen)) / len(chosen))


async def test_samples_are_summed_up_by_task_without_failures(renderer: Renderer) -> None:
    groups = [await said(renderer, *texts) for texts in (("5", "6", "6", "5"), ("7", "7", "7", "7"))]
    result = repeated(groups)
    assert result.average[0] == 0.25
    passing = {k: value.value for k, value in result.passing.items()}
    assert passing == {1: pytest.approx(0.25), 2: pytest.approx((1 - 1 / 6) / 2), 4: 0.5}
    assert result.majority.value == 0.25  # a tie counts by half, the other task is wrong
    groups = [await said(renderer, *texts) for texts in (("5", "crash"), ("crash", "crash"))]
    result = repeated(groups)
    assert (result.average.value, result.average.tasks, list(result.passing)) == (1.0, 1, [1])


async def test_the_majority_counts_equal_answers_once_however_they_are_written(renderer: Renderer) -> None:
    wrong = await said(renderer, "#### 0.5", "#### 1/2", "#### 7")
    right = await said(renderer, "5")
    assert majority_right([*wrong, *right]) == 0.0  # two for one half
    assert majority_right([*wrong[:1], *wrong[2:], *right]) == pytest.approx(1 / 3)
    assert majority_right([*wrong, *right, *right, *right]) == 1.0
    assert majority_right([]) == 0.0


async def test_reported_groups_have_the_figures_that_they_should(renderer: Renderer) -> None:
    for row in shared_rows("env_cases_3.jsonl", "eval pass@k"):
        samples, right, k = map(int, re.findall(r"\d+", row["prediction"]))
        assert pass_at_k(samples, right, k) == pytest.approx(row["right"]), row["id"]
    for row in shared_rows("env_cases_3.jsonl", "eval maj@k"):
        texts = ["5" if is_right else text for text, is_right in json.loads(row["prediction"])]
        assert majority_right(await said(renderer, *texts)) == pytest.approx(row["right"]), row["id"]


@pytest.mark.parametrize(("written", "share"), table(__file__, "majorities"))
async def test_wrong_answers_are_one_where_the_verifier_finds_them_equal(renderer, written, share):
    assert majority_right(await said(renderer, *written, "5", "5")) == share


def test_an_interval_covers_the_mean_and_shrinks_with_tasks() -> None:
    rng = np.random.default_rng(3)
    few, many = (estimate(list(rng.random(count))) for count in (20, 2000))
    assert few.low < few.value < few.high
    assert many.high - many.low < (few.high - few.low) / 5
    covered = sum(low <= 0.5 <= high for _, low, high, _ in (estimate(list(rng.random(40))) for _ in range(200)))
    assert covered >= 0.88 * 200


@pytest.mark.parametrize("name", ["spec_rl", "tools", "catalogue"])
def test_a_suite_that_comes_with_turntree_names_environments_that_there_are(name: str) -> None:
    path = find_suite(name)
    assert path is not None
    for task in read_suite(path):
        assert find_entry(task.env) is not None
        assert task.temperature == (0.0 if name == "catalogue" else 1.0)
    # A name that is no suite is an environment.
    assert find_suite("turntree/GSM8K-v0") is None
    assert find_suite("no_such_suite") is None
