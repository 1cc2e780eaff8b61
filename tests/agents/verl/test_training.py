"""One real training, by an unmodified verl: what the plugin, the engine, the loop and the records do together."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from real_training import LOOKING, PROMPTS, SAMPLES, Training, read_lines, run_training

pytestmark = pytest.mark.slow

UNDECIDED, BROKEN = 1, 3
"""Tasks that teach nothing: no reward can be decided, or the surroundings always break."""


@pytest.fixture(scope="module")
def trained(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Training:
    """Two epochs of one step; the second begins its turns with those of the first."""
    speculation = "actor_rollout_ref.rollout.engine_kwargs.turntree.speculation"
    return run_training(
        tiny_model,
        tmp_path_factory.mktemp("training"),
        "Echoing",
        f"turntree.env_kwargs.broken={BROKEN}",
        r"turntree.rewards={answer: 1.0, trained_envs\:brevity: 0.5, trained_envs\:first: 0.25}",
        "turntree.contract=math",
        "turntree.reuse.mode=exact",
        "data.max_response_length=160",
        "actor_rollout_ref.rollout.free_cache_engine=true",  # the engine sleeps and wakes as on a GPU
        *("turntree.validation.coupled=true", "trainer.test_freq=1"),
        *(f"{speculation}.min_probability=0.0", f"{speculation}.adaptive=false"),  # timing decides nothing
        *LOOKING,
        steps=2,
    )


def test_verl_trains_to_the_end_and_its_metrics_are_recorded(trained: Training) -> None:
    assert trained.status == 0, trained.log[-3000:]
    assert trained.steps == [1, 2]
    rows = read_lines(trained.folder.metrics)
    assert [row["step"] for row in rows] == [1, 2]
    for row in rows:
        assert 0 < row["data"]["critic/score/mean"] < 1
        assert row["data"]["actor/grad_norm"] > 0


def test_the_engine_speculates_from_earlier_turns_and_verl_sees_it(trained: Training) -> None:
    first, second = trained.reports
    assert second.engine["drafted"] > 0
    assert second.engine["accepted"] > 0
    assert second.engine["verify_steps"] > 0
    assert "rollout/spec_accept_rate" in second.metrics
    assert first.engine["requests"] > PROMPTS * SAMPLES


def test_the_engine_samples_what_the_trainer_believes(trained: Training, tiny_model: Path) -> None:
    for step in (1, 2):
        assert trained.mistrust(tiny_model, step, weights_of=step) < 1e-4
    assert trained.mistrust(tiny_model, 2, weights_of=1) > 1e-3, "the control: the weights of another step"


def test_every_episode_is_recorded(trained: Training) -> None:
    for step in (1, 2):
        wanted = {(index, session) for index in range(PROMPTS) for session in range(SAMPLES)}
        assert trained.records(step).keys() == wanted


def test_a_task_whose_surroundings_break_is_masked_and_training_goes_on(trained: Training) -> None:
    for step, report in enumerate(trained.reports, start=1):
        for (index, _), record in trained.records(step).items():
            assert record.episode.masked is (index in (UNDECIDED, BROKEN))
            if index == BROKEN:
                assert "the disk is full" in record.episode.failure
        assert all(value == value for value in (report.metrics["actor/pg_loss"], report.metrics["actor/grad_norm"]))


def test_groups_are_scored_as_a_whole_by_the_policys_own_words(trained: Training) -> None:
    for step, report in enumerate(trained.reports, start=1):
        episodes = [record.episode for record in trained.records(step).values()]
        decided = [episode for episode in episodes if not episode.masked]
        assert {episode.undecided for episode in episodes if episode.masked} == {(), ("brevity",)}
        assert sorted(episode.rewards["first"] for episode in decided) == [0.0] * 2 * (SAMPLES - 1) + [1.0] * 2
        paid = sum(0.5 / (1 + len(episode.turns[-1].text)) for episode in decided)  # the gold that was heard pays none
        assert sum(episode.reward for episode in decided) == pytest.approx(paid + 2 * 0.25)
        mean = sum(episode.reward for episode in decided) / (PROMPTS * SAMPLES)
        assert report.metrics["critic/score/mean"] == pytest.approx(mean, rel=1e-4)


def test_what_was_sampled_is_never_rendered_again(trained: Training) -> None:
    for record in trained.records(2).values():
        for before, after in pairwise(record.episode.turns):
            said = before.prompt_ids + before.completion.token_ids
            assert after.prompt_ids[: len(said)] == said


def test_the_second_epoch_begins_its_turns_with_those_of_the_first(trained: Training) -> None:
    first, second = trained.reports
    assert first.engine["reuse_tickets"] == 0
    assert 0 < second.engine["reuse_reused"] <= second.engine["reuse_offered"]
    assert trained.levels(1) == {"A"}
    turns = (turn.completion for record in trained.records(2).values() for turn in record.episode.turns)
    assert any(turn.levels.startswith("C") for turn in turns)


def test_the_monitors_are_logged_each_step(trained: Training) -> None:
    first, second = trained.reports
    # One task is tried twice with the same seeds: its second turns are drafted from their own noise.
    assert abs(first.engine["exactness/exact_acceptance_z"]) < 5
    assert abs(first.engine["exactness/exact_entropy_z"]) < 5
    assert {"exactness/marginal_acceptance_z", "exactness/marginal_entropy_z"} <= second.engine.keys()


def test_levels_and_behaviour_arrive_in_the_trainers_batch(trained: Training) -> None:
    levels = []
    for batch in trained.batches:
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
    first, second = (row["data"] for row in read_lines(trained.folder.metrics))
    names = [name for name in second if "/coupled_unchanged/mean" in name]
    assert names, "the second validation is compared with the first"
    assert not [name for name in first if "/coupled_" in name]
    assert all(0 <= second[name] <= 1 for name in names)
