"""One real training, by an unmodified verl: what the plugin, the engine, the loop and the records do together."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from turntree.agents.record import Record, read_records
from turntree.agents.verl.launch import StepReport, train
from turntree.agents.verl.recording import RunFolder

pytestmark = pytest.mark.slow

STEPS, PROMPTS, SAMPLES = 2, 4, 4

UNLUCKY = '''
from turntree.envs import Env, Message, Reply, Task


class Unlucky(Env):
    """Pays for short answers; the surroundings of task 1 always break."""

    def task(self, index):
        return Task(id=f"unlucky/{index}", prompt=f"say {index % 2}")

    def reply(self, message):
        if self.current_task.id == "unlucky/1":
            raise OSError("the disk is full")
        if self._progress.turn < 2:
            return Reply(messages=(Message(role="user", content="again"),))
        return Reply(reward=1.0 / (1 + len(message.content)), done=True)
'''

LOOKING = '''
import json
import os

import transfer_queue

from turntree.agents.verl.sampler import PromptReplayBuffer

COLUMNS = ["response_mask", "rollout_log_probs", "token_levels", "behaviour_log_probs"]


class Looking(PromptReplayBuffer):
    """Writes down what the trainer can read of a batch."""

    def sample(self, *args, **kwargs):
        batch, metrics = super().sample(*args, **kwargs)
        data = transfer_queue.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=COLUMNS)
        rows = [{name: data[name][row].tolist() for name in COLUMNS} for row in range(len(batch.keys))]
        with open(os.environ["LOOKING"], "a") as file:
            file.write(json.dumps(rows) + "\\n")
        return batch, metrics
'''


class Trained:
    """A finished run."""

    def __init__(self, folder: RunFolder, status: int, reports: list[StepReport]) -> None:
        self.folder, self.status, self.reports = folder, status, reports

    @property
    def batches(self) -> list[list[dict[str, list[float]]]]:
        """Columns of the trainer's batch, by step and episode."""
        return [json.loads(line) for line in (self.folder.root.parent / "batches.jsonl").read_text().splitlines()]

    def records(self, step: int) -> list[Record]:
        return list(read_records(self.folder.episodes(step)))


