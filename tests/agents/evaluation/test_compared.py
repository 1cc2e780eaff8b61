from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from echoing import spoken

from turntree.agents.engines.protocol import Completion, FinishReason
from turntree.agents.episodes.episode import Episode, StopReason
from turntree.agents.episodes.record import EpisodeWriter
from turntree.agents.errors import UsageError
from turntree.agents.evaluation.compared import Comparison, FinishedEvaluation, compare_files
from turntree.agents.evaluation.paired import mean_interval

SETTINGS = {"env": "e", "model": "m", "seed": 0, "temperature": 1.0, "reward": [], "samples": None}
SILENT = Completion(token_ids=(), logprobs=(), finish_reason=FinishReason.STOP)


def played(task: int, reward: float, *, text: str = "hm", **changes: Any) -> Episode:
    one = spoken(text)
    turn = replace(one.turns[0], reward=reward, completion=SILENT)
    task_of = replace(one.task, id=f"t/{task}", prompt=f"{task}?")
    return replace(one, task=task_of, turns=(turn,), **changes)


def write(
    path: Path, rewards: Mapping[int, Sequence[float]], *, change: Mapping[str, Any] | None = None, **episode: Any
) -> FinishedEvaluation:
    settings = {**SETTINGS, **(change or {})}
    with EpisodeWriter(path) as writer:
        for index, samples in rewards.items():
            for sample, reward in enumerate(samples):
                writer.write(
                    played(index, reward, **episode), run=str(settings), index=index, sample=sample, settings=settings
                )
    return FinishedEvaluation.read(path)


def test_the_difference_is_the_mean_over_tasks_with_the_paired_interval(tmp_path: Path) -> None:
    before = write(tmp_path / "a.jsonl", {0: [0, 0], 1: [1, 0], 2: [1, 1]})
    after = write(tmp_path / "b.jsonl", {0: [1, 0], 1: [1, 1], 2: [1, 1]}, change={"model": "n"})
    found = compare_files(before, after)
    assert found.paired.difference == mean_interval([0.5, 0.5, 0.0])
    assert (found.pairs, found.tasks, found.only, found.notes) == (6, 3, (0, 0), [])
    assert [(one.task, one.sample, one.before, one.after) for one in found.paired.changes] == [
        ("t/0", 0, 0.0, 1.0),
        ("t/1", 1, 0.0, 1.0),
    ]


def test_unpaired_episodes_are_left_out_and_reported(tmp_path: Path) -> None:
    before = write(tmp_path / "a.jsonl", {0: [0, 0], 1: [0, 0], 2: [0]})
    after = write(tmp_path / "b.jsonl", {1: [1], 2: [1, 1], 3: [1]})
    found = compare_files(before, after)
    assert (found.pairs, found.tasks, found.only, found.paired.difference.value) == (2, 2, (3, 2), 1.0)
    assert found.notes == [
        "compared 2 episodes of 2 tasks that both files have; "
        "left out 3 only in the first file and 2 only in the second file"
    ]
    with pytest.raises(UsageError, match="share no task"):
        compare_files(before, write(tmp_path / "c.jsonl", {7: [1]}))


def test_differing_settings_are_reported_and_other_seeds_warned_of(tmp_path: Path) -> None:
    before = write(tmp_path / "a.jsonl", {0: [0]})
    notes = compare_files(before, write(tmp_path / "b.jsonl", {0: [0]}, change={"temperature": 0.5, "seed": 3})).notes
    assert notes[:2] == ["seed differs: 0 and 3", "temperature differs: 1.0 and 0.5"]
    assert "noise is not shared" in notes[2]


@pytest.mark.parametrize(
    ("change", "episode", "expected"),
    [
        ({}, {"env_id": "other"}, "different environments, e and other"),
        ({"reward": ["few_turns"]}, {}, r"different rewards \(reward \[\] and \['few_turns'\]\)"),
        ({"answer_format": "math"}, {}, "different rewards"),
    ],
)
def test_other_environments_and_other_rewards_are_refused(
    tmp_path: Path, change: dict[str, Any], episode: dict[str, Any], expected: str
) -> None:
    before = write(tmp_path / "a.jsonl", {0: [0]})
    with pytest.raises(UsageError, match=expected):
        compare_files(before, write(tmp_path / "b.jsonl", {0: [0]}, change=change, **episode))


def test_other_tasks_under_the_same_numbers_are_refused(tmp_path: Path) -> None:
    before = write(tmp_path / "a.jsonl", {0: [0], 1: [0]})
    other = tmp_path / "b.jsonl"
    with EpisodeWriter(other) as writer:
        writer.write(played(0, 1.0), run="b", index=0, sample=0, settings=SETTINGS)
        writer.write(played(5, 1.0), run="b", index=1, sample=0, settings=SETTINGS)
    with pytest.raises(UsageError, match=r"different tasks: task 1 is 't/1', '1\?' in the first and 't/5'"):
        compare_files(before, FinishedEvaluation.read(other))


def test_texts_are_compared_where_no_tokens_are_known(tmp_path: Path) -> None:
    before = write(tmp_path / "a.jsonl", {0: [0], 1: [0]}, text="four")
    after = write(tmp_path / "b.jsonl", {0: [1], 1: [1]}, text="five")
    found = compare_files(before, after).paired
    assert found.equal == 0
    assert found.changes[0].why == "turn 0, character 1; ended by done and done"
    assert compare_files(before, before).paired.equal == 2


def test_failed_and_ungraded_episodes_are_left_out_of_the_pairs(tmp_path: Path) -> None:
    before = write(tmp_path / "a.jsonl", {0: [0], 1: [0]})
    with EpisodeWriter(tmp_path / "b.jsonl") as writer:
        writer.write(played(0, 1.0), run="b", index=0, sample=0, settings=SETTINGS)
        failed = played(1, 0.0, stop_reason=StopReason.FAILURE, failure="no disk")
        writer.write(failed, run="b", index=1, sample=0, settings=SETTINGS)
    found: Comparison = compare_files(before, FinishedEvaluation.read(tmp_path / "b.jsonl"))
    assert (found.pairs, found.paired.left_out, found.paired.difference.value) == (2, 1, 1.0)


def test_only_files_of_one_evaluation_are_read(turntree: Any, tmp_path: Path) -> None:
    whole = write(tmp_path / "a.jsonl", {0: [0]}).path
    training = tmp_path / "training.jsonl"
    with EpisodeWriter(training) as writer:
        writer.write(played(0, 1.0), step=1, index=0, session=0)
    mixed = tmp_path / "mixed.jsonl"
    mixed.write_bytes(whole.read_bytes() + write(tmp_path / "b.jsonl", {1: [0]}, change={"seed": 1}).path.read_bytes())
    (tmp_path / "empty.jsonl").touch()
    expected = {
        "training.jsonl": "is not an evaluation",
        "mixed.jsonl": "contains 2 evaluations",
        "empty.jsonl": "contains no episode",
        ".": "is a folder",
        "none.jsonl": "none.jsonl",
    }
    for name, why in expected.items():
        output = turntree("compare", whole, tmp_path / name)
        assert (output.status, why in output.err) == (2, True), output
    assert turntree("compare", whole, whole).status == 0
