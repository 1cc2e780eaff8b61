"""Convert an episode to verl's output, one or several rows.

An episode has one row per segment (the turns between two shortenings of its dialogue) and per side dialogue (such as a
sub-agent's). The last segment is the main row.

Invariant: every output is valid for verl (at least one response token, a score, the same extra fields). An episode
that failed, is ungraded or has no turn gets a response mask of zeros, so the policy does not learn from it.
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
    """verl's output, with the reward of each turn on the turn's last token."""

    turn_ends: list[int] = []  #: index in the response of each turn's last token
    turn_rewards: list[float] = []  #: per turn; empty if verl's reward loop scores the episode
    masked: bool = False  #: excluded from training
    token_levels: list[int] = []  #: each token's exactness level, 1 (A, exact) to 4 (D, biased); 0 if not sampled
    behaviour_logprobs: list[float] = []  #: under the distribution that drew each response token; 0 if not sampled
    #: rows of the earlier segments and of the side dialogues; empty if masked
    extra_rows: list[EpisodeOutput] = Field(default=[], exclude=True)

    @property
    def rows(self) -> list[EpisodeOutput]:
        """Return all rows, the main row last: verl reads a session's advantage and validation score from the last."""
        for row in self.extra_rows:
            row.reward_score, row.masked = self.reward_score, self.masked
            row.extra_fields["reward_extra_info"] = self.extra_fields["reward_extra_info"]
        return [*self.extra_rows, self]

    def as_dict(self) -> dict[str, Any]:
        """Convert to verl's row. ``rm_scores`` holds each turn's reward instead of their sum on the last token.

        A trainer may use two more columns to mask or reweight tokens: ``token_levels`` (int8) and
        ``behaviour_log_probs`` (float32), both in the shape of ``responses``.
        """
        row: dict[str, Any] = super().as_dict()
        ends, rewards = row.pop("turn_ends"), row.pop("turn_rewards")
        info = self.extra_fields["reward_extra_info"]
        # verl's reward loop runs in another process and can report ungraded samples only in ``reward_extra_info``.
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
    failed: Sequence[FailureKind] = (),
    rewards: Sequence[str] = (),
    score_in_verl: bool = False,
    counted: Mapping[str, Any] | None = None,
) -> EpisodeOutput:
    """Convert an episode to verl's output.

    Args:
        weights_version: Weights version to report for an episode without turns.
        filler_id: Token id that stands in for the prompt and response of an episode without turns.
        failed: Failure kinds of the failed attempts, including the last one if it failed.
        rewards: Names of the reward components to log, the same for all episodes of a run.
        score_in_verl: Whether verl's reward loop computes the score, from the policy's own text.
        counted: Additional counts for the metrics.
    """
    *earlier, last = episode.segments
    view = TokenView.of(replace(episode, turns=last))
    masked = episode.masked
    versions = [version for turn in last for version in versions_of(turn.completion)] or [weights_version]
    score = 0.0 if masked else episode.reward
    counts = {**_counts(episode, failed), **(counted or {})}
    extra_rows: list[EpisodeOutput] = []
    if not masked:
        extra_rows += (_segment_row(turns, episode, weights_version, filler_id, score_in_verl) for turns in earlier)
        extra_rows += (_side_dialogue_row(side, weights_version, filler_id) for side in episode.extra_dialogues)
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
        extra_rows=extra_rows,
        num_turns=len(episode.messages),
        metrics=AgentLoopMetrics(),
        extra_fields={
            **_drafted(last),
            "min_global_steps": min(versions),
            "max_global_steps": max(versions),
            "turn_scores": [turn.reward for turn in episode.turns],
            "tool_rewards": [],
            "reward_extra_info": {
                **_reward_info(episode, score),
                **counts,
                **{f"reward_{name}": float(episode.rewards.get(name, 0.0)) for name in rewards},
            },
            EPISODE: counts,
            **({SAMPLE: sample_to_dict(episode)} if score_in_verl else {}),
        },
    )


def _reward_info(episode: Episode, score: float) -> dict[str, float]:
    masked, done = episode.masked, episode.stop_reason is StopReason.DONE
    # Accuracy depends only on the reward for solving the task, not on rewards for format or style.
    solved = episode.rewards.get("correct", episode.rewards.get(ENVIRONMENT, score))
    return {"score": score, "acc": float(not masked and done and solved > 0), "masked": float(masked)}


def _counts(episode: Episode, failed: Sequence[FailureKind]) -> dict[str, float]:
    return {
        "turns": len(episode.turns),
        "tool_calls": count_calls(episode),
        "tool_calls_unparsed": count_unparsed(episode),
        "turns_cut": count_cut(episode),
        "truncated": float(episode.stop_reason.is_truncated()),
        "failure": float(episode.stop_reason is StopReason.FAILURE),
        "ungraded": float(bool(episode.ungraded)),
        "program_error": float(bool(program_error(episode))),
        "attempts": len(failed) + (not episode.masked),
        **{f"failed_attempts_{kind}": failed.count(kind) for kind in FailureKind},
    }


def _side_dialogue_row(dialogue: Episode, weights_version: int, filler_id: int) -> EpisodeOutput:
    # The first ``shared_turns`` turns also belong to an earlier dialogue, whose row trains on and counts them.
    output = to_output(dialogue, weights_version=weights_version, filler_id=filler_id)
    shared = output.turn_ends[dialogue.shared_turns - 1] + 1 if dialogue.shared_turns else 0
    output.response_mask[:shared] = output.token_levels[:shared] = [0] * shared
    output.extra_fields |= {**_drafted(dialogue.turns[dialogue.shared_turns :]), EPISODE: {}}
    output.turn_rewards = []  # the side dialogue's last turn gets the episode's score
    return output


def _segment_row(
    turns: Sequence[Turn], episode: Episode, weights_version: int, filler_id: int, score_in_verl: bool
) -> EpisodeOutput:
    # The row of a segment before the last. Only the main row counts the episode in the metrics.
    segment = replace(episode, turns=tuple(turns), extra_dialogues=())
    output = to_output(segment, weights_version=weights_version, filler_id=filler_id, score_in_verl=score_in_verl)
    output.turn_rewards = [] if score_in_verl else _rewards(turns, episode)
    output.extra_fields[EPISODE] = {}
    return output


def _rewards(turns: Sequence[Turn], episode: Episode) -> list[float]:
    # Each row of an episode is one sample of its group, so each row's rewards must sum to the episode's score. The
    # segment's last turn gets the difference.
    rewards = [turn.reward for turn in turns]
    if len(turns) < len(episode.turns):
        rewards[-1] += episode.reward - sum(rewards)
    return rewards


def _drafted(turns: Sequence[Turn]) -> dict[str, int]:
    drafts = [turn.completion.draft for turn in turns]
    return {
        "spec_num_draft_tokens": sum(draft.drafted for draft in drafts),
        "spec_num_accepted_tokens": sum(draft.accepted for draft in drafts),
        "spec_num_verify_steps": sum(draft.verify_steps for draft in drafts),
    }


def neutralise(outputs: Sequence[EpisodeOutput]) -> None:
    """Give a group's masked episodes the mean score of its other episodes, so they do not move the baseline.

    verl cannot leave samples out of a group, so masked episodes still slightly reduce the group's standard deviation.
    """
    scores = [output.reward_score for output in outputs if not output.masked and output.reward_score is not None]
    for output in outputs:
        if output.masked and scores:
            output.reward_score = fmean(scores)
