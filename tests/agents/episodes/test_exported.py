import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from echoing import spoken
from recorded_run import write_run

from turntree.agents.engines.protocol import Completion, FinishReason
from turntree.agents.episodes.episode import Episode, StopReason, Turn
from turntree.agents.episodes.exported import export_rows, message_row, token_rows
from turntree.agents.episodes.record import EpisodeWriter, read_episodes
from turntree.agents.episodes.token_view import TokenView
from turntree.agents.errors import RecordError
from turntree.agents.sft.dialogues import dialogues_in
from turntree.envs import Message, Role, ToolCall
from turntree.envs.parsers import FORMATS, get_parser

CALL = ToolCall(name="look", arguments={"place": "é 1"})


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def called(text: str, *calls: ToolCall) -> Episode:
    messages = (
        Message(role=Role.USER, content="?"),
        Message(role=Role.ASSISTANT, content=text, tool_calls=calls),
        *(Message(role=Role.TOOL, content=f"seen {number}", name="look") for number in range(len(calls))),
        Message(role=Role.ASSISTANT, content="42"),
    )
    return replace(spoken(), messages=messages)


def sampled(*tokens: int, prompt: tuple[int, ...], reward: float = 0.0, shortened: bool = False) -> Turn:
    logprobs = tuple(-float(token) for token in tokens)
    completion = Completion(token_ids=tokens, logprobs=logprobs, finish_reason=FinishReason.STOP)
    return Turn(prompt_ids=prompt, completion=completion, text="", reward=reward, shortened=shortened)


