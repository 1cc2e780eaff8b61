from pathlib import Path
from typing import NamedTuple

import pytest
from machine_speed import patience
from real_training import LOOKING, PROMPTS, SAMPLES, Training, kill_trainer, read_lines, run_training
from trained_envs import BREAKS

from turntree.agents.episodes.record import Record
from turntree.agents.verl.launch import StepReport

pytestmark = pytest.mark.slow

UNGRADED, BROKEN = 1, 3  #: tasks that teach nothing: no grade, or the infrastructure always fails
EPOCH, SAVED_AT, KILLED_AFTER, STEPS = 3, 3, 5, 6  #: steps of an epoch, the checkpoint, the kill and the training
AGAIN = EPOCH + 1  #: the step with the tasks of the first one
AHEAD = EPOCH + 1  #: steps of the run-ahead training: one more than an epoch
NEAR_TIES = 1  #: episodes of a step that may differ, of 16: float32 batches are summed in another order
SPECULATION = "actor_rollout_ref.rollout.engine_kwargs.turntree.speculation"
COMMON = (
    f"turntree.train_tasks={EPOCH * PROMPTS}",
    f"turntree.env_kwargs.broken={BROKEN}",
    r"turntree.rewards={answer: 1.0, trained_envs\:brevity: 0.5, trained_envs\:first: 0.25}",
    "turntree.answer_format=math",
    "turntree.reuse.mode=same_seed",  # the second epoch depends on what the ledger remembers of the first
    "data.max_response_length=160",
    "actor_rollout_ref.actor.optim.lr=0.001",
    "actor_rollout_ref.rollout.free_cache_engine=true",  # the engine sleeps and wakes as on a GPU
    *("turntree.validation.coupled=true", "trainer.test_freq=1"),
    *(f"{SPECULATION}.min_probability=0.0", f"{SPECULATION}.adaptive=false"),  # timing decides nothing
    *LOOKING,
)
RESUMING = (f"trainer.save_freq={SAVED_AT}", "trainer.resume_mode=auto")

#: tokens and first level of each turn, by task and sample
Turns = dict[tuple[int, int], list[tuple[tuple[int, ...], str]]]


def turns(training: Training, step: int) -> Turns:
    return {
        key: [(turn.completion.token_ids, (turn.completion.levels or "A")[0]) for turn in record.episode.turns]
        for key, record in training.records(step).items()
    }


def tokens(record: Record) -> list[tuple[int, ...]]:
    return [turn.completion.token_ids for turn in record.episode.turns]


class Killed(NamedTuple):
    run: Training
    said: dict[int, Turns]  #: by step, before the training was resumed
    at: list[float]


