import logging
from pathlib import Path

import pytest
from real_training import PROMPTS, Training, read_lines, run_training

from turntree.agents.episodes.episode import StopReason

pytestmark = [pytest.mark.slow, pytest.mark.release]  # test_ray_actors.py, test_training.py kill too

SAMPLES = 2
KILLS, LOST = 3, (4, 6, 7)  #: steps in which something is killed, and steps that are lost completely
#: tasks of step 5: one whose prompt outgrows the row, and the only one that ends regularly
LONG, PLAYED = 4 * PROMPTS, 4 * PROMPTS + 3


def run(model: Path, root: Path, steps: int, victims: dict[str, int], *overrides: str, last: int = 0) -> Training:
    # To the end, or to step ``last``, after which the run gives up.
    named = ", ".join(f"{victim}: {task}" for victim, task in victims.items())
    run = run_training(
        model,
        root,
        "Deadly",
        *(f"turntree.env_kwargs.folder={root}", f"turntree.env_kwargs.victims={{{named}}}"),
        f"turntree.train_tasks={steps * PROMPTS}",
        f"actor_rollout_ref.rollout.n={SAMPLES}",
        *overrides,
        steps=steps,
    )
    assert run.status == (1 if last else 0), run.log[-3000:]
    assert run.steps[: last or steps] == list(range(1, (last or steps) + 1)), run.log[-3000:]
    assert all((root / victim).exists() for victim in victims)
    return run


def require_whole(run: Training, step: int) -> None:
    tasks = range((step - 1) * PROMPTS, step * PROMPTS)
    assert run.records(step).keys() == {(task, session) for task in tasks for session in range(SAMPLES)}
    assert not any(record.episode.masked for record in run.records(step).values())


@pytest.fixture(scope="module")
def said() -> list[str]:
    return []


@pytest.fixture(scope="module")
def killed(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory, said: list[str]) -> Training:
    # One replica and a critic: workers of tools and rewards die in step 1, the engine in 2, the player in 3.
    # Steps 4, 6 and 7 are lost completely, step 5 except for the episodes of one task.
    victims = {"tool": 1, "reward": 2, "replica": 5, "player": 9}
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("turntree.agents.verl.launch")
    logger.addHandler(handler)
    broken = [task for task in range(KILLS * PROMPTS, max(LOST) * PROMPTS) if task not in (LONG, PLAYED)]
    try:
        return run(
            *(tiny_model, tmp_path_factory.mktemp("killed"), max(LOST) + 2, victims),
            *("algorithm=ppo", f"turntree.env_kwargs.lost={broken}", f"turntree.env_kwargs.long={LONG}"),
            "turntree.rewards={answer: 1, finished: 0.1}",
            last=max(LOST),
        )
    finally:
        logger.removeHandler(handler)


@pytest.mark.parametrize("step", [1, 2, 3])
def test_every_episode_is_played_to_its_end(killed: Training, step: int) -> None:
    require_whole(killed, step)


def test_what_was_lost_is_counted_by_kind(killed: Training) -> None:
    def lost(step: int) -> dict[str, float]:
        metrics = killed.reports[step - 1].metrics
        return {
            kind: metrics.get(f"turntree/failed_attempts/{kind}", 0)
            for kind in ("tool", "reward", "engine", "environment")
        }

    assert lost(1) == {"tool": 1, "reward": 0, "engine": 0, "environment": 0}
    assert lost(2)["engine"] >= 1
    assert lost(3) == {"tool": 0, "reward": 0, "engine": 0, "environment": 0}


def test_a_restarted_engine_samples_with_the_weights_of_its_step(killed: Training, tiny_model: Path) -> None:
    assert killed.mistrust(tiny_model, 2, weights_of=2) < 1e-4
    # The control: the weights of other steps are told apart.
    assert min(killed.mistrust(tiny_model, step, weights_of=2) for step in (1, 3)) > 1e-3


def test_a_step_without_an_episode_is_gone_through_and_two_in_a_row_end_the_run(killed: Training) -> None:
    reports = killed.reports[: max(LOST)]
    assert [report.metrics["turntree/failures"] for report in reports[KILLS:]] == [1.0, 0.5, 1.0, 1.0]
    assert [report.step for report in reports if not report.metrics["actor/grad_norm"] > 0] == [*LOST]


def test_a_prompt_that_outgrows_the_row_is_a_truncated_row(killed: Training) -> None:
    episode = killed.records(5)[LONG, 0].episode
    assert (episode.stop_reason, episode.turns, episode.masked) == (StopReason.MAX_TOKENS, (), False)


def test_the_last_words_are_the_first_failure(killed: Training, said: list[str]) -> None:
    assert killed.status == 1
    assert "every episode of step 6, 7 failed because of the environment" in said[-1]
    assert "the first failure of step 7 (environment, task deadly/2 in" in said[-1]
    assert said[-1].endswith("OSError: the disk is full")


@pytest.fixture(scope="module")
def thinned(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Training:
    # Two replicas: one is killed in step 2 together with the broker; step 4 lasts until it is back.
    folder, victims = tmp_path_factory.mktemp("thinned"), {"replica_and_broker": 5}
    return run(
        *(tiny_model, folder, 6, victims),
        *("turntree.env_kwargs.replicas=2", f"turntree.env_kwargs.whole={3 * PROMPTS}"),
        *("trainer.n_gpus_per_node=2", "ray_kwargs.ray_init.num_gpus=2"),
        "actor_rollout_ref.rollout.engine_kwargs.turntree.sharing.replicas_per_task=0",
    )


@pytest.mark.parametrize("step", range(1, 7))
def test_training_goes_on_without_a_replica_and_the_broker(thinned: Training, step: int) -> None:
    require_whole(thinned, step)


def test_replicas_give_each_other_their_turns(thinned: Training) -> None:
    rows = read_lines(thinned.folder.engine)
    given, taken = ({row["step"]: row[name] for row in rows} for name in ("sharing_sent", "sharing_received"))
    assert given[1] > 0
    # With nobody dead, what the other replica said in a step is known before the next.
    assert taken[1] > 0
    assert taken[5] + taken[6] > 0
