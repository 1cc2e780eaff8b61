"""Real trainings by an unmodified verl whose reward loop scores with turntree's rewards, under either manager."""

from pathlib import Path

import pytest
from real_training import SAMPLES, Training, read_lines, run_training

pytestmark = [pytest.mark.slow, pytest.mark.release]  # test_rewards.py calls verl's reward loop without a training

PROMPTS = 3
REWARDS = r"{answer: 1.0, trained_envs\:brevity: 0.5}"
BY_MANAGER = (
    f"turntree.rewards={REWARDS}",
    "turntree.contract=math",
    "reward.reward_manager.source=importlib",
    "reward.reward_manager.module.path=pkg://turntree.agents.verl.episodes.reward_manager",
    "reward.reward_manager.name=PolicyTextRewardManager",
)
# Under verl's own manager. No contract is declared: the function raises for the third task, whose data set is unknown.
BY_FUNCTION = (
    "actor_rollout_ref.rollout.agent.agent_loop_manager_class=null",
    "reward.custom_reward_function.path=pkg://turntree.agents.verl.episodes.rewards",
    "reward.custom_reward_function.name=compute_score_async",
    f"reward.custom_reward_function.reward_kwargs={{rewards: {REWARDS}}}",
)


@pytest.mark.parametrize(
    ("path", "undecided", "paid", "masked"),
    [
        pytest.param(BY_MANAGER, [0.0, 0.0, 1.0], ("echo/0", "echo/2"), 0, id="manager"),
        pytest.param(BY_FUNCTION, [0.0, 1.0], ("echo/0",), 1, id="function"),
    ],
)
def test_verl_trains_by_turntrees_rewards_and_what_has_no_score_is_masked(
    path: tuple[str, ...], undecided: list[float], paid: tuple[str, ...], masked: int, tiny_model: Path, tmp_path: Path
) -> None:
    trained = train(path, tiny_model, tmp_path)
    assert trained.status == 0, trained.log[-3000:]
    assert ("the data set 'echo' has no rules of comparison" in trained.log) is bool(masked)
    (report,) = trained.reports
    assert report.metrics["actor/grad_norm"] > 0
    records = [record for record in trained.records(1).values() if record.episode.task.id in paid]
    assert len(records) == len(paid) * SAMPLES
    # By brevity alone: the gold answer is in what the policy heard and not in its own words.
    worth = sum(0.5 / (1 + len(record.episode.turns[-1].text)) for record in records)
    assert report.metrics["critic/score/mean"] == pytest.approx(worth / ((PROMPTS - masked) * SAMPLES), rel=1e-4)
    (dump,) = (tmp_path / "val").glob("*.jsonl")
    rows = read_lines(dump)
    assert sorted(row["undecided"] for row in rows) == undecided
    for row in rows:
        assert "#### 42" in row["output"]  # verl's own managers would have paid for this
        assert (row["acc"], row["reward_answer"]) == (0.0, 0.0)
        assert (row["reward_brevity"] > 0) is not bool(row["undecided"])


def train(path: tuple[str, ...], model: Path, root: Path) -> Training:
    return run_training(
        model,
        root,
        "Echoing",
        *("turntree.score_in_verl=true", "reward.num_workers=1"),
        *path,
        *(f"{key}={PROMPTS}" for key in ("turntree.train_tasks", "turntree.val_tasks", "data.train_batch_size")),
        *("data.max_response_length=160", "trainer.val_before_train=true"),
        f"trainer.validation_data_dir={root / 'val'}",
        steps=1,
    )
