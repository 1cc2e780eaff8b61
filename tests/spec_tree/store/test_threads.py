import threading
from collections.abc import Callable

import numpy as np
import pytest
from forest_checks import broken, malformed, rows_of
from machine_speed import patience

from turntree.envs import WorkerPool
from turntree.spec_tree import DialogueState, ForestConfig, SpecForest
from turntree.spec_tree.kernels.weights import parts

END = 9


def state(index: int = 0) -> DialogueState:
    return DialogueState.from_tokens([100, index], task="t", env="e")


def together(*work: Callable[[], None]) -> None:
    pool = WorkerPool(len(work))
    for done in [pool.submit(one) for one in work]:
        done.result(timeout=patience(60))


@pytest.mark.parametrize("max_tokens", [2048, 400_000], ids=["wrapping", "growing"])
def test_readers_draft_trees_while_a_writer_moves_on(max_tokens: int) -> None:
    """The small log wraps around many times; the large one grows, as do slots and live rows."""
    forest = SpecForest(
        ForestConfig(max_tokens=max_tokens, end_tokens=frozenset({END}), rollouts_per_state=64, max_cold_tokens=5000)
    )
    themes = np.random.default_rng(0).integers(10, 60, (8, 400))
    readers = [forest.begin([state(i), state(i + 1), state(i)], [themes[i].tolist()] * 3) for i in range(2)]
    done = threading.Event()
    drafts = [0, 0]
    written = [0]

    def write() -> None:
        rng = np.random.default_rng(1)
        mine = forest.begin([state(i) for i in range(6)])
        try:
            while not done.is_set() and (min(drafts) < 1500 or written[0] < 2 * max_tokens):
                theme = themes[rng.integers(8)].tolist()
                at = int(rng.integers(300))
                forest.commit(mine, [theme[at : at + int(rng.integers(20))] for _ in mine])
                written[0] += 60
                if rng.random() < 0.2:
                    forest.end(mine, keep=bool(rng.random() < 0.7))
                    mine = forest.begin([state(int(rng.integers(8))) for _ in mine], [theme] * len(mine))
                if rng.random() < 0.2:
                    forest.insert(state(int(rng.integers(8))), [*theme[at : at + 60], END])
                if rng.random() < 0.01:
                    forest.end(forest.begin([state(7)] * 300), keep=False)
                if max_tokens > 10_000:
                    for token in range(20):
                        forest.insert(state(100 + token), [*theme, token])
                        written[0] += 400
        finally:
            done.set()

    def read(which: int) -> None:
        rng = np.random.default_rng(2 + which)
        handles = readers[which]
        last = [-1] * 3
        try:
            while not done.is_set():
                room = rng.integers(0, 30, 3).tolist()
                chain = bool(rng.random() < 0.3)
                batch = forest.draft(handles, max_nodes=24, max_depths=room, chain=chain)
                for nodes, before, deep in zip(rows_of(batch), last, room, strict=True):
                    wrong = malformed(nodes, last=before, room=deep, max_nodes=24, chain=chain, ends={END})
                    assert not wrong, wrong
                drafts[which] += 3
                if rng.random() < 0.3:
                    theme, at = themes[rng.integers(8)], int(rng.integers(390))
                    forest.commit(handles, [theme[at : at + 3].tolist()] * 3)
                    last = [int(theme[at + 2])] * 3
        finally:
            done.set()

    together(write, lambda: read(0), lambda: read(1))
    assert not broken(forest)
    assert all(np.isfinite(array).all() for array in parts(forest.weights).values())


def test_threads_that_keep_and_abort_leave_what_was_kept() -> None:
    forest = SpecForest(ForestConfig(rollouts_per_state=1000))
    scripts = np.random.default_rng(0).integers(0, 4, (4, 30, 8)).tolist()

    def work(turns: list[list[int]]) -> Callable[[], None]:
        def run() -> None:
            for tokens in turns:
                kept, aborted = forest.begin([state(), state(1)])
                for token in tokens:
                    forest.draft([kept, aborted], max_nodes=4, max_depths=[4, 4])
                    forest.commit([kept, aborted], [[token], [token]])
                forest.end([kept])
                forest.end([aborted], keep=False)

        return run

    together(*(work(turns) for turns in scripts))
    expected = SpecForest(ForestConfig(rollouts_per_state=1000))
    for turns in scripts:
        for tokens in turns:
            expected.insert(state(), tokens)
    assert forest.tree(state()).to_dict() == expected.tree(state()).to_dict()
    assert (forest.stats().committed, forest.stats().states) == (4 * 30 * 8 * 2, 1)
    assert not broken(forest)
