"""Replaces the environment's rewards of finished episodes with a scorer's rewards.

Invariant: an episode that could not be graded, or whose rewards raised, is masked; a failure never becomes a reward
of 0.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from turntree.agents.episodes.episode import Episode, StopReason
from turntree.agents.scoring.policy_sample import policy_sample
from turntree.agents.scoring.scorer import ANSWER, Scored, Scorer
from turntree.envs.failure import FailureKind, describe

logger = logging.getLogger(__name__)


async def judge_episodes(episodes: Sequence[Episode], scorer: Scorer) -> list[Episode]:
    """Replace the environment's rewards with a scorer's rewards.

    If ``environment`` is among the rewards, each turn keeps its environment reward times the weight; all other rewards
    go to the last turn. ``Episode.rewards`` gets every part, and also ``correct`` if ``answer`` is among the parts. An
    episode that could not be graded lists the missing rewards in ``ungraded``. If a reward function raises twice, all
    these episodes fail.

    Args:
        episodes: Finished episodes, including all samples of each task. Failures are returned unchanged.
    """
    finished = [index for index, episode in enumerate(episodes) if episode.stop_reason is not StopReason.FAILURE]
    graded = list(episodes)
    samples = [policy_sample(episodes[index]) for index in finished]
    try:
        try:
            scored = await scorer.ascore(samples)
        except Exception:
            logger.warning("the rewards of %d episodes failed; retrying once", len(finished), exc_info=True)
            scored = await scorer.ascore(samples)
    except Exception as error:  # a reward function is part of the infrastructure
        for index in finished:
            graded[index] = replace(
                episodes[index],
                stop_reason=StopReason.FAILURE,
                failure=f"the rewards {', '.join(scorer.names)} raised {describe(error)}",
                failure_kind=FailureKind.REWARD,
            )
        return graded
    for index, result in zip(finished, scored, strict=True):
        graded[index] = graded_episode(episodes[index], result)
    return graded


def graded_episode(episode: Episode, scored: Scored) -> Episode:
    """Return ``episode`` with the reward of ``scored``; an ungraded episode has reward 0 and is masked."""
    values = [0.0 if scored.reward is None else scored.environment * turn.reward for turn in episode.turns]
    if values:
        values[-1] += (scored.reward or 0.0) - sum(values)
    components = {**episode.rewards, **scored.parts}
    if ANSWER in scored.parts:
        components["correct"] = scored.parts[ANSWER]
    return replace(
        episode,
        turns=tuple(replace(turn, reward=value) for turn, value in zip(episode.turns, values, strict=True)),
        rewards=components,
        ungraded=scored.ungraded if scored.reward is None else (),
    )
