"""turntree's metrics in verl's log: their names, descriptions and computation.

``METRICS`` lists all metrics; ``docs/metrics.md`` shows the list as a table. If a metric has no data in a step (no
drafts, no stored turns, another engine), that step omits the metric instead of logging 0.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turntree.agents.episodes.failures import FailureKind
from turntree.agents.episodes.learning_checks import equal_groups
from turntree.spec_tree.rules.level import Level

# An episode's counts among verl's extra fields; not in ``reward_extra_info``, which verl's reward loop replaces.
EPISODE = "turntree_episode"

PREFIX = "turntree/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    name: str
    meaning: str  #: description with the unit, for ``docs/metrics.md``


def _metrics(pairs: Iterable[tuple[str, str]], prefix: str = PREFIX) -> tuple[Metric, ...]:
    return tuple(Metric(name=prefix + name, meaning=meaning) for name, meaning in pairs)


EPISODE_METRICS = _metrics(
    [
        ("episodes", "episodes of the step"),
        ("dialogues", "training rows per episode; above 1 if programs have sub-agents"),
        ("turns", "turns per episode"),
        ("turns_max", "turns of the longest episode"),
        ("more_than_two_turns", "share of episodes with more than two turns; falls when tool use collapses"),
        ("tool_calls", "tool calls per episode"),
        ("tool_calls_per_turn", "tool calls per turn"),
        ("with_tool_calls", "share of episodes with a tool call"),
        ("tool_calls_unparsed", "tool calls that could not be parsed; the policy sees the error"),
        ("turns_cut", "share of turns that were cut off at a token limit"),
        ("equal_groups", "share of groups whose rewards are all equal, so they have no gradient"),
        ("truncated", "share of episodes that a limit or a failure ended"),
        ("retried", "share of episodes that needed more than one attempt"),
        ("failures", "share of episodes whose attempts all failed; they are masked"),
        *((f"failed_attempts/{kind}", f"episode attempts that failed because of: {kind}") for kind in FailureKind),
        ("ungraded", "share of episodes whose answer could not be graded; they are masked"),
        ("program_errors", "episodes whose program gave no answer because of its own error; their reward is 0"),
        ("tokens", "sampled tokens"),
        ("tokens_per_forward_pass", "tokens per forward pass of an episode; 1 without speculation"),
        ("acceptance", "share of drafted tokens that were accepted"),
        ("drafted_per_forward_pass", "drafted tokens per forward pass"),
        *((f"level_{level.lower()}", f"share of sampled tokens with exactness level {level}") for level in Level),
        ("tool_calls_ahead_made", "speculative tool calls, started before their turn had ended"),
        ("tool_calls_ahead_used", "speculative tool calls whose result was used"),
        ("tool_calls_ahead_wasted", "speculative tool calls that were discarded: the turn or the state differed"),
        (
            "tool_calls_ahead_saved_seconds",
            "seconds that used speculative tool calls had already run when their turn ended, summed over episodes",
        ),
    ]
)
CALL_COUNTS = ("made", "used", "wasted", "saved_seconds")  #: fields of ``ToolCallsAhead`` that are logged per episode
ENGINE_METRICS = _metrics(
    [
        ("forward_passes", "forward passes of the model in the engine"),
        ("engine_seconds", "wall time of the engine's steps"),
        ("model_seconds", "engine time spent on the model's forward passes"),
        ("drafting_seconds", "engine time spent on drafting"),
        ("drafting_time_share", "share of engine time spent on drafting"),
        ("draft_idle_share", "share of engine time in which the device waited for drafts"),
        ("cached_prompt", "share of prompt tokens whose keys and values were reused"),
        ("reuse_drafted_turns", "turns drafted from a stored turn of an earlier epoch"),
        ("reuse_offered", "stored tokens that were verified"),
        ("reuse_reused", "stored tokens that were accepted"),
        ("reuse_whole", "turns in which all stored tokens were accepted"),
        ("reuse_early", "prefetched forward passes: verifications of a stored turn before its turn was requested"),
        ("reuse_early_used", "prefetched forward passes whose turn was requested"),
        ("run_ahead_turns", "turns that began to be precomputed for a later step"),
        ("run_ahead_tokens", "tokens precomputed for a later step"),
        ("run_ahead_offered", "precomputed tokens that were verified in their step"),
        ("run_ahead_promoted", "precomputed tokens that became rollouts, at level B"),
        ("run_ahead_wasted", "precomputed tokens that were rejected or never requested"),
        ("run_ahead_preempted", "precomputed turns that gave their slot to a requested turn"),
        ("run_ahead_refused", "precomputed turns that were not promoted: the policy was trained on their noise"),
        ("imported_turns", "turns of other runs in the draft store at the start"),
        ("imported_evicted", "imported turns that were dropped because their drafts were often rejected"),
        ("sharing_sent", "turns sent to the draft stores of other replicas"),
        ("sharing_received", "turns received from other replicas"),
        ("sharing_missed", "turns of other replicas that the broker had dropped before they were fetched"),
        ("sharing_dropped", "own turns that waited too long and were not sent"),
        ("sharing_failed", "failed calls to the broker"),
    ]
)
MONITOR_METRICS = _metrics(
    [
        ("exact_acceptance_z", "z-score of accepted drafts in turns of levels A and B; N(0, 1) if sampling is exact"),
        ("exact_entropy_z", "z-score of token likelihoods in turns of levels A and B; N(0, 1) if sampling is exact"),
        ("trained_turns_acceptance_z", "z-score of accepted drafts in turns of level C; need not stay near 0"),
        ("trained_turns_entropy_z", "z-score of token likelihoods in turns of level C; need not stay near 0"),
    ],
    prefix="exactness/",
)
ASYNC_METRICS = _metrics(
    [
        ("interruptions", "turns of the step's episodes that a weight update aborted"),
        ("reverified_turns", "turns re-verified under newer weights; a turn counts each time"),
        ("kept_share", "share of re-verified tokens that the newer weights draw with the same noise"),
        ("dropped_tokens", "tokens discarded: those after the first token that was not kept, and all later turns"),
        ("passes_saved", "forward passes saved by re-verifying turns instead of sampling them again"),
        ("reverify_seconds", "seconds in re-verification requests, summed over turns"),
        ("rewinds", "times that an episode went back to a turn before its last"),
        ("lost_turns", "turns requested again because the engine's process had ended"),
        ("stale_episodes", "episodes with turns of several weight versions, because their environment cannot go back"),
        ("versions", "weight versions per row"),
        ("interrupted_reward", "mean reward of episodes that were interrupted by a weight update"),
        ("uninterrupted_reward", "mean reward of episodes that were not interrupted"),
        ("interrupted_tokens", "mean length in sampled tokens of episodes that were interrupted by a weight update"),
        ("uninterrupted_tokens", "mean length in sampled tokens of episodes that were not interrupted"),
    ],
    prefix="async/",
)
METRICS = EPISODE_METRICS + ENGINE_METRICS + MONITOR_METRICS + ASYNC_METRICS

#: engine counters that are logged under another name
_LOG_NAMES = {
    "forward_passes": "forward_passes",
    "seconds": "engine_seconds",
    "model_seconds": "model_seconds",
    "draft_seconds": "drafting_seconds",
}
#: names in the log of counters that are summed over replicas
_SUMMED = {metric.name for metric in ENGINE_METRICS}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedRow:
    extra: Mapping[str, Any]  #: verl's ``extra_fields``, including ``EPISODE``
    levels: Sequence[int]  #: each token's exactness level, 1 (A) to 4 (D); 0 if not sampled; empty if unknown
    group: str = ""  #: verl's name of the task's group


def episode_metrics(rows: Sequence[PlayedRow]) -> dict[str, float]:
    """Compute the metrics of a step's episodes."""
    if not rows:
        return {}
    played = [row for row in rows if row.extra[EPISODE]]  # an episode's extra rows have no counts
    infos = [row.extra[EPISODE] for row in played]
    ungraded, rewards = _gradings(played)
    turns, calls = ([float(info[name]) for info in infos] for name in ("turns", "tool_calls"))
    levels = Counter(level for row in rows for level in row.levels if level)
    tokens = sum(levels.values())
    drafted, accepted, steps = (
        sum(row.extra.get(f"spec_num_{name}") or 0 for row in rows)
        for name in ("draft_tokens", "accepted_tokens", "verify_steps")
    )
    errors = {
        f"failed_attempts/{kind}": sum(info.get(f"failed_attempts_{kind}", 0) for info in infos) for kind in FailureKind
    }
    errors["program_errors"] = sum(info.get("program_error", 0) for info in infos)
    values = {
        "episodes": float(len(played)),
        "dialogues": len(rows) / len(played),
        "turns": _mean(turns),
        "turns_max": max(turns),
        "more_than_two_turns": _mean([count > 2 for count in turns]),
        "tool_calls": _mean(calls),
        "tool_calls_per_turn": sum(calls) / max(1.0, sum(turns)),
        "with_tool_calls": _mean([count > 0 for count in calls]),
        "tool_calls_unparsed": float(sum(info["tool_calls_unparsed"] for info in infos)),
        "turns_cut": sum(info["turns_cut"] for info in infos) / max(1.0, sum(turns)),
        "truncated": _mean([info["truncated"] for info in infos]),
        "retried": _mean([info["attempts"] > 1 for info in infos]),
        "failures": _mean([info["failure"] for info in infos]),
        "ungraded": _mean(ungraded),
        **{name: float(count) for name, count in errors.items() if count},
    }
    if (equal := equal_groups(rewards.values())) is not None:
        values["equal_groups"] = equal
    if tokens:
        values["tokens"] = float(tokens)
        values |= {f"level_{level.lower()}": levels[code] / tokens for code, level in enumerate(Level, start=1)}
    if steps:
        values |= {"tokens_per_forward_pass": tokens / steps, "drafted_per_forward_pass": drafted / steps}
    if drafted:
        values["acceptance"] = accepted / drafted
    for name in (f"tool_calls_ahead_{name}" for name in CALL_COUNTS):
        if any(name in info for info in infos):
            values[name] = float(sum(info.get(name, 0) for info in infos))
    return {PREFIX + name: value for name, value in values.items()} | _async_metrics(played)


