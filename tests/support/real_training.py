"""A real training of a tiny policy by an unmodified verl, and what is left of it."""

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import warm_driver
from machine_speed import patience
from safetensors.torch import load_file
from tables import table

from turntree.agents.episodes.record import Record, read_records
from turntree.agents.verl import launch
from turntree.agents.verl.launch import StepReport, train
from turntree.agents.verl.records.recording import RunFolder

PROMPTS, SAMPLES = 4, 4
"""Tasks of a step and episodes of a task, where a training says nothing else."""
OVERRIDES = table(__file__, "training")
"""What makes any training small and quick."""
LOOKING = (
    "trainer.v1.sampler.custom_sampler.path=pkg://looking_sampler",
    "trainer.v1.sampler.custom_sampler.name=Looking",
)
"""Overrides with which a training writes its batches down."""
RAYS_SECONDS = {"RAY_worker_register_timeout_seconds": 60, "RAY_gcs_server_request_timeout_seconds": 60}
"""How long Ray waits for its own processes to start, by the variable that says so: of a quiet machine."""


def kill_trainer() -> float:
    """``kill -9`` of the process of a running training that holds the policy's optimiser; returns when."""
    running = psutil.Process().children(recursive=True)
    trainers = [one for one in running if one.cmdline() and one.cmdline()[0].startswith("ray::WorkerDict")]
    assert trainers, "there is no trainer to kill"
    for trainer in trainers:
        os.kill(trainer.pid, signal.SIGKILL)
    return time.time()


def read_lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@dataclass(frozen=True)
class Training:
    folder: RunFolder
    status: int
    reports: list[StepReport]
    ended: float
    """When, on the clock of ``time.time``."""

    @property
    def log(self) -> str:
        return self.folder.log.read_text(errors="replace")

    @property
    def steps(self) -> list[int]:
        return [report.step for report in self.reports]

    @property
    def batches(self) -> list[list[dict[str, list[float]]]]:
        """Columns of the trainer's batch, by step and episode; of a training that was ``LOOKING``."""
        return read_lines(self.folder.root.parent / "batches.jsonl")

    def records(self, step: int) -> dict[tuple[int, int], Record]:
        """Episodes of a step by task and sample; of those that were played twice the later."""
        return {(r.labels["index"], r.labels["session"]): r for r in read_records(self.folder.episodes(step))}

    def levels(self, step: int) -> set[str]:
        turns = (turn for record in self.records(step).values() for turn in record.episode.turns)
        return {letter for turn in turns for letter in turn.completion.levels or "A"}

    @property
    def metrics(self) -> list[dict[str, float]]:
        """What verl logged, by step."""
        return [row["data"] for row in read_lines(self.folder.metrics)]

    def mistrust(self, model: Path, step: int, *, weights_of: int | None, temperature: float = 1.0) -> float:
        """Between the engine's log-probabilities of a step and those of the weights kept for one, or of the weights
        that the run began with, recomputed from scratch: the largest difference."""
        policy = policy_of(model, None if weights_of is None else self.folder.weights(weights_of))
        turns = [turn for record in self.records(step).values() for turn in record.episode.turns]
        return max((difference(policy, turn, temperature) for turn in turns), default=0.0)


def policy_of(model: Path, weights: Path | None) -> Any:
    """The model, with other weights if a file is given."""
    from transformers import AutoModelForCausalLM

    policy = AutoModelForCausalLM.from_pretrained(model)
    if weights is not None:
        policy.load_state_dict(load_file(weights), strict=False)
        policy.tie_weights()
    return policy


def difference(policy: Any, turn: Any, temperature: float = 1.0) -> float:
    """Largest difference between a turn's recorded log-probabilities and those of a policy."""
    sampled = torch.tensor(turn.completion.token_ids)
    with torch.no_grad():
        logits = policy(torch.tensor([[*turn.prompt_ids, *sampled]])).logits
    distribution = (logits / temperature).log_softmax(-1)[0, len(turn.prompt_ids) - 1 : -1]
    chosen = distribution.gather(1, sampled[:, None])[:, 0]
    return float((chosen - torch.tensor(turn.completion.logprobs)).abs().max())


def run_training(
    model: Path,
    root: Path,
    env: str,
    *overrides: str,
    config: str | None = "demo",
    steps: int,
    on_step: Callable[[StepReport], None] = lambda report: None,
) -> Training:
    """Train in an environment of ``trained_envs`` to the end, below ``root``, and keep what was reported."""
    reports: list[StepReport] = []

    def note(report: StepReport) -> None:
        reports.append(report)
        on_step(report)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOKING", str(root / "batches.jsonl"))
        for name, seconds in RAYS_SECONDS.items():
            patch.setenv(name, str(int(patience(seconds))))
        patch.setattr(launch, "command", warm_driver.command)
        status = train(
            config,
            [
                f"actor_rollout_ref.model.path={model}",
                f"turntree.run_dir={root / 'run'}",
                f"turntree.env=trained_envs:{env}",
                f"turntree.train_tasks={PROMPTS}",
                f"trainer.total_training_steps={steps}",
                f"data.train_batch_size={PROMPTS}",
                f"actor_rollout_ref.rollout.n={SAMPLES}",
                *OVERRIDES,
                *overrides,
            ],
            on_step=note,
        )
    return Training(RunFolder(root / "run"), status, reports, time.time())
