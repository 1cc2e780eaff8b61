"""The records of a finished run, read for the report."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from turntree.agents.demo.compared import Comparison
from turntree.agents.episodes.dialogue import dialogue_states
from turntree.agents.episodes.episode import Episode
from turntree.agents.episodes.record import read_episodes
from turntree.agents.errors import RecordError
from turntree.agents.verl.records.recording import RunFolder
from turntree.envs.data.json_files import json_lines
from turntree.spec_tree import DialogueState, TreeNode

logger = logging.getLogger(__name__)

_TREE_STEPS = 8
"""Number of last steps from whose dialogue states the tree is chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One training step."""

    step: int
    """Number of the step, from 1."""
    success: float
    """Mean reward of its episodes."""
    tokens_per_step: float | None
    """Tokens per verify step; ``None`` if the engine recorded none."""
    seconds: float
    """Wall time of the training step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateTree:
    """The turns that the policy sampled at one dialogue state."""

    prompt: str
    """The dialogue up to the state, special tokens included."""
    root: TreeNode
    """The turns, merged."""


class ShownEpisode(NamedTuple):
    """An episode that the report shows."""

    step: int
    episode: Episode


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """Everything that the report shows of a run."""

    root: Path
    points: tuple[Point, ...]
    """Training steps in order, at least one."""
    comparison: Comparison | None
    """Comparison with and without speculation; ``None`` if there is none."""
    shown: tuple[ShownEpisode, ...]
    """An episode of the first recorded step and one of the last, of one task if both have it; without records fewer."""
    tree: StateTree | None
    """Tree of a dialogue state that several episodes passed."""
    decode: Callable[[int], str]
    """Text of one token."""


def read_run(root: Path) -> RunRecord:
    """Read the folder of a run.

    Raises:
        FileNotFoundError: If there is no ``metrics.jsonl``.
        RecordError: If a line of the records is damaged, or they have no training step.
    """
    folder = RunFolder(root)
    decode = _decoder(folder)
    points = _points(folder)
    steps = [step for step in (point.step for point in points) if folder.episodes(step).is_file()]
    late = [list(read_episodes(folder.episodes(step))) for step in steps[-_TREE_STEPS:]]
    comparison = root / "comparison.json"
    return RunRecord(
        root=root,
        points=points,
        comparison=Comparison.load(comparison) if comparison.is_file() else None,
        shown=_shown(folder, steps),
        tree=_tree(itertools.chain(*late), decode),
        decode=decode,
    )


def _points(folder: RunFolder) -> tuple[Point, ...]:
    if not folder.metrics.is_file():
        raise FileNotFoundError(f"{folder.metrics} is missing; a run writes it while it trains")
    counters = {row["step"]: row for row in _rows(folder.engine)} if folder.engine.is_file() else {}
    points = tuple(
        Point(
            step=row["step"],
            success=row["data"]["critic/score/mean"],
            tokens_per_step=counters.get(row["step"], {}).get("tokens_per_step"),
            seconds=row["data"].get("timing_s/step", float("nan")),
        )
        for row in _rows(folder.metrics)
        if "critic/score/mean" in row["data"]
    )
    if not points:
        raise RecordError(f"{folder.metrics} holds no training step; look at {folder.log} for what went wrong")
    return points


def _rows(path: Path) -> list[dict[str, Any]]:
    refuse = f"{path}, line {{}}: {{}}".format
    return [row for _, row in json_lines(path, lambda *where: RecordError(refuse(*where)))]


def _shown(folder: RunFolder, steps: Sequence[int]) -> tuple[ShownEpisode, ...]:
    """The most telling episode of the last step, behind the first step's worst, if it can be, of the same task."""
    if not steps:
        return ()
    last = ShownEpisode(steps[-1], max(read_episodes(folder.episodes(steps[-1])), key=_telling))
    if len(steps) == 1:
        return (last,)
    early = list(read_episodes(folder.episodes(steps[0])))
    alike = [episode for episode in early if episode.task == last.episode.task]
    first = min(alike or early, key=lambda episode: (episode.reward, len(episode.turns)))
    return ShownEpisode(steps[0], first), last


def _telling(episode: Episode) -> tuple[float, int, int]:
    """Sort key of episodes worth showing: success, turns, and drafts both accepted and rejected."""
    flags = [flag for turn in episode.turns for flag in turn.completion.accepted]
    return episode.reward, len(episode.turns), min(sum(flags), len(flags) - sum(flags))


class _Passed(NamedTuple):
    """The sampled turns of a dialogue state."""

    prompt_ids: tuple[int, ...]
    """Tokens up to the state."""
    sampled: list[tuple[int, ...]]
    """Tokens of each turn there."""


def _tree(episodes: Iterable[Episode], decode: Callable[[int], str]) -> StateTree | None:
    """The tree with the most different turns among those of the states that episodes share."""
    passed: dict[DialogueState, _Passed] = {}
    for episode in episodes:
        for state, turn in zip(dialogue_states(episode), episode.turns, strict=True):
            passed.setdefault(state, _Passed(turn.prompt_ids, [])).sampled.append(turn.completion.token_ids)
    if not passed:
        return None
    state = max(passed, key=lambda state: (len(set(passed[state].sampled)), len(passed[state].sampled)))
    return StateTree(
        prompt="".join(map(decode, passed[state].prompt_ids)), root=TreeNode.from_turns(passed[state].sampled)
    )


def _decoder(folder: RunFolder) -> Callable[[int], str]:
    """Text of a token under the run's tokenizer; without the tokenizer, its number."""
    from omegaconf import OmegaConf
    from transformers import AutoTokenizer

    cache: dict[int, str] = {}
    try:
        path = OmegaConf.load(folder.config).actor_rollout_ref.model.path
        tokenizer = AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        logger.warning("tokens are shown as numbers, the run's tokenizer cannot be read: %s", error)
        return lambda token: f"⟨{token}⟩"

    def decode(token: int) -> str:
        if token not in cache:
            cache[token] = str(tokenizer.decode([token], skip_special_tokens=False))
        return cache[token]

    return decode
