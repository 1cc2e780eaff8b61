import base64
import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from viewed_run import write_run

from turntree.agents.engines.protocol import FinishReason
from turntree.agents.loop.renderer import Renderer
from turntree.agents.viewer.pack import CHUNK, compress, pack
from turntree.agents.viewer.source import Source


def unpack(packed: str) -> Any:
    return json.loads(gzip.decompress(base64.b64decode(packed)))


async def test_columns_and_chunks_hold_every_episode_in_order(renderer: Renderer, tmp_path: Path) -> None:
    records = list(Source.open(await write_run(tmp_path / "run", renderer, episodes=2 * CHUNK + 3)).records())
    packed = pack(records)
    assert [len(unpack(chunk)) for chunk in packed.chunks] == [CHUNK, CHUNK, 3]
    assert packed.columns["outcome"][:4] == ["solved", "not solved", "not solved", "failure"]
    assert {len(column) for column in packed.columns.values()} == {len(records)}
    last = unpack(packed.chunks[2])[2]
    result = records[-1].episode.turns[0]
    assert last["turns"][0]["ids"] == list(result.completion.token_ids)
    assert last["turns"][0]["accepted"] == "".join("01"[flag] for flag in result.completion.accepted)
    assert last["turns"][0]["levels"] == result.completion.levels


def test_turns_that_a_limit_of_tokens_cut_are_counted(source: Source) -> None:
    first, second, *_ = source.records()
    turns = tuple(
        replace(turn, completion=replace(turn.completion, finish_reason=FinishReason.LENGTH))
        for turn in first.episode.turns
    )
    assert pack([first._replace(episode=replace(first.episode, turns=turns)), second]).columns["cut"] == [len(turns), 0]


def test_every_token_is_there_once_and_turns_are_gathered_by_their_exact_prompt(source: Source) -> None:
    record = next(source.records())
    turns = unpack(pack([record]).chunks[0])[0]["turns"]
    laid = [token for turn in turns for token in (*turn["added"], *turn["ids"])]
    last = record.episode.turns[-1]
    assert laid == list(last.prompt_ids + last.completion.token_ids)
    records = list(source.records())
    packed = pack(records)
    prompts: dict[str, set[tuple[int, ...]]] = {}
    for key, pairs in packed.states.items():
        for number, position in zip(pairs[::2], pairs[1::2], strict=True):
            prompts.setdefault(key, set()).add(records[number].episode.turns[position].prompt_ids)
    assert all(len(of) == 1 for of in prompts.values())
    first = next(pairs for pairs in packed.states.values() if pairs[:2] == [0, 0])
    assert len(first) == 2 * 40  # all episodes begin with the same task


def test_numbers_that_json_cannot_write_become_null() -> None:
    assert unpack(compress({"a": [float("nan"), float("-inf"), 1.5], "b": (1, None, "x")})) == {
        "a": [None, None, 1.5],
        "b": [1, None, "x"],
    }
