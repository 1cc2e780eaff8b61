import json
import os
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchmark_modules import BENCHMARKS, benchmark_module
from interpreter import python
from machine_speed import eventually, patience

running, stages, report = (benchmark_module(f"first_hour.{name}") for name in ("running", "stages", "report"))

WRITES = "import json, pathlib; pathlib.Path({file!r}).write_text(json.dumps([{{'batch': 1, 'holds': {holds}}}]))"
CRASHES = "raise MemoryError('no room')"
LEAVES_A_CHILD = "sleep 600 & echo $! > {file}.pid; wait"


def stage(name: str, **fields: Any) -> Any:
    return stages.Stage(name=name, module="none", **{"minutes": 5, **fields})


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., tuple[bool, dict[str, Any]]]:
    def run(programs: dict[str, str], *chosen: Any, settings: str = "small") -> tuple[bool, dict[str, Any]]:
        results = running.Results(tmp_path / "results.json", settings={"size": settings}, device="cpu")

        def command(stage: Any, file: Path) -> list[str]:
            program = programs[stage.name].format(file=str(file), holds=True)
            return ["sh" if program.startswith("sleep") else sys.executable, "-c", program]

        whole = running.run_all(chosen, results, command, say=lambda stage, result: None)
        return whole, json.loads((tmp_path / "results.json").read_text())["stages"]

    return run


def test_a_stage_that_crashes_is_a_line_with_its_error_and_the_others_go_on(play):
    whole, found = play({"one": WRITES, "two": CRASHES, "three": WRITES}, *map(stage, ("one", "two", "three")))
    assert not whole
    assert [result["outcome"] for result in found.values()] == ["done", "failed", "done"]
    assert found["two"]["note"].startswith("MemoryError: no room (status 1")
    assert found["three"]["rows"] == [{"batch": 1, "holds": True}]
    assert found["three"]["versions"]["torch"] != "-"


def test_a_stage_that_hangs_ends_at_its_limit_with_the_processes_that_it_started(play, tmp_path):
    limit = patience(1) / 60
    whole, found = play({"one": LEAVES_A_CHILD, "two": WRITES}, stage("one", minutes=limit), stage("two"))
    assert not whole
    assert found["one"]["note"].startswith("not done after")
    assert found["two"]["outcome"] == "done"
    child = int((tmp_path / "logs" / "one.json.pid").read_text())

    def gone() -> bool:
        try:
            os.kill(child, 0)
        except ProcessLookupError:
            return True
        return Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] == "Z"

    eventually(gone)


def test_what_is_done_is_not_run_again_and_what_failed_is(play):
    both = [stage("one"), stage("two")]
    assert not play({"one": WRITES, "two": CRASHES}, *both)[0]
    whole, found = play({"one": CRASHES, "two": WRITES}, *both)
    assert whole
    assert [result["outcome"] for result in found.values()] == ["done", "done"]
    with pytest.raises(SystemExit, match="other settings"):
        play({}, *both, settings="large")


def test_a_claim_that_does_not_hold_is_a_failure(play):
    broken = 'import pathlib; pathlib.Path({file!r}).write_text(\'[{{"claim": "equal", "holds": false}}]\')'
    whole, found = play({"one": broken}, stage("one"))
    assert not whole
    assert (found["one"]["outcome"], found["one"]["note"]) == ("failed", "does not hold: equal")
    assert found["one"]["rows"]


def test_a_stage_without_its_engine_is_skipped_and_says_so(play):
    whole, found = play({}, stage("one", needs=("no_such_engine",)))
    assert whole
    assert (found["one"]["outcome"], found["one"]["note"]) == ("skipped", "skipped: no_such_engine not installed")


def test_the_error_of_a_log_is_its_last_exception_and_stages_have_names_of_their_own():
    log = "Traceback\nValueError: first\n  during\ntorch.OutOfMemoryError: 2 GiB\n[rank0]: bye\n"
    assert running.last_error(log) == "torch.OutOfMemoryError: 2 GiB"
    assert running.last_error("Killed\n") == "Killed"
    assert running.last_error("") == "no word"
    assert len({one.name for one in stages.STAGES}) == len(stages.STAGES)


