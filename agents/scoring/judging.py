"""Replacement of the environment's rewards in finished episodes by those of a scorer.

Invariant: an episode that could not be judged, or whose rewards raised, is
masked; a failure never becomes a reward of 0.
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
    """Replace the environment's rewards by those of a scorer.

    Rewards of single turns are kept as far as ``environment`` is among the rewards; all others go to the last turn.
    The parts, and ``correct`` if ``answer`` is one, are added to ``Episode.rewards``. An episode that could not be
    judged names the open rewards in ``ungraded``; if a reward function raised twice, all these episodes are failures.

    Args:
        episodes: Finished episodes, all samples of a task among them. Failures are returned unchanged.
    """
    places = [place for place, episode in enumerate(episodes) if episode.stop_reason is not StopReason.FAILURE]
    judged = list(episodes)
    samples = [policy_sample(episodes[place]) for place in places]
    try:
        try:
            scored = await scorer.ascore(samples)
        except Exception:
            logger.warning("the rewards of %d episodes failed; trying once more", len(places), exc_info=True)
            scored = await scorer.ascore(samples)
    except Exception as error:  # a reward function is part of the infrastructure
        for place in places:
            judged[place] = replace(
                episodes[place],
                stop_reason=StopReason.FAILURE,
                failure=f"the rewards {', '.join(scorer.names)} raised {describe(error)}",
                failure_kind=FailureKind.REWARD,
            )
        return judged
    for place, result in zip(places, scored, strict=True):
        judged[place] = judged_episode(episodes[place], result)
    return judged


def judged_episode(episode: Episode, scored: Scored) -> Episode:
    """``episode`` with the reward of ``scored``, and 0 where that is ungraded.

    The environment's rewards stay on the turns that earned them, by their weight; all others go to the last turn.
    """
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
