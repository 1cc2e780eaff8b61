"""Real trainings that say what another one said: one rolled out ahead, and one that goes on where it was killed."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
from machine_speed import patience
from real_training import LOOKING, PROMPTS, SAMPLES, Training, read_lines, run_training

from turntree.agents.episodes.record import Record
from turntree.agents.verl.launch import StepReport

pytestmark = pytest.mark.slow

EPOCH, SAVED_AT, KILLED_AFTER, STEPS = 3, 3, 5, 6
"""Steps of an epoch; those after which a checkpoint is made, the trainer is killed, and the training ends."""
AHEAD = EPOCH + 1
"""Steps of the training that is rolled out ahead: the last one after the end of an epoch."""
NEAR_TIES = 1
"""Episodes of a step that may differ, of 16: batches are summed in another order, in float32."""
COMMON = (
    f"turntree.train_tasks={EPOCH * PROMPTS}",
    "turntree.reuse.mode=replay",  # the second epoch depends on what the ledger remembers of the first
    "actor_rollout_ref.actor.optim.lr=0.001",
    *LOOKING,
)
RESUMING = (f"trainer.save_freq={SAVED_AT}", "trainer.resume_mode=auto")

Turns = dict[tuple[int, int], list[tuple[tuple[int, ...], str]]]
"""Tokens and first level of each turn, by task and sample."""


def turns(training: Training, step: int) -> Turns:
    return {
        place: [(turn.completion.token_ids, (turn.completion.levels or "A")[0]) for turn in record.episode.turns]
        for place, record in training.records(step).items()
    }


def tokens(record: Record) -> list[tuple[int, ...]]:
    return [turn.completion.token_ids for turn in record.episode.turns]


class Killed(NamedTuple):
    run: Training
    said: dict[int, Turns]
    """By step, before it was resumed from its checkpoint."""
    at: list[float]
    """When."""


@pytest.fixture(scope="module")
def killed(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Killed:
    """``kill -9`` of the process that holds the policy's optimiser, in the third step after the checkpoint."""
    at: list[float] = []

    def kill_the_trainer(report: StepReport) -> None:
        if report.step != KILLED_AFTER:
            return
        for process in psutil.Process().children(recursive=True):
            if process.cmdline() and process.cmdline()[0].startswith("ray::WorkerDict"):
                os.kill(process.pid, signal.SIGKILL)
                at.append(time.time())
        assert at, "there is no trainer to kill"

    root = tmp_path_factory.mktemp("killed")
    run = run_training(tiny_model, root, "Talking", *COMMON, *RESUMING, steps=STEPS, on_step=kill_the_trainer)
    return Killed(run, {step: turns(run, step) for step in run.steps}, at)


@pytest.fixture(scope="module")
def resumed(killed: Killed, tiny_model: Path) -> Training:
    return run_training(tiny_model, killed.run.folder.root.parent, "Talking", *COMMON, *RESUMING, steps=STEPS)


@pytest.fixture(scope="module")
def ahead(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Training:
    """Before releases: that nothing made ahead changes a rollout is shown without verl as well, in tests/exactness."""
    root = tmp_path_factory.mktemp("ahead")
    return run_training(tiny_model, root, "Talking", *COMMON, "turntree.run_ahead.enabled=true", steps=AHEAD)


def test_a_run_without_its_trainer_ends_soon_and_says_why(killed: Killed) -> None:
    assert killed.run.status != 0
    assert killed.run.steps == list(range(1, KILLED_AFTER + 1))
    assert "ActorDiedError" in killed.run.log
    assert killed.run.ended - killed.at[0] < patience(600)


def test_the_run_goes_on_to_its_end(resumed: Training) -> None:
    assert resumed.status == 0, resumed.log[-3000:]
    assert resumed.steps == list(range(SAVED_AT + 1, STEPS + 1))


def test_the_resumed_run_says_what_the_unbroken_one_said(killed: Killed, resumed: Training) -> None:
    # Step 4 is sampled with the weights of the checkpoint; step 5 after an update by the optimiser that was restored.
    for step, said in killed.said.items():
        again = turns(resumed, step)
        assert len(said) == PROMPTS * SAMPLES
        assert said.keys() == again.keys(), "the same tasks and samples"
        differing = [place for place in said if said[place] != again[place]]
        assert len(differing) <= (NEAR_TIES if step > SAVED_AT else 0), f"step {step}: {differing}"


def test_steps_differ(killed: Killed) -> None:
    # The control: the seeds of another step would be noticed.
    one, other = killed.said[KILLED_AFTER - EPOCH], killed.said[KILLED_AFTER]
    assert one.keys() == other.keys()
    assert sum(one[place] != other[place] for place in one) > NEAR_TIES


def test_turns_of_earlier_epochs_are_replayed_after_the_resume(resumed: Training) -> None:
    assert "C" in {level for said in turns(resumed, SAVED_AT + 1).values() for _, level in said}
    assert resumed.reports[0].engine["reuse_reused"] > 0


def test_the_records_are_of_one_whole_run(resumed: Training) -> None:
    for path in (resumed.folder.metrics, resumed.folder.engine):
        assert [row["step"] for row in read_lines(path)] == list(range(1, STEPS + 1))


@pytest.mark.release
def test_a_training_with_run_ahead_goes_to_its_end(ahead: Training) -> None:
    assert ahead.status == 0, ahead.log[-3000:]
    assert ahead.steps == list(range(1, AHEAD + 1))


@pytest.mark.release
def test_the_rollouts_are_those_of_a_training_without_run_ahead(killed: Killed, ahead: Training) -> None:
    for step in range(1, EPOCH + 1):
        one, other = killed.run.records(step), ahead.records(step)
        assert one.keys() == other.keys()
        differing = {place for place in one if tokens(one[place]) != tokens(other[place])}
        assert len(differing) <= NEAR_TIES, f"step {step}: {differing}"
        assert all(one[place].episode.reward == other[place].episode.reward for place in one.keys() - differing)


@pytest.mark.release
def test_rollouts_made_ahead_are_promoted(ahead: Training) -> None:
    first, *later = [report.engine for report in ahead.reports]
    assert first["run_ahead_promoted"] == 0
    assert first["run_ahead_tokens"] > 0
    for engine in later:
        assert engine["run_ahead_offered"] >= engine["run_ahead_promoted"] > 0.2 * engine["tokens"]
        assert engine["run_ahead_refused"] == 0


@pytest.mark.release
def test_nothing_is_made_ahead_behind_the_last_step(ahead: Training) -> None:
    # A turn of the last step may be begun once the step before it is booked: only the sum says for which they were.
    begun = [report.engine["run_ahead_turns"] for report in ahead.reports]
    assert sum(begun) <= (AHEAD - 1) * PROMPTS * SAMPLES * 2


@pytest.mark.release
def test_levels_arrive_in_the_trainers_batch(killed: Killed, ahead: Training) -> None:
    plain, (first, *later) = (
        [{level for row in batch for level in row["token_levels"]} for batch in run.batches]
        for run in (killed.run, ahead)
    )
    assert (plain[:EPOCH], first) == ([{0, 1}] * EPOCH, {0, 1})
    for step, levels in enumerate(later, start=2):
        assert {2} <= levels <= {0, 1, 2, 3} - ({3} if step <= EPOCH else set())


@pytest.mark.release
def test_the_records_say_which_turns_were_made_ahead(ahead: Training) -> None:
    assert ahead.levels(1) == {"A"}
    for step in range(2, AHEAD + 1):
        assert {"B"} <= ahead.levels(step) <= {"A", "B", "C"} - ({"C"} if step <= EPOCH else set())
