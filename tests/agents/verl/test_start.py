import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from interpreter import python
from omegaconf import OmegaConf
from tables import table
from tiny_llama import save_chat_llama

from turntree.agents.cli import main
from turntree.agents.verl import launch, start
from turntree.agents.verl.config.compose import compose
from turntree.agents.verl.config.groups import list_configs
from turntree.agents.verl.records.recording import RunFolder

Said = tuple[int, str, list[str]]  #: status, output, and lines of errors


@pytest.fixture(scope="module")
def model(chatml: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Enough positions for the rows of every shipped training.
    return save_chat_llama(tmp_path_factory.mktemp("model"), chatml, positions=8192)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    (folder / "data/gsm8k").mkdir(parents=True)
    rows = "\n".join(json.dumps({"question": f"{one}+1?", "answer": f"#### {one + 1}"}) for one in range(128))
    for split in ("train", "test"):
        (folder / f"data/gsm8k/{split}.jsonl").write_text(rows)
    return folder


@pytest.fixture
def here(data: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # A working folder with the files that the tables name, without access to the Hugging Face Hub.
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("TURNTREE_DATA", str(data))
    for name in ("flash_attn", "flash_attn.bert_padding"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    for name in ("MODEL", "BARE", "DAMAGED"):
        shutil.copytree(model, name)
    Path("BARE/model.safetensors").unlink()
    os.truncate("DAMAGED/model.safetensors", 100)
    Path("few.jsonl").write_text("\n".join((data / "data/gsm8k/test.jsonl").read_text().splitlines()[:5]))
    latest = RunFolder(Path("HALTED")).checkpoints / "latest_checkpointed_iteration.txt"
    latest.parent.mkdir(parents=True)
    latest.write_text("twelve")
    return tmp_path


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    def run(*words: str) -> Said:
        with pytest.raises(SystemExit) as stopped:
            main(words)
        printed = capsys.readouterr()
        lines = [line.removeprefix("turntree: ") for line in printed.err.splitlines() if line.startswith("turntree: ")]
        return int(stopped.value.code or 0), printed.out, lines

    return run


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    # A program in place of verl that ends when it is released.
    monkeypatch.setattr(launch, "command", lambda folder, socket: [sys.executable, "-S", "-c", "input()"])


@pytest.mark.parametrize(("words", "message"), table(__file__, "bad_trainings"))
def test_what_a_start_refuses_is_found_without_starting_in_the_same_words(words, message, here, said, idle):
    command = ["train", *words, "turntree.run_dir=RUN"] if "HALTED" not in str(words) else ["train", *words]
    status, _, refused = said(*command)
    assert status == 2
    (line,) = refused
    assert message in line
    shutil.rmtree("RUN", ignore_errors=True)
    status, _, found = said(*command, "--check", "--out", "out.yaml")
    assert status == 2
    assert line in found
    assert not Path("out.yaml").exists()
    assert not Path("RUN").exists()


def test_independent_problems_are_found_at_once(here: Path, said: Callable[..., Said]) -> None:
    more = ("--model", "BARE", "actor_rollout_ref.rollout.tensor_model_parallel_size=3", "turntree.rewards={answer: 1}")
    status, _, found = said("train", "engine=vllm", "size=7b", "env=arithmetic", *more, "--check")
    assert status == 2
    for part in ("tensor_model_parallel_size=3", "has no weights", "turntree.answer_format=math"):
        assert sum(part in line for line in found) == 1


def test_all_keys_that_verl_would_ignore_or_refuse_are_named_at_once(here: Path, said: Callable[..., Said]) -> None:
    keys = ("model_engine=megatron", "data.prompt_key=x", "critic.grad_clip=2", "actor_rollout_ref.actor.grad_clip=2")
    for check, count in ((["--check"], 4), ([], 1)):
        status, _, found = said("train", "demo", "--model", "MODEL", *keys, *check)
        assert (status, len(found)) == (2, count)


def test_doctor_finds_the_same(here: Path, said: Callable[..., Said]) -> None:
    words = ["engine=vllm", "size=7b", "env=arithmetic", "actor_rollout_ref.model.path=MODEL"]
    wrong = "actor_rollout_ref.rollout.tensor_model_parallel_size=3"
    for more, fixes in (([], []), ([wrong], ["tensor_model_parallel_size=3"])):
        status, out, _ = said("doctor", "--json", "--config", *words, *more)
        training = [row for row in json.loads(out) if row["part"] == "start"]
        assert status == len(fixes)
        assert [fix in row["fix"] for fix, row in zip(fixes, training, strict=False)] == [True] * len(fixes)
        assert {row["health"] for row in training} == {"broken" if fixes else "ok"}


@pytest.mark.parametrize("name", [name for name in list_configs() if name != "grpo_sdk_agent_cpu"])
def test_a_shipped_training_passes(name: str, here: Path, said: Callable[..., Said]) -> None:
    status, out, _ = said("train", name, "--model", "MODEL", "turntree.train_tasks=128", "--check")
    assert status == 0, out
    for part in ("options: ", "step: ", "epoch: ", "speculation: tree, drafts in ", "memory: ", "model: "):
        assert f"\n{part}" in f"\n{out}"


def test_without_its_checks_a_training_that_cannot_be_started_would_pass(here, said, monkeypatch) -> None:
    # Control: these checks find the problems, also at a start.
    monkeypatch.setattr(start, "_checks", lambda *_: iter(()))
    words = ["demo", "--model", "BARE"]
    assert said("train", *words, "--check")[0] == 0
    monkeypatch.setattr(launch, "_run", lambda _, folder, *more: folder.log.write_text("") or 7)
    assert said("train", *words, "turntree.run_dir=RUN")[0] == 7


def test_a_run_that_is_there_is_only_read_and_its_step_is_told(here: Path, said: Callable[..., Said]) -> None:
    run = RunFolder(Path("OLD"))
    latest = run.checkpoints / "latest_checkpointed_iteration.txt"
    (run.checkpoints / "global_step_12").mkdir(parents=True)
    for path in (latest, run.log, run.metrics, run.config, run.earlier_metrics):
        path.write_text("" if path == latest else "{}\n")
    before = {path: path.stat().st_mtime_ns for path in (run.root, *run.root.rglob("*"))}
    status, out, _ = said(
        "train", "demo", "--model", "MODEL", "turntree.run_dir=OLD", "trainer.resume_mode=auto", "--check"
    )
    assert (status, "OLD, resumed after step 12\n" in out) == (0, True)
    assert {path: path.stat().st_mtime_ns for path in (run.root, *run.root.rglob("*"))} == before


def test_the_configuration_is_that_of_a_start_and_nothing_heavy_is_loaded_for_it(here: Path) -> None:
    overrides = ["actor_rollout_ref.model.path=MODEL"]
    script = table(__file__, "checks_one").replace("OUT", "out.yaml")
    done = python("-c", script)
    assert done.stderr.splitlines()[-1] == "0", done.stderr[-2000:]
    composition = compose("demo", overrides)
    folder = start.run_folder(composition)
    launch.prepare(composition, folder, Path("ray"))
    saved, written = (OmegaConf.load(path) for path in (folder.config, "out.yaml"))
    for key in ("_temp_dir", "runtime_env.py_executable"):  # of Ray, in a new folder at each start
        assert OmegaConf.select(saved, f"ray_kwargs.ray_init.{key}") is not None
        OmegaConf.update(saved, f"ray_kwargs.ray_init.{key}", None, force_add=True)
        OmegaConf.update(written, f"ray_kwargs.ray_init.{key}", None, force_add=True)
    assert written == saved


def test_out_needs_a_check(here: Path, said: Callable[..., Said]) -> None:
    assert said("train", "demo", "--model", "MODEL", "--out", "out.yaml")[::2] == (
        2,
        ["--out needs --check; set a training's run folder with turntree.run_dir=DIR"],
    )
