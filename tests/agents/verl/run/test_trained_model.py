import errno
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import Mock

import pytest
from tables import table

from turntree.agents.errors import MissingExtra
from turntree.agents.evaluation.checkpoint import CheckpointError
from turntree.agents.verl.run import trained_model
from turntree.agents.verl.run.trained_model import TrainedModel, merged, trained_models


def checkpoint(run: Path, step: int, *, ranks: int = 2) -> Path:
    actor = run / f"checkpoints/global_step_{step}/actor"
    (actor / "huggingface").mkdir(parents=True)
    (actor / "huggingface/config.json").write_text("{}")
    (actor / "fsdp_config.json").write_text(json.dumps({"world_size": ranks}))
    for rank in range(ranks):
        (actor / f"model_world_size_{ranks}_rank_{rank}.pt").write_text("weights")
    return actor


def finished(run: Path, step: int) -> None:
    (run / "checkpoints/latest_checkpointed_iteration.txt").write_text(str(step))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # A run with checkpoints of steps 2, 4 and 10.
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TURNTREE_CACHE", str(tmp_path / "cache"))
    merger = [sys.executable, "-c", table(__file__, "merges")]
    monkeypatch.setattr(trained_model, "merger_command", lambda actor, target: [*merger, str(actor), str(target)])
    run = Path("runs/sums")
    for step in (10, 2, 4):
        checkpoint(run, step)
    finished(run, 10)
    return run


def steps(name: str) -> list[int]:
    return [model.step for model in trained_models(name)]


@pytest.mark.parametrize(("name", "meant"), table(__file__, "names_of_checkpoints"))
def test_a_name_means_checkpoints_of_a_run_or_no_run(run: Path, name: str, meant: list[int]) -> None:
    assert steps(name) == meant
    assert {model.name for model in trained_models(name)} == {f"runs/sums@{step}" for step in meant}


def test_a_model_directory_and_a_folder_with_an_at_are_themselves(run: Path) -> None:
    Path("model@2").mkdir()
    Path("model@2/config.json").write_text("{}")
    assert trained_models("model@2") == []
    checkpoint(Path("runs/a@b"), 3)
    assert steps("runs/a@b") == [3]


def refused(name: str) -> str:
    with pytest.raises(CheckpointError) as said:
        trained_models(name)
    return str(said.value)


def test_a_step_that_is_not_there_is_refused_with_those_that_are(run: Path) -> None:
    assert refused("runs/sums@3") == "runs/sums has no checkpoint of step 3; complete ones: step 2, 4, 10"
    assert "RUN@all, got 'last'" in refused("runs/sums@last")


def test_a_run_that_saved_nothing_says_how_to_save(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("{}")
    for name in (str(tmp_path), f"{tmp_path}@2", f"{tmp_path}@all"):
        assert "trainer.save_freq=10" in refused(name)


@pytest.mark.parametrize("lost", ["model_world_size_2_rank_1.pt", "fsdp_config.json", "huggingface/config.json"])
def test_a_half_checkpoint_is_left_out_and_refused_by_name(run: Path, lost: str) -> None:
    actor = run / "checkpoints/global_step_10/actor"
    (actor / lost).unlink()
    assert steps("runs/sums") == [4]
    assert steps("runs/sums@all") == [2, 4]
    said = refused("runs/sums@10")
    assert said.startswith(f"the checkpoint runs/sums@10 is incomplete: {actor / lost} is missing")
    assert said.endswith("; complete ones: step 2, 4")


def test_what_verl_had_not_finished_is_a_half_even_with_all_its_files(run: Path) -> None:
    finished(run, 4)
    assert steps("runs/sums@all") == [2, 4]
    assert "the last checkpoint that verl completed is of step 4" in refused("runs/sums@10")
    finished(run, 1)
    none = "runs/sums has no complete checkpoint: step 2: the last checkpoint that verl completed is of step 1"
    assert refused("runs/sums").startswith(none)
    # verl does not write the file when it saves asynchronously.
    (run / "checkpoints/latest_checkpointed_iteration.txt").unlink()
    assert steps("runs/sums@all") == [2, 4, 10]


def calls() -> int:
    return len(Path("calls").read_text())


def test_a_checkpoint_is_merged_once_and_anew_when_its_files_change(run: Path) -> None:
    (model,) = trained_models("runs/sums@4")
    told: list[str] = []
    with ThreadPoolExecutor(2) as threads:  # who asks meanwhile waits
        first, second = threads.map(lambda _: merged(model, told.append), range(2))
    assert (first, calls(), len(told)) == (second, 1, 1)
    assert told[0].startswith("merging runs/sums@4 into ")
    assert json.loads((first / "checkpoint.json").read_text()) == {"run": str(run.resolve()), "step": 4}
    assert merged(trained_models("runs/sums@2")[0]) != first
    assert merged(model) == first
    assert calls() == 2
    os.utime(model.actor / "model_world_size_2_rank_0.pt", ns=(1, 1))
    assert merged(model) != first
    assert calls() == 3


def test_a_model_is_merged_on_a_file_system_without_locks(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fcntl.flock", Mock(side_effect=OSError(errno.ENOLCK, "No locks available")))
    (model,) = trained_models("runs/sums@4")
    assert merged(model).is_dir()
    monkeypatch.setattr("fcntl.flock", Mock(side_effect=OSError(errno.EIO, "Input/output error")))
    with pytest.raises(CheckpointError, match="Input/output error"):  # control
        merged(trained_models("runs/sums@2")[0])


def test_a_merger_that_fails_leaves_nothing_and_its_last_line_is_told(run: Path, tmp_path: Path) -> None:
    (model,) = trained_models("runs/sums@4")
    left = tmp_path / f"cache/checkpoints/.merging-{model.digest}-killed"
    left.mkdir(parents=True)
    (model.actor / "broken").touch()
    with pytest.raises(CheckpointError, match=r"cannot read runs/sums@4 .*: RuntimeError: PytorchStreamReader failed$"):
        merged(model)
    assert [path.suffix for path in (tmp_path / "cache/checkpoints").iterdir()] == [".lock"]
    (model.actor / "broken").unlink()
    assert (merged(model) / "config.json").exists()


def test_an_adapter_is_refused_and_a_missing_verl_and_a_full_cache_are_named(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = TrainedModel(run, 4, run / "checkpoints/global_step_4/actor")
    monkeypatch.setattr(trained_model, "find_spec", lambda name: None if name == "verl" else find_spec(name))
    with pytest.raises(MissingExtra, match="reading a checkpoint of verl"):
        merged(model)
    monkeypatch.undo()
    monkeypatch.setenv("TURNTREE_CACHE", str(run / "checkpoints/latest_checkpointed_iteration.txt"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match="TURNTREE_CACHE names another folder"):
        merged(model)
    (model.actor / "lora_train_meta.json").touch()
    with pytest.raises(CheckpointError, match="LoRA adapter"):
        merged(model)
