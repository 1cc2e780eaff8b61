"""Episodes as JSON Lines.

Invariant: ``episode_from_dict(episode_to_dict(e)) == e``, also after a round trip through JSON. A turn stores only the
part of its prompt after the previous turn, so a record grows linearly with the episode.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from turntree.agents.engines.protocol import Completion, DraftStats, FinishReason, TopLogprobs
from turntree.agents.episodes.episode import Episode, StopReason, Turn
from turntree.agents.episodes.hints import misfit
from turntree.agents.errors import RecordError
from turntree.agents.files import append_lines
from turntree.envs.data.json_files import json_lines
from turntree.envs.failure import FailureKind
from turntree.envs.message import Message
from turntree.envs.task import Task

logger = logging.getLogger(__name__)
# Fields of a completion that are tuples in Python and lists in JSON. Old records lack ``forced``.
_SEQUENCES = ("token_ids", "logprobs", "accepted", "behaviour_logprobs", "versions", "forced")
_STEP = re.compile(r"step_\d+\.jsonl")
UNFINISHED = "unfinished"  #: folder of a run in which `turntree serve` keeps the turns of unfinished sessions


def episode_to_dict(episode: Episode) -> dict[str, Any]:
    """Convert an episode to JSON values; NaN and infinite numbers stay Python floats."""
    turns = []
    context: tuple[int, ...] = ()
    for turn in episode.turns:
        turns.append(turn_to_dict(turn, context))
        context = turn.prompt_ids + turn.completion.token_ids
    return {
        "env_id": episode.env_id,
        "task": None if episode.task is None else {**_field_values(episode.task)},
        "seed": episode.seed,
        "messages": [message.to_openai() for message in episode.messages],
        "turns": turns,
        "stop_reason": str(episode.stop_reason),
        "rewards": dict(episode.rewards),
        "failure": episode.failure,
        "failure_kind": str(episode.failure_kind or ""),
        "ungraded": list(episode.ungraded),
        **({"extra_dialogues": list(map(episode_to_dict, episode.extra_dialogues))} if episode.extra_dialogues else {}),
        **({"shared_turns": episode.shared_turns} if episode.shared_turns else {}),
    }


def episode_from_dict(row: Mapping[str, Any]) -> Episode:
    """Convert the result of ``episode_to_dict`` back; raise ``RecordError`` if a field is malformed."""
    try:
        turns: list[Turn] = []
        context: tuple[int, ...] = ()
        for entry in row["turns"]:
            turns.append(turn_from_dict(entry, context))
            context = turns[-1].prompt_ids + turns[-1].completion.token_ids
        episode = Episode(
            env_id=row["env_id"],
            task=None if row["task"] is None else Task(**row["task"]),
            seed=row["seed"],
            messages=tuple(map(Message.from_openai, row["messages"])),
            turns=tuple(turns),
            stop_reason=StopReason(row["stop_reason"]),
            rewards=dict(row["rewards"]),
            failure=row["failure"],
            failure_kind=FailureKind(kind) if (kind := row.get("failure_kind")) else None,
            ungraded=tuple(row.get("ungraded", ())),
            extra_dialogues=tuple(map(episode_from_dict, row.get("extra_dialogues", ()))),
            shared_turns=row.get("shared_turns", 0),
        )
    except KeyError as error:
        raise RecordError(f"the field {error} is missing from a recorded episode") from error
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        problem = " ".join(str(error).split())
        raise RecordError(f"not a recorded episode: {problem:.200}") from error
    if problem := misfit(episode, Episode):
        raise RecordError(f"not a recorded episode: {problem.removeprefix('.')}")
    return episode


def turn_to_dict(turn: Turn, context: tuple[int, ...]) -> dict[str, Any]:
    """Convert a turn to JSON values; if the prompt begins with ``context``, store only the prompt's rest.

    ``context`` is the prompt and response of the previous turn; empty for the first turn.
    """
    completion = _field_values(turn.completion)
    completion["draft"] = _field_values(turn.completion.draft)
    if turn.completion.top is not None:
        top = turn.completion.top
        completion["top"] = {"ids": top.ids.tolist(), "logprobs": top.logprobs.tolist(), "k": top.ids.shape[1]}
    completion["finish_reason"] = str(turn.completion.finish_reason)
    # After the environment has shortened the dialogue, the prompt does not begin with the context.
    shared = len(context) if turn.prompt_ids[: len(context)] == context else 0
    return {
        "shared": shared,
        "added_ids": list(turn.prompt_ids[shared:]),
        "completion": completion,
        "text": turn.text,
        "observation": [message.to_openai() for message in turn.observation],
        "reward": turn.reward,
        **({"parse_error": turn.parse_error} if turn.parse_error else {}),
        **({"shortened": True} if turn.shortened else {}),
    }


def turn_from_dict(entry: Mapping[str, Any], context: tuple[int, ...]) -> Turn:
    """Convert the result of ``turn_to_dict`` back; pass the ``context`` that ``turn_to_dict`` got."""
    completion = dict(entry["completion"])
    # A negative count would silently take tokens from the wrong end of the context.
    if not 0 <= entry["shared"] <= len(context):
        raise ValueError(f"a turn shares {entry['shared']!r:.40} tokens with {len(context)} before it")
    for name in _SEQUENCES:
        completion[name] = tuple(completion.get(name, ()))
    completion["finish_reason"] = FinishReason(completion["finish_reason"])
    completion["draft"] = DraftStats(**completion["draft"])
    if (top := completion.get("top")) is not None:
        shape = (len(top["ids"]), top["k"])
        completion["top"] = TopLogprobs(
            ids=np.array(top["ids"], np.int32).reshape(shape),
            logprobs=np.array(top["logprobs"], np.float32).reshape(shape),
        )
    return Turn(
        prompt_ids=context[: entry["shared"]] + tuple(entry["added_ids"]),
        completion=Completion(**completion),
        text=entry["text"],
        observation=tuple(map(Message.from_openai, entry["observation"])),
        reward=entry["reward"],
        parse_error=entry.get("parse_error", ""),
        shortened=entry.get("shortened", False),
    )


def _field_values(data: Any) -> dict[str, Any]:
    values = {field.name: getattr(data, field.name) for field in dataclasses.fields(data)}
    return {name: _plain(value) for name, value in values.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value


class EpisodeWriter:
    """Appends episodes to a JSON Lines file; each write appends complete lines or nothing.

    Several processes may append to one file, and several threads if each has its own writer. Nothing is buffered, so
    written episodes survive a crash of the process. If a write raises ``OSError`` (a full disk), the file is unchanged.

    Args:
        path: File to append to. The file and its folder are created if missing.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("ab", buffering=0)

    def write(self, episode: Episode, **labels: Any) -> None:
        """Append ``{**labels, "episode": ...}``; labels are JSON values such as ``step=3``."""
        self.write_all([Record(labels, episode)])

    def write_all(self, records: Iterable[Record]) -> None:
        """Append several episodes, either all or none."""
        append_lines(self._file, ({**labels, "episode": episode_to_dict(episode)} for labels, episode in records))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Record(NamedTuple):
    """One line of a file of episodes."""

    labels: dict[str, Any]
    episode: Episode