@pytest.fixture(scope="module")
def killed(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Killed:
    # ``kill -9`` of the process with the policy's optimiser, in the third step after the checkpoint.
    at: list[float] = []

    def kill_the_trainer(report: StepReport) -> None:
        if report.step == KILLED_AFTER:
            at.append(kill_trainer())

    root = tmp_path_factory.mktemp("killed")
    run = run_training(tiny_model, root, "Echoing", *COMMON, *RESUMING, steps=STEPS, on_step=kill_the_trainer)
    return Killed(run, {step: turns(run, step) for step in run.steps}, at)


@pytest.fixture(scope="module")
def trained(killed: Killed) -> Training:
    return killed.run


@pytest.fixture(scope="module")
def resumed(killed: Killed, tiny_model: Path) -> Training:
    return run_training(tiny_model, killed.run.folder.root.parent, "Echoing", *COMMON, *RESUMING, steps=STEPS)


@pytest.fixture(scope="module")
def ahead(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Training:
    root = tmp_path_factory.mktemp("ahead")
    return run_training(tiny_model, root, "Echoing", *COMMON, "turntree.run_ahead.enabled=true", steps=AHEAD)


def test_the_second_epoch_drafts_from_and_begins_with_turns_of_the_first_and_verl_sees_it(trained: Training) -> None:
    first, second = trained.reports[0], trained.reports[AGAIN - 1]
    assert second.engine["drafted"] > 0
    assert second.engine["accepted"] > 0
    assert second.engine["verify_steps"] > 0
    assert "rollout/spec_accept_rate" in second.metrics
    assert first.engine["requests"] > PROMPTS * SAMPLES
    # One task is tried twice with the same seeds: its second turns are drafted from their own noise.
    assert abs(first.engine["exactness/exact_acceptance_z"]) < 5
    assert abs(first.engine["exactness/exact_entropy_z"]) < 5
    assert "exactness/trained_turns_entropy_z" in second.engine.keys() - first.engine.keys()
    assert first.engine["reuse_drafted_turns"] == 0
    assert 0 < second.engine["reuse_reused"] <= second.engine["reuse_offered"]
    assert trained.levels(1) == {"A"}
    turns = (turn.completion for record in trained.records(AGAIN).values() for turn in record.episode.turns)
    assert any(turn.levels.startswith("C") for turn in turns)


def test_the_engine_samples_what_the_trainer_believes(trained: Training, tiny_model: Path) -> None:
    for step in (1, 2):
        assert trained.mistrust(tiny_model, step, weights_of=step) < 1e-4
    assert trained.mistrust(tiny_model, 2, weights_of=1) > 1e-3, "the control: the weights of another step"


def test_a_task_whose_infrastructure_breaks_is_masked_and_training_goes_on(trained: Training) -> None:
    failures = set()
    for step in (1, AGAIN):
        report = trained.reports[step - 1]
        for (index, _), record in trained.records(step).items():
            assert record.episode.masked is (index in (UNGRADED, BROKEN))
            if index == BROKEN:
                failures.add(record.episode.failure.removeprefix("reply() raised "))
        assert all(value == value for value in (report.metrics["actor/pg_loss"], report.metrics["actor/grad_norm"]))
    for step in (1, AGAIN):
        wanted = {(index, session) for index in range(PROMPTS) for session in range(SAMPLES)}
        assert trained.records(step).keys() == wanted
    assert failures <= BREAKS
    assert len(failures) > 1, "what is no Exception as well"


def test_groups_are_scored_as_a_whole_by_the_policys_own_words(trained: Training) -> None:
    for step in (1, AGAIN):
        report = trained.reports[step - 1]
        episodes = [record.episode for record in trained.records(step).values()]
        decided = [episode for episode in episodes if not episode.masked]
        assert {episode.ungraded for episode in episodes if episode.masked} == {(), ("brevity",)}
        assert sorted(episode.rewards["first"] for episode in decided) == [0.0] * 2 * (SAMPLES - 1) + [1.0] * 2
        paid = sum(0.5 / (1 + len(episode.turns[-1].text)) for episode in decided)  # the gold that was heard pays none
        assert sum(episode.reward for episode in decided) == pytest.approx(paid + 2 * 0.25)
        mean = sum(episode.reward for episode in decided) / (PROMPTS * SAMPLES)
        assert report.metrics["critic/score/mean"] == pytest.approx(mean, rel=1e-4)


def test_levels_and_behaviour_arrive_in_the_trainers_batch(trained: Training) -> None:
    levels = []
    for batch in (trained.batches[0], trained.batches[AGAIN - 1]):
        assert len(batch) == PROMPTS * SAMPLES
        for row in batch:
            assert len({len(column) for column in row.values()}) == 1
            pairs = zip(row["response_mask"], row["token_levels"], strict=True)
            assert all(level > 0 for sampled, level in pairs if sampled)
            if any(row["response_mask"]):
                # Without truncation an exact rule draws from the policy itself.
                assert row["behaviour_log_probs"] == pytest.approx(row["rollout_log_probs"], abs=1e-5)
        levels.append({level for row in batch for level in row["token_levels"]})
    first, second = levels
    assert first <= {0, 1}
    assert {1, 3} <= second <= {0, 1, 3}


def test_coupled_validations_say_what_an_update_changed(trained: Training) -> None:
    first, second = trained.metrics[:2]
    names = [name for name in second if "/coupled_unchanged/mean" in name]
    assert names, "the second validation is compared with the first"
    assert not [name for name in first if "/coupled_" in name]
    assert all(0 <= second[name] <= 1 for name in names)


def test_a_run_without_its_trainer_ends_soon_and_says_why(killed: Killed) -> None:
    assert killed.run.status != 0
    assert killed.run.steps == list(range(1, KILLED_AFTER + 1))
    assert "ActorDiedError" in killed.run.log
    assert killed.run.ended - killed.at[0] < patience(600)


def test_verl_trains_to_the_end_and_its_metrics_are_recorded(resumed: Training) -> None:
    assert resumed.status == 0, resumed.log[-3000:]
    assert resumed.steps == list(range(SAVED_AT + 1, STEPS + 1))
    rows = read_lines(resumed.folder.metrics)
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1)), "of one whole run"
    assert [row["step"] for row in read_lines(resumed.folder.engine)] == list(range(1, STEPS + 1))
    for row in rows:
        assert 0 < row["data"]["critic/score/mean"] < 1
        assert row["data"]["actor/grad_norm"] > 0


