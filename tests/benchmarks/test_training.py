import math
from collections.abc import Mapping
from typing import Any

import pytest
from benchmark_modules import benchmark_module

pytest.importorskip("verl", reason='training needs verl: pip install -e ".[train]"')

from turntree.agents.engines.protocol import Completion, DraftStats, FinishReason
from turntree.agents.verl.launch import StepReport

training = benchmark_module("training")


TIMERS = {"timing_s/update_actor": 3.0, "timing_s/update_critic": 1.0, "critic/score/mean": 0.5}


def report(step: int, metrics: Mapping[str, float] | None = None, **engine: float) -> StepReport:
    seconds = {"timing_s/step": 10.0 * step, "timing_s/gen": 4.0 * step}
    return StepReport(step=step, metrics={**TIMERS, **seconds, **(metrics or {})}, engine=engine)


def turn(levels: str, passes: int) -> Completion:
    tokens = (1,) * len(levels)
    draft, end = DraftStats(verify_steps=passes), FinishReason.STOP
    return Completion(token_ids=tokens, logprobs=(), finish_reason=end, draft=draft, levels=levels)


TURNS = [turn("AAAAAA", 3), turn("CCCCCCCA", 2)]


def test_a_step_is_split_into_its_phases_and_an_epoch_is_the_mean_of_its_steps() -> None:
    row = training.of_step(report(1, forward_passes=4, tokens_per_forward_pass=2.5, seconds=3.0), TURNS)
    assert (row["rollout"], row["update"], row["weights"], row["rollout_share"]) == (4.0, 4.0, 0.0, 0.4)
    assert (row["tokens_per_engine_pass"], row["tokens_per_forward_pass"], row["engine"]) == (3.5, 2.5, 3.0)
    row = training.of_step(report(1), TURNS)
    assert row["step"] == 10.0
    assert math.isnan(row["tokens_per_engine_pass"])
    epochs = training.by_epoch([training.of_step(report(step), TURNS) for step in range(1, 5)], 2)
    assert [row["step"] for row in epochs] == [15.0, 35.0]


def test_turns_that_are_used_again_are_counted_by_their_levels() -> None:
    row = training.of_step(report(1, {"turntree/reuse_offered": 10, "turntree/reuse_reused": 7}), TURNS)
    assert (row["turns"], row["reused_turns"], row["passes_per_reused_turn"]) == (2, 1, 2.0)
    assert (row["kept_of_offered"], row["reused_share"], row["level_A"], row["level_C"]) == (0.7, 0.5, 0.5, 0.5)
    assert row["tokens_per_request_pass"] == 14 / 5
    row = training.of_step(report(1), [turn("AA", 0)])
    assert row["tokens_per_request_pass"] == 1, "an engine without drafts counts no steps"
    assert math.isnan(row["passes_per_reused_turn"])
    assert math.isnan(row["kept_of_offered"])


def test_finished_ways_are_not_run_again_and_other_settings_are_refused(monkeypatch, tmp_path) -> None:
    asked: list[str] = []

    def run(args: Any, way: str, model: str, folder: Any) -> list[dict[str, float]]:
        asked.append(way)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return [training.of_step(report(step), TURNS) for step in range(1, 5)]

    monkeypatch.setattr(training, "run", run)
    words = ["--model", "m", "--ways", "none", "tree", "--epochs", "2", "--tasks", "4", "--batch", "2"]
    words += ["--json", str(tmp_path / "out.json")]
    with pytest.raises(KeyboardInterrupt):
        training.main(words)
    training.main(words)
    assert asked == ["none", "tree", "tree"]
    with pytest.raises(SystemExit, match="other settings"):
        training.main([*words, "--samples", "3"])


def test_every_way_is_a_list_of_options_that_exist() -> None:
    from importlib import resources

    configs = resources.files("turntree.configs")
    folders = {name: configs.joinpath(name) for name in ("speculation", "reuse")}
    known = {name: {entry.name.removesuffix(".yaml") for entry in one.iterdir()} for name, one in folders.items()}
    ways = {*training.WAYS, *training.parse(benchmark_module("reuse").SETTING).ways}
    assert {*training.ReuseMode} == known["reuse"]
    for way in ways:
        options = training.options_of(way)
        assert {*options["speculation"].strip("[]").split(",")} <= known["speculation"]
        assert options.get("reuse", "none") in known["reuse"]
        assert ("reuse" in options) == any(name in way for name in ("same_seed", "rejection_sampling", "spec_rl"))
