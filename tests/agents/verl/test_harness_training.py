from itertools import pairwise
from pathlib import Path

import pytest
from real_training import LOOKING, PROMPTS, SAMPLES, Training, run_training

pytestmark = [pytest.mark.slow, pytest.mark.release]  # tests/agents/harness plays the programs, test_output.py has rows

BROKEN = 3  #: the task whose program crashes


@pytest.fixture(scope="module")
def trained(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Training:
    settings = "turntree.env_kwargs"
    return run_training(
        tiny_model,
        tmp_path_factory.mktemp("training"),
        "Talking",
        "turntree.env=turntree.agents.harness.env:HarnessEnv",
        f"{settings}.env=turntree/Arithmetic-v0",
        f"{settings}.program=programs:delegates_and_breaks",
        r"+turntree.env_kwargs.rewards={trained_envs\:brevity: 1.0}",
        "data.max_response_length=160",
        *LOOKING,
        steps=2,
    )


def test_a_program_is_trained_with_the_rows_of_its_sub_agents(trained: Training) -> None:
    assert trained.status == 0, trained.log[-3000:]
    assert trained.steps == [1, 2]
    for report, batch in zip(trained.reports, trained.batches, strict=True):
        assert report.metrics["actor/grad_norm"] > 0
        assert report.metrics["turntree/episodes"] == PROMPTS * SAMPLES
        assert len(batch) == (PROMPTS - 1) * SAMPLES * 3 + SAMPLES
        assert report.metrics["turntree/dialogues"] == len(batch) / (PROMPTS * SAMPLES)
        assert report.metrics["turntree/program_errors"] == SAMPLES
        assert "the program raised RuntimeError: the disk is full" in report.program_error
        assert all(any(row["response_mask"]) for row in batch), "a program that breaks by itself is a 0"
        for row in batch:
            assert len({len(column) for column in row.values()}) == 1


def test_all_dialogues_of_an_episode_have_its_reward(trained: Training) -> None:
    for step, report in enumerate(trained.reports, start=1):
        records = trained.records(step)
        assert records.keys() == {(index, session) for index in range(PROMPTS) for session in range(SAMPLES)}
        paid = []
        for (index, _), record in records.items():
            episode = record.episode
            assert not episode.masked
            assert len(episode.extra_dialogues) == (0 if index == BROKEN else 2)
            assert episode.reward == 0 or index != BROKEN
            paid += [episode.reward] * (1 + len(episode.extra_dialogues))
        mean = sum(paid) / len(paid)
        assert report.metrics["critic/score/mean"] == pytest.approx(mean, rel=1e-4)


def test_its_tokens_are_as_the_policy_sampled_them(trained: Training, tiny_model: Path) -> None:
    assert trained.mistrust(tiny_model, 1, weights_of=1) < 1e-4
    assert trained.mistrust(tiny_model, 2, weights_of=1) > 1e-3, "the control: the weights of another step"
    for record in trained.records(2).values():
        for before, after in pairwise(record.episode.turns):
            said = before.prompt_ids + before.completion.token_ids
            assert after.prompt_ids[: len(said)] == said


def test_later_turns_are_drafted_from_earlier_ones(trained: Training) -> None:
    second = trained.reports[1]
    assert second.engine["drafted"] > 0
    assert second.engine["verify_steps"] > 0
