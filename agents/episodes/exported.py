"""Exports recorded episodes as plain rows: OpenAI messages, or tokens with their mask.

Invariant: a row has the reward of its episode, or null if the episode failed or is ungraded. Not covered: traces of
whole runs (``viewer.trace_export``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, cast

from turntree.agents.episodes.episode import Episode
from turntree.agents.episodes.record import Record, episode_files, read_records
from turntree.agents.episodes.token_view import TokenView
from turntree.agents.errors import MissingExtra, RecordError
from turntree.agents.files import json_value, whole_file
from turntree.envs.message import Message, Role, ToolCall
from turntree.envs.parsers import OfferedTool, get_parser, likely_format
from turntree.envs.tools.tool import Tool

Row = dict[str, Any]
#: labels of a record that are copied to its rows
_LABELS = ("step", "index", "session", "sample", "session_id", "branch", "branch_of")
_BATCH = 256  #: rows per Parquet row group


class Exported(NamedTuple):
    rows: int
    episodes: int
    unscored: int  #: episodes whose reward is null
    without_tokens: int  #: episodes left out because a server returned only text


def export_rows(run: Path, out: Path, *, tokens: bool, parquet: bool, steps: int | None = None) -> Exported:
    """Write the episodes of a run, an evaluation or recorded sessions as rows.

    There is one row per dialogue, or per segment if ``tokens`` is set. The file is written completely or not at all.

    Args:
        run: Folder of a run, or a file of episodes.
        steps: Export only training steps up to this one.

    Raises:
        RecordError: If there are no episodes, or a line is damaged.
        MissingExtra: If Parquet is requested and pyarrow is not installed.
    """
    counts = {"rows": 0, "episodes": 0, "unscored": 0, "without_tokens": 0}

    def rows() -> Iterator[Row]:
        for labels, episode in _records(run, steps):
            counts["episodes"] += 1
            counts["unscored"] += episode.masked
            if tokens and any(turn.text_only for turn in episode.turns):
                counts["without_tokens"] += 1
                continue
            for number, dialogue in enumerate((episode, *episode.extra_dialogues)):
                shared = _shared_columns(labels, episode, dialogue, number)
                dialogue_rows = token_rows(dialogue) if tokens else [message_row(dialogue)]
                counts["rows"] += len(dialogue_rows)
                yield from ({**shared, **row} for row in dialogue_rows)
        if not counts["episodes"]:
            raise RecordError(f"{run} is empty: it contains no episodes")

    with _open_writer(out, tokens, parquet) as write:
        remaining = rows()
        while batch := list(islice(remaining, _BATCH)):
            write(batch)
    return Exported(**counts)


def _records(run: Path, steps: int | None) -> Iterator[Record]:
    # If an episode was played again after a crash, the file has both; export only the later one.
    for file in episode_files(run):
        records: dict[Any, Record] = {}
        for number, record in enumerate(read_records(file)):
            step = record.labels.get("step")
            if steps is not None and isinstance(step, int) and step > steps:
                continue
            sample = (record.labels.get("index"), record.labels.get("session", record.labels.get("sample")))
            records[(step, *sample) if None not in sample else number] = record
        yield from records.values()


def _shared_columns(labels: Mapping[str, Any], episode: Episode, dialogue: Episode, number: int) -> Row:
    task = episode.task
    return {
        **{name: _label(name, labels.get(name)) for name in _LABELS},
        "dialogue": number,
        "env_id": dialogue.env_id,
        "task_id": task.id if task else None,
        "answer": _text(task.answer) if task else None,
        "reward": None if episode.masked else json_value(episode.reward),
        "rewards": json.dumps(json_value(episode.rewards)),
        "stop_reason": str(dialogue.stop_reason),
        "failure": _text(episode.failure),
    }


def _label(name: str, value: Any) -> Any:
    return value if isinstance(value, str if name == "session_id" else int) else None


def message_row(episode: Episode) -> Row:
    """Return a dialogue as messages in OpenAI's form.

    The arguments of a call are JSON text. If the calls have a known format, they are removed from ``content``;
    otherwise they stay in ``content`` as text. If ``shortened`` is true, the environment has shortened the dialogue, so
    the policy has not seen all messages at once.
    """
    messages: list[Row] = []
    waiting: list[str] = []
    calls = 0
    for message in episode.messages:
        row: Row = {"role": str(message.role), "content": _text(message.content)}
        content = _without_calls(message) if message.tool_calls else None
        if content is not None:
            waiting = [call.id or f"call_{calls + number}" for number, call in enumerate(message.tool_calls)]
            calls += len(waiting)
            row["content"] = _text(content)
            row["tool_calls"] = [_openai_call(call, id) for call, id in zip(message.tool_calls, waiting, strict=True)]
        elif message.role is Role.ASSISTANT:
            waiting = []
        if message.role is Role.TOOL:
            # A tool message without a call id answers the first call that has no answer yet.
            answered = message.tool_call_id or (waiting[0] if waiting else "")
            waiting = [id for id in waiting if id != answered]
            row |= {"tool_call_id": answered} if answered else {}
            row |= {"name": message.name} if message.name else {}
        messages.append(row)
    return {"messages": messages, "shortened": any(turn.shortened for turn in episode.turns)}


def _without_calls(message: Message) -> str | None:
    names = list(dict.fromkeys(call.name for call in message.tool_calls))
    if (format_name := likely_format(message.content, names)) is None:
        return None
    stubs = cast(Sequence[Tool], [OfferedTool(name, {"VALUE": {"type": "string"}}, {}) for name in names])
    turn = get_parser(format_name, stubs).parse(message.content)
    # Remove the calls only if parsing finds exactly the recorded calls; otherwise, text that is no call could be lost.
    parsed = [call.name for call in turn.calls]
    return turn.content if parsed == [call.name for call in message.tool_calls] else None


def _openai_call(call: ToolCall, id: str) -> Row:
    arguments = json.dumps(json_value(call.arguments))
    return {"id": id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def token_rows(episode: Episode) -> list[Row]:
    """Return the tokens of a dialogue, one row per segment.

    ``mask`` is 1 for sampled tokens. If an extra dialogue shares turns with an earlier dialogue, these turns have mask
    0 here and mask 1 in the earlier dialogue.
    """
    rows = []
    turns_before = 0
    for number, turns in enumerate(episode.segments):
        view = TokenView.of(replace(episode, turns=turns))
        mask = list(view.mask)
        shared = min(max(0, episode.shared_turns - turns_before), len(turns))
        if shared:
            mask[: view.turn_ends[shared - 1] + 1] = [0] * (view.turn_ends[shared - 1] + 1)
        turns_before += len(turns)
        rows.append(
            {
                "segment": number,
                "prompt_ids": list(view.prompt_ids),
                "response_ids": list(view.response_ids),
                "mask": mask,
                "logprobs": json_value(view.logprobs),
                "behaviour_logprobs": json_value(view.behaviour_logprobs),
                "turn_ends": list(view.turn_ends),
                "turn_rewards": json_value([turn.reward for turn in turns]),
                "weights_versions": [turn.completion.weights_version for turn in turns],
            }
        )
    return rows


def _text(text: str) -> str:
    # A policy may write half of a surrogate pair, which is not valid UTF-8. Replace it by a question mark.
    return text.encode("utf-8", "replace").decode()


@contextmanager
def _open_writer(out: Path, tokens: bool, parquet: bool) -> Iterator[Any]:
    with ExitStack() as stack:
        if not parquet:
            partial = stack.enter_context(whole_file(out))
            file = stack.enter_context(partial.open("w", encoding="utf-8"))
            yield lambda rows: file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            return
        try:
            from pyarrow import Table
            from pyarrow.parquet import ParquetWriter
        except ImportError as error:
            raise MissingExtra("writing Parquet", "data") from error
        schema = _schema(tokens)
        writer = stack.enter_context(ParquetWriter(stack.enter_context(whole_file(out)), schema))
        yield lambda rows: writer.write_table(Table.from_pylist(rows, schema=schema))


def _schema(tokens: bool) -> Any:
    import pyarrow as pa

    integer, text, real = pa.int64(), pa.string(), pa.float64()
    call = pa.struct({"id": text, "type": text, "function": pa.struct({"name": text, "arguments": text})})
    message = pa.struct(
        {"role": text, "content": text, "tool_calls": pa.list_(call), "tool_call_id": text, "name": text}
    )
    columns = {name: text if name == "session_id" else integer for name in _LABELS}
    columns |= {"dialogue": integer, "env_id": text, "task_id": text, "answer": text, "reward": real, "rewards": text}
    columns |= {"stop_reason": text, "failure": text}
    if not tokens:
        return pa.schema({**columns, "messages": pa.list_(message), "shortened": pa.bool_()})
    columns |= {"segment": integer, "prompt_ids": pa.list_(pa.int32()), "response_ids": pa.list_(pa.int32())}
    columns |= {"mask": pa.list_(pa.int8()), "logprobs": pa.list_(pa.float32())}
    columns |= {"behaviour_logprobs": pa.list_(pa.float32()), "turn_ends": pa.list_(integer)}
    return pa.schema({**columns, "turn_rewards": pa.list_(real), "weights_versions": pa.list_(integer)})
