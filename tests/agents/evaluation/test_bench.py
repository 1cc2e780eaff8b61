import json
import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from scipy import stats

from turntree.agents.engines.engine_choice import EngineChoice, EngineName
from turntree.agents.engines.local import LocalEngine, LocalEngineConfig, Speculation
from turntree.agents.errors import EngineFailed
from turntree.agents.evaluation import bench as bench_module
from turntree.agents.evaluation.bench import Epoch, Spent, bench, whole
from turntree.agents.evaluation.bench_table import ratio_in_words, ratio_interval
from turntree.agents.evaluation.run import Planned, plan
from turntree.agents.evaluation.suite import EvalTask
from turntree.envs.math.arithmetic import Arithmetic

PLAIN = Spent(tokens=100, verify_steps=100, seconds=4.0, drafting_seconds=None, passes=None)
DRAFTED = Spent(tokens=100, verify_steps=40, seconds=2.0, drafting_seconds=0.05, passes=25)


def test_figures_are_quotients_of_one_run() -> None:
    epoch = Epoch(PLAIN, DRAFTED, turns=10, equal=10)
    assert (epoch.ratio, PLAIN.tokens_per_forward_pass, DRAFTED.tokens_per_forward_pass) == (2.0, 1.0, 2.5)
    assert (PLAIN.drafter_ms, DRAFTED.drafter_ms) == (None, pytest.approx(2.0))
    slow = Epoch(PLAIN, replace(DRAFTED, seconds=6.0), turns=10, equal=9)
    every = whole([epoch, slow])
    assert every.ratio == 1.0  # eight seconds each, not the mean of 2 and 2 / 3
    assert (every.turns, every.equal, every.drafted.passes, every.plain.passes) == (20, 19, 50, None)


def epochs_of(*ratios: float, passes: int = 40) -> list[Epoch]:
    return [Epoch(PLAIN, replace(DRAFTED, seconds=4 / ratio, verify_steps=passes), 10, 10) for ratio in ratios]


def test_the_ratio_has_the_interval_of_students_t_of_its_logarithm() -> None:
    ratios = [1.1, 1.4, 1.2, 0.9, 1.3]
    found = ratio_interval(epochs_of(*ratios))
    wanted = stats.t.interval(0.95, 4, np.mean(np.log(ratios)), stats.sem(np.log(ratios)))
    assert found[:3] == pytest.approx([np.exp(np.mean(np.log(ratios))), *np.exp(wanted)], rel=2e-3)
    (line,) = ratio_in_words(epochs_of(*ratios))
    assert line.endswith("over 5 epochs; it contains 1, so no difference is shown)")
    assert ratio_in_words(epochs_of(1.2, 1.21, 1.22))[0].endswith("95 % interval over 3 epochs)")
    assert ratio_in_words(epochs_of(1.2)) == ["no interval for the ratio: use --epochs 2 or more"]


def test_without_accepted_drafts_the_ratio_is_reported_as_noise() -> None:
    output = ratio_in_words(epochs_of(1.30, 1.31, passes=100))
    assert output[1].startswith("drafts did not help: 1.00 tokens per forward pass with drafts and 1.00 without")
    assert len(ratio_in_words(epochs_of(1.30, 1.31, passes=98))) == 1


class Opened:
    def __init__(self) -> None:
        self.open = self.most = 0
        self.order: list[bool] = []

    @asynccontextmanager
    async def __call__(self, choice: EngineChoice) -> AsyncIterator[Any]:
        speculation = Speculation(adaptive=False) if choice.speculate else None
        config = LocalEngineConfig(max_batch=4, max_context=512, dtype="float64", speculation=speculation)
        with LocalEngine.from_pretrained(choice.model, config=config) as engine:
            self.open += 1
            self.most = max(self.most, self.open)
            generate = engine.generate

            async def noted(*words: Any, **options: Any) -> Any:
                if not self.order or self.order[-1] != choice.speculate:
                    self.order.append(choice.speculate)
                return await generate(*words, **options)

            engine.generate = noted  # type: ignore[method-assign]
            yield engine
            self.open -= 1


def arguments(model: Path) -> tuple[Planned, EngineChoice]:
    planned = plan(EvalTask(env="turntree/Arithmetic-v0", count=2, samples=2, max_tokens=12)).within_context(512)
    return planned, EngineChoice(name=EngineName.LOCAL, model=str(model), max_batch=4, max_context=512)


async def test_both_engines_are_open_and_take_turns_at_the_same_turns(tiny_model, renderer, monkeypatch):
    opened = Opened()
    monkeypatch.setattr(bench_module, "open_engine", opened)
    planned, choice = arguments(tiny_model)
    epochs = await bench(planned, choice, renderer, epochs=2, concurrency=4, seed=0)
    assert opened.most == 2
    # Warm-up of both, then without and with, then with and without.
    assert opened.order == [False, True, False, True, False]
    for epoch in epochs:
        assert epoch.turns == epoch.equal > 0
        assert epoch.plain.tokens == epoch.drafted.tokens > 0
        assert epoch.plain.tokens_per_forward_pass == 1.0
    assert epochs[1].drafted.tokens_per_forward_pass > 1.5  # greedy turns of the epoch before
    assert epochs[0].plain.drafter_ms is None
    assert epochs[0].drafted.drafter_ms > 0


async def test_an_epoch_with_a_failure_is_no_measurement(tiny_model, renderer, monkeypatch):
    monkeypatch.setattr(Arithmetic, "reply", Mock(side_effect=OSError("the shelf fell over")))
    planned, choice = arguments(tiny_model)
    with pytest.raises(EngineFailed, match="the shelf fell over"):
        await bench(planned, choice, renderer, epochs=1, concurrency=4, seed=0)


def test_the_command_prints_a_table_and_writes_what_makes_it_again(turntree, tiny_model, tmp_path):
    out = tmp_path / "results" / "bench.json"
    small = ("-n", 2, "--samples", 2, "--epochs", 2, "--max-tokens", 8, "--env-arg", "max_numbers=2")
    status, shown, err = turntree("bench", tiny_model, "turntree/Arithmetic-v0", *small, "--out", out)
    assert status == 0, err
    written = json.loads(out.read_text())
    assert [line.split("│")[1].strip() for line in shown.splitlines() if line.startswith("│")] == ["1", "2", "all"]
    assert f"{written['all']['ratio']:.2f}" in shown
    assert "turns equal token for token" in shown
    assert f"ratio per epoch, geometric mean: {written['ratio']['value']:.2f} (" in shown
    assert "processor: " in shown
    assert written["command"] in shown
    assert len(written["epochs"]) == 2
    for epoch in written["epochs"]:
        rates = [epoch[way]["tokens"] / epoch[way]["seconds"] for way in ("with", "without")]
        assert epoch["ratio"] == pytest.approx(rates[0] / rates[1])
        assert epoch["without"]["tokens_per_forward_pass"] == 1.0
    output = turntree(*shlex.split(written["command"])[1:], "--json").json
    assert (output["settings"], output["command"]) == (written["settings"], written["command"])
