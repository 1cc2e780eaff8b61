import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from benchmark_modules import benchmark_module
from recorded_run import write_run

pytest.importorskip("verl")

benchmark = benchmark_module("first_environment")
HOW = {"steps": 6, "rate": 1e-5}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace the slow parts and collect their calls."""
    calls: list[str] = []

    def fine_tune(words: list[str], **_: Any) -> None:
        calls.append("sft")
        out = Path(words[words.index("--out") + 1])
        out.mkdir(parents=True)
        (out / "sft.json").write_text('{"seconds": 58.0}')

    def train(config: str, overrides: list[str]) -> int:
        calls.append("train")
        run = next(one for one in overrides if one.startswith("turntree.run_dir=")).partition("=")[2]
        write_run(Path(run), steps=6, tokenizer=False)
        return 0

    monkeypatch.setattr(subprocess, "run", fine_tune)
    monkeypatch.setattr(benchmark, "train", train)
    return calls


def test_the_model_and_each_seeds_training_are_made_once(made: list[str], tmp_path: Path) -> None:
    for _ in range(2):
        benchmark.fine_tune(tmp_path / "sft", tmp_path, 5)
        benchmark.learn(tmp_path / "0", tmp_path / "sft", 0, **HOW)
    assert made == ["sft", "train"]
    row = benchmark.row(tmp_path / "0", 0)
    assert (row["steps"], len(row["success"])) == (6, 6)
    assert row["first"] == row["last"] == row["success"][0]
    assert json.loads(json.dumps(row)) == row


def test_a_training_that_failed_is_made_again(made: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(benchmark, "train", lambda config, overrides: 1)
        with pytest.raises(RuntimeError, match="seed 0: the training ended with status 1"):
            benchmark.learn(tmp_path / "0", tmp_path, 0, **HOW)
    benchmark.learn(tmp_path / "0", tmp_path, 0, **HOW)
    assert made == ["train"]
