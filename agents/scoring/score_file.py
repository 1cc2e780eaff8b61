"""Scores texts in a JSON Lines file.

A row has the policy's text in one of three fields: ``prediction`` (one text), ``turns`` (a list of texts; the last text
is the answer) or ``messages`` (OpenAI messages; only the assistant's text is scored). ``gold`` is the right answer.
``question``, ``data_source``, ``task_id`` and ``metadata`` are optional. Other fields are copied to the output.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import Any, Self

from turntree.agents.errors import AgentError
from turntree.agents.files import keep_apart, whole_file
from turntree.agents.scoring.scorer import ANSWER, Scored, Scorer
from turntree.envs.data.json_files import json_lines
from turntree.rewards import Sample, UnknownAnswerFormat

SCORED = "scored"  #: field that is added to a row
_TEXTS = ("prediction", "turns", "messages")


class RowError(AgentError):
    """A row of a file cannot be scored; the message names file, line and field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    prediction: str = "prediction"  #: name of the field with the policy's text
    gold: str = "gold"  #: name of the field with the right answer, as text or a number


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    samples: int
    reward: float  #: mean over the samples with a reward; NaN if no sample has a reward
    right: int  #: right answers
    wrong: int  #: wrong or missing answers
    ungraded: int  #: samples without a reward
    suspects: int  #: samples suspected of reward hacking
    without_question: int  #: samples that lack the question, so that a copied question may count as right

    @classmethod
    def of(cls, scored: Sequence[Scored], without_question: int) -> Self:
        rewards = [result.reward for result in scored if result.reward is not None]
        answers = [result.answer for result in scored if result.answer is not None]
        return cls(
            samples=len(scored),
            reward=sum(rewards) / len(rewards) if rewards else nan,
            right=sum(answer.correct is True for answer in answers),
            wrong=sum(answer.correct is False for answer in answers),
            ungraded=len(scored) - len(rewards),
            suspects=sum(bool(answer.flags) for answer in answers),
            without_question=without_question,
        )


def score_file(path: Path, out: Path, scorer: Scorer, fields: Fields | None = None) -> dict[str, Tally]:
    """Score every row of a file; write the rows to ``out`` with the additional field ``scored``.

    Rows with the same ``task_id`` are samples of one task.

    Returns:
        Counts and mean rewards by data set, in order of first appearance.

    Raises:
        UsageError: If ``out`` is the same file as ``path``.
        RowError: If there are no rows, a line is not a JSON object, or a field is missing or of the wrong type.
    """
    keep_apart(out, [path])
    fields = fields or Fields()
    rows = list(json_lines(path, lambda number, problem: RowError(f"{path}, line {number}: {problem}")))
    if not rows:
        raise RowError(f"{path} has no rows; expected JSON Lines, one object per line")
    samples = [_sample(row, f"{path}, line {number}", fields) for number, row in rows]
    if ANSWER in scorer.names:
        for (number, _), sample in zip(rows, samples, strict=True):
            try:
                scorer.answer_format_of(sample.data_source)
            except UnknownAnswerFormat as error:
                raise RowError(f"{path}, line {number}: field 'data_source': {error}") from error
    scored = scorer.score(samples)
    with whole_file(out) as partial, partial.open("w", encoding="utf-8", errors="surrogatepass") as file:
        for (_, row), result in zip(rows, scored, strict=True):
            file.write(json.dumps({**row, SCORED: scored_to_dict(result)}, ensure_ascii=False) + "\n")
    return tallies((sample.data_source for sample in samples), scored, map(scorer.unasked, samples))


def tallies(keys: Iterable[str], scored: Sequence[Scored], unasked: Iterable[bool]) -> dict[str, Tally]:
    groups: dict[str, list[Scored]] = {}
    missing: Counter[str] = Counter()
    for key, result, lacks_question in zip(keys, scored, unasked, strict=True):
        groups.setdefault(key, []).append(result)
        missing[key] += lacks_question
    return {key: Tally.of(group, missing[key]) for key, group in groups.items()}


def scored_to_dict(scored: Scored) -> dict[str, Any]:
    values: dict[str, Any] = {"reward": scored.reward, "parts": dict(scored.parts), "ungraded": list(scored.ungraded)}
    if (answer := scored.answer) is not None:
        values |= {
            "correct": answer.correct,
            "status": str(answer.status),
            "answer": answer.answer,
            "method": answer.method,
            "flags": list(answer.flags),
        }
    return values


def _sample(row: Mapping[str, Any], where: str, fields: Fields) -> Sample:
    gold = row.get(fields.gold)
    if isinstance(gold, bool) or not isinstance(gold, str | int | float):
        raise _wrong_field(where, fields.gold, "the right answer as text or a number", row)
    metadata = row.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise _wrong_field(where, "metadata", "an object", row)
    for name in ("data_source", "task_id", "question"):
        if not isinstance(row.get(name, ""), str):
            raise _wrong_field(where, name, "text", row)
    return Sample(
        turns=_turns(row, where, fields),
        answered=not _ends_with_a_call(row.get("messages")),
        gold=str(gold),
        question=row.get("question") or _first_question(row.get("messages")),
        data_source=row.get("data_source", ""),
        task_id=row.get("task_id", ""),
        metadata=metadata,
    )


def _first_question(messages: Any) -> str:
    texts = [message.get("content") for message in messages or () if message.get("role") == "user"]
    return texts[0] if texts and isinstance(texts[0], str) else ""


def _turns(row: Mapping[str, Any], where: str, fields: Fields) -> tuple[str, ...]:
    names = {"prediction": fields.prediction, "turns": "turns", "messages": "messages"}
    present = [kind for kind in _TEXTS if names[kind] in row]
    if len(present) != 1:
        raise RowError(
            f"{where}: field {fields.prediction!r}: expected the policy's text in one of "
            f"{', '.join(names.values())}, got {', '.join(names[kind] for kind in present) or 'none of them'}"
        )
    name = names[present[0]]
    value = row[name]
    if present[0] == "prediction":
        if not isinstance(value, str):
            raise _wrong_field(where, name, "text", row)
        return (value,)
    if not isinstance(value, list):
        raise _wrong_field(where, name, "a list", row)
    if present[0] == "messages":
        if not all(isinstance(message, dict) for message in value):
            raise _wrong_field(where, name, "a list of messages", row)
        value = [message.get("content") or "" for message in value if message.get("role") == "assistant"]
    if not all(isinstance(turn, str) for turn in value):
        raise _wrong_field(where, name, "a list of texts", row)
    return tuple(value)


def _ends_with_a_call(messages: Any) -> bool:
    if not messages:
        return False
    turns = [index for index, message in enumerate(messages) if message.get("role") == "assistant"]
    if not turns:
        return False
    # A tool message after the last assistant message means that the policy never answered.
    after = messages[turns[-1] + 1 :]
    return bool(messages[turns[-1]].get("tool_calls")) or any(message.get("role") == "tool" for message in after)


def _wrong_field(where: str, name: str, expected: str, row: Mapping[str, Any]) -> RowError:
    actual = f"{row[name]!r:.60}" if name in row else "no such field"
    return RowError(f"{where}: field {name!r}: expected {expected}, got {actual}")