def test_episodes_of_a_run_are_messages_that_datasets_and_sft_read(tmp_path: Path) -> None:
    from datasets import load_dataset

    run = write_run(tmp_path / "run", steps=2)
    for kind in ("jsonl", "parquet"):
        done = export_rows(run, tmp_path / f"m.{kind}", tokens=False, parquet=kind == "parquet")
        assert (done.rows, done.episodes, done.unscored) == (6, 6, 0)
    rows = rows_of(tmp_path / "m.jsonl")
    loaded = [
        load_dataset(name, data_files=str(tmp_path / f"m.{kind}"), split="train", cache_dir=str(tmp_path / "cache"))
        for name, kind in (("json", "jsonl"), ("parquet", "parquet"))
    ]
    assert loaded[0].column_names == loaded[1].column_names == list(rows[0])
    for one in loaded:
        assert [row["reward"] for row in one] == [1.0, 1.0, 0.0] * 2
        (call,) = one[0]["messages"][1]["tool_calls"]
        assert json.loads(call["function"]["arguments"]) == {"expression": "3*4"}
    assert [message["role"] for message in rows[2]["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert (rows[2]["step"], rows[2]["session"], rows[2]["stop_reason"], rows[2]["sample"]) == (1, 2, "done", None)
    assert len(list(dialogues_in(tmp_path / "m.jsonl"))) == 6
    assert export_rows(run, tmp_path / "first.jsonl", tokens=False, parquet=False, steps=1).episodes == 3


@pytest.mark.parametrize("name", sorted({*FORMATS} - {"harmony"}))  # whose marks recorded texts do not have
def test_calls_of_every_format_leave_the_text(name: str) -> None:
    written = get_parser(name).format_call(CALL)
    alone = name in ("compact", "pythonic", "llama3_json")  # other text beside a call makes it none
    said = "" if alone else "<think>hm</think>I look."
    row = message_row(called(f"{said}{written}", CALL))["messages"]
    assert row[1]["content"] == said
    (call,) = row[1]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == CALL.arguments
    assert row[2]["tool_call_id"] == call["id"]


def test_calls_of_an_unknown_format_stay_text_and_answers_go_to_their_calls_in_order() -> None:
    row = message_row(called("LOOK AT IT", CALL))["messages"]
    assert row[1] == {"role": "assistant", "content": "LOOK AT IT"}
    assert "tool_call_id" not in row[2]
    text = get_parser("hermes").format_call(CALL)
    assert "tool_calls" not in message_row(called(text, CALL, CALL))["messages"][1], "another number of calls"
    twice = message_row(called(text + text, CALL, replace(CALL, id="mine")))["messages"]
    assert [call["id"] for call in twice[1]["tool_calls"]] == [twice[2]["tool_call_id"], twice[3]["tool_call_id"]]
    assert twice[3]["tool_call_id"] == "mine"


def test_tokens_are_those_that_a_trainer_sees(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    from pyarrow.parquet import read_table

    run = write_run(tmp_path / "run", steps=1)
    for kind in ("jsonl", "parquet"):
        export_rows(run, tmp_path / f"t.{kind}", tokens=True, parquet=kind == "parquet")
    rows = rows_of(tmp_path / "t.jsonl")
    assert read_table(tmp_path / "t.parquet").to_pylist() == rows
    for row, episode in zip(rows, read_episodes(run / "episodes/step_000001.jsonl"), strict=True):
        view = TokenView.of(episode)
        for name in ("prompt_ids", "response_ids", "mask", "turn_ends"):
            assert row[name] == list(getattr(view, name))
        assert sum(row["turn_rewards"]) == row["reward"] == episode.reward


def test_segments_are_rows_and_what_dialogues_share_is_masked_in_the_second() -> None:
    first = sampled(3, 4, prompt=(1, 2), reward=0.25)
    second = sampled(6, prompt=(1, 2, 3, 4, 5), reward=0.5)
    episode = replace(spoken(), turns=(first, second))
    (row,) = token_rows(episode)
    assert (row["response_ids"], row["mask"], row["turn_rewards"]) == ([3, 4, 5, 6], [1, 1, 0, 1], [0.25, 0.5])
    assert row["logprobs"] == [-3.0, -4.0, 0.0, -6.0]
    (shared,) = token_rows(replace(episode, shared_turns=1))
    assert shared["mask"] == [0, 0, 0, 1]
    again = sampled(9, prompt=(7,), shortened=True)
    segments = token_rows(replace(episode, turns=(first, second, again)))
    assert [(one["segment"], one["response_ids"]) for one in segments] == [(0, [3, 4, 5, 6]), (1, [9])]
    assert message_row(replace(episode, turns=(first, again)))["shortened"]


def test_failed_ungraded_and_text_alone_are_kept_without_a_reward_or_counted(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    lonely = replace(spoken("\ud800 hm"), turns=(sampled(3, prompt=(1,)),))
    failed = replace(lonely, stop_reason=StopReason.FAILURE, failure="no disk")
    silent = replace(lonely, turns=(sampled(prompt=()),))
    beside = replace(lonely, extra_dialogues=(lonely,))
    with EpisodeWriter(path) as writer:
        for session, episode in enumerate((failed, replace(lonely, ungraded=("grade",)), silent, beside)):
            writer.write(episode, step=1, index=0, session=session, session_id=f"s{session}")
        writer.write(failed, step=1, index=0, session=3)  # played twice, after a crash: the later counts
    done = export_rows(path, tmp_path / "m.jsonl", tokens=False, parquet=False)
    assert (done.rows, done.episodes, done.unscored) == (4, 4, 3)
    rows = rows_of(tmp_path / "m.jsonl")
    assert [row["reward"] for row in rows] == [None, None, 0.0, None]
    assert [(row["stop_reason"], row["failure"]) for row in rows[:2]] == [("failure", "no disk"), ("done", "")]
    assert rows[0]["messages"][1]["content"] == "? hm"
    told = export_rows(path, tmp_path / "t.parquet", tokens=True, parquet=True)
    assert (told.rows, told.without_tokens) == (3, 1)


def test_a_file_that_was_there_survives_a_damaged_run(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=1)
    out = tmp_path / "m.parquet"
    export_rows(run, out, tokens=False, parquet=True)
    before = out.read_bytes()
    (run / "episodes/step_000002.jsonl").write_text('{"episode": {}}\n')
    for parquet in (True, False):
        with pytest.raises(RecordError, match="line 1"):
            export_rows(run, out, tokens=False, parquet=parquet)
    assert out.read_bytes() == before
    assert not list(tmp_path.glob(".partial*"))


def test_the_command_names_its_file_and_refuses_what_does_not_go_together(turntree: Any, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=1)
    said = turntree("export", run, "--to", "messages", "--format", "parquet")
    assert said.out.startswith(f"wrote {run}/messages.parquet: 3 rows from 3 episodes, 0 of them without a reward"), (
        said
    )
    one = run / "episodes/step_000001.jsonl"
    assert turntree("export", one, "--to", "tokens").status == 0
    assert (run / "episodes/step_000001.tokens.jsonl").exists()
    assert turntree("export", run).status == 0, "what stands beside the episodes is none of them"
    assert "--vocab is only for --to trace" in turntree("export", run, "--to", "tokens", "--vocab", 3).err
    assert turntree("export", one, "--to", "tokens", "--out", one).status == 2