def _gradings(rows: Sequence[PlayedRow]) -> tuple[list[bool], dict[str, list[float]]]:
    # Return whether each row is ungraded (its answer could not be compared), and the graded rows' scores by group.
    # If verl's reward loop computed the scores, only its report tells whether an episode is ungraded.
    infos, reports = [row.extra[EPISODE] for row in rows], [row.extra.get("reward_extra_info", {}) for row in rows]
    ungraded = [bool(report.get("ungraded") or info["ungraded"]) for report, info in zip(reports, infos, strict=True)]
    rewards: dict[str, list[float]] = {}
    for row, report, info, masked in zip(rows, reports, infos, ungraded, strict=True):
        if "score" in report and not (masked or info["failure"]):
            rewards.setdefault(row.group, []).append(float(report["score"]))
    return ungraded, rewards


def _async_metrics(rows: Sequence[PlayedRow]) -> dict[str, float]:
    rows = [row for row in rows if "resume_interruptions" in row.extra[EPISODE]]
    if not rows:
        return {}

    def total(name: str) -> float:
        return float(sum(row.extra[EPISODE][f"resume_{name}"] for row in rows))

    summed = ("interruptions", "reverified_turns", "passes_saved", "reverify_seconds", "rewinds", "lost_turns")
    values = {
        **{name: total(name) for name in (*summed, "stale_episodes")},
        "dropped_tokens": total("dropped"),
        "versions": _mean([row.extra["max_global_steps"] - row.extra["min_global_steps"] + 1.0 for row in rows]),
    }
    if offered := total("offered"):
        values["kept_share"] = total("kept") / offered
    for name, interrupted in (("interrupted", True), ("uninterrupted", False)):
        subset = [row for row in rows if bool(row.extra[EPISODE]["resume_interruptions"]) is interrupted]
        if subset:
            values[f"{name}_reward"] = _mean([float(row.extra["reward_extra_info"]["score"]) for row in subset])
            values[f"{name}_tokens"] = _mean([float(sum(level > 0 for level in row.levels)) for row in subset])
    return {f"async/{name}": value for name, value in values.items()}


def engine_metrics(replicas: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Compute the engines' metrics of a step from one mapping of counters and z-scores per replica."""
    totals: dict[str, float] = {}
    scores: dict[str, list[float]] = {}
    for counters in replicas:
        for name, value in counters.items():
            if name.startswith("exactness/"):
                scores.setdefault(name, []).append(value)
            else:
                totals[name] = totals.get(name, 0.0) + value
    values = {PREFIX + _LOG_NAMES.get(name, name): float(value) for name, value in totals.items()}
    values = {name: value for name, value in values.items() if name in _SUMMED}
    if totals.get("seconds"):
        values[f"{PREFIX}drafting_time_share"] = totals["draft_seconds"] / totals["seconds"]
        values[f"{PREFIX}draft_idle_share"] = totals["draft_idle_seconds"] / totals["seconds"]
    if totals.get("prompt_tokens"):
        values[f"{PREFIX}cached_prompt"] = totals["cached_tokens"] / totals["prompt_tokens"]
    # The sum of n independent standard normal scores, divided by sqrt(n), is standard normal.
    values |= {name: sum(z_scores) / math.sqrt(len(z_scores)) for name, z_scores in scores.items()}
    return values


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
