"""A real training with a critic through steps that teach nothing: one is a bad hour, two in a row are its end."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from real_training import PROMPTS, Training, run_training

from turntree.agents.episodes.episode import StopReason

pytestmark = pytest.mark.slow

LONG, PLAYED = 4, 7
"""Tasks of step 2: one whose prompt outgrows the row, and the only one that is played to its end."""


@pytest.fixture(scope="module")
def lost(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Training, list[str]]:
    """Steps 1, 3 and 4 are lost as a whole, step 2 all but one episode; and what was logged here."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("turntree.agents.verl.launch")
    logger.addHandler(handler)
    broken = [index for index in range(4 * PROMPTS) if index not in (LONG, PLAYED)]
    try:
        training = run_training(
            tiny_model,
            tmp_path_factory.mktemp("lost"),
            "Losing",
            f"turntree.env_kwargs.lost={broken}",
            f"turntree.env_kwargs.long={LONG}",
            f"turntree.train_tasks={4 * PROMPTS}",
            *("algorithm=ppo", "actor_rollout_ref.rollout.n=1"),
            steps=6,
        )
    finally:
        logger.removeHandler(handler)
    return training, said


def test_a_step_without_an_episode_is_gone_through_and_two_in_a_row_end_the_run(
    lost: tuple[Training, list[str]],
) -> None:
    training, _ = lost
    assert training.status == 1
    assert training.steps[:4] == [1, 2, 3, 4], training.log[-3000:]
    assert [report.metrics["turntree/failures"] for report in training.reports[:4]] == [1.0, 0.5, 1.0, 1.0]
    taught = [report.metrics["actor/grad_norm"] > 0 for report in training.reports[:4]]
    assert taught == [False, True, False, False]


def test_a_prompt_that_outgrows_the_row_is_a_truncated_row(lost: tuple[Training, list[str]]) -> None:
    training, _ = lost
    episode = training.records(2)[LONG, 0].episode
    assert (episode.stop_reason, episode.turns, episode.masked) == (StopReason.MAX_TOKENS, (), False)


def test_the_last_words_are_the_first_failure(lost: tuple[Training, list[str]]) -> None:
    last = lost[1][-1]
    assert "every episode of step 3, 4 was lost to the environment" in last
    assert "the first failure of step 4 is the environment's of task losing/1" in last
    assert last.endswith("OSError: the disk is full")
