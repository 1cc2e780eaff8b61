"""Export the rollouts of a run as flat arrays in one file (``.npz``), on which drafters can be measured.

Each sequence is one episode from its first turn on (in the arrays, each segment of a shortened dialogue is an episode).
Its prompt is stored once per initial state, which is a task with a first prompt. Episodes that failed or have no tokens
are left out. If an episode was played again after a crash, the later one is kept.
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
    """Episodes ordered by epoch, state and sample."""

    tokens: NDArray[np.int32]  #: token ids after the prompts, episodes concatenated
    offsets: NDArray[np.int64]  #: start of each episode, and the end of the last episode, shape (episodes + 1,)
    mask: NDArray[np.uint8]  #: 1 for sampled tokens, shape of ``tokens``
    logprobs: NDArray[np.float32]  #: log-probability of sampled tokens in nats, else 0, shape of ``tokens``
    levels: NDArray[np.uint8]  #: exactness level of sampled tokens, 1 (A, exact) to 4 (D), else 0, shape of ``tokens``
    state: NDArray[np.int32]  #: index of the initial state, shape (episodes,)
    sample: NDArray[np.int32]  #: sample within its group, shape (episodes,)
    epoch: NDArray[np.int32]  #: number of earlier training steps that visited the state, shape (episodes,)
    step: NDArray[np.int32]  #: training step, shape (episodes,)
    reward: NDArray[np.float32]  #: shape (episodes,)
    prompt_tokens: NDArray[np.int32]  #: prompts of the initial states, concatenated
    prompt_offsets: NDArray[np.int64]  #: start of each prompt, and the end of the last prompt, shape (states + 1,)
    vocab: NDArray[np.int64]  #: vocabulary size, shape ()
    about: NDArray[np.str_]  #: JSON with the environment and the task of each state, shape ()

    def save(self, path: Path) -> None:
        # Pass a file, because numpy would append .npz to a path with another suffix.
        with whole_file(path) as partial, partial.open("wb") as file:
            np.savez_compressed(file, **{name: getattr(self, name) for name in self.__dataclass_fields__})


class Exported(NamedTuple):
    trace: Trace
    episodes: int
    left_out: int  #: episodes that failed, could not be graded or have no tokens


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
        run: Run folder, or one episode file.
        vocab: Vocabulary size of the policy; defaults to the largest token id plus one.
        steps: Number of training steps to read, from the first.
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
        raise RecordError(f"{run} has no finished episode; record a run with turntree.record_episodes=true")
    trace = _lay_out(played, [prompt for _, prompt in states], tasks, vocab)
    return Exported(trace, len(played), left_out)


def _latest(files: Iterable[Path], steps: int | None) -> Iterator[Record]:
    latest: dict[tuple[int, int, int], Record] = {}
    for file in files:
        for record in read_records(file):
            labels: list[Any] = [record.labels.get(name) for name in ("step", "index", "session")]
            if not all(type(label) is int and 0 <= label < 1 << 31 for label in labels):
                raise RecordError(
                    f"{file}: expected an episode of a training run, with integers as step, index and session, "
                    f"got the labels {record.labels!r:.200}"
                )
            step, index, session = labels
            if steps is None or step <= steps:
                latest[step, index, session] = record
    # Sort by training step, because a state's epochs are counted in this order.
    for _, record in sorted(latest.items(), key=lambda item: item[0]):
        yield record


def _lay_out(played: list[_Played], prompts: list[tuple[int, ...]], tasks: list[str], vocab: int | None) -> Trace:
    played = sorted(played, key=lambda sequence: (sequence.epoch, sequence.state, sequence.sample))
    tokens = _flat([sequence.view.response_ids for sequence in played], np.int32)
    flat_prompts = _flat(prompts, np.int32)
    largest_token = int(max(tokens.max(initial=0), flat_prompts.max(initial=0)))
    if vocab is not None and vocab <= largest_token:
        raise ValueError(f"vocab must be larger than every token id, got vocab={vocab} and token id {largest_token}")
    about: dict[str, Any] = {"env": played[0].episode.env_id, "tasks": tasks}
    return Trace(
        tokens=tokens,
        offsets=_offsets([sequence.view.response_ids for sequence in played]),
        mask=_flat([sequence.view.mask for sequence in played], np.uint8),
        logprobs=_flat([sequence.view.logprobs for sequence in played], np.float32),
        levels=_flat([sequence.view.levels for sequence in played], np.uint8),
        state=np.array([sequence.state for sequence in played], np.int32),
        sample=np.array([sequence.sample for sequence in played], np.int32),
        epoch=np.array([sequence.epoch for sequence in played], np.int32),
        step=np.array([sequence.step for sequence in played], np.int32),
        reward=np.array([sequence.episode.reward for sequence in played], np.float32),
        prompt_tokens=flat_prompts,
        prompt_offsets=_offsets(prompts),
        vocab=np.array(vocab or largest_token + 1, np.int64),
        about=np.array(json.dumps(about)),
    )


def _flat(parts: Iterable[Iterable[float]], kind: Any) -> NDArray[Any]:
    return np.array([value for part in parts for value in part], kind)


def _offsets(parts: Iterable[tuple[int, ...]]) -> NDArray[np.int64]:
    return np.cumsum([0, *(len(part) for part in parts)], dtype=np.int64)