@pytest.fixture(scope="module")
def trained(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Two epochs of one step; the second begins its turns with those of the first."""
    return run(tiny_model, tmp_path_factory.mktemp("training"), "turntree.reuse.mode=exact")


def run(tiny_model: Path, root: Path, *overrides: str) -> Trained:
    (root / "unlucky_env.py").write_text(UNLUCKY)
    (root / "looking.py").write_text(LOOKING)
    reports: list[StepReport] = []
    patch = pytest.MonkeyPatch()
    patch.setenv("PYTHONPATH", str(root), prepend=":")
    patch.setenv("LOOKING", str(root / "batches.jsonl"))
    patch.syspath_prepend(root)
    try:
        status = train(
            "demo",
            [
                f"actor_rollout_ref.model.path={tiny_model}",
                f"turntree.run_dir={root / 'run'}",
                "turntree.env=unlucky_env:Unlucky",
                "turntree.env_kwargs={system_prompt: '', limits: {max_turns: 3, max_turn_tokens: 12}}",
                "turntree.val_env_kwargs={}",
                f"turntree.train_tasks={PROMPTS}",
                "turntree.val_tasks=2",
                f"trainer.total_training_steps={STEPS}",
                f"data.train_batch_size={PROMPTS}",
                "data.max_prompt_length=64",
                f"actor_rollout_ref.rollout.n={SAMPLES}",
                "actor_rollout_ref.actor.optim.lr=0.01",
                "actor_rollout_ref.actor.optim.lr_warmup_steps=0",  # a warm-up starts at 0
                "actor_rollout_ref.rollout.engine_kwargs.turntree.speculation.min_probability=0.0",
                "actor_rollout_ref.rollout.engine_kwargs.turntree.speculation.adaptive=false",  # timing decides nothing
                "trainer.v1.sampler.custom_sampler.path=pkg://looking",
                "trainer.v1.sampler.custom_sampler.name=Looking",
                *overrides,
            ],
            on_step=reports.append,
        )
    finally:
        patch.undo()
    return Trained(RunFolder(root / "run"), status, reports)


def test_verl_trains_to_the_end(trained: Trained) -> None:
    assert trained.status == 0, trained.folder.log.read_text()[-3000:]
    assert [report.step for report in trained.reports] == [1, 2]


def test_metrics_are_recorded(trained: Trained) -> None:
    rows = [json.loads(line) for line in trained.folder.metrics.read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2]
    for row in rows:
        assert 0 < row["data"]["critic/score/mean"] < 1
        assert row["data"]["actor/grad_norm"] > 0


def test_the_engine_speculates_from_earlier_turns_and_verl_sees_it(trained: Trained) -> None:
    first, second = trained.reports
    assert second.engine["drafted"] > 0
    assert second.engine["accepted"] > 0
    assert second.engine["verify_steps"] > 0
    assert "rollout/spec_accept_rate" in second.metrics
    assert first.engine["requests"] > PROMPTS * SAMPLES


def test_the_policy_changes_and_the_weights_that_sampled_are_kept(trained: Trained) -> None:
    first, second = (load_file(trained.folder.weights(step)) for step in (1, 2))
    assert first.keys() == second.keys()
    assert any(not torch.equal(first[name], second[name]) for name in first)


def test_the_engine_samples_what_the_trainer_believes(trained: Trained) -> None:
    # Log-probabilities of the engine against those of the recorded weights, recomputed from scratch.
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(_model_path(trained.folder))
    for step in (1, 2):
        model.load_state_dict(load_file(trained.folder.weights(step)), strict=False)
        model.tie_weights()
        turn = next(r.episode.turns[-1] for r in trained.records(step) if not r.episode.masked)
        tokens = torch.tensor([[*turn.prompt_ids, *turn.completion.token_ids]])
        with torch.no_grad():
            logprobs = model(tokens).logits.log_softmax(-1)[0, len(turn.prompt_ids) - 1 : -1]
        chosen = logprobs.gather(1, torch.tensor(turn.completion.token_ids)[:, None])[:, 0]
        assert torch.allclose(chosen, torch.tensor(turn.completion.logprobs), atol=1e-4)


def _model_path(folder: RunFolder) -> str:
    from omegaconf import OmegaConf

    path: Any = OmegaConf.load(folder.config).actor_rollout_ref.model.path
    return str(path)


def test_every_episode_is_recorded(trained: Trained) -> None:
    for step in (1, 2):
        records = trained.records(step)
        labels = {(r.labels["index"], r.labels["session"]) for r in records}
        assert labels == {(index, session) for index in range(PROMPTS) for session in range(SAMPLES)}


def test_a_task_whose_surroundings_break_is_masked_and_training_goes_on(trained: Trained) -> None:
    for step in (1, 2):
        for record in trained.records(step):
            assert record.episode.masked is (record.labels["index"] == 1)
            if record.episode.masked:
                assert "the disk is full" in record.episode.failure
    for report in trained.reports:
        assert all(value == value for value in (report.metrics["actor/pg_loss"], report.metrics["actor/grad_norm"]))


def test_what_was_sampled_is_never_rendered_again(trained: Trained) -> None:
    for record in trained.records(2):
        turns = record.episode.turns
        for before, after in pairwise(turns):
            said = before.prompt_ids + before.completion.token_ids
            assert after.prompt_ids[: len(said)] == said


def test_the_second_epoch_begins_its_turns_with_those_of_the_first(trained: Trained) -> None:
    first, second = trained.reports
    assert first.engine["reuse_tickets"] == 0
    assert 0 < second.engine["reuse_reused"] <= second.engine["reuse_offered"]
    turns = {step: [t.completion for r in trained.records(step) for t in r.episode.turns] for step in (1, 2)}
    assert {(turn.levels or "A")[0] for turn in turns[1]} == {"A"}
    assert "C" in {(turn.levels or "A")[0] for turn in turns[2]}


def test_the_monitors_are_logged_each_step(trained: Trained) -> None:
    first, second = trained.reports
    # One task is tried twice with the same seeds: its second turns are drafted from their own noise.
    assert abs(first.engine["exactness/exact_acceptance_z"]) < 5
    assert abs(first.engine["exactness/exact_entropy_z"]) < 5
    assert {"exactness/marginal_acceptance_z", "exactness/marginal_entropy_z"} <= second.engine.keys()


def test_levels_and_behaviour_arrive_in_the_trainers_batch(trained: Trained) -> None:
    assert len(trained.batches) == STEPS
    levels = []
    for batch in trained.batches:
        assert len(batch) == PROMPTS * SAMPLES
        for row in batch:
            length = len(row["response_mask"])
            assert {len(column) for column in row.values()} == {length}
            for sampled, level in zip(row["response_mask"], row["token_levels"], strict=True):
                assert level > 0 if sampled else True
            if any(row["response_mask"]):
                # Without truncation an exact rule draws from the policy itself.
                assert row["behaviour_log_probs"] == pytest.approx(row["rollout_log_probs"], abs=1e-5)
        levels.append({level for row in batch for level in row["token_levels"]})
    assert levels[0] <= {0, 1}
    assert {1, 3} <= levels[1] <= {0, 1, 3}
