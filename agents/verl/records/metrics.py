"""turntree's metrics in verl's log, by name, and how each figure is computed.

``METRICS`` is the whole list; ``docs/metrics.md`` is its table. A figure that has no data in a step (no drafts, no
stored turns, another engine) is left out of that step, never given as 0.
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

EPISODE = "turntree_episode"
"""Key of an episode's counts among verl's extra fields; verl's reward loop replaces ``reward_extra_info``."""

PREFIX = "turntree/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One figure of a training step."""

    name: str
    """Name in the log."""
    meaning: str
    """Meaning, with its unit."""


def _several(pairs: Iterable[tuple[str, str]], prefix: str = PREFIX) -> tuple[Metric, ...]:
    return tuple(Metric(name=prefix + name, meaning=meaning) for name, meaning in pairs)


EPISODE_METRICS = _several(
    [
        ("episodes", "episodes of the step"),
        ("dialogues", "rows that are trained on per episode; above 1 where programs have sub-agents"),
        ("turns", "turns of the policy per episode"),
        ("turns_max", "turns of the longest episode"),
        ("more_than_two_turns", "share of the episodes with more than two turns; falls when tool use collapses"),
        ("tool_calls", "tool calls per episode"),
        ("tool_calls_per_turn", "tool calls per turn"),
        ("with_tool_calls", "share of the episodes with a tool call"),
        ("tool_calls_unparsed", "tool calls that could not be parsed; the policy is told why"),
        ("turns_cut", "share of the turns that were cut at a token limit"),
        ("equal_groups", "share of the groups whose rewards are all equal, so that they have no gradient"),
        ("truncated", "share of the episodes that a limit or a failure ended"),
        ("retried", "share of the episodes that were tried more than once"),
        ("failures", "share of the episodes that the infrastructure broke, twice; nothing is learnt from them"),
        *((f"lost_{kind}", f"attempts at an episode that were lost to: {kind}") for kind in FailureKind),
        ("ungraded", "share of the episodes whose answer nobody could judge; nothing is learnt from them"),
        ("program_errors", "episodes whose program gave no answer by its own fault; their reward is 0"),
        ("tokens", "tokens sampled"),
        ("tokens_per_forward_pass", "tokens per forward pass of an episode; 1 without speculation"),
        ("acceptance", "share of the drafted tokens that the policy itself sampled"),
        ("drafted_per_forward_pass", "drafted tokens per forward pass: the budget that was spent"),
        *((f"level_{level.lower()}", f"share of the sampled tokens of exactness level {level}") for level in Level),
        ("tool_calls_ahead_made", "tool calls that were made before their turn had ended"),
        ("tool_calls_ahead_used", "those whose result was used"),
        ("tool_calls_ahead_wasted", "those that were thrown away, as the turn or the state came out otherwise"),
        (
            "tool_calls_ahead_saved_seconds",
            "how long the used ones had run when their turn ended, summed over episodes",
        ),
    ]
)
CALL_COUNTS = ("made", "used", "wasted", "saved_seconds")
"""Counts of an episode's calls made ahead, by their names in ``ToolCallsAhead``."""
ENGINE_METRICS = _several(
    [
        ("forward_passes", "runs of the model in the engine"),
        ("engine_seconds", "wall time of the engine's steps"),
        ("model_seconds", "the model's part of it"),
        ("drafting_seconds", "the store's part of it"),
        ("drafting_time_share", "the store's share of it"),
        ("draft_idle_share", "share of it in which the device waited for drafts"),
        ("cached_prompt", "share of the prompt tokens whose keys and values were reused"),
        ("reuse_turns", "turns that began with a stored turn of an earlier epoch"),
        ("reuse_offered", "stored tokens that were verified"),
        ("reuse_reused", "stored tokens that stayed"),
        ("reuse_whole", "turns in which all stored tokens stayed"),
        ("reuse_early", "passes over stored turns that began before their turn was requested"),
        ("reuse_early_used", "those whose turn was requested"),
        ("run_ahead_turns", "turns begun ahead of their step"),
        ("run_ahead_tokens", "tokens sampled ahead"),
        ("run_ahead_offered", "precomputed tokens that were verified for their step"),
        ("run_ahead_promoted", "those that became rollouts, at level B"),
        ("run_ahead_wasted", "precomputed tokens that were rejected, or never asked for"),
        ("run_ahead_preempted", "precomputed turns that gave their slot to a requested one"),
        ("run_ahead_refused", "precomputed turns that were not promoted, as the policy was trained on their noise"),
        ("imported_turns", "turns of other runs that the store began with"),
        ("imported_evicted", "those dropped for being wrong too often"),
        ("sharing_sent", "turns given to the stores of other replicas"),
        ("sharing_received", "turns of other replicas taken into the store"),
        ("sharing_missed", "turns of other replicas that came too late to be had"),
        ("sharing_dropped", "own turns that waited too long and were not given"),
        ("sharing_failed", "exchanges with the broker that failed"),
    ]
)
MONITOR_METRICS = _several(
    [
        ("exact_acceptance_z", "z-score of the accepted drafts, turns of levels A and B; near N(0, 1) when exact"),
        ("exact_entropy_z", "z-score of the tokens' likelihood, turns of levels A and B; near N(0, 1) when exact"),
        ("trained_turns_acceptance_z", "as above, turns of level C; need not stay near 0"),
        ("trained_turns_entropy_z", "as above, turns of level C; need not stay near 0"),
    ],
    prefix="exactness/",
)
ASYNC_METRICS = _several(
    [
        ("interruptions", "turns that an update of the weights aborted, in the episodes of the step"),
        ("reverified_turns", "their turns that newer weights verified again, each time counted"),
        ("kept_share", "share of the verified again tokens that the newer weights draw with the same noise"),
        ("dropped_tokens", "tokens thrown away: behind the first that was not kept, and the later turns"),
        ("passes_saved", "forward passes less than sampling the verified again turns anew would take"),
        ("reverify_seconds", "time in requests that judge, summed over turns"),
        ("rewinds", "times that an episode went back to a turn before its last"),
        ("lost_turns", "turns requested again, as the engine's process had ended"),
        ("stale_episodes", "episodes with turns of several weights, as their environment cannot go back"),
        ("versions", "versions of the weights per row"),
        ("interrupted_reward", "mean reward of the episodes that were interrupted"),
        ("uninterrupted_reward", "of the others"),
        ("interrupted_tokens", "mean length in sampled tokens of the episodes that were interrupted"),
        ("uninterrupted_tokens", "of the others"),
    ],
    prefix="async/",
)
METRICS = EPISODE_METRICS + ENGINE_METRICS + MONITOR_METRICS + ASYNC_METRICS
"""Every figure that turntree logs."""

