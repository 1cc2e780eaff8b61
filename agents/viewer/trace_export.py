"""Export of a recorded run's rollouts as one trace: flat arrays in one ``.npz`` file.

Drafters are measured on traces: the same dialogue states, epoch after
epoch, while the policy changes. Every sequence is one episode from the first
turn on; the prompt before it is stored once for each starting state.

Episodes that ended in a failure are left out, and of one that was played
twice, after a crash, the later is kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from turntree.agents.episodes.episode import Episode
from turntree.agents.episodes.record import Record, episode_files, read_records
from turntree.agents.episodes.token_view import TokenView
from turntree.agents.errors import RecordError
from turntree.agents.files import whole_file


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """Episodes in the order epoch, state, sample."""

    tokens: NDArray[np.int32]
    """Token ids after the prompts, one episode after another."""
    offsets: NDArray[np.int64]
    """Start of each episode, and the end of the last, shape (episodes + 1,)."""
    mask: NDArray[np.uint8]
    """1 where the policy sampled, shape of ``tokens``."""
    logprobs: NDArray[np.float32]
    """Natural log-probability of each sampled token under the policy, 0 elsewhere, shape of ``tokens``."""
    levels: NDArray[np.uint8]
    """Exactness of each sampled token: 1 for A to 4 for D, 0 elsewhere, shape of ``tokens``."""
    state: NDArray[np.int32]
    """Number of the starting state, shape (episodes,)."""
    sample: NDArray[np.int32]
    """Number of the sample in its group, shape (episodes,)."""
    epoch: NDArray[np.int32]
    """Number of earlier steps that visited the state, shape (episodes,)."""
    step: NDArray[np.int32]
    """Training step, shape (episodes,)."""
    reward: NDArray[np.float32]
    """Reward of the episode, shape (episodes,)."""
    prompt_tokens: NDArray[np.int32]
    """Tokens before the first turn of each starting state, one state after another."""
    prompt_offsets: NDArray[np.int64]
    """Start of each prompt, and the end of the last, shape (states + 1,)."""
    vocab: NDArray[np.int64]
    """Number of token ids, shape ()."""
    about: NDArray[np.str_]
    """Description of the trace, JSON: environment and the task of each state, shape ()."""

    def save(self, path: Path) -> None:
        """Write the arrays, compressed; the file replaces an old one when it is complete."""
        with whole_file(path) as partial, partial.open("wb") as file:  # numpy would append .npz to another suffix
            np.savez_compressed(file, **{name: getattr(self, name) for name in self.__dataclass_fields__})


class Exported(NamedTuple):
    """A trace, and the number of its episodes."""

    trace: Trace
    episodes: int
    """Episodes in the trace."""
    left_out: int
    """Episodes left out because they failed."""


class _Played(NamedTuple):
    epoch: int
    state: int
    sample: int
    step: int
    episode: Episode
    view: TokenView


def export_trace(run: Path, *, vocab: int | None = None, steps: int | None = None) -> Exported:
    """Read the episodes of a run.

    Args:
        run: Folder of a run, or one file of its episodes.
        vocab: Vocabulary size of the policy; without it, one more than the largest token id that occurs.
        steps: Only the first so many training steps.

    Raises:
        RecordError: If there are no episodes, a line is damaged, or lacks the labels of a training run.
        ValueError: If ``vocab`` is smaller than a token id that occurs.
    """
    states: dict[tuple[str, tuple[int, ...]], int] = {}
    tasks: list[str] = []
    visits: dict[int, list[int]] = {}
    played, left_out = [], 0
    for record in _latest(episode_files(run), steps):
        episode, labels = record.episode, record.labels
        if episode.masked or not episode.turns or any(turn.text_only for turn in episode.turns):
            left_out += 1
            continue
        task = episode.task.id if episode.task is not None else ""
        for view in TokenView.of_each(episode):
            number = states.setdefault((task, view.prompt_ids), len(states))
            if number == len(tasks):
                tasks.append(task)
            seen = visits.setdefault(number, [])
            if labels["step"] not in seen:
                seen.append(labels["step"])
            played.append(_Played(len(seen) - 1, number, labels["session"], labels["step"], episode, view))
    if not played:
        raise RecordError(f"{run} has no episode that was played to an end; record a run with record_episodes=true")
    trace = _lay_out(played, [prompt for _, prompt in states], tasks, vocab)
    return Exported(trace, len(played), left_out)


def _latest(files: Iterable[Path], steps: int | None) -> Iterator[Record]:
    """Records by step, task and sample, each once."""
    found: dict[tuple[int, int, int], Record] = {}
    for file in files:
        for record in read_records(file):
            labels: list[Any] = [record.labels.get(name) for name in ("step", "index", "session")]
            if not all(type(label) is int and 0 <= label < 1 << 31 for label in labels):
                raise RecordError(
                    f"{file}: an episode has the labels {record.labels!r:.200}, expected those of a training run: "
                    "whole numbers as step, index, session"
                )
            step, index, session = labels
            if steps is None or step <= steps:
                found[step, index, session] = record
    for _, record in sorted(found.items(), key=lambda item: item[0]):
        yield record


def _lay_out(played: list[_Played], prompts: list[tuple[int, ...]], tasks: list[str], vocab: int | None) -> Trace:
    played = sorted(played, key=lambda one: (one.epoch, one.state, one.sample))
    tokens = _flat([one.view.response_ids for one in played], np.int32)
    flat_prompts = _flat(prompts, np.int32)
    most = int(max(tokens.max(initial=0), flat_prompts.max(initial=0)))
    if vocab is not None and vocab <= most:
        raise ValueError(f"vocab must be larger than every token id, got {vocab} and the token {most}")
    about: dict[str, Any] = {"env": played[0].episode.env_id, "tasks": tasks}
    return Trace(
        tokens=tokens,
        offsets=_offsets([one.view.response_ids for one in played]),
        mask=_flat([one.view.mask for one in played], np.uint8),
        logprobs=_flat([one.view.logprobs for one in played], np.float32),
        levels=_flat([one.view.levels for one in played], np.uint8),
        state=np.array([one.state for one in played], np.int32),
        sample=np.array([one.sample for one in played], np.int32),
        epoch=np.array([one.epoch for one in played], np.int32),
        step=np.array([one.step for one in played], np.int32),
        reward=np.array([one.episode.reward for one in played], np.float32),
        prompt_tokens=flat_prompts,
        prompt_offsets=_offsets(prompts),
        vocab=np.array(vocab or most + 1, np.int64),
        about=np.array(json.dumps(about)),
    )


def _flat(parts: Iterable[Iterable[float]], kind: Any) -> NDArray[Any]:
    return np.array([value for part in parts for value in part], kind)


def _offsets(parts: Iterable[tuple[int, ...]]) -> NDArray[np.int64]:
    return np.cumsum([0, *(len(part) for part in parts)], dtype=np.int64)