def test_speeds_and_recorded_dialogues_are_compared_with_the_first_way_of_the_same_engine(tmp_path):
    def row(way: str, batch: int, speed: float) -> dict[str, Any]:
        return {"way": way, "batch": batch, "tokens_per_second": speed, "ratio_to_plain": speed}

    done = {
        "local": {"rows": [row("engine", 1, 1.0), row("engine + drafts", 1, 1.5), row("engine + drafts", 16, 1.2)]},
    }
    assert report.speeds(done) == {"local: trees": {1: 1.5, 16: 1.2}}
    assert report.plot(done, tmp_path / "speed.svg")
    picture = (tmp_path / "speed.svg").read_text()
    ElementTree.fromstring(picture)
    assert picture.count("local: trees") == 3, "a tooltip a point, and its name in the legend"
    assert not report.plot({}, tmp_path / "none.svg")

    def row(way: str, seconds: float, epoch: int = 1) -> dict[str, Any]:
        return {"way": way, "trace": "math", "at once": 64, "epoch": epoch, "s": seconds, "half s": seconds / 2}

    done = {
        "vllm-stock": {"rows": [row("stock", 8.0)]},
        "vllm-ours": {"rows": [row("ours", 4.0), row("ours", 4.0, epoch=2)]},
        "sglang-ours": {"rows": [row("ours", 2.0)]},
    }
    found = [(one["way"], one["s ratio"], one["half s ratio"]) for one in report.compared(done)]
    assert found == [("stock", 1.0, 1.0), ("ours", 2.0, 2.0), ("ours", None, None), ("ours", None, None)]
    assert report.table("", report.compared(done)).row_count == 4


def test_recorded_tokens_are_certain_at_their_positions_and_nowhere_else(tmp_path):
    import torch
    from torch import Tensor

    hooks, traces = benchmark_module("first_hour.engine_hooks"), benchmark_module("drafting.traces")
    turns = traces.generated(steps=1, states=1, samples=2).turns  # of a prompt of one token
    hooks.save(tmp_path, turns)

    def drawn(*rows: tuple[int, int], dtype: torch.dtype = torch.float32) -> Tensor:
        logits = torch.zeros(len(rows), 32, dtype=dtype)
        given = torch.tensor(rows)
        hooks.Recorded(tmp_path).force(logits, given[:, 0], given[:, 1])
        return logits

    first, second = (turn.tokens.tolist() for turn in turns)
    rows = [(0, 0), (0, len(first) - 1), (1, 1)]
    for dtype in (torch.float32, torch.bfloat16):
        chances = drawn(*rows, dtype=dtype).softmax(-1, dtype=torch.float32)
        assert chances.max(-1).values.tolist() == [1.0] * 3
        assert chances.argmax(-1).tolist() == [first[0], first[-1], second[1]]
    outside = [(0, -1), (0, len(first)), (-1, 0)]  # within a prompt, after the turn, of no turn
    assert not drawn(*outside).any()


ALONE = tuple(one.name for one in stages.STAGES if not one.needs)


@pytest.mark.slow
@pytest.mark.release
def test_what_needs_pytorch_alone_runs_on_any_machine(tmp_path: Path) -> None:
    words = ("--small", "--device", "cpu", "--out", str(tmp_path))
    done = python(str(BENCHMARKS / "gpu.py"), *words)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "results.json").read_text())["stages"]
    outcomes = {name: result["outcome"] for name, result in found.items()}
    assert outcomes == {one.name: "done" if one.name in ALONE else "skipped" for one in stages.STAGES}
    assert all(claim["holds"] for claim in found["exact-local"]["rows"])
    assert found["race"]["rows"][0]["unlike the CPU's of 8"] == 0
    assert (tmp_path / "speed.svg").exists()
    again = python(str(BENCHMARKS / "gpu.py"), *words, "--only", *ALONE)
    assert again.returncode == 0
    assert json.loads((tmp_path / "results.json").read_text())["stages"] == found, "nothing ran twice"


@pytest.mark.once
@pytest.mark.release
@pytest.mark.slow
@pytest.mark.parametrize(
    "engine", [pytest.param("vllm", marks=pytest.mark.vllm), pytest.param("sglang", marks=pytest.mark.sglang)]
)
def test_the_stages_of_an_engine_run_in_their_smallest_size_on_the_cpu(engine: str, tmp_path: Path) -> None:
    names = [one.name for one in stages.STAGES if engine in one.needs]
    words = ("--small", "--device", "cpu", "--out", str(tmp_path), "--only", *names)
    done = python(str(BENCHMARKS / "gpu.py"), *words, seconds=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "results.json").read_text())["stages"]
    assert {name: result["outcome"] for name, result in found.items()} == dict.fromkeys(names, "done")
