import os
import tomllib
from collections.abc import Sequence
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest
from planted_faults import QUESTIONS, SOUND, Graded, planted
from playing import SHARED, arguments_of

from turntree.envs import DataError, Env, Message, Reply, Task, make
from turntree.envs.catalogue import CATALOGUE, Entry, find_entry
from turntree.envs.checking.attack import POLICIES, Attack, attack

TABLE: dict[str, Any] = tomllib.loads(Path(__file__).with_name("faults.toml").read_text(encoding="utf-8"))
GRADERS = [(kind, grader) for kind, graders in TABLE["graders"].items() for grader in graders]


@pytest.mark.parametrize("kind", QUESTIONS)
def test_a_sound_grader_has_no_finding(kind: str) -> None:
    report = attack(Graded(kind, SOUND))
    assert report.findings() == {}
    assert report.tasks == len(QUESTIONS[kind])
    assert report.nothing == {"reward": 0.0}


SOURCES = [tuple(row) for row in TABLE["environments"]["faults"]]
FOUND = 0.95  #: fraction of the faults that an attack must find
_COUNT = 12
#: Number of tasks for environments in which attacking one task takes seconds.
MOST = {
    **dict.fromkeys(("turntree/Repair-v0", "turntree/Adventure-v0"), 4),
    **dict.fromkeys(("turntree/Equations-v0", "turntree/UnitConversion-v0", "turntree/NumberGuessing-v0"), 40),
}


def finds(kind: str, grader: str) -> bool:
    return bool(attack(Graded(kind, grader)).findings())


def finds_in_source(folder: Path, name: str, file: str, old: str, new: str) -> bool:
    # A finding counts if the environment does not have it without the fault.
    entry = find_entry(f"turntree/{name}-v0")
    assert entry is not None
    with planted(f"envs/{file}", old, new):
        env = make(entry.id, **arguments_of(entry, folder))
        found = attack(env, count=_COUNT).findings()
        env.close()
    return bool(found.keys() - without_a_fault(name, folder))


@cache
def without_a_fault(name: str, folder: Path) -> frozenset[str]:
    entry = find_entry(f"turntree/{name}-v0")
    assert entry is not None
    env = make(entry.id, **arguments_of(entry, folder))
    found = attack(env, count=_COUNT).findings()
    env.close()
    return frozenset(found)


def row(report: Attack, policy: str) -> Any:
    return next(row for row in report.rows if row.policy == policy)


@pytest.mark.parametrize(("kind", "grader"), GRADERS[::20])
def test_a_fault_in_a_grader_is_found(kind: str, grader: str) -> None:
    assert finds(kind, grader)


@pytest.mark.parametrize("at", [19, *(pytest.param(at, marks=pytest.mark.release) for at in (23, 47))])
def test_a_fault_in_the_source_of_an_environment_is_found_and_gone_afterwards(at: int, tmp_path: Path) -> None:
    name = SOURCES[at][0]
    before = without_a_fault(name, tmp_path)
    assert finds_in_source(tmp_path, *SOURCES[at])
    without_a_fault.cache_clear()
    assert without_a_fault(name, tmp_path) == before


@pytest.mark.release
def test_an_attack_finds_nearly_all_planted_faults(tmp_path: Path) -> None:
    missed: list[Sequence[str]] = [row for row in GRADERS if not finds(*row)]
    for row in SOURCES:
        folder = tmp_path / row[0]
        folder.mkdir(exist_ok=True)
        if not finds_in_source(folder, *row):
            missed.append(row)
    planted_ones = len(GRADERS) + len(SOURCES)
    assert planted_ones >= 200
    assert 1 - len(missed) / planted_ones >= FOUND, missed


PLAYED = [pytest.param(one, marks=[pytest.mark.interop] if "BFCL" in one.id else []) for one in CATALOGUE]


