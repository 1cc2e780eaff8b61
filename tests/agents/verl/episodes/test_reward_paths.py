import pytest
from real_training import SAMPLES, read_lines, run_training

pytestmark = [pytest.mark.slow, pytest.mark.release]  # test_rewards.py calls verl's reward loop without a training

PROMPTS = 3
REWARDS = r"{answer: 1.0, trained_envs\:brevity: 0.5}"
# No answer format is declared: the function raises for the third task, whose data set is unknown.
BY_FUNCTION = (
    "reward.custom_reward_function.path=pkg://turntree.agents.verl.episodes.rewards",
    "reward.custom_reward_function.name=compute_score_async",
    f"reward.custom_reward_function.reward_kwargs={{rewards: {REWARDS}}}",
)


def test_verl_trains_by_turntrees_rewards_and_a_group_without_a_score_is_left_out(tiny_model, tmp_path):
    trained = run_training(
        tiny_model,
        tmp_path,
        "Echoing",
        *("turntree.score_in_verl=true", "reward.num_workers=1"),
        *BY_FUNCTION,
        *(f"{key}={PROMPTS}" for key in ("turntree.train_tasks", "turntree.val_tasks", "data.train_batch_size")),
        *("data.max_response_length=160", "trainer.val_before_train=true"),
        f"trainer.validation_data_dir={tmp_path / 'val'}",
        steps=1,
    )
    assert trained.status == 0, trained.log[-3000:]
    assert "the data set 'echo' has no answer format" in trained.log
    (report,) = trained.reports
    assert report.metrics["actor/grad_norm"] > 0
    records = [record for record in trained.records(1).values() if record.episode.task.id == "echo/0"]
    assert len(records) == SAMPLES
    # By brevity alone: the gold answer is in what the policy heard and not in its own words.
    worth = sum(0.5 / (1 + len(record.episode.turns[-1].text)) for record in records)
    assert report.metrics["critic/score/mean"] == pytest.approx(worth / ((PROMPTS - 1) * SAMPLES), rel=1e-4)
    (dump,) = (tmp_path / "val").glob("*.jsonl")
    rows = read_lines(dump)
    assert sorted(row["ungraded"] for row in rows) == [0.0, 1.0]
    for row in rows:
        assert "#### 42" in row["output"]  # verl's own managers would have paid for this
        assert (row["acc"], row["reward_answer"]) == (0.0, 0.0)
        assert (row["reward_brevity"] > 0) is not bool(row["ungraded"])
