import errno
import json
import math
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import is_dataclass, replace
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from adder import play
from full_disk import files_of_at_most
from hypothesis import given, settings
from hypothesis import strategies as st

from turntree.agents.engines.protocol import TopLogprobs
from turntree.agents.episodes.episode import Episode, StopReason
from turntree.agents.episodes.record import (
    EpisodeWriter,
    Record,
    episode_from_dict,
    episode_to_dict,
    read_episodes,
    read_records,
)
from turntree.agents.errors import RecordError
from turntree.agents.loop.renderer import Renderer
from turntree.agents.viewer.pack import pack

json_values = st.dictionaries(st.text(max_size=5), st.none() | st.booleans() | st.integers() | st.text(max_size=5))
tops = st.integers(0, 3).map(
    lambda k: TopLogprobs(
        ids=np.arange(2 * k, dtype=np.int32).reshape(2, k),
        logprobs=np.log(np.linspace(0.1, 0.7, 2 * k, dtype=np.float32)).reshape(2, k),
    )
)
DRAWN: dict[Any, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: st.integers(-(1 << 63), (1 << 63) - 1),
    tuple[int, ...]: st.lists(st.integers(0, (1 << 31) - 1), max_size=3).map(tuple),
    float: st.floats(-1e300, 1e300) | st.sampled_from([float("inf"), float("-inf")]),
    str: st.text(max_size=5),
    NoneType: st.none(),
    TopLogprobs: tops,
    Mapping[str, Any]: json_values,
    tuple[Episode, ...]: st.just(()),  # an episode's further dialogues have none of their own
    Mapping[str, float]: st.dictionaries(st.text(max_size=5), st.floats(-1e300, 1e300), max_size=2),
}


def drawn(kind: Any) -> st.SearchStrategy[Any]:
    if kind in DRAWN:
        return DRAWN[kind]
    if is_dataclass(kind):
        return st.builds(kind, **{name: drawn(hint) for name, hint in get_type_hints(kind).items()})
    if get_origin(kind) is tuple:
        return st.lists(drawn(get_args(kind)[0]), max_size=3).map(tuple)
    return st.one_of(map(drawn, get_args(kind))) if get_args(kind) else st.sampled_from(kind)


@pytest.fixture
async def episode(renderer: Renderer) -> Any:
    return (await play(renderer, "call 4", "call 5", "5", seed=3))[0]


@settings(max_examples=50)
@given(drawn(Episode), st.lists(drawn(Episode), max_size=2))
def test_an_episode_survives_json_unchanged(episode: Episode, others: list[Episode]) -> None:
    episode = replace(episode, extra_dialogues=tuple(others))
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

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, range(4)))
    writers = [record.labels["writer"] for record in read_records(path)]
    assert sorted(writers) == sorted(list(range(4)) * 20)


def test_lines_that_a_full_disk_does_not_take_leave_the_file_as_it_was(episode: Episode, tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    with EpisodeWriter(path) as writer:
        writer.write(episode, number=0)
        before = path.read_bytes()
        for size in (len(before), len(before) + 50, 2 * len(before) + 50):
            with files_of_at_most(size), pytest.raises(OSError, match=str(path)) as full:
                writer.write_all([Record({"number": 1}, episode), Record({"number": 2}, episode)])
            assert full.value.errno == errno.EFBIG
            assert path.read_bytes() == before
        writer.write_all([Record({"number": 1}, episode), Record({"number": 2}, episode)])
    assert [record.labels["number"] for record in read_records(path)] == [0, 1, 2]


def test_a_last_line_that_was_cut_off_is_left_out_and_named(episode: Episode, tmp_path: Path, caplog: Any) -> None:
    path = tmp_path / "episodes.jsonl"
    with EpisodeWriter(path) as writer:
        writer.write(replace(episode, failure="é"), number=0)
    line = path.read_bytes()
    for cut in (1, 40, line.index("é".encode()) + 1, len(line) - 2):
        path.write_bytes(line + line[:cut])
        assert len(list(read_records(path))) == 1
        assert f"{path}: skipped the last line, 2, which was cut off" in caplog.messages[-1]
    path.write_bytes(line + line[:-1])  # the controls: one that is whole but for its end, and one amid others
    assert len(list(read_records(path))) == 2
    path.write_bytes(line + line[:40] + line)
    with pytest.raises(RecordError, match="line 2"):
        list(read_records(path))
    assert len(caplog.messages) == 4


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda line: line[:40], "expected one JSON object"),
        (lambda line: "[1]", "expected one JSON object a line, got list"),
        (lambda line: "{}", 'the field "episode"'),
        (lambda line: line.replace('"env_id"', '"env"'), "the field 'env_id' is missing"),
        (lambda line: line.replace('"done"', '"bored"'), "'bored' is not a valid StopReason"),
        (lambda line: line.replace('"logprobs": [', '"logprobs": 3, "x": ['), "not a recorded episode"),
    ],
    ids=["cut off", "not an object", "no episode", "field missing", "unknown value", "wrong type"],
)
def test_a_damaged_row_names_file_and_line(episode: Episode, tmp_path: Path, damage: Any, says: str) -> None:
    path = tmp_path / "episodes.jsonl"
    with EpisodeWriter(path) as writer:
        writer.write(episode)
    line = path.read_text()
    path.write_text(line + damage(line.rstrip("\n")) + "\n")
    with pytest.raises(RecordError, match=rf"episodes\.jsonl, line 2: .*{says}"):
        list(read_records(path))


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    inner = value.items() if isinstance(value, dict) else [*enumerate(value)][:1] if isinstance(value, list) else ()
    for key, one in inner:
        yield from leaves(one, (*path, key))


EVIL = ("x", ["x"], {"a": 1}, True, None, 10**400, 1 << 63, -1, 1e308, math.nan, [], {}, [10**30])


def test_whatever_stands_in_place_of_a_value_is_read_or_refused_with_its_line(episode: Episode, tmp_path: Path) -> None:
    path, row = tmp_path / "episodes.jsonl", {"step": 1, "index": 0, "session": 0, "episode": episode_to_dict(episode)}
    row["episode"]["turns"] = row["episode"]["turns"][:2]
    text, refused = json.dumps(row), 0
    for number, position in enumerate([*leaves(row)][1:]):
        for evil in EVIL[number % 3 :: 3]:
            wrong = at = json.loads(text)
            for key in position[:-1]:
                at = at[key]
            at[position[-1]] = evil
            path.write_text("\n" + json.dumps(wrong) + "\n")
            try:
                (record,) = read_records(path)
            except RecordError as error:
                said = str(error)
            else:
                assert pack([record]).chunks, position
                continue
            refused += 1
            assert re.fullmatch(rf"{re.escape(str(path))}, line 2: [^\n]{{,400}}", said), said
    assert refused > 100
