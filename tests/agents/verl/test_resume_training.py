"""A real training that is killed and resumed says what the unbroken one says."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
from chatty import write_chatty

from turntree.agents.record import read_records
from turntree.agents.verl.launch import StepReport, train
from turntree.agents.verl.recording import RunFolder

pytestmark = pytest.mark.slow

STEPS, SAVED_AT, KILLED_AFTER, PROMPTS, SAMPLES = 6, 3, 5, 4, 4
NEAR_TIES = 1
"""Episodes of a step that may differ, of 16: batches are summed in another order, in float32."""

Turns = dict[tuple[int, int], list[tuple[tuple[int, ...], str]]]
"""Tokens and levels of each turn, by task and sample."""


class Run(NamedTuple):
    """A training, to its end or to where it was killed."""

    folder: RunFolder
    status: int
    reports: list[StepReport]

    @property
    def steps(self) -> list[int]:
        return [report.step for report in self.reports]

    def turns(self, step: int) -> Turns:
        return {
            (record.labels["index"], record.labels["session"]): [
                (turn.completion.token_ids, (turn.completion.levels or "A")[0]) for turn in record.episode.turns
            ]
            for record in read_records(self.folder.episodes(step))
        }


def run(model: Path, root: Path, on_step: Callable[[StepReport], None] = lambda report: None) -> Run:
    env = write_chatty(root)
    reports: list[StepReport] = []

    def note(report: StepReport) -> None:
        reports.append(report)
        on_step(report)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(root), prepend=":")
        patch.syspath_prepend(root)
        status = train(
            "demo",
            [
                f"actor_rollout_ref.model.path={model}",
                f"turntree.run_dir={root / 'run'}",
                f"turntree.env={env}",
                "turntree.env_kwargs={system_prompt: '', limits: {max_turns: 3, max_turn_tokens: 12}}",
                "turntree.val_env_kwargs={}",
                "turntree.reuse.mode=replay",  # the second epoch depends on what the ledger remembers of the first
                f"turntree.train_tasks={2 * PROMPTS}",
                "turntree.val_tasks=2",
                f"trainer.total_training_steps={STEPS}",
                f"trainer.save_freq={SAVED_AT}",
                "trainer.resume_mode=auto",
                f"data.train_batch_size={PROMPTS}",
                "data.max_prompt_length=64",
                f"actor_rollout_ref.rollout.n={SAMPLES}",
                "actor_rollout_ref.actor.optim.lr=0.001",
                "actor_rollout_ref.actor.optim.lr_warmup_steps=0",
            ],
            on_step=note,
        )
    return Run(RunFolder(root / "run"), status, reports)


def kill_the_trainer(report: StepReport) -> None:
    """``kill -9`` of the process that holds the policy's optimiser, in the third step after the checkpoint."""
    if report.step != KILLED_AFTER:
        return
    trainers = [
        process
        for process in psutil.Process().children(recursive=True)
        if process.cmdline() and process.cmdline()[0].startswith("ray::WorkerDict")
    ]
    assert trainers, "there is no trainer to kill"
    for process in trainers:
        os.kill(process.pid, signal.SIGKILL)


class Broken(NamedTuple):
    """A run that was killed, and what follows it in the same folder."""

    killed: Run
    resumed: Run
    before: dict[int, Turns]
    """What the killed run had said by step, before it was resumed from its checkpoint."""


@pytest.fixture(scope="module")
def broken(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Broken:
    root = tmp_path_factory.mktemp("broken")
    killed = run(tiny_model, root, kill_the_trainer)
    before = {step: killed.turns(step) for step in killed.steps}
    return Broken(killed, run(tiny_model, root), before)


def test_a_killed_trainer_ends_the_run_with_an_error(broken: Broken) -> None:
    assert broken.killed.status != 0
    assert broken.killed.steps == list(range(1, KILLED_AFTER + 1))


def test_the_run_goes_on_to_its_end(broken: Broken) -> None:
    assert broken.resumed.status == 0, broken.resumed.folder.log.read_text()[-3000:]
    assert broken.resumed.steps == list(range(SAVED_AT + 1, STEPS + 1))


def test_the_resumed_run_says_what_the_unbroken_one_said(broken: Broken) -> None:
    # Step 4 is sampled with the weights of the checkpoint; step 5 after an update by the optimiser that was restored.
    for step, said in broken.before.items():
        again = broken.resumed.turns(step)
        assert len(said) == PROMPTS * SAMPLES
        assert said.keys() == again.keys(), "the same tasks and samples"
        differing = [place for place in said if said[place] != again[place]]
        assert len(differing) <= (NEAR_TIES if step > SAVED_AT else 0), f"step {step}: {differing}"


def test_steps_differ(broken: Broken) -> None:
    # The control: the seeds of another step would be noticed.
    one, other = broken.before[SAVED_AT], broken.before[SAVED_AT + 2]
    assert one.keys() == other.keys()
    assert sum(one[place] != other[place] for place in one) > NEAR_TIES


def test_turns_of_earlier_epochs_are_replayed_after_the_resume(broken: Broken) -> None:
    levels = {turn[1] for turns in broken.resumed.turns(SAVED_AT + 1).values() for turn in turns}
    assert "C" in levels
    assert broken.resumed.reports[0].engine["reuse_reused"] > 0


def test_the_records_are_of_one_whole_run(broken: Broken) -> None:
    for path in (broken.resumed.folder.metrics, broken.resumed.folder.engine):
        rows = [json.loads(line)["step"] for line in path.read_text().splitlines()]
        assert rows == list(range(1, STEPS + 1))
