import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from echoing import spoken

from turntree.agents.episodes.episode import Episode, StopReason
from turntree.agents.episodes.record import EpisodeWriter, read_records
from turntree.agents.errors import RecordError
from turntree.agents.scoring.rescore import rescore
from turntree.agents.scoring.scorer import Scorer

ANSWER = Scorer({"answer": 1})


def paid(episode: Episode, reward: float) -> Episode:
    *before, last = episode.turns
    return replace(episode, turns=(*before, replace(last, reward=reward)))


def write(path: Path, *episodes: Episode, **labels: Any) -> Path:
    with EpisodeWriter(path) as writer:
        for session, episode in enumerate(episodes):
            writer.write(episode, session=session, **labels)
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    right, wrong = spoken("hm", "#### 42"), spoken("hm", "#### 41")
    unreadable = replace(right, task=replace(right.task, answer="\\frac{"))
    failed = replace(right, stop_reason=StopReason.FAILURE, failure="no disk")
    write(folder / "episodes" / "step_000001.jsonl", paid(right, 0.0), paid(wrong, 1.0), right, step=1)
    write(folder / "episodes" / "step_000002.jsonl", paid(right, 1.0), paid(unreadable, 1.0), failed, step=2)
    return folder


def test_a_run_is_scored_again_step_by_step(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "new.jsonl"
    changes = rescore(run, out, ANSWER)
    assert list(changes) == ["step_000001", "step_000002"]
    first, second = changes.values()
    assert (first.episodes, first.raised, first.lowered) == (3, 2, 1)
    assert (first.old, first.new) == (pytest.approx(1 / 3), pytest.approx(2 / 3))
    assert (second.old, second.new, second.ungraded, second.failures) == (1.0, 1.0, 1, 1)
    assert [(one.compared, one.newly_scored) for one in (first, second)] == [(3, 0), (1, 0)]
    records = list(read_records(out))
    assert [record.episode.reward for record in records] == [1.0, 0.0, 1.0, 1.0, 0.0, 0.0]
    assert [record.labels["old_reward"] for record in records] == [0.0, 1.0, 0.0, 1.0, 1.0, 0.0]
    assert [(record.labels["step"], record.labels["session"]) for record in records[2:4]] == [(1, 2), (2, 0)]
    assert [record.episode.masked for record in records[3:]] == [False, True, True]


def test_episodes_that_nobody_had_graded_are_newly_scored_and_not_compared(tmp_path: Path) -> None:
    right, wrong = spoken("hm", "#### 42"), spoken("hm", "#### 41")
    file = write(tmp_path / "sessions.jsonl", replace(right, ungraded=("session",)), paid(wrong, 1.0), step=1)
    (change,) = rescore(file, tmp_path / "new.jsonl", ANSWER).values()
    assert (change.episodes, change.compared, change.newly_scored) == (2, 1, 1)
    assert (change.old, change.new) == (1.0, 0.0), "over the compared one alone"


def test_what_was_recorded_is_not_touched(run: Path, tmp_path: Path) -> None:
    def held() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in sorted(run.rglob("*.jsonl"))}

    before = held()
    rescore(run, tmp_path / "new.jsonl", ANSWER)
    assert held() == before
    with pytest.raises(RecordError, match="already exists"):
        rescore(run, run / "episodes" / "step_000001.jsonl", ANSWER)
    assert held() == before
    rescore(run, run / "rescored.jsonl", ANSWER)
    rescore(run / "episodes" / "step_000001.jsonl", run / "episodes" / "step_000001.rescored.jsonl", ANSWER)
    again = rescore(run, run / "again.jsonl", ANSWER)
    assert list(again) == ["step_000001", "step_000002"], "what was scored before is no part of the run"


def test_one_file_of_episodes_will_do_and_without_verdicts_there_is_no_mean(run: Path, tmp_path: Path) -> None:
    changes = rescore(run / "episodes" / "step_000001.jsonl", tmp_path / "new.jsonl", Scorer({"environment": 1}))
    (change,) = changes.values()
    assert (change.raised, change.lowered, change.old, change.new) == (0, 0, change.old, change.old)
    failed = replace(spoken("a"), stop_reason=StopReason.FAILURE, failure="no disk")
    (change,) = rescore(write(tmp_path / "a.jsonl", failed), tmp_path / "b.jsonl", ANSWER).values()
    assert math.isnan(change.old)
    assert math.isnan(change.new)


def test_a_damaged_line_leaves_no_file_behind(run: Path, tmp_path: Path) -> None:
    with (run / "episodes" / "step_000002.jsonl").open("a") as file:
        file.write("{\n")
    with pytest.raises(RecordError, match="line 4"):
        rescore(run, tmp_path / "new.jsonl", ANSWER)
    assert not (tmp_path / "new.jsonl").exists()
