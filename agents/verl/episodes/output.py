"""An episode in the form that verl trains on.

Invariant: whatever the episode, the output is valid for verl (at least one
response token, a score, the same extra fields), and an episode that failed, could
not be verified again or has no turn has a response mask of zeros: nothing is learnt from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import torch
from pydantic import Field
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

from turntree.agents.episodes.episode import Episode, StopReason, Turn
from turntree.agents.episodes.failures import FailureKind, program_error
from turntree.agents.episodes.learning_checks import count_calls, count_cut, count_unparsed
from turntree.agents.episodes.token_view import TokenView
from turntree.agents.resuming.interrupted_turns import versions_of
from turntree.agents.scoring.scorer import ENVIRONMENT
from turntree.agents.verl.episodes.scored_text import SAMPLE, sample_to_dict
from turntree.agents.verl.records.metrics import EPISODE


class EpisodeOutput(AgentLoopOutput):
    """verl's output with the reward of each turn on the turn's last token."""

    turn_ends: list[int] = []
    """Index in the response of the last token of each turn."""
    turn_rewards: list[float] = []
    """Reward of each turn; empty where verl's reward loop gives one for the episode."""
    masked: bool = False
    """Whether the episode is excluded from training."""
    token_levels: list[int] = []
    """Exactness of each response token: 1 for A to 4 for D, 0 where the policy did not sample."""
    behaviour_logprobs: list[float] = []
    """Log-probability of each response token under the distribution that drew it, 0 where the policy did not sample."""
    others: list[EpisodeOutput] = Field(default=[], exclude=True)
    """Earlier segments of a dialogue that was shortened, and further dialogues of the same episode: rows of their own
    with its score; none of a masked one."""

    @property
    def rows(self) -> list[EpisodeOutput]:
        """All rows of the episode, its own last: the one that verl takes a session's advantage and validation from."""
        for other in self.others:
            other.reward_score, other.masked = self.reward_score, self.masked
            other.extra_fields["reward_extra_info"] = self.extra_fields["reward_extra_info"]
        return [*self.others, self]

    def as_dict(self) -> dict[str, Any]:
        """verl's row; ``rm_scores`` holds the turns' rewards instead of their sum at the end.

        Two further columns have the shape of ``responses``: ``token_levels`` (int8) and ``behaviour_log_probs``
        (float32), by which a trainer may mask or reweight.
        """
        row: dict[str, Any] = super().as_dict()
        ends, rewards = row.pop("turn_ends"), row.pop("turn_rewards")
        info = self.extra_fields["reward_extra_info"]
        # verl's reward loop, a process of its own, can report it only in this way.
        masked = row.pop("masked") or bool(info.get("ungraded"))
        row["extra_fields"].pop(SAMPLE, None)
        scores = torch.zeros_like(row["rm_scores"])
        if masked or not ends:
            scores[-1] = self.reward_score or 0.0
        elif rewards:
            for end, reward in zip(ends, rewards, strict=True):
                scores[end] += reward
        else:
            scores[ends[-1]] = self.reward_score or 0.0
        row["rm_scores"] = scores
        if masked:
            row["response_mask"] = torch.zeros_like(row["response_mask"])
        row["token_levels"] = torch.tensor(row["token_levels"], dtype=torch.int8)
        row["behaviour_log_probs"] = torch.tensor(row.pop("behaviour_logprobs"), dtype=torch.float32)
        return row


