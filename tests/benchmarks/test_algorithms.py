import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from benchmark_modules import benchmark_module

algorithms = benchmark_module("algorithms")


def done(name: str, rewards: list[float]) -> dict[str, Any]:
    algorithm, mode, seed = name.split("/")
    row = {"seconds": 1.0, "turntree/turns": 2.0}
    steps = [{"step": step, "reward": reward, **row} for step, reward in enumerate(rewards, start=1)]
    return {"algorithm": algorithm, "mode": mode, "seed": int(seed), "steps": steps}


def test_every_algorithm_has_its_seeds_before_the_modes_begin_and_a_rise_is_that_of_quarters() -> None:
    names = [algorithms.name_of(run) for run in algorithms.runs(2)]
    assert names[:6] == [f"{name}/tree/{seed}" for seed in (0, 1) for name in algorithms.ALGORITHMS]
    assert len(set(names)) == len(names) == 6 + 2 * 4 + 2
    assert "grpo/tree/0" in names
    assert algorithms.first_and_last(done("grpo/tree/0", [0.0, 0.2, 0.9, 0.9, 0.9, 0.9, 0.4, 0.6])) == (0.1, 0.5)


def test_a_run_of_several_rounds_has_the_least_seconds_of_each_step_and_the_same_rewards() -> None:
    def one(seconds: list[float], rewards: list[float]) -> dict[str, Any]:
        run = done("grpo/tree/0", rewards)
        return {**run, "steps": [{**row, "seconds": took} for row, took in zip(run["steps"], seconds, strict=True)]}

    first = algorithms.with_round(None, one([2.0, 9.0], [0.1, 0.4]))
    both = algorithms.with_round(first, one([3.0, 1.0], [0.1, 0.4]))
    assert [row["seconds"] for row in both["steps"]] == [2.0, 1.0]
    assert both["rounds"] == [[2.0, 9.0], [3.0, 1.0]]
    with pytest.raises(RuntimeError, match="the rewards differ"):
        algorithms.with_round(both, one([3.0, 1.0], [0.1, 0.5]))


def test_the_biased_mode_is_marked_in_picture_and_table() -> None:
    runs = {name: done(name, [0.1, 0.4, 0.5, 0.6]) for name in ("grpo/tree/0", "grpo/spec_rl/0", "ppo/tree/0")}
    picture = algorithms.chart(algorithms.grouped(runs, "mode"), "mode")
    lines = ElementTree.fromstring(picture).findall(".//{*}g")
    assert [line.get("class") for line in lines] == ["line s0", "line biased"]
    assert "biased: level D" in picture
    assert "ppo" not in picture
    assert list(algorithms.table(runs, "mode").columns[1].cells) == ["A", "D (biased)"]


def test_what_is_done_is_not_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, played = tmp_path / "found.json", []

    def play(run: dict[str, Any], steps: int) -> dict[str, Any]:
        played.append(algorithms.name_of(run))
        return {**done(played[-1], [0.1] * steps), "minutes": 1.0}

    monkeypatch.setattr(algorithms, "played", play)
    for seeds in ("1", "2"):
        monkeypatch.setattr("sys.argv", ["algorithms.py", "--seeds", seeds, "--steps", "4", "--json", str(file)])
        algorithms.main()
    assert len(played) == len(set(played)) == len(algorithms.runs(2))
    assert set(json.loads(file.read_text())["runs"]) == set(played)
    assert (tmp_path / "found_mode.svg").exists()
