import os
import re
from pathlib import Path

import pytest
from interpreter import python
from real_training import read_lines
from tables import table

from turntree.agents.episodes.learning_checks import figures_of
from turntree.agents.episodes.record import read_records
from turntree.agents.verl.records.recording import RunFolder

README = Path(__file__).resolve().parents[3] / "README.md"
SECTION = "## An environment of your own, trained\n"
FILE = "doubling.py"


def code() -> str:
    """The one block of Python in the section."""
    section = README.read_text(encoding="utf-8").partition(SECTION)[2].partition("\n## ")[0]
    (block,) = re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    assert f"`{FILE}`" in section
    return str(block)


def test_it_takes_fewer_than_forty_lines() -> None:
    assert 10 < len(code().splitlines()) < 40


@pytest.mark.slow
def test_who_has_only_the_readme_trains_an_environment_of_their_own(tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(code(), encoding="utf-8")
    elsewhere = tmp_path / "elsewhere"  # the script's folder is found from wherever it is run
    elsewhere.mkdir()
    small = ("trainer.total_training_steps=2", "actor_rollout_ref.actor.optim.lr=0.01", "turntree.train_tasks=4")
    (elsewhere / "model").symlink_to(tiny_model)
    where = {"cwd": elsewhere, "env": {**os.environ, "HF_HUB_OFFLINE": "1"}}
    done = python(str(tmp_path / FILE), "model", *small, **where, seconds=900)
    folder = RunFolder(elsewhere / "runs" / "doubling")
    log = folder.log.read_text(errors="replace")[-3000:] if folder.log.exists() else ""
    assert done.returncode == 0, done.stderr[-2000:] + log
    lines = done.stdout.splitlines()
    begun = next(place for place, line in enumerate(lines) if line.startswith("step 1:"))
    told_phases = [line.partition(" s  ")[2] for line in lines]
    news = [words for words in told_phases[:begun] if not words.startswith("still")]
    assert news == table(__file__, "phases_of_a_start")
    assert [line.split(":")[0] for line in lines if line.startswith("step")] == ["step 1", "step 2"]
    assert told_phases[-1] == f"done; the episodes: turntree view {folder.root}"
    told = [row["data"] for row in read_lines(folder.metrics)]
    versions = []
    for step, metrics in enumerate((row for row in told if "training/global_step" in row), start=1):
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