_COUNTED = {
    "forward_passes": "forward_passes",
    "seconds": "engine_seconds",
    "model_seconds": "model_seconds",
    "draft_seconds": "drafting_seconds",
}
"""Counters of the engine under the names of the log; those of reuse, run-ahead and the broker keep theirs."""
_ADDED = {metric.name for metric in ENGINE_METRICS}
"""Counters summed over replicas, by their names in the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedRow:
    """The part of a row of verl's batch that describes its episode."""

    extra: Mapping[str, Any]
    """verl's ``extra_fields``, with ``EPISODE`` among them."""
    levels: Sequence[int]
    """Exactness of each response token, 1 for A to 4 for D, 0 where the policy did not sample; empty if unknown."""
    group: str = ""
    """Name of the task's group."""


def episode_metrics(rows: Sequence[PlayedRow]) -> dict[str, float]:
    """Figures of the episodes of a step."""
    if not rows:
        return {}
    played = [row for row in rows if row.extra[EPISODE]]  # of an episode's further dialogues the tokens alone count
    infos = [row.extra[EPISODE] for row in played]
    # The episode does not know whether verl's reward loop left it ungraded.
    told = [row.extra.get("reward_extra_info", {}) for row in played]
    ungraded = [bool(one.get("ungraded") or info["ungraded"]) for one, info in zip(told, infos, strict=True)]
    rewards: dict[str, list[float]] = {}
    for row, one, masked in zip(played, told, ungraded, strict=True):
        if "score" in one and not (masked or row.extra[EPISODE]["failure"]):
            rewards.setdefault(row.group, []).append(float(one["score"]))
    turns, calls = ([float(info[name]) for info in infos] for name in ("turns", "tool_calls"))
    levels = Counter(level for row in rows for level in row.levels if level)
    tokens = sum(levels.values())
    drafted, accepted, steps = (
        sum(row.extra.get(f"spec_num_{name}") or 0 for row in rows)
        for name in ("draft_tokens", "accepted_tokens", "verify_steps")
    )
    lost = {f"lost_{kind}": sum(info.get(f"lost_{kind}", 0) for info in infos) for kind in FailureKind}
    lost["program_errors"] = sum(info.get("program_error", 0) for info in infos)
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
        **{name: float(count) for name, count in lost.items() if count},
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


def _async_metrics(rows: Sequence[PlayedRow]) -> dict[str, float]:
    """Figures of what updates of the weights did to the episodes; none of a synchronous training."""
    rows = [row for row in rows if "resume_interruptions" in row.extra[EPISODE]]
    if not rows:
        return {}

    def total(name: str) -> float:
        return float(sum(row.extra[EPISODE][f"resume_{name}"] for row in rows))

    alike = ("interruptions", "reverified_turns", "passes_saved", "reverify_seconds", "rewinds", "lost_turns")
    values = {
        **{name: total(name) for name in (*alike, "stale_episodes")},
        "dropped_tokens": total("dropped"),
        "versions": _mean([row.extra["max_global_steps"] - row.extra["min_global_steps"] + 1.0 for row in rows]),
    }
    if offered := total("offered"):
        values["kept_share"] = total("kept") / offered
    for name, interrupted in (("interrupted", True), ("uninterrupted", False)):
        some = [row for row in rows if bool(row.extra[EPISODE]["resume_interruptions"]) is interrupted]
        if some:
            values[f"{name}_reward"] = _mean([float(row.extra["reward_extra_info"]["score"]) for row in some])
            values[f"{name}_tokens"] = _mean([float(sum(level > 0 for level in row.levels)) for row in some])
    return {f"async/{name}": value for name, value in values.items()}


def engine_metrics(replicas: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Figures of the engines of a step, one mapping of counters and z-scores per replica."""
    totals: dict[str, float] = {}
    scores: dict[str, list[float]] = {}
    for counters in replicas:
        for name, value in counters.items():
            if name.startswith("exactness/"):
                scores.setdefault(name, []).append(value)
            else:
                totals[name] = totals.get(name, 0.0) + value
    values = {PREFIX + _COUNTED.get(name, name): float(value) for name, value in totals.items()}
    values = {name: value for name, value in values.items() if name in _ADDED}
    if totals.get("seconds"):
        values[f"{PREFIX}drafting_time_share"] = totals["draft_seconds"] / totals["seconds"]
        values[f"{PREFIX}draft_idle_share"] = totals["draft_idle_seconds"] / totals["seconds"]
    if totals.get("prompt_tokens"):
        values[f"{PREFIX}cached_prompt"] = totals["cached_tokens"] / totals["prompt_tokens"]
    # The scaled sum of n independent standard normal scores is standard normal again.
    values |= {name: sum(several) / math.sqrt(len(several)) for name, several in scores.items()}
    return values


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