def test_the_resumed_run_says_what_the_unbroken_one_said(killed: Killed, resumed: Training) -> None:
    # Step 4 is sampled with the weights of the checkpoint; step 5 after an update by the optimiser that was restored.
    for step, said in killed.said.items():
        again = turns(resumed, step)
        assert len(said) == PROMPTS * SAMPLES
        assert said.keys() == again.keys(), "the same tasks and samples"
        differing = [key for key in said if said[key] != again[key]]
        shown = [(key, said[key], again[key]) for key in differing]
        assert len(differing) <= (NEAR_TIES if step > SAVED_AT else 0), f"step {step}: {shown}"
    assert "C" in {level for said in turns(resumed, SAVED_AT + 1).values() for _, level in said}
    assert resumed.reports[0].engine["reuse_reused"] > 0


def test_steps_differ(killed: Killed) -> None:
    # The control: the seeds of another step would be noticed.
    one, other = killed.said[KILLED_AFTER - EPOCH], killed.said[KILLED_AFTER]
    assert one.keys() == other.keys()
    assert sum(one[key] != other[key] for key in one) > NEAR_TIES


@pytest.mark.release
def test_a_training_with_run_ahead_goes_to_its_end_and_has_the_levels_in_its_batches(ahead, killed):
    assert ahead.status == 0, ahead.log[-3000:]
    assert ahead.steps == list(range(1, AHEAD + 1))
    plain, (first, *later) = (
        [{level for row in batch for level in row["token_levels"]} for batch in run.batches]
        for run in (killed.run, ahead)
    )
    assert (plain[:EPOCH], first) == ([{0, 1}] * EPOCH, {0, 1})
    for step, levels in enumerate(later, start=2):
        assert {2} <= levels <= {0, 1, 2, 3} - ({3} if step <= EPOCH else set())


@pytest.mark.release
def test_the_rollouts_are_those_of_a_training_without_run_ahead(killed: Killed, ahead: Training) -> None:
    for step in range(1, EPOCH + 1):
        one, other = killed.run.records(step), ahead.records(step)
        assert one.keys() == other.keys()
        differing = {key for key in one if tokens(one[key]) != tokens(other[key])}
        assert len(differing) <= NEAR_TIES, f"step {step}: {differing}"
        assert all(one[key].episode.reward == other[key].episode.reward for key in one.keys() - differing)


@pytest.mark.release
def test_rollouts_made_ahead_are_promoted_recorded_and_none_is_made_behind_the_last_step(ahead: Training) -> None:
    first, *later = [report.engine for report in ahead.reports]
    assert first["run_ahead_promoted"] == 0
    assert first["run_ahead_tokens"] > 0
    for engine in later:
        assert engine["run_ahead_offered"] >= engine["run_ahead_promoted"] > 0.2 * engine["tokens"]
        assert engine["run_ahead_refused"] == 0
    # A turn of the last step may be begun once the step before it is booked: only the sum says for which they were.
    begun = [report.engine["run_ahead_turns"] for report in ahead.reports]
    assert sum(begun) <= (AHEAD - 1) * PROMPTS * SAMPLES * 2
    assert ahead.levels(1) == {"A"}
    for step in range(2, AHEAD + 1):
        assert {"B"} <= ahead.levels(step) <= {"A", "B", "C"} - ({"C"} if step <= EPOCH else set())