def to_output(
    episode: Episode,
    *,
    weights_version: int,
    filler_id: int,
    lost: Sequence[FailureKind] = (),
    rewards: Sequence[str] = (),
    score_in_verl: bool = False,
    counted: Mapping[str, Any] | None = None,
) -> EpisodeOutput:
    """Convert an episode to verl's output.

    Args:
        weights_version: Version of the weights, for an episode without turns.
        filler_id: Token id that stands in for the prompt and response of an episode without turns.
        lost: Kinds of failure of the failed attempts, the last one included if it failed.
        rewards: Names of the components to log, the same for all episodes of a run.
        score_in_verl: Leave the score to verl's reward loop, which is given only the policy's own text.
    """
    *earlier, last = episode.segments
    view = TokenView.of(replace(episode, turns=last))
    masked, turns = episode.masked, episode.turns
    versions = [version for turn in last for version in versions_of(turn.completion)] or [weights_version]
    score = 0.0 if masked else episode.reward
    done = episode.stop_reason is StopReason.DONE
    counts = {**_counts(episode, lost), **(counted or {})}
    return EpisodeOutput(
        prompt_ids=list(view.prompt_ids) or [filler_id],
        response_ids=list(view.response_ids) or [filler_id],
        response_mask=[0] * max(1, len(view.mask)) if masked else list(view.mask) or [0],
        response_logprobs=list(view.logprobs) or [0.0],
        token_levels=list(view.levels) or [0],
        behaviour_logprobs=list(view.behaviour_logprobs) or [0.0],
        reward_score=None if score_in_verl else score,
        turn_ends=[] if masked else list(view.turn_ends),
        turn_rewards=[] if masked or score_in_verl else _rewards(last, episode),
        masked=masked,
        others=[]
        if masked
        else [
            *(_stretch(turns, episode, weights_version, filler_id, score_in_verl) for turns in earlier),
            *(_beside(other, weights_version, filler_id) for other in episode.others),
        ],
        num_turns=len(episode.messages),
        metrics=AgentLoopMetrics(),
        extra_fields={
            **_drafted(last),
            "min_global_steps": min(versions),
            "max_global_steps": max(versions),
            "turn_scores": [turn.reward for turn in turns],
            "tool_rewards": [],
            "reward_extra_info": {
                "score": score,
                "acc": float(not masked and done and _verdict(episode, score) > 0),
                "masked": float(masked),
                **counts,
                **{f"reward_{name}": float(episode.rewards.get(name, 0.0)) for name in rewards},
            },
            EPISODE: counts,
            **({SAMPLE: sample_to_dict(episode)} if score_in_verl else {}),
        },
    )


def _counts(episode: Episode, lost: Sequence[FailureKind]) -> dict[str, float]:
    """What the episode counts in the figures of its step."""
    return {
        "turns": len(episode.turns),
        "tool_calls": count_calls(episode),
        "tool_calls_unparsed": count_unparsed(episode),
        "turns_cut": count_cut(episode),
        "truncated": float(episode.stop_reason.is_truncated()),
        "failure": float(episode.stop_reason is StopReason.FAILURE),
        "ungraded": float(bool(episode.ungraded)),
        "program_error": float(bool(program_error(episode))),
        "attempts": len(lost) + (not episode.masked),
        **{f"lost_{kind}": lost.count(kind) for kind in FailureKind},
    }


def _beside(other: Episode, weights_version: int, filler_id: int) -> EpisodeOutput:
    """The row of a further dialogue: what it shares with another one is trained on, and counted, there."""
    output = to_output(other, weights_version=weights_version, filler_id=filler_id)
    shared = output.turn_ends[other.shared_turns - 1] + 1 if other.shared_turns else 0
    output.response_mask[:shared] = output.token_levels[:shared] = [0] * shared
    output.extra_fields |= {**_drafted(other.turns[other.shared_turns :]), EPISODE: {}}
    output.turn_rewards = []  # its score, the episode's, lies on its last turn
    return output


def _stretch(
    turns: Sequence[Turn], episode: Episode, weights_version: int, filler_id: int, score_in_verl: bool
) -> EpisodeOutput:
    """The row of the turns before the dialogue was shortened; the episode is counted with its last segment."""
    alone = replace(episode, turns=tuple(turns), others=())
    output = to_output(alone, weights_version=weights_version, filler_id=filler_id, score_in_verl=score_in_verl)
    output.turn_rewards = [] if score_in_verl else _rewards(turns, episode)
    output.extra_fields[EPISODE] = {}
    return output


def _rewards(turns: Sequence[Turn], episode: Episode) -> list[float]:
    """Rewards of the turns of a segment; what the others earned lies on its last, as each row has the episode's score:
    verl takes a session's advantage from its last row, and of other estimators each row is a sample."""
    rewards = [turn.reward for turn in turns]
    if len(turns) < len(episode.turns):
        rewards[-1] += episode.reward - sum(rewards)
    return rewards


def _drafted(turns: Sequence[Turn]) -> dict[str, int]:
    """Counters of drafts, under verl's names."""
    drafts = [turn.completion.draft for turn in turns]
    return {
        "spec_num_draft_tokens": sum(draft.drafted for draft in drafts),
        "spec_num_accepted_tokens": sum(draft.accepted for draft in drafts),
        "spec_num_verify_steps": sum(draft.verify_steps for draft in drafts),
    }


def _verdict(episode: Episode, score: float) -> float:
    """The score for solving the task, without that for form."""
    return episode.rewards.get("correct", episode.rewards.get(ENVIRONMENT, score))


def neutralise(outputs: Sequence[EpisodeOutput]) -> None:
    """Give the masked episodes of a group the mean score of the others, so that they do not move its baseline.

    verl has no mask for samples, and their scores are part of the group's mean. The group's spread shrinks a
    little by them.
    """
    scores = [output.reward_score for output in outputs if not output.masked and output.reward_score is not None]
    for output in outputs:
        if output.masked and scores:
            output.reward_score = fmean(scores)
