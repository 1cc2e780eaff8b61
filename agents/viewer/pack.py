"""Episodes in the page's format: columns for the list, compressed chunks for the details.

A browser cannot hold ten thousand episodes as objects, so a chunk is unpacked when one of its episodes is opened.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from turntree.agents.engines.protocol import FinishReason
from turntree.agents.episodes.episode import Episode, Turn
from turntree.agents.episodes.record import Record
from turntree.agents.evaluation.evaluate import solved
from turntree.agents.files import json_value
from turntree.envs import Role
from turntree.spec_tree import DialogueState

CHUNK = 64  #: episodes per chunk


@dataclass(slots=True)
class Packed:
    columns: dict[str, list[Any]] = field(default_factory=dict)  #: column -> one entry per episode
    chunks: list[str] = field(default_factory=list)  #: base64 of gzipped JSON, ``CHUNK`` episodes each
    tokens: set[int] = field(default_factory=set)  #: token ids that occur
    states: dict[str, list[int]] = field(default_factory=dict)  #: dialogue state -> flat pairs (episode, turn)


def pack(*runs: Iterable[Record]) -> Packed:
    packed = Packed(columns={name: [] for name in _COLUMNS})
    chunk: list[dict[str, Any]] = []
    for number, (run, record) in enumerate((run, record) for run, records in enumerate(runs) for record in records):
        for name, value in {**_row(record), "run": run}.items():
            packed.columns[name].append(value)
        chunk.append(_detail(number, record.episode, packed))
        if len(chunk) == CHUNK:
            packed.chunks.append(compress(chunk))
            chunk = []
    if chunk:
        packed.chunks.append(compress(chunk))
    # ``turns`` holds two numbers per turn; a state with a single turn has no tree to show.
    packed.states = {key: turns for key, turns in packed.states.items() if len(turns) > 2}
    return packed


def compress(value: Any) -> str:
    text = json.dumps(json_value(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode("utf-8", "surrogatepass"), 6, mtime=0)).decode()


_COLUMNS = (
    *("step", "index", "session", "env", "task", "source", "reward", "outcome", "turns", "tools", "tokens"),
    *("drafted", "accepted", "steps", "cut", "stop", "run"),
)


def _row(record: Record) -> dict[str, Any]:
    episode, labels = record.episode, record.labels
    drafts = [turn.completion.draft for turn in episode.turns]
    return {
        "step": labels.get("step"),
        "index": labels.get("index"),
        "session": labels.get("session", labels.get("sample")),
        "env": episode.env_id,
        "task": episode.task.id if episode.task else "",
        "source": episode.task.data_source if episode.task else "",
        "reward": round(episode.reward, 6),
        "outcome": _outcome(episode),
        "turns": len(episode.turns),
        "tools": sum(len(message.tool_calls) for message in episode.messages if message.role is Role.ASSISTANT),
        "tokens": sum(len(turn.completion.token_ids) for turn in episode.turns),
        "drafted": sum(draft.drafted for draft in drafts),
        "accepted": sum(draft.accepted for draft in drafts),
        "steps": sum(draft.verify_steps for draft in drafts),
        "cut": sum(turn.completion.finish_reason is FinishReason.LENGTH for turn in episode.turns),
        "stop": str(episode.stop_reason),
    }


def _outcome(episode: Episode) -> str:
    if episode.failure:
        return "failure"
    if episode.ungraded:
        return "ungraded"
    return "solved" if solved(episode) else "not solved"


def _detail(number: int, episode: Episode, packed: Packed) -> dict[str, Any]:
    turns = []
    context: tuple[int, ...] = ()
    for turn_index, turn in enumerate(episode.turns):
        # If the dialogue was shortened, this turn's prompt was rendered anew, without the last turn's tokens.
        context = () if turn.shortened else context
        key = f"{DialogueState.from_tokens(turn.prompt_ids).exact:x}"
        packed.states.setdefault(key, []).extend((number, turn_index))
        turns.append(_turn(turn, context, key))
        packed.tokens.update(turn.prompt_ids[len(context) :], turn.completion.token_ids)
        context = turn.prompt_ids + turn.completion.token_ids
    in_turns = sum(1 + len(turn.observation) for turn in episode.turns)
    return {
        "opening": max(0, len(episode.messages) - in_turns),
        "messages": [message.to_openai() for message in episode.messages],
        "turns": turns,
        "rewards": dict(episode.rewards),
        "answer": episode.task.answer if episode.task else None,
        "seed": None if episode.seed is None else str(episode.seed),
        "failure": episode.failure,
        "ungraded": list(episode.ungraded),
    }


def _turn(turn: Turn, context: tuple[int, ...], key: str) -> dict[str, Any]:
    completion = turn.completion
    return {
        "state": key,
        "added": list(turn.prompt_ids[len(context) :]),
        "ids": list(completion.token_ids),
        "logprobs": [round(value, 3) for value in completion.logprobs],
        "accepted": "".join("01"[flag] for flag in completion.accepted),
        "levels": completion.levels,
        "reward": turn.reward,
        "drafted": completion.draft.drafted,
        "steps": completion.draft.verify_steps,
        "cached": completion.cached_tokens,
        "prompt": len(turn.prompt_ids),
        "finish": str(completion.finish_reason),
        "weights": completion.weights_version,
    }
