from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from turntree.agents.episodes.record import read_episodes
from turntree.agents.evaluation.paired import independent_interval, mean_interval, t_quantile

TASKS, SAMPLES = 60, 8


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 30, 1000])
def test_the_quantile_is_students(freedom: int) -> None:
    assert t_quantile(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=2e-3)


def simulated(random: np.random.Generator, *, same_noise: bool) -> tuple[np.ndarray, np.ndarray]:
    # Fraction of right samples per task, (tasks,), of two policies that are equal on average. All tasks are equally
    # hard, so pairing can only remove the noise of the draws.
    first = np.full(TASKS, 0.5)
    second = first + 0.05 * random.standard_normal(TASKS)
    noise = random.random((TASKS, SAMPLES))
    other = noise if same_noise else random.random((TASKS, SAMPLES))
    return (noise < first[:, None]).mean(1), (other < second[:, None]).mean(1)


def test_the_paired_interval_holds_the_difference_and_is_at_most_half_as_wide() -> None:
    held, ratios, control = [], [], []
    for seed in range(1000):
        before, after = simulated(np.random.default_rng(seed), same_noise=True)
        paired = mean_interval(list(after - before))
        apart = independent_interval(list(before), list(after))
        held.append(paired.low <= 0 <= paired.high)
        ratios.append((paired.high - paired.low) / (apart.high - apart.low))
        before, after = simulated(np.random.default_rng(seed), same_noise=False)
        paired = mean_interval(list(after - before))
        control.append((paired.high - paired.low) / (apart.high - apart.low))
    assert 0.94 <= np.mean(held) <= 0.96
    assert np.mean(ratios) < 0.5
    assert np.mean(control) > 0.95, "the control: with other noise it does not shrink"


def test_where_nothing_differed_the_interval_is_that_of_a_share() -> None:
    low, high = mean_interval([0.0] * 20)[1:3]
    assert high == -low == pytest.approx(stats.beta.ppf(0.975, 1, 20), abs=1e-9)


def test_a_second_policy_is_sampled_as_alone_in_fewer_passes(turntree: Any, tiny_model: Path, tmp_path: Path) -> None:
    # The second policy is the first one, and the first one at another temperature.
    words = ["eval", "turntree/Arithmetic-v0", "--model", tiny_model, "-n", 3, "--samples", 2, "--max-tokens", 12]
    words += ["--no-speculate"]
    output = turntree(*words, "--temperature", 1, "--against", tiny_model, "--out", tmp_path / "a.jsonl", "--json").json
    assert output[2]["pairs equal token for token"] == 6
    assert (output[2]["difference"]["value"], output[2]["changed"]) == (0.0, [])
    files = turntree("compare", tmp_path / "a.jsonl", tmp_path / "a.against.jsonl", "--json").json
    assert {name: files[name] for name in output[2]} == output[2], "what the files have is what was played"
    assert (files["pairs"], files["settings that differ"]) == (6, {})
    first, second = output[2]["forward passes"]
    assert second < first / 2
    assert first == output[2]["tokens"][0], "the control: without a draft each token is a pass"
    hot = [*words, "--temperature", 1, "--against-temperature", 1.5, "--out", tmp_path / "b.jsonl"]
    assert turntree(*hot).status == 0
    assert turntree(*words, "--temperature", 1.5, "--out", tmp_path / "alone.jsonl").status == 0
    paired, alone = (
        sorted(tuple(turn.completion.token_ids for turn in episode.turns) for episode in read_episodes(tmp_path / name))
        for name in ("b.against.jsonl", "alone.jsonl")
    )
    assert paired == alone


def test_every_checkpoint_of_a_run_is_no_second_model(turntree: Any, tiny_model: Path) -> None:
    for words in (("--model", "RUN@all", "--against", tiny_model), ("--model", tiny_model, "--against", "RUN@all")):
        result = turntree("eval", "turntree/Arithmetic-v0", *words)
        assert (result.status, "name RUN@STEP, not RUN@all" in result.err) == (2, True)
    assert "expected one: RUN@STEP" in turntree("bench", "RUN@all", "turntree/Arithmetic-v0").err


def test_a_chat_server_has_no_noise_to_share(turntree: Any) -> None:
    result = turntree(
        "eval", "turntree/Arithmetic-v0", "--engine", "openai", "--base-url", "http://h", "--against", "x"
    )
    assert (result.status, "noise cannot be shared" in result.err) == (2, True)
