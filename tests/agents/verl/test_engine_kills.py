from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_training import TEMPERATURE, played, policy_for, stored, train_engine
from real_training import PROMPTS, SAMPLES, Training
from warm_driver import SOCKET

from turntree.agents.verl.records.checkpoint_state import checkpoint_folder, state_folder

pytestmark = [pytest.mark.slow, pytest.mark.vllm, pytest.mark.release]

STEPS = 4
NEAR_TIES = 1  #: episodes of a step that may differ, of 16: float32 sums in another order


@pytest.fixture(scope="module", autouse=True)
def engines_of_their_own() -> Iterator[None]:
    # vLLM's process must be a child of its server, where the tests look for it, not a fork.
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(SOCKET, raising=False)
        yield


def run(root: Path, policy: Path, victims: dict[str, int], *overrides: str) -> Training:
    named = ", ".join(f"{victim}: {task}" for victim, task in victims.items())
    return train_engine(
        *(root, policy, "vllm", "reuse=same_seed"),
        *(f"turntree.env_kwargs.folder={root}", f"turntree.env_kwargs.victims={{{named}}}"),
        f"turntree.train_tasks={STEPS * PROMPTS}",  # the same few prompts in every step
        *overrides,
        env="Deadly",
        turns=2,
        steps=STEPS,
    )


def require_whole(run: Training, step: int, *, prompts: int = PROMPTS, samples: int = SAMPLES) -> None:
    # Every episode of the step is recorded with its reward, which is never 0 in this environment.
    tasks = range((step - 1) * prompts, step * prompts)
    records = run.records(step)
    assert records.keys() == {(task, session) for task in tasks for session in range(samples)}
    assert not any(record.episode.masked for record in records.values())
    assert all(record.episode.reward > 0 for record in records.values())
    assert all(len(record.episode.turns) == 2 for record in records.values())