def episode_files(run: Path) -> list[Path]:
    """Return the episode files of a recorded run in order; if ``run`` is a file, return only that file."""
    if not run.exists():
        raise FileNotFoundError(f"{run} does not exist; pass the folder of a run or a file of episodes")
    if run.is_file():
        return [run]
    steps = sorted(file for file in run.glob("episodes/*.jsonl") if _STEP.fullmatch(file.name))
    if not (files := steps or sorted(run.glob("*episodes*.jsonl"))):
        raise RecordError(
            f"{run} contains no episodes: expected {run / 'episodes'}/step_*.jsonl, as written by `turntree train`; "
            "or pass a file written by `turntree eval --out FILE`"
        )
    return files


def read_records(path: str | os.PathLike[str], *, growing: bool = False) -> Iterator[Record]:
    """Read the lines that ``EpisodeWriter`` wrote, in order.

    A last line that was cut off, for example by ``kill -9``, is skipped with a warning.

    Args:
        growing: Whether the file is still being written; if so, an incomplete last line is skipped without a warning.

    Raises:
        RecordError: If a line is damaged; the message names the file and the line.
    """

    def refuse(number: int, problem: str) -> RecordError:
        return RecordError(f"{path}, line {number}: {problem}; remove the line if a run was killed while writing it")

    torn = partial(logger.warning, "%s: skipped the last line, %d, which was cut off while it was written", path)
    for number, row in json_lines(Path(path), refuse, growing=growing, torn=torn):
        if not isinstance(row.get("episode"), dict):
            raise RecordError(f'{path}, line {number}: expected an object with the field "episode", got {row!r:.60}')
        try:
            episode = episode_from_dict(row.pop("episode"))
        except RecordError as error:
            raise RecordError(f"{path}, line {number}: {error}") from error
        for name in ("step", "index", "session"):
            if problem := misfit(row.get(name), int | str | None):
                raise RecordError(f"{path}, line {number}: the label {name!r}: {problem}")
        yield Record(row, episode)


def read_episodes(path: str | os.PathLike[str]) -> Iterator[Episode]:
    """Read the episodes of ``read_records`` without their labels."""
    return (record.episode for record in read_records(path))
