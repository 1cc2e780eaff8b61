from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from benchmark_modules import benchmark_module


class Oracle:
    """Draft the next ``right`` tokens of the turn, then a wrong token; remember the commits."""

    def __init__(self, turns: Sequence[Any], right: int) -> None:
        self.turns, self.right = list(turns), right
        self.said: list[list[int]] = []
        self.ended: list[int] = []

    def begin(self, states: Any, prompts: Sequence[Any]) -> list[int]:
        first = len(self.said)
        self.said += [[] for _ in prompts]
        return list(range(first, len(self.said)))

    def draft(self, handles: Sequence[int], contexts: Sequence[Any]) -> list[list[int]]:
        for handle, context in zip(handles, contexts, strict=True):
            assert context.tolist() == self.turns[handle].prompt.tolist() + self.said[handle]
        rest = [self.turns[handle].tokens.tolist()[len(self.said[handle]) :] for handle in handles]
        return [[*tokens[: self.right], 1000] for tokens in rest]

    def rows(self, drafted: list[list[int]]) -> list[tuple[list[int], list[int]]]:
        return [(tokens, list(range(-1, len(tokens) - 1))) for tokens in drafted]

    def commit(self, handles: Sequence[int], said: Sequence[list[int]], contexts: Sequence[Any]) -> None:
        for handle, tokens in zip(handles, said, strict=True):
            self.said[handle] += tokens

    def end(self, handles: Sequence[int]) -> None:
        self.ended += handles


def test_a_path_is_accepted_as_far_as_it_agrees() -> None:
    accepted = benchmark_module("drafting.replay").accepted
    tokens, parents = [5, 6, 7, 8, 9], [-1, -1, 0, 1, 3]  # 5 7 | 6 8 9
    assert accepted(tokens, parents, [6, 8, 9, 4]) == [1, 3, 4]
    assert accepted(tokens, parents, [6, 7]) == [1]
    assert accepted(tokens, parents, [7, 8]) == []
    assert accepted(tokens, parents, [0, 5, 7], start=1) == [0, 2]
    assert accepted(tokens, parents, [6, 8]) == [1, 3]


@pytest.mark.parametrize("batch", [1, 4, 100])
def test_what_is_said_is_what_was_recorded(batch: int) -> None:
    turns = benchmark_module("drafting.traces").generated(steps=1, states=3, samples=4).turns
    oracle = Oracle(turns, right=3)
    counts = benchmark_module("drafting.replay").replay(oracle, turns, batch=batch)
    assert oracle.said == [turn.tokens.tolist() for turn in turns]
    assert sorted(oracle.ended) == list(range(len(turns)))
    assert counts.emitted == sum(len(turn.tokens) for turn in turns)


def test_each_step_emits_the_accepted_tokens_and_one_more_and_full_batches_stop_when_turns_run_out() -> None:
    turns = benchmark_module("drafting.traces").generated(steps=1, states=3, samples=4).turns
    steps = {
        right: benchmark_module("drafting.replay").replay(Oracle(turns, right), turns, batch=1).steps
        for right in (0, 3)
    }
    assert steps[0] == sum(len(turn.tokens) for turn in turns)
    assert steps[3] == sum(-(-len(turn.tokens) // 4) for turn in turns)
    turns = benchmark_module("drafting.traces").generated(steps=1, states=2, samples=4).turns
    counts = benchmark_module("drafting.replay").replay(Oracle(turns, 0), turns, batch=3, full=True)
    assert counts.steps == 3 * counts.rounds > 0


def test_turns_of_a_dialogue_follow_one_another() -> None:
    tokens, mask = np.arange(9, dtype=np.int32), np.array([1, 1, 0, 1, 1, 1, 0, 0, 1], np.uint8)
    split = benchmark_module("drafting.traces").split
    first, second = (
        split(tokens[:1], tokens + start, mask, start=start, sample=0, env="dialogues") for start in range(2)
    )

    in_turn = [turn for both in zip(first, second, strict=True) for turn in both]  # of 2, 3 and 1 tokens
    for dialogues, expected in ((True, [2] * 6), (False, [6, 4, 2])):
        rows: list[int] = []
        oracle = Oracle(in_turn if dialogues else [*first, *second], 0)
        watch = lambda _, paths, rows=rows: rows.append(len(paths))  # noqa: E731
        benchmark_module("drafting.replay").replay(oracle, [*first, *second], batch=6, dialogues=dialogues, watch=watch)
        assert rows == expected


def test_the_measures_run_on_generated_turns() -> None:
    measures, drafters = benchmark_module("drafting.measures"), benchmark_module("drafting.drafters")
    trace = benchmark_module("drafting.traces").generated(steps=2, states=3)
    setup = drafters.Setup(end_tokens=trace.end_tokens)
    assert measures.equal_work(trace, setup, batch=1, drafted_per_forward_pass=2.0).drafted_per_forward_pass <= 2.02
    assert 0 <= measures.calibration_error(trace, setup, batch=4) < 0.5
