"""Episodes with the rewards of a scorer instead of the environment's.

Invariant: an episode that could not be judged, or whose rewards raised, is
masked; a failure never becomes a reward of 0.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from turntree.agents.episode import Episode, StopReason
from turntree.agents.policy_sample import policy_sample
from turntree.agents.rollout import describe
from turntree.agents.scorer import ANSWER, Scored, Scorer

logger = logging.getLogger(__name__)


async def judge_episodes(episodes: Sequence[Episode], scorer: Scorer) -> list[Episode]:
    """Replace the environment's rewards by those of a scorer.

    The reward lies on the last turn; the parts, and ``correct`` where ``answer`` is one, are added to
    ``Episode.rewards``. An episode that could not be judged names the open rewards in ``undecided``; if a
    reward function raised, all these episodes are failures.

    Args:
        episodes: Finished ones, all samples of a task among them. Failures stay as they are.
        scorer: Gives the rewards.
    """
    places = [place for place, episode in enumerate(episodes) if episode.stop_reason is not StopReason.FAILURE]
    judged = list(episodes)
    try:
        scored = await scorer.ascore([policy_sample(episodes[place]) for place in places])
    except Exception as error:  # a reward function is part of the surroundings
        logger.warning("the rewards of %d episodes failed", len(places), exc_info=True)
        for place in places:
            failure = f"the rewards {', '.join(scorer.names)} raised {describe(error)}"
            judged[place] = replace(episodes[place], stop_reason=StopReason.FAILURE, failure=failure)
        return judged
    for place, result in zip(places, scored, strict=True):
        judged[place] = judged_episode(episodes[place], result)
    return judged


def judged_episode(episode: Episode, scored: Scored) -> Episode:
    """``episode`` with the reward of ``scored`` on its last turn, and 0 where that is undecided."""
    values = [0.0] * max(0, len(episode.turns) - 1) + [scored.reward or 0.0]
    components = {**episode.rewards, **scored.parts}
    if ANSWER in scored.parts:
        components["correct"] = scored.parts[ANSWER]
    return replace(
        episode,
        turns=tuple(replace(turn, reward=value) for turn, value in zip(episode.turns, values, strict=False)),
        rewards=components,
        undecided=scored.undecided if scored.reward is None else (),
    )
