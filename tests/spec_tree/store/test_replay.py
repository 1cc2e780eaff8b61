from collections.abc import Iterable
from typing import Any

import numpy as np
from forest_checks import best_path, rows_of
from plain_forest import PREFIX_ONLY, PlainForest

from turntree.spec_tree import DialogueState, ForestConfig, SpecForest

Turns = list[tuple[DialogueState, list[int]]]


def generated(states: int = 6, samples: int = 8, length: int = 120) -> Turns:
    rng = np.random.default_rng(0)
    turns = []
    texts = [rng.integers(0, 500, length).tolist() for _ in range(states)]
    for _ in range(samples):
        for index, text in enumerate(texts):
            said: list[int] = []
            for token in text:
                slip = rng.random()
                if slip < 0.03:
                    continue
                said += [int(rng.integers(500)), token] if slip < 0.06 else [token if slip > 0.1 else token + 500]
            turns.append((DialogueState.from_tokens([index], env="e"), said))
    return turns


def tokens_per_forward_pass(forest: Any, turns: Iterable[tuple[DialogueState, list[int]]], **options: Any) -> float:
    limits = {"max_nodes": 16, **options}
    steps = emitted = 0
    for state, turn in turns:
        handles, at = forest.begin([state]), 0
        while at < len(turn):
            (nodes,) = rows_of(forest.draft(handles, max_depths=[len(turn) - at], **limits))
            step = min(best_path(nodes, turn[at:]) + 1, len(turn) - at)
            forest.commit(handles, [turn[at : at + step]])
            at += step
            steps += 1
        emitted += len(turn)
        forest.end(handles)
    return emitted / steps


def test_generated_turns_are_drafted_well_and_much_worse_without_re_joining() -> None:
    rejoining = tokens_per_forward_pass(SpecForest(), generated())
    prefix_only = tokens_per_forward_pass(PlainForest(levels=PREFIX_ONLY), generated())
    assert rejoining > max(2.5, tokens_per_forward_pass(PlainForest(), generated()))
    assert prefix_only < 0.6 * rejoining


def test_a_tree_is_worth_more_than_a_chain_of_as_many_tokens() -> None:
    tree = tokens_per_forward_pass(SpecForest(), generated(), max_nodes=8)
    chain = tokens_per_forward_pass(SpecForest(), generated(), max_nodes=8, chain=True)
    assert tree > chain > 1.5


def test_a_full_log_drafts_almost_as_well_as_long_as_its_states_are_at_hand() -> None:
    turns = sorted(generated(), key=lambda turn: turn[0].exact)
    ample = tokens_per_forward_pass(SpecForest(), turns)
    assert tokens_per_forward_pass(SpecForest(ForestConfig(max_tokens=2048)), turns) > 0.9 * ample