@pytest.fixture(scope="module")
def policy(chatml: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return policy_for("vllm", chatml, tmp_path_factory)


@pytest.fixture(scope="module")
def killed(policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Training:
    # One replica: verl's server of vLLM is killed in step 2, the process of vLLM's engine in step 3.
    root, victims = tmp_path_factory.mktemp("killed"), {"server": PROMPTS + 1, "engine": 2 * PROMPTS + 1}
    killed = run(root, policy, victims)
    assert killed.status == 0, killed.log[-3000:]
    assert killed.steps == list(range(1, STEPS + 1))
    assert all((root / victim).exists() for victim in victims)
    return killed


@pytest.mark.parametrize("step", range(1, STEPS + 1))
def test_every_episode_is_played_to_its_end(killed: Training, step: int) -> None:
    require_whole(killed, step)


def test_what_was_lost_is_counted(killed: Training) -> None:
    first, second, third, fourth = (row.get("turntree/failed_attempts/engine", 0) for row in killed.metrics)
    assert (first, fourth) == (0, 0)
    assert min(second, third) >= 1
    # vLLM's engine ended with its server, else the environment would have failed.
    assert not any(row.get("turntree/failed_attempts/environment") for row in killed.metrics)


def test_a_restarted_engine_samples_with_the_trainers_weights(killed: Training, policy: Path) -> None:
    for row in killed.metrics:
        assert row["training/rollout_probs_diff_max"] < 1e-4


def test_the_weights_that_a_restarted_engine_begins_with_are_told_apart(killed: Training, policy: Path) -> None:
    # Control of the test above.
    settings = {"weights_of": None, "temperature": TEMPERATURE}
    first, *later = (killed.mistrust(policy, step, **settings) for step in range(1, STEPS + 1))
    assert first < 1e-4
    assert min(later) > 1e-2


def test_stored_turns_of_a_killed_replica_are_lost_and_later_ones_are_replayed(killed: Training) -> None:
    # Counters are those of the process that lives at the end of the step.
    first, second, third, fourth = (row["turntree/reuse_offered"] for row in killed.metrics)
    assert (first, second, third) == (0, 0, 0)
    assert fourth > 0
    assert "C" in killed.levels(4)


@pytest.fixture(scope="module")
def thinned(policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Training:
    # Two replicas: one is killed in step 2, and gets its weights with the next update.
    section = "actor_rollout_ref.rollout.engine_kwargs.turntree"
    root = tmp_path_factory.mktemp("thinned")
    thinned = run(
        *(root, policy, {"server": PROMPTS + 1}),
        *("trainer.n_gpus_per_node=2", "ray_kwargs.ray_init.num_gpus=2", f"trainer.save_freq={STEPS}"),
        *(
            f"{section}.sharing.replicas_per_task=0",
            f"+{section}.forest.rollouts_per_state=1000",
        ),  # each replica has all turns
    )
    assert (root / "server").exists()
    return thinned


def test_training_goes_on_without_one_of_two_replicas_until_it_is_back(thinned: Training) -> None:
    assert thinned.status == 0, thinned.log[-3000:]
    for step in range(1, STEPS + 1):
        require_whole(thinned, step)
    for row in thinned.metrics:
        assert row["training/rollout_probs_diff_max"] < 1e-4
    assert thinned.metrics[1]["turntree/failed_attempts/engine"] >= 1


def test_a_killed_replica_gets_the_turns_of_the_broker_back(thinned: Training) -> None:
    first = played(thinned, 1).keys()
    for rank in range(2):
        assert first <= {turn[1:] for turn in stored(thinned, STEPS, rank)}
    assert first - played(thinned, 3, 4).keys(), "the control: some of them were never said again"


#: tasks of a step with one sample each, so that no sibling's pace decides which stored turn is reused
ALONE = PROMPTS * SAMPLES
SAVING = (
    *("trainer.save_freq=1", "trainer.resume_mode=auto"),
    *(f"data.train_batch_size={ALONE}", "actor_rollout_ref.rollout.n=1"),
    *(f"turntree.train_tasks={STEPS * ALONE}", f"turntree.env_kwargs.prompts={ALONE}"),
    "actor_rollout_ref.actor.optim.lr=0.001",  # by which steps differ, though each replays the last
    "turntree.reuse.early=false",  # a turn whose pass begins early is in the store of drafts twice
)
VICTIM = {"trainer": 2 * ALONE + 1}  #: the trainer, while episodes of step 3 are played


@pytest.fixture(scope="module")
def broken(policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Training:
    return run(tmp_path_factory.mktemp("broken"), policy, VICTIM, *SAVING)


@pytest.fixture(scope="module")
def resumed(broken: Training, policy: Path) -> Training:
    return run(broken.folder.root.parent, policy, VICTIM, *SAVING)


@pytest.fixture(scope="module")
def unbroken(policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Training:
    return run(tmp_path_factory.mktemp("unbroken"), policy, {}, *SAVING)


def kept(training: Training, step: int) -> Counter[tuple[int, ...]]:
    path = state_folder(checkpoint_folder(training.folder.checkpoints, step), 0) / "ledger.npz"
    with np.load(path) as ledger:
        return Counter(tuple(turn.tolist()) for turn in np.split(ledger["tokens"], np.cumsum(ledger["lengths"])[:-1]))


def said(training: Training, step: int) -> dict[tuple[int, int], list[tuple[tuple[int, ...], str]]]:
    return {
        key: [(turn.completion.token_ids, turn.completion.levels) for turn in record.episode.turns]
        for key, record in training.records(step).items()
    }


def differing(one: Counter[tuple[int, ...]], other: Counter[tuple[int, ...]]) -> int:
    return (one - other).total()


def test_a_training_without_its_trainer_ends(broken: Training) -> None:
    assert (broken.folder.root.parent / "trainer").exists()
    assert broken.status != 0
    assert broken.steps == [1, 2]


def test_the_next_batch_after_a_kill_is_that_of_the_unbroken_run(resumed: Training, unbroken: Training) -> None:
    assert (resumed.status, unbroken.status) == (0, 0), resumed.log[-3000:]
    assert resumed.steps == [3, 4]
    for step in range(1, STEPS + 1):
        require_whole(resumed, step, prompts=ALONE, samples=1)
        one, other = said(unbroken, step), said(resumed, step)
        assert one.keys() == other.keys()
        assert sum(one[key] != other[key] for key in one) <= NEAR_TIES, f"step {step}"
        assert (resumed.levels(step) == {"A"}) == (step == 1)


def test_store_and_ledger_after_a_kill_are_those_of_the_unbroken_run(resumed: Training, unbroken: Training) -> None:
    for step in (3, 4):
        assert differing(stored(unbroken, step, 0), stored(resumed, step, 0)) <= 2 * step * NEAR_TIES
        assert differing(kept(unbroken, step), kept(resumed, step)) <= 2 * NEAR_TIES


def test_steps_differ(resumed: Training, unbroken: Training) -> None:
    # Control of the two tests above.
    assert differing(played(unbroken, 2), played(resumed, 3)) > 2 * NEAR_TIES
    assert differing(kept(resumed, 4), kept(unbroken, 2)) > 2 * NEAR_TIES
    assert differing(stored(resumed, 4, 0), stored(unbroken, 3, 0)) > 8 * NEAR_TIES