@pytest.mark.release
@pytest.mark.parametrize("entry", PLAYED, ids=lambda entry: entry.id)
def test_no_environment_pays_without_a_solution(entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    # Except for the reasons in the table; with the published data if it is there.
    monkeypatch.setenv("TURNTREE_DATA", os.fspath(SHARED))
    if "BFCL" in entry.id:  # its data come with its package, for which a stand-in may be there
        if not list(distributions(name="bfcl-eval")):
            pytest.skip("needs bfcl-eval; see make test-interop")
    elif entry.needs_data and not (SHARED / "data").is_dir():
        pytest.skip(f"no data in {SHARED}; set TURNTREE_DATA to the folder that holds data")
    env = make(entry.id)
    found = attack(env, count=4 if "Tools" in entry.id else MOST.get(entry.id, 250)).findings()
    env.close()
    reasons = TABLE["reasons"].get(entry.id, {})
    assert {policy: what for policy, what in found.items() if policy not in reasons} == {}


class Quiz(Env):
    num_tasks = 8

    def task(self, index: int) -> Task:
        return Task(id=str(index), prompt=f"Say the number {9 * index + 31}.", answer=str(9 * index + 31))

    def paid(self, text: str) -> float:
        return float(text.strip() == f"ANSWER={self.current_task.answer}")

    def reply(self, message: Message) -> Reply:
        paid = self.paid(message.content)
        return Reply(reward=paid, done=True, rewards={"right": paid, "short": float(len(message.content) < 9)})


class Solved(Quiz):
    def solution(self) -> Sequence[str]:
        return [f"ANSWER={self.current_task.answer}"]


def test_a_form_of_ones_own_is_learnt_from_the_solution() -> None:
    without, known = attack(Quiz()), attack(Solved())
    assert "a solution" in without.not_applicable
    assert row(known, "a solution").tasks == 8
    assert row(known, "the question's last number").lucky == 8, "the answer stands in the question"
    assert known.findings() == {
        name: "right in 8 of 8 tasks: the answer is no secret"
        for name in POLICIES
        if (name.startswith("the question's") and name.endswith("number")) or name == "the question's numbers"
    }
    assert known.findings(luck=1.0) == {}
    assert known.nothing == {"reward": 0.0, "right": 0.0, "short": 1.0}


def test_what_was_said_is_reported_with_the_task_that_paid() -> None:
    class Paying(Quiz):
        def paid(self, text: str) -> float:
            return float(not text)

    silence = row(attack(Paying(), count=3), "silence")
    assert (silence.share, silence.paid) == (1.0, {"0": "", "2": "", "5": ""})


def test_a_guess_is_luck_though_its_unit_is_missing_and_other_words_are_none() -> None:
    class Worded(Quiz):
        def task(self, index: int) -> Task:
            gold = r"\text{(B)}" if index == 0 else rf"n = {index}\text{{ cm}}"
            return Task(id=str(index), prompt="Which?", answer=gold)

        def paid(self, text: str) -> float:
            return float(text.strip() in (str(self.current_task.id), "Done."))

    report = attack(Worded(), count=3)
    assert row(report, "the number 2").lucky == 1
    assert len(row(report, "a claim to be done").paid) == 3


def test_a_reward_may_have_to_be_higher_to_count_and_a_solution_that_is_not_paid_is_a_finding() -> None:
    class Polite(Quiz):
        def paid(self, text: str) -> float:
            return 0.1 + super().paid(text)

    assert attack(Polite()).findings(luck=1.0)
    assert attack(Polite(), above=0.5).findings(luck=1.0) == {}

    class Strict(Solved):
        def paid(self, text: str) -> float:
            return 0.0

    assert attack(Strict()).findings()["a solution"] == "refused in 8 of 8 tasks although right"


def test_a_text_without_a_verdict_is_a_finding_and_a_task_without_one_is_left_out() -> None:
    class Raising(Quiz):
        def paid(self, text: str) -> float:
            return 1 / (self.current_task.id != "3") - float("huge" in text or 1 / (len(text) < 9_000))

    report = attack(Raising())
    assert report.ungraded == ("3",)
    assert report.findings()["very long words"] == "without a verdict in 7 of 7 tasks"

    class Broken(Quiz):
        def paid(self, text: str) -> float:
            raise ValueError(text)

    assert attack(Broken()).findings() == {"any wrong answer": "without a verdict in all of 8 tasks"}


def test_tasks_that_are_not_there_are_said() -> None:
    class Few(Quiz):
        num_tasks = None

        def task(self, index: int) -> Task:
            return [Quiz.task(self, 0)][index]

    with pytest.raises(
        DataError, match=r"task\(1\) raised IndexError: .*; num_tasks is None; set it to the number of tasks"
    ):
        attack(Few())
    empty = Quiz()
    empty.num_tasks = 0
    with pytest.raises(DataError, match="no tasks to attack"):
        attack(empty)
