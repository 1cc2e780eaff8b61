import pickle
from typing import Any

import numpy as np
import pytest
from tables import table

from turntree.envs import Env, Limits, Message, Reply, Task
from turntree.envs.curriculum import Curriculum, CurriculumEnv, Stage
from turntree.envs.procedural.equations import Equations


class Steps(Env):
    num_tasks = 100

    def __init__(self, *, times: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.times = times

    def task(self, index: int) -> Task:
        return Task(id=f"steps/{self.times}/{index}", prompt=f"{self.times} times")

    def reply(self, message: Message) -> Reply:
        if message.content == "crash":
            raise RuntimeError("no luck")
        said = sum(part.content == "yes" for part in self.messages)
        return Reply(reward=1 / self.times if message.content == "yes" else 0.0, done=said == self.times)


STAGES = [Stage(arguments={"times": n}, max_turns=n) for n in (1, 2, 4)]


def episode(env: CurriculumEnv, said: str, seed: int | None = None) -> str:
    info = env.reset(seed=seed)[1]
    while True:
        *_, terminated, truncated, last = env.step(said)
        if terminated or truncated:
            assert last["turn"] <= 4
            return str(info["task_id"])


def test_success_leads_to_harder_tasks_and_more_turns_failing_back_and_a_failure_nowhere() -> None:
    env = CurriculumEnv(Steps, STAGES, Curriculum(3, window=2, review=0.0))
    assert [int(episode(env, "yes").split("/")[1]) for _ in range(6)] == [1, 1, 2, 2, 4, 4]
    assert env.unwrapped.limits.max_turns == 4
    env = CurriculumEnv(Steps, STAGES, Curriculum(3, window=2, review=0.0, fall_back_at=0.5))
    stages = []
    for said in ("yes", "yes", *["no"] * 6):
        episode(env, said)
        stages.append(env.curriculum.stage)
    assert stages == [0, 1, 1, *[0] * 5]
    env = CurriculumEnv(Steps, STAGES, Curriculum(3, window=1, review=0.0))
    episode(env, "crash")
    assert env.curriculum.success_rate is None
    episode(env, "no")
    assert env.curriculum.success_rate == 0.0


def test_earlier_stages_come_back_for_review_and_one_seed_decides_stages_and_tasks() -> None:
    curriculum = Curriculum(3, window=5, review=0.5, advance_at=1.0)
    curriculum.stage = 2
    rng = np.random.default_rng(0)
    picked = [curriculum.pick(rng) for _ in range(400)]
    assert 0.4 < picked.count(2) / 400 < 0.6
    assert set(picked) == {0, 1, 2}
    curriculum.note(0, False)
    assert curriculum.success_rate is None

    def ids(seed: int) -> list[str]:
        env = CurriculumEnv(Steps, STAGES, Curriculum(3, window=1, review=0.5))
        return [episode(env, "yes", seed if number == 0 else None) for number in range(12)]

    assert ids(7) == ids(7)
    assert ids(7) != ids(8)


def test_the_level_of_real_tasks_follows_the_stage() -> None:
    stages = [Stage(arguments={"min_level": level, "max_level": level}) for level in (1, 3)]
    env = CurriculumEnv(Equations, stages, Curriculum(2, window=1, review=0.0))
    env.reset(seed=0)
    task = env.unwrapped.current_task
    assert task.metadata["level"] == 1
    env.step(rf"\boxed{{{task.answer}}}")
    env.reset()
    assert env.unwrapped.current_task.metadata["level"] == 3
    assert env.unwrapped.limits == Limits()


@pytest.mark.parametrize(("arguments", "complaint"), table(__file__, "senseless_curricula"))
def test_numbers_out_of_range_are_refused(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Curriculum(**arguments)


def test_stages_and_curriculum_must_fit_and_can_be_saved() -> None:
    with pytest.raises(ValueError, match="is for 2 stages, got 3"):
        CurriculumEnv(Steps, STAGES, Curriculum(2))
    with pytest.raises(ValueError, match="at least one stage"):
        CurriculumEnv(Steps, [])
    with pytest.raises(ValueError, match="got the state of stage 5"):
        Curriculum(2).load({"stage": 5, "newest": []})
    curriculum = Curriculum(3, window=3)
    for success in (True, True, True, False):
        curriculum.note(curriculum.stage, success)
    other = Curriculum(3, window=3)
    other.load(curriculum.state())
    assert (other.stage, other.success_rate) == (1, 0.0)
    env = pickle.loads(pickle.dumps(CurriculumEnv(Equations, [Stage()])))
    env.reset(seed=0)
    env.close()
