"""The training of README's environment as a reader runs it, and the commands of docs/howto/take_away.md."""

import json
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from interpreter import python
from pages import ROOT, commands, inline_commands
from real_training import read_lines
from tables import table

from turntree.agents.episodes.learning_checks import figures_of
from turntree.agents.episodes.record import read_records
from turntree.agents.verl.records.recording import RunFolder

README = ROOT / "README.md"
PAGE = ROOT / "docs/howto/take_away.md"
TASKS = 4
SECTION = "## An environment of your own, trained\n"
FILE = "doubling.py"


def code() -> str:
    section = README.read_text(encoding="utf-8").partition(SECTION)[2].partition("\n## ")[0]
    (block,) = re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    assert f"`{FILE}`" in section
    return str(block)


def test_it_takes_fewer_than_forty_lines() -> None:
    assert 10 < len(code().splitlines()) < 40


class Trained(NamedTuple):
    done: subprocess.CompletedProcess[str]
    cwd: Path

    @property
    def folder(self) -> RunFolder:
        return RunFolder(self.cwd / "runs/doubling")

    @property
    def steps(self) -> list[dict[str, float]]:
        return [row["data"] for row in read_lines(self.folder.metrics) if "training/global_step" in row["data"]]


@pytest.fixture(scope="module")
def trained(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    # The page's first command, with a small model and less to do.
    root = tmp_path_factory.mktemp("readme")
    (root / FILE).write_text(code(), encoding="utf-8")
    cwd = root / "elsewhere"  # the script's folder is found from wherever it is run
    (cwd / "models").mkdir(parents=True)
    (cwd / "models/smollm2").symlink_to(tiny_model)
    (line,) = (line for line in commands(PAGE) if line.startswith("python "))
    program, file, *words = shlex.split(line)
    assert (program, file) == ("python", FILE)
    small = ("actor_rollout_ref.actor.optim.lr=0.01", f"turntree.train_tasks={TASKS}")
    where = {"cwd": cwd, "env": {**os.environ, "HF_HUB_OFFLINE": "1"}}
    return Trained(python(str(root / FILE), *words, *small, **where, seconds=900), cwd)


@pytest.mark.slow
def test_who_has_only_the_readme_trains_an_environment_of_their_own(trained: Trained) -> None:
    done, folder = trained.done, trained.folder
    log = folder.log.read_text(errors="replace")[-3000:] if folder.log.exists() else ""
    assert done.returncode == 0, done.stderr[-2000:] + log
    lines = done.stdout.splitlines()
    begun = next(index for index, line in enumerate(lines) if line.startswith("step 1:"))
    told_phases = [line.partition(" s  ")[2] for line in lines]
    news = [words for words in told_phases[:begun] if not words.startswith("still")]
    assert news == table(__file__, "phases_of_a_start")
    assert [line.split(":")[0] for line in lines if line.startswith("step")] == ["step 1", "step 2"]
    assert told_phases[-1] == f"done; the episodes: turntree view {folder.root}"
    versions = []
    for step, metrics in enumerate(trained.steps, start=1):
        episodes = [record.episode for record in read_records(folder.episodes(step))]
        assert len(episodes) == 8
        assert {episode.env_id for episode in episodes} == {"Doubling"}
        assert max(len(episode.turns) for episode in episodes) > 1
        mean = sum(episode.reward for episode in episodes) / len(episodes)
        assert metrics["critic/score/mean"] == pytest.approx(mean, rel=1e-4)
        groups = {one.task.id: [other for other in episodes if other.task == one.task] for one in episodes}
        found = figures_of(list(groups.values()))
        assert metrics["turntree/turns_cut"] == pytest.approx(found.cut)
        assert metrics["turntree/equal_groups"] == found.equal_groups
        assert metrics["turntree/tool_calls_unparsed"] == 0
        if step == 1:  # it has no tools, and the untrained model seldom ends a turn
            assert found.cut > 0.5
            assert f"after step 1 {found.cut:.0%} of the turns were cut" in done.stderr
            assert ("the rewards are equal" in done.stderr) == (found.equal_groups == 1.0)
            assert "no episode called a tool" not in done.stderr
        (version,) = {turn.completion.weights_version for episode in episodes for turn in episode.turns}
        versions.append(version)
    first, second = versions
    assert first != second  # the second step was sampled by weights that the first one had changed


@pytest.fixture
def there(trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trained:
    assert trained.done.returncode == 0
    monkeypatch.chdir(trained.cwd)
    monkeypatch.syspath_prepend(trained.cwd.parent)
    monkeypatch.setenv("TURNTREE_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return trained


@pytest.mark.slow
def test_its_checkpoints_are_evaluated_compared_and_exported_by_the_commands_of_the_page(
    turntree: Any, there: Trained, tmp_path: Path
) -> None:
    from datasets import load_dataset
    from safetensors.torch import load_file

    lines = [shlex.split(line)[1:] for line in commands(PAGE) if line.startswith("turntree ")]
    assert [line[0] for line in lines] == ["eval", "compare", "export", "export"]
    said = [turntree(*line) for line in lines]
    assert [one.status for one in said] == [0] * 4, said

    rows = [row for row in said[0].out.splitlines() if "runs/doubling@" in row and "warning" not in row]
    assert len(rows) == 2
    assert said[0].err.count("merging runs/doubling@") == 2
    weights = {}
    for folder in (tmp_path / "checkpoints").glob("*/"):
        made = json.loads((folder / "checkpoint.json").read_text())
        weights[made["step"]] = load_file(folder / "model.safetensors")
    first, second, before = (weights[1], weights[2], load_file("models/smollm2/model.safetensors"))
    name = next(name for name in first if "layers.0" in name and name.endswith("q_proj.weight"))
    moved = [(a[name].float() - b[name].float()).abs().max().item() for a, b in ((first, before), (second, first))]
    assert min(moved) > 1e-3, "each checkpoint has the weights of its own step"
    played = {step: [record.episode for record in read_records(f"evals/step_{step}.jsonl")] for step in (1, 2)}
    assert [len(episodes) for episodes in played.values()] == [16, 16]
    assert json.loads(Path("evals/results.json").read_text())[1]["model"] == "runs/doubling@2"

    told = turntree(*lines[1], "--json").json
    mean = {step: sum(one.reward for one in episodes) / 16 for step, episodes in played.items()}
    assert told["difference"]["value"] == pytest.approx(mean[2] - mean[1])
    assert (told["pairs"], told["tasks"]) == (16, 8)
    assert "runs/doubling@2 against runs/doubling@1" in said[1].out

    cache = {"split": "train", "cache_dir": str(tmp_path / "datasets")}
    messages = load_dataset("parquet", data_files="runs/doubling/messages.parquet", **cache)
    assert len(messages) == 2 * 2 * TASKS
    table_of = [line.split(",") for line in there.folder.table.read_text().splitlines()]
    column = table_of[0].index("critic/score/mean")
    for step, metrics in enumerate(there.steps, start=1):
        rewards = [row["reward"] for row in messages if row["step"] == step]
        assert metrics["critic/score/mean"] == pytest.approx(sum(rewards) / len(rewards), rel=1e-4)
        assert float(next(row for row in table_of if row[0] == str(step))[column]) == metrics["critic/score/mean"]
    tokens = load_dataset("json", data_files="evals/step_2.tokens.jsonl", **cache)
    sampled = sum(len(turn.completion.token_ids) for one in played[2] for turn in one.turns)
    assert sum(map(sum, tokens["mask"])) == sampled

    again = turntree(*lines[0])
    assert (again.status, again.err.count("no model is loaded"), "merging" in again.err) == (0, 2, False)
    few = ("-n", 2, "--samples", 1, "--temperature", 1, "--max-tokens", 32)
    (line,) = (line for line in inline_commands(PAGE) if "--against" in line)
    beside = turntree(*shlex.split(line)[1:], *few, "--out", tmp_path / "a.jsonl")
    assert "runs/doubling@2 against models/smollm2" in beside.out, beside.err
    alone = [record.episode for record in read_records(tmp_path / "a.against.jsonl")]
    drawn = [[turn.completion.token_ids for turn in one.turns] for one in alone]
    firsts = [record for record in read_records("evals/step_2.jsonl") if record.labels["sample"] == 0]
    known = {record.labels["index"]: record.episode for record in firsts}
    assert drawn == [[turn.completion.token_ids for turn in known[index].turns] for index in (0, 1)]
    missing = turntree("bench", "runs/doubling@9", "doubling:Doubling").err
    assert "has no checkpoint of step 9; complete ones: step 1, 2" in missing
