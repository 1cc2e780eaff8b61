from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engine_training import VERSIONS, policy_for, train_engine
from real_training import PROMPTS, SAMPLES, Training, difference, kill_trainer, policy_of, run_training
from warm_driver import SOCKET

from turntree.agents.episodes.record import read_records
from turntree.agents.verl.launch import StepReport

pytestmark = pytest.mark.slow

STALE = "training/off_policy/trajectory_staleness_worst/max"
STEPS = 4


SAVED_AT, KILLED_AFTER = 2, 3  #: steps of the checkpoint and of the kill
WRITTEN = (
    "trainer.v1.sampler.custom_sampler.path=pkg://looking_sampler",
    "trainer.v1.sampler.custom_sampler.name=LookingAgain",
    f"turntree.train_tasks={(STEPS + 1) * PROMPTS}",  # each is in one step; a batch is begun before its step
)
SAVING = (*WRITTEN, f"trainer.save_freq={SAVED_AT}", "trainer.resume_mode=auto")


def trained(
    model: Path, root: Path, *overrides: str, mode: str = "colocate_async", env: str = "Forking", **others: Any
) -> Training:
    return run_training(
        model,
        root,
        env,
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
    assert all(metrics["async/reverified_turns"] > 0 for metrics in later)
    assert all(0 < metrics["async/kept_share"] <= 1 for metrics in later)
    assert any(metrics["turntree/level_b"] > 0 for metrics in later)


def test_reverified_turns_have_the_log_probabilities_of_the_weights_that_reverified_them(
    episode: Training, tiny_model: Path
) -> None:
    assert max(mistrust(episode, tiny_model, 0)) < 1e-4
    assert max(mistrust(episode, tiny_model, -1)) > 1e-3, "the control: the weights of another step"


@pytest.mark.release  # test_async_sampler.py has a control without a training
def test_turns_of_earlier_policies_keep_their_version(tiny_model: Path, tmp_path: Path) -> None:
    # Control: only interrupted turns are re-verified, so turns that ended under earlier weights keep their version.
    turn = trained(tiny_model, tmp_path, "turntree.asynchronous.on_resume=turn")
    assert turn.status == 0, turn.log[-3000:]
    assert max(report.metrics[STALE] for report in turn.reports) > 0


@pytest.fixture(scope="module")
def killed(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Training:
    # ``kill -9`` of the trainer one step after the checkpoint's next step, with episodes of two steps in progress.
    def kill(report: StepReport) -> None:
        if report.step == KILLED_AFTER:
            kill_trainer()

    return trained(tiny_model, tmp_path_factory.mktemp("killed"), *SAVING, on_step=kill)


@pytest.fixture(scope="module")
def resumed(killed: Training, tiny_model: Path) -> Training:
    assert killed.status != 0
    assert killed.steps == [*range(1, KILLED_AFTER + 1)]
    return trained(tiny_model, killed.folder.root.parent, *SAVING)


def kept_rows(run: Training) -> list[dict[str, Any]]:
    # The rows that the final policy was trained on: of a repeated step, those of the last run.
    by_step = {batch[0]["step"]: batch for batch in run.batches}
    return [row for step in sorted(by_step) for row in by_step[step]]


def require_each_row_once(rows: list[dict[str, Any]]) -> None:
    # All samples of each started task are trained on once, in order, by the weights that played them.
    trained_on = [(row["index"], row["session"]) for row in rows]
    assert len(trained_on) == len(set(trained_on)) == STEPS * PROMPTS * SAMPLES
    assert {session for _, session in trained_on} == {*range(SAMPLES)}
    for row in rows:
        assert row["reverified"] == row["step"] - 1
        assert row["versions"] == [row["step"] - 1] * 2
    # The first step has the batch of its own and the one that is begun ahead: any of these two it is trained on.
    for step in range(1, STEPS + 1, 2):
        known = [row["index"] for row in rows if row["step"] < step + 2]
        assert {*known} <= {*range((step + 1) * PROMPTS)}


def require_none_reverified_later(run: Training, rows: list[dict[str, Any]]) -> None:
    # Rows that were trained on are not re-verified by later weights.
    last = {row["index"]: row["reverified"] for row in rows}
    for step in range(1, STEPS + 1):
        for record in read_records(run.folder.episodes(step)):
            versions = {turn.completion.weights_version for turn in record.episode.turns}
            assert max(versions) <= last.get(record.labels["index"], STEPS - 1)


@pytest.mark.release
def test_a_training_that_was_killed_learns_from_each_row_once(resumed: Training, tiny_model: Path) -> None:
    assert resumed.status == 0, resumed.log[-3000:]
    assert resumed.steps == [*range(SAVED_AT + 1, STEPS + 1)]
    require_each_row_once(kept_rows(resumed))
    require_none_reverified_later(resumed, kept_rows(resumed))
    assert all(report.metrics[STALE] == 0 for report in resumed.reports)
    assert max(mistrust(resumed, tiny_model, 0)) < 1e-4


@pytest.mark.release
def test_rows_that_come_twice_are_noticed(resumed: Training) -> None:
    # Control: with the rows of the lost step.
    with pytest.raises(AssertionError):
        require_each_row_once([row for batch in resumed.batches for row in batch])


@pytest.mark.release
def test_what_was_begun_before_the_kill_is_played_with_other_noise(resumed: Training) -> None:
    # The checkpoint's policy has learnt from the seeds of the first two steps.
    learnt = {seed for step in range(1, SAVED_AT + 1) for seed in seeds(resumed, step)}
    assert learnt
    for step in range(SAVED_AT + 1, STEPS + 1):
        assert not learnt & seeds(resumed, step)


def seeds(run: Training, step: int) -> set[int]:
    return {record.labels["seed"] for record in run.records(step).values()}


@pytest.mark.release
def test_an_engine_that_is_killed_while_it_reverifies_a_turn_loses_nothing(tiny_model: Path, tmp_path: Path) -> None:
    run = trained(*(tiny_model, tmp_path, *WRITTEN, f"turntree.env_kwargs.folder={tmp_path}"), env="Interrupted")
    assert run.status == 0, run.log[-3000:]
    assert (tmp_path / "reverifying").exists()
    assert run.steps == [*range(1, STEPS + 1)]
    require_each_row_once(kept_rows(run))
    require_none_reverified_later(run, kept_rows(run))
    assert sum(report.metrics["async/lost_turns"] for report in run.reports) >= 1
    for report in run.reports:
        assert report.metrics[STALE] == 0
        assert report.metrics["turntree/failures"] == 0
    assert max(mistrust(run, tiny_model, 0)) < 1e-4


def mistrust(run: Training, model: Path, shift: int) -> list[float]:
    # Per turn, the largest difference between the recorded log-probabilities and those of ``shift`` versions later.
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
                    policies[version] = policy_of(model, run.folder.weights(version + 1))
                found.append(difference(policies[version], turn))
    return found


@pytest.mark.release
def test_rollouts_on_devices_of_their_own_are_of_the_policy_that_learns_from_them(
    tiny_model: Path, tmp_path: Path
) -> None:
    # On two pretended devices episodes continue during the update.
    run = trained(tiny_model, tmp_path, mode="separate_async")
    assert run.status == 0, run.log[-3000:]
    assert run.steps == [*range(1, STEPS + 1)]
    for report in run.reports:
        assert report.metrics[STALE] == 0
        assert report.metrics["turntree/episodes"] == PROMPTS * SAMPLES
    assert any(report.metrics["async/reverified_turns"] > 0 for report in run.reports)
    assert max(mistrust(run, tiny_model, 0)) < 1e-4


def external(
    engine: str, chatml: Any, root: Path, factory: pytest.TempPathFactory, *overrides: str, env: str = "Forking"
) -> tuple[Training, list[dict[str, float]]]:
    # A training by one of verl's own servers, and its metrics by step.
    run = train_engine(
        *(root, policy_for(engine, chatml, factory), engine, "tree", "turntree.env_kwargs.limits.max_turn_tokens=160"),
        "data.max_response_length=512",
        # Episodes start two steps early; those that end before their own step are re-verified once, in that step.
        *(f"trainer.v1.{mode}.num_warmup_batches=2" for mode in ("colocate_async", "separate_async")),
        *("actor_rollout_ref.rollout.max_num_seqs=2", "actor_rollout_ref.actor.optim.lr=0.00003"),
        *("actor_rollout_ref.rollout.temperature=1.0", *overrides),
        env=env,
        steps=STEPS,
    )
    assert run.status == 0, run.log[-3000:]
    assert run.steps == [*range(1, STEPS + 1)]
    return run, run.metrics


EXTERNAL = [pytest.param(engine, marks=getattr(pytest.mark, engine)) for engine in VERSIONS]


@pytest.mark.release
@pytest.mark.parametrize("mode", ["colocate_async", "separate_async"])
@pytest.mark.parametrize("engine", EXTERNAL)
def test_turns_of_verls_servers_are_reverified_by_the_policy_that_learns_from_them(
    engine: str, mode: str, chatml: Any, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    # Without order there are always turns that an update interrupts.
    order = f"turntree.asynchronous.in_order={str(mode == 'colocate_async').lower()}"
    _, rows = external(engine, chatml, tmp_path, tmp_path_factory, f"mode={mode}", order)
    for row in rows:
        assert row[STALE] == 0
        assert row["turntree/episodes"] == PROMPTS * SAMPLES
        assert row["training/rollout_probs_diff_max"] < 1e-4
    reverified = [row for row in rows if row["async/reverified_turns"]]
    assert len(reverified) == STEPS - 1 if mode == "colocate_async" else reverified
    assert all(0 < row["async/kept_share"] <= 1 for row in reverified)
    assert mode == "colocate_async" or sum(row["async/interruptions"] for row in rows) > 0


@pytest.mark.release
@pytest.mark.parametrize("engine", EXTERNAL)
def test_turns_of_verls_servers_that_are_not_reverified_are_told_apart(
    engine: str, chatml: Any, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    # Control: turns that ended under earlier weights are trained on without re-verification.
    mode = ("mode=colocate_async", "turntree.asynchronous.on_resume=turn")
    _, rows = external(engine, chatml, tmp_path, tmp_path_factory, *mode)
    assert max(row[STALE] for row in rows) > 0
    assert max(row["training/rollout_probs_diff_max"] for row in rows) > 1e-4


@pytest.mark.release
@pytest.mark.parametrize("engine", EXTERNAL)
def test_a_server_that_is_killed_while_it_reverifies_a_turn_loses_nothing(
    engine: str, chatml: Any, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SOCKET, raising=False)  # vLLM's engine is a child of its server and dies with it
    server = {"vllm": "DraftingVllmServer", "sglang": "DraftingSglangServer"}[engine]
    killing = (f"turntree.env_kwargs.folder={tmp_path}", f"turntree.env_kwargs.server={server}")
    _, rows = external(engine, chatml, tmp_path, tmp_path_factory, "mode=colocate_async", *killing, env="Interrupted")
    assert (tmp_path / "reverifying").exists()
    assert sum(row["async/lost_turns"] for row in rows) >= 1
    for row in rows:
        assert row[STALE] == 0
        assert (row["turntree/episodes"], row["turntree/failures"]) == (PROMPTS * SAMPLES, 0)
        assert row["training/rollout_probs_diff_max"] < 1e-4
