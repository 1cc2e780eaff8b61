from pathlib import Path
from typing import Any

import pytest

from turntree.agents.engines.drafting.tokenizer_hash import given_store, tokenizer_hash
from turntree.agents.episodes.record import read_episodes
from turntree.agents.errors import UsageError
from turntree.spec_tree import DialogueState, ForestConfig, SpecForest


def saved(path: Path, episodes: Path, tokenizer: str) -> Path:
    forest = SpecForest(ForestConfig(tokenizer=tokenizer))
    for turn in (turn for episode in read_episodes(episodes) for turn in episode.turns):
        forest.insert(DialogueState.from_tokens(turn.prompt_ids), turn.completion.token_ids)
    forest.save(path)
    return path


def test_a_store_of_another_run_saves_passes_and_changes_no_token(turntree, tiny_model, tmp_path):
    words = ["eval", "turntree/Arithmetic-v0", "--model", tiny_model, "-n", 3, "--max-tokens", 16]
    words += ["--temperature", 0.7]
    assert turntree(*words, "--out", tmp_path / "a.jsonl").status == 0
    store = saved(tmp_path / "a.npz", tmp_path / "a.jsonl", tokenizer_hash(str(tiny_model)))
    assert turntree(*words, "--store", store, "--out", tmp_path / "b.jsonl").status == 0
    without, begun = (list(read_episodes(tmp_path / name)) for name in ("a.jsonl", "b.jsonl"))

    def said(episodes: list[Any]) -> Any:
        return sorted(tuple(turn.completion.token_ids for turn in episode.turns) for episode in episodes)

    def passes(episodes: list[Any]) -> int:
        return sum(turn.completion.draft.verify_steps for episode in episodes for turn in episode.turns)

    assert said(begun) == said(without)
    assert passes(begun) < 0.7 * passes(without)
    theirs = saved(tmp_path / "c.npz", tmp_path / "a.jsonl", "0123")
    refused = turntree(*words, "--store", theirs)
    assert (refused.status, "expected turns of the tokenizer" in refused.err, "0123" in refused.err) == (2, True, True)


@pytest.mark.parametrize("words", [["--no-speculate"], ["--engine", "vllm", "--base-url", "http://h"]])
def test_a_store_that_nothing_drafts_from_is_refused(turntree: Any, tiny_model: Path, words: list[str]) -> None:
    said = turntree("eval", "turntree/Arithmetic-v0", "--model", tiny_model, "--store", "x", *words)
    assert (said.status, "--store needs an engine started here with speculation" in said.err) == (2, True)


def test_an_invalid_store_is_refused_before_an_engine_starts(tmp_path: Path) -> None:
    for path, why in ((tmp_path / "gone", "No such file"), (tmp_path, "no draft store in the folder")):
        with pytest.raises(UsageError, match=why):
            given_store(path, "")
    theirs = tmp_path / "theirs.npz"
    SpecForest(ForestConfig(tokenizer="0123")).save(theirs)
    with pytest.raises(UsageError, match="expected turns of the tokenizer"):
        given_store(theirs, "4567")
