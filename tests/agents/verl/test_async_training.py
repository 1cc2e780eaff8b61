"""Real trainings by verl's asynchronous trainer: every row of every batch is of the policy that learns from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_training import policy_for, train_engine
from real_training import PROMPTS, SAMPLES, Training, read_lines, run_training
from safetensors.torch import load_file

from turntree.agents.episodes.record import read_records

pytestmark = pytest.mark.slow

STALE = "training/off_policy/trajectory_staleness_worst/max"
STEPS = 4


def trained(model: Path, root: Path, *overrides: str, mode: str = "colocate_async", **others: Any) -> Training:
    return run_training(
        model,
        root,
        "Forking",
        f"mode={mode}",
        "turntree.save_policy_every=1",
        "turntree.env_kwargs.limits.max_turn_tokens=48",
        "data.max_response_length=320",
        *overrides,
        **{"steps": STEPS, **others},
    )


@pytest.fixture(scope="module")
def episode(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Training:
    return trained(tiny_model, tmp_path_factory.mktemp("episode"))


def test_every_row_of_every_batch_is_of_the_policy_that_learns_from_it(episode: Training) -> None:
    assert episode.status == 0, episode.log[-3000:]
    assert episode.steps == [*range(1, STEPS + 1)]
    for report in episode.reports:
        assert report.metrics[STALE] == 0
        assert report.metrics["turntree/episodes"] == PROMPTS * SAMPLES
    later = [report.metrics for report in episode.reports[1:]]
    assert all(metrics["async/judged_turns"] > 0 for metrics in later)
    assert all(0 < metrics["async/kept_share"] <= 1 for metrics in later)
    assert any(metrics["turntree/level_b"] > 0 for metrics in later)


def test_what_was_judged_is_believed_by_the_weights_that_judged_it(episode: Training, tiny_model: Path) -> None:
    assert max(mistrust(episode, tiny_model, 0)) < 1e-4
    assert max(mistrust(episode, tiny_model, -1)) > 1e-3, "the control: the weights of another step"


@pytest.mark.release  # test_async_sampler.py has a control without a training
def test_turns_of_earlier_policies_keep_their_version(tiny_model: Path, tmp_path: Path) -> None:
    """Control: only interrupted turns are judged, so what had ended under earlier weights is trained on as it is."""
    turn = trained(tiny_model, tmp_path, "turntree.asynchronous.on_resume=turn")
    assert turn.status == 0, turn.log[-3000:]
    assert max(report.metrics[STALE] for report in turn.reports) > 0


def mistrust(run: Training, model: Path, shift: int) -> list[float]:
    """Between recorded log-probabilities and those of the weights of that version, ``shift`` steps on: the largest
    difference of each turn that was sampled by a version which has one."""
    from transformers import AutoModelForCausalLM

    found, policies = [], {}
    for step in range(1, STEPS + 1):
        if step == STEPS and not run.folder.episodes(step).exists():
            continue  # none that was begun in the last step, for one that never came, had ended
        for record in read_records(run.folder.episodes(step)):
            for turn in record.episode.turns:
                version = turn.completion.weights_version + shift
                if version + 1 not in range(1, STEPS + 1):
                    continue
                if version not in policies:
                    policies[version] = AutoModelForCausalLM.from_pretrained(model)
                    policies[version].load_state_dict(load_file(run.folder.weights(version + 1)), strict=False)
                    policies[version].tie_weights()
                found.append(_difference(policies[version], turn))
    return found


def _difference(policy: Any, turn: Any) -> float:
    said = torch.tensor(turn.completion.token_ids)
    with torch.no_grad():
        logits = policy(torch.tensor([[*turn.prompt_ids, *said]])).logits
    law = logits.log_softmax(-1)[0, len(turn.prompt_ids) - 1 : -1]
    return float((law.gather(1, said[:, None])[:, 0] - torch.tensor(turn.completion.logprobs)).abs().max())


@pytest.mark.release
def test_rollouts_on_devices_of_their_own_are_of_the_policy_that_learns_from_them(
    tiny_model: Path, tmp_path: Path
) -> None:
    """Two pretended devices: episodes go on while the policy is updated on the other."""
    run = trained(tiny_model, tmp_path, mode="separate_async")
    assert run.status == 0, run.log[-3000:]
    assert run.steps == [*range(1, STEPS + 1)]
    for report in run.reports:
        assert report.metrics[STALE] == 0
        assert report.metrics["turntree/episodes"] == PROMPTS * SAMPLES
    assert any(report.metrics["async/judged_turns"] > 0 for report in run.reports)
    assert max(mistrust(run, tiny_model, 0)) < 1e-4


@pytest.mark.vllm
@pytest.mark.release
def test_turns_of_vllm_are_judged_by_the_policy_that_learns_from_them(
    chatml: Any, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The trainer computes all log-probabilities again, with its own weights."""
    run = train_engine(
        tmp_path,
        policy_for("vllm", chatml, tmp_path_factory),
        "vllm",
        "tree",
        *("mode=colocate_async", "turntree.env_kwargs.limits.max_turn_tokens=48"),
        "actor_rollout_ref.rollout.temperature=1.0",
        env="Forking",
        steps=STEPS,
    )
    assert run.status == 0, run.log[-3000:]
    assert run.steps == [*range(1, STEPS + 1)]
    rows = [row["data"] for row in read_lines(run.folder.metrics)]
    for row in rows:
        assert row[STALE] == 0
        assert row["turntree/episodes"] == PROMPTS * SAMPLES
        assert row["training/rollout_probs_diff_max"] < 1e-4
    assert all(row["async/judged_turns"] > 0 for row in rows[1:])
    assert all(0 < row["async/kept_share"] <= 1 for row in rows[1:])
