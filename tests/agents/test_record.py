from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from adder import play
from hypothesis import given
from hypothesis import strategies as st

from turntree.agents.engines.protocol import Completion, DraftStats, FinishReason, TopLogprobs
from turntree.agents.episode import Episode, StopReason, Turn
from turntree.agents.errors import RecordError
from turntree.agents.record import (
    EpisodeWriter,
    episode_from_dict,
    episode_to_dict,
    read_episodes,
    read_records,
)
from turntree.agents.renderer import Renderer
from turntree.envs.message import Message, Role, ToolCall
from turntree.envs.task import Task

ids = st.lists(st.integers(0, 2**31), max_size=5).map(tuple)
floats = st.floats(allow_nan=False)
json_values = st.dictionaries(st.text(max_size=5), st.none() | st.booleans() | st.integers() | st.text(max_size=5))
messages = st.lists(
    st.builds(
        Message,
        role=st.sampled_from(list(Role)),
        content=st.text(max_size=10),
        tool_calls=st.lists(
            st.builds(ToolCall, name=st.text(max_size=5), arguments=json_values, id=st.text(max_size=3)),
            max_size=2,
        ).map(tuple),
    ),
    max_size=3,
).map(tuple)
tops = st.integers(0, 3).map(
    lambda k: TopLogprobs(
        ids=np.arange(2 * k, dtype=np.int32).reshape(2, k),
        logprobs=np.log(np.linspace(0.1, 0.7, 2 * k, dtype=np.float32)).reshape(2, k),
    )
)
completions = st.builds(
    Completion,
    token_ids=ids,
    logprobs=st.lists(floats, max_size=5).map(tuple),
    finish_reason=st.sampled_from(list(FinishReason)),
    draft=st.builds(DraftStats, verify_steps=st.integers(0), drafted=st.integers(0), accepted=st.integers(0)),
    accepted=st.lists(st.booleans(), max_size=5).map(tuple),
    cached_tokens=st.integers(0),
    weights_version=st.integers(0),
    levels=st.text("ABCD", max_size=5),
    behaviour_logprobs=st.lists(floats, max_size=5).map(tuple),
    top=st.none() | tops,
)
turns = st.builds(
    Turn,
    prompt_ids=ids,
    completion=completions,
    text=st.text(max_size=10),
    observation=messages,
    reward=floats,
)
episodes = st.builds(
    Episode,
    env_id=st.text(max_size=5),
    task=st.none() | st.builds(Task, id=st.text(max_size=5), prompt=st.text(max_size=5), metadata=json_values),
    seed=st.none() | st.integers(),
    messages=messages,
    turns=st.lists(turns, max_size=3).map(tuple),
    stop_reason=st.sampled_from(list(StopReason)),
    rewards=st.dictionaries(st.text(max_size=5), floats, max_size=2),
    failure=st.text(max_size=5),
)


@pytest.fixture
async def episode(renderer: Renderer) -> Any:
    return (await play(renderer, "call 4", "call 5", "5", seed=3))[0]


@given(episodes)
def test_an_episode_survives_json_unchanged(episode: Episode) -> None:
    assert episode_from_dict(json.loads(json.dumps(episode_to_dict(episode)))) == episode


def test_a_record_of_before_levels_is_read(episode: Episode) -> None:
    row = episode_to_dict(episode)
    for turn in row["turns"]:
        for name in ("levels", "behaviour_logprobs", "top"):
            del turn["completion"][name]
        turn["completion"]["draft"] = {"verify_steps": 1, "drafted": 0, "accepted": 0}
    assert [turn.completion.levels for turn in episode_from_dict(row).turns] == [""] * len(row["turns"])


def test_a_prompt_is_stored_as_what_it_adds(episode: Episode) -> None:
    stored = [turn["added_ids"] for turn in episode_to_dict(episode)["turns"]]
    context = len(episode.turns[1].prompt_ids + episode.turns[1].completion.token_ids)
    assert stored[0] == list(episode.turns[0].prompt_ids)
    assert stored[2] == list(episode.turns[2].prompt_ids[context:])
    # The control: turns that do not continue each other are stored whole, and come back.
    torn = replace(episode, turns=(episode.turns[2], episode.turns[0]))
    assert episode_to_dict(torn)["turns"][1]["added_ids"] == list(episode.turns[0].prompt_ids)
    assert episode_from_dict(episode_to_dict(torn)) == torn


def test_a_file_gives_back_episodes_and_labels_in_order(episode: Episode, tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "episodes.jsonl"
    failed = replace(episode, failure="été \ud800\u2028", stop_reason=StopReason.FAILURE)
    with EpisodeWriter(path) as writer:
        writer.write(episode, step=1, index=0)
        assert list(read_episodes(path)) == [episode]
        writer.write(failed, step=2)
    with EpisodeWriter(path) as writer:
        writer.write(episode)
    records = list(read_records(path))
    assert [record.labels for record in records] == [{"step": 1, "index": 0}, {"step": 2}, {}]
    assert [record.episode for record in records] == [episode, failed, episode]


def test_several_writers_never_mix_their_lines(episode: Episode, tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"

    def write(number: int) -> None:
        with EpisodeWriter(path) as writer:
            for _ in range(20):
                writer.write(episode, writer=number)

    threads = [Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writers = [record.labels["writer"] for record in read_records(path)]
    assert sorted(writers) == sorted(list(range(4)) * 20)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda line: line[:40], "expected one JSON object"),
        (lambda line: "[1]", 'the field "episode"'),
        (lambda line: line.replace('"env_id"', '"env"'), "the field 'env_id' is missing"),
        (lambda line: line.replace('"done"', '"bored"'), "'bored' is not a valid StopReason"),
        (lambda line: line.replace('"logprobs": [', '"logprobs": 3, "x": ['), "not a recorded episode"),
    ],
    ids=["cut off", "not an object", "field missing", "unknown value", "wrong type"],
)
def test_a_damaged_row_names_file_and_line(episode: Episode, tmp_path: Path, damage: Any, says: str) -> None:
    path = tmp_path / "episodes.jsonl"
    with EpisodeWriter(path) as writer:
        writer.write(episode)
    line = path.read_text()
    path.write_text(line + damage(line.rstrip("\n")) + "\n")
    with pytest.raises(RecordError, match=rf"episodes\.jsonl, line 2: .*{says}"):
        list(read_records(path))
