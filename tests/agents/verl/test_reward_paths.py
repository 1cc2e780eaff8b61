"""Real trainings by an unmodified verl, scored by turntree's rewards: in verl's reward loop and in our own manager."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from turntree.agents.record import read_records
from turntree.agents.verl.launch import StepReport, train
from turntree.agents.verl.recording import RunFolder
from turntree.rewards import registry

pytestmark = pytest.mark.slow

PROMPTS, SAMPLES = 3, 2

ECHOING = '''
from turntree.envs import Env, Message, Reply, Task
from turntree.rewards import reward


class Echoing(Env):
    """Says the gold answer itself, in every form that pays, and lets the policy speak once more."""

    def task(self, index):
        return Task(id=f"echo/{index}", prompt=f"say {index}", answer="42", data_source="math" if index < 2 else "echo")

    def reply(self, message):
        if self._progress.turn < 2:
            gold = "The answer is 42. \\\\\\\\boxed{42}\\\\n#### 42"
            return Reply(messages=(Message(role="user", content=gold),))
        return Reply(done=True)


@reward("brevity", decides=True)
def brevity(sample):
    """Pays for short answers; cannot decide on task 1."""
    return None if sample.task_id == "echo/1" else 1.0 / (1 + len(sample.answer_text))


@reward("first", group=True)
def first(samples):
    """Pays one sample of a task."""
    return [1.0] + [0.0] * (len(samples) - 1)
'''

REWARDS = r"{answer: 1.0, echoing\:brevity: 0.5}"
IN_VERL = [
    "turntree.score_in_verl=true",
    "actor_rollout_ref.rollout.agent.agent_loop_manager_class=null",
    "reward.num_workers=1",
]
BY_MANAGER = [
    *IN_VERL,
    f"turntree.rewards={REWARDS}",
    "turntree.contract=math",
    "reward.reward_manager.source=importlib",
    "reward.reward_manager.module.path=pkg://turntree.agents.verl.reward_manager",
    "reward.reward_manager.name=PolicyTextRewardManager",
]
BY_FUNCTION = [
    *IN_VERL,
    "reward.custom_reward_function.path=pkg://turntree.agents.verl.rewards",
    "reward.custom_reward_function.name=compute_score_async",
    f"reward.custom_reward_function.reward_kwargs={{rewards: {REWARDS}}}",
]


def test_verl_trains_by_the_reward_manager_and_what_is_undecided_is_masked(tiny_model: Path, tmp_path: Path) -> None:
    status, reports, folder = run(BY_MANAGER, tiny_model, tmp_path)
    assert status == 0, folder.log.read_text()[-3000:]
    assert len(reports) == 1
    assert reports[0].metrics["actor/grad_norm"] > 0
    paid = shares(folder, "echo/0", "echo/2")
    assert reports[0].metrics["critic/score/mean"] == pytest.approx(sum(paid) / (PROMPTS * SAMPLES), rel=1e-4)
    assert sorted(row["undecided"] for row in validated(tmp_path)) == [0.0, 0.0, 1.0]


def test_verl_trains_by_the_reward_function_and_goes_on_without_what_has_no_score(
    tiny_model: Path, tmp_path: Path
) -> None:
    # No contract is declared, so the function raises for the third task, whose data set is unknown.
    status, reports, folder = run(BY_FUNCTION, tiny_model, tmp_path)
    assert status == 0, folder.log.read_text()[-3000:]
    assert len(reports) == 1
    assert reports[0].metrics["actor/grad_norm"] > 0
    assert "the data set 'echo' has no rules of comparison" in folder.log.read_text()
    paid = shares(folder, "echo/0")
    assert reports[0].metrics["critic/score/mean"] == pytest.approx(sum(paid) / (2 * SAMPLES), rel=1e-4)
    assert sorted(row["undecided"] for row in validated(tmp_path)) == [0.0, 1.0]


def test_our_own_manager_scores_whole_groups(tiny_model: Path, tmp_path: Path) -> None:
    rewards = REWARDS.replace("}", r", echoing\:first: 0.25}")
    status, reports, folder = run([f"turntree.rewards={rewards}", "turntree.contract=math"], tiny_model, tmp_path)
    assert status == 0, folder.log.read_text()[-3000:]
    assert reports[0].metrics["actor/grad_norm"] > 0
    episodes = [record.episode for record in read_records(folder.episodes(1))]
    decided = [episode for episode in episodes if not episode.masked]
    assert {episode.undecided for episode in episodes if episode.masked} == {("brevity",)}
    assert sorted(episode.rewards["first"] for episode in decided) == [0.0, 0.0, 1.0, 1.0]
    paid = shares(folder, "echo/0", "echo/2")
    assert sum(episode.reward for episode in decided) == pytest.approx(sum(paid) + 2 * 0.25)
    mean = sum(episode.reward for episode in decided) / (PROMPTS * SAMPLES)
    assert reports[0].metrics["critic/score/mean"] == pytest.approx(mean, rel=1e-4)


def shares(folder: RunFolder, *tasks: str) -> list[float]:
    """What the recorded episodes of ``tasks`` are worth by brevity alone, at its weight."""
    records = [record for record in read_records(folder.episodes(1)) if record.episode.task.id in tasks]
    assert len(records) == len(tasks) * SAMPLES
    return [0.5 / (1 + len(record.episode.turns[-1].text)) for record in records]


def validated(root: Path) -> list[dict[str, Any]]:
    """Rows that verl dumped in validation, with the gold answer in their text and not in their score."""
    (dump,) = (root / "val").glob("*.jsonl")
    rows = [json.loads(line) for line in dump.read_text().splitlines()]
    for row in rows:
        assert "#### 42" in row["output"]  # verl's own managers would have paid for this
        assert (row["acc"], row["reward_answer"]) == (0.0, 0.0)
        assert (row["reward_brevity"] > 0) is not bool(row["undecided"])
    return rows


def run(path: list[str], tiny_model: Path, root: Path) -> tuple[int, list[StepReport], RunFolder]:
    (root / "echoing.py").write_text(ECHOING)
    reports: list[StepReport] = []
    patch: Any = pytest.MonkeyPatch()
    patch.setenv("PYTHONPATH", str(root), prepend=":")
    patch.syspath_prepend(root)
    patch.delitem(sys.modules, "echoing", raising=False)
    patch.setattr(registry, "_registered", dict(registry._registered))
    try:
        status = train(
            "demo",
            [
                f"actor_rollout_ref.model.path={tiny_model}",
                f"turntree.run_dir={root / 'run'}",
                "turntree.env=echoing:Echoing",
                "turntree.env_kwargs={system_prompt: '', limits: {max_turns: 3, max_turn_tokens: 12}}",
                "turntree.val_env_kwargs={}",
                f"turntree.train_tasks={PROMPTS}",
                f"turntree.val_tasks={PROMPTS}",
                "trainer.total_training_steps=1",
                "trainer.val_before_train=true",
                f"trainer.validation_data_dir={root / 'val'}",
                f"data.train_batch_size={PROMPTS}",
                "data.max_prompt_length=64",
                "data.max_response_length=160",
                f"actor_rollout_ref.rollout.n={SAMPLES}",
                "actor_rollout_ref.actor.optim.lr=0.01",
                "actor_rollout_ref.actor.optim.lr_warmup_steps=0",
                *path,
            ],
            on_step=reports.append,
        )
    finally:
        sys.modules.pop("echoing", None)
        patch.undo()
    return status, reports, RunFolder(root / "run")
