from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from recording_engine import RecordingEngine, a_turn

from turntree.agents.engines.monitors import ALARM
from turntree.agents.engines.protocol import Completion, DraftStats, FinishReason, Sampling, TurnRequest, derive_seed
from turntree.agents.turn_drafts.config import ReuseConfig, ReuseMode, ValidationConfig
from turntree.agents.verl.config.settings import RunSettings
from turntree.agents.verl.serving.turns import Replica, TurnServer
from turntree.spec_tree import DialogueState
from turntree.spec_tree.sharing.turn_batch import TurnBatch
from turntree.spec_tree.sharing.turn_sharing import Swapped

REPLICA = Replica(rank=0, seed=0, vocabulary=16, max_context=64)
HERE = DialogueState.from_tokens([1, 2], task="7", env="sums")


class Stand:
    def __init__(self) -> None:
        self.given: list[TurnBatch] = []
        self.taken: list[list[int]] = []

    def swap(self, own: TurnBatch, first: int) -> Swapped:
        self.given.append(own)
        return Swapped([TurnBatch.of([HERE], [[9]])])

    def insert(self, state: DialogueState, tokens: Sequence[int]) -> None:
        raise AssertionError("no turn begins with a stored one here")

    def insert_all(self, states: Sequence[DialogueState], turns: Sequence[Any]) -> None:
        self.taken += [turn.tolist() for turn in turns]

    def save(self, path: Path) -> None:
        raise AssertionError

    restore = save


def server(engine: RecordingEngine, stand: Stand | None = None, run: RunSettings | None = None) -> TurnServer:
    wanted: Any = engine  # nothing is scored here
    return TurnServer(wanted, run or RunSettings(), REPLICA, store=stand, sharing=stand)


async def noted(reason: FinishReason, state: DialogueState | None, *, reuse: bool = True) -> list[list[int]]:
    stand = Stand()
    turns = server(RecordingEngine(a_turn(7, 8, finish_reason=reason)), stand)
    asked = TurnRequest((1, 2), Sampling(), state=state, reuse=reuse)
    assert (await turns.engine.generate(asked)).token_ids == (7, 8)
    await turns.close_step(1, {})
    assert stand.taken == [[9]]
    (batch,) = stand.given
    assert batch.states == [HERE] * len(batch)
    return [turn.tolist() for turn in batch.turns]


async def test_turns_of_training_that_ended_by_themselves_at_a_known_state_are_given_to_other_replicas() -> None:
    assert await noted(FinishReason.STOP, HERE) == await noted(FinishReason.LENGTH, HERE) == [[7, 8]]
    assert await noted(FinishReason.ABORT, HERE) == await noted(FinishReason.STOP, None) == []
    assert await noted(FinishReason.STOP, HERE, reuse=False) == [], "a validation's"


async def test_a_checkpoint_has_the_turns_that_others_gave_until_then(tmp_path: Path) -> None:
    held: list[list[list[int]]] = []

    class Saving(Stand):
        def save(self, path: Path) -> None:
            held.append(list(self.taken))
            path.touch()

    stand = Saving()
    await server(RecordingEngine(a_turn(7)), stand).save_state(tmp_path / "part", 1)
    assert held == [[[9]]]


async def test_what_the_engine_is_asked_reaches_it_unchanged() -> None:
    engine, request = RecordingEngine(a_turn(7)), TurnRequest((1,), Sampling(), state=HERE, draft=(4,))
    await server(engine).engine.generate(request)
    assert engine.asked == [request]


async def test_without_run_ahead_a_turn_for_a_later_step_is_refused_and_not_sampled() -> None:
    engine = RecordingEngine(a_turn(7))
    turn = await server(engine).engine.generate(TurnRequest((1,), Sampling(seed=1), precomputed_for=2))
    assert turn.finish_reason is FinishReason.ABORT
    assert not engine.asked


def remembering() -> RecordingEngine:
    # Samples what it sampled for the same seed before, and drafts it: every child is hit, however improbable.

    def say(_: Any, sampling: Sampling) -> Completion:
        known = engine.seeds.count(sampling.seed) > 1
        return a_turn(1, draft=DraftStats(tested=20, matched=20 if known else 4, expected=4.0, variance=3.2))

    engine = RecordingEngine(say)
    return engine


@pytest.mark.parametrize(("seeds", "quiet"), [((1, 1), True), ((1, 2), True), ((None, None), False)])
async def test_an_episode_that_is_tried_again_raises_no_alarm(seeds: tuple[int | None, ...], quiet: bool) -> None:
    """Control: turns without a seed are all counted."""
    turns = server(remembering())
    for seed in seeds:
        await turns.engine.generate(TurnRequest((1,), Sampling(seed=seed)))
    z = turns.read_counters({})["exactness/exact_acceptance_z"]
    assert (abs(z) < ALARM) is quiet
    await turns.close_step(1, {})
    assert not turns.read_counters({})
    await turns.close_step(2, {})
    await turns.engine.generate(TurnRequest((1,), Sampling(seed=1)))
    assert turns.read_counters({}), "a seed counts again after a step without it"


@pytest.mark.parametrize("has_imported", [True, False])
async def test_turns_of_another_run_with_the_same_noise_raise_no_alarm(has_imported: bool) -> None:
    """Control: without ``has_imported``."""
    hit = DraftStats(tested=40, matched=40, expected=8.0, variance=6.4, surprise=9.0, entropy=9.0, entropy_variance=4.0)
    engine: Any = RecordingEngine(a_turn(7, draft=hit))
    turns = TurnServer(engine, RunSettings(), REPLICA, has_imported=has_imported)
    await turns.engine.generate(TurnRequest((1,), Sampling(seed=1)))
    scores = turns.read_counters({})
    assert scores["exactness/exact_entropy_z"] == 0
    assert (scores.get("exactness/exact_acceptance_z", 0) > ALARM) is not has_imported


@pytest.mark.parametrize("coupled", [True, False])
async def test_a_coupled_validation_begins_with_the_last_one_and_a_turn_of_training_with_neither(coupled: bool) -> None:
    engine = RecordingEngine(a_turn(1), a_turn(2), a_turn(3), a_turn(4), a_turn(5), a_turn(6))
    run = RunSettings(reuse=ReuseConfig(mode=ReuseMode.SAME_SEED), validation=ValidationConfig(coupled=coupled))
    turns = server(engine, run=run)
    for step in (1, 2, 3):
        for sampling, reuse in ((Sampling(seed=step), True), (Sampling(seed=derive_seed(2, 1)), False)):
            await turns.engine.generate(TurnRequest((1, 2), sampling, reuse=reuse))
        await turns.close_step(step, {})
    drafts = [list(asked.draft) for asked in engine.asked]
    assert drafts[::2] == [[], [1], [3]], "training replays training"
    assert drafts[1::2] == ([[], [2], [4]] if coupled else [[], [], []])


async def test_a_coupled_validation_tells_the_monitors_nothing() -> None:
    for coupled in (True, False):
        run = RunSettings(validation=ValidationConfig(coupled=coupled, max_tokens=1))
        turns = server(remembering(), run=run)
        for step in (1, 2, 3):
            for seed in (1, 2) if step != 2 else ():  # what was used in the last step is not counted anyway
                await turns.engine.generate(TurnRequest((1,), Sampling(seed=seed), reuse=False))
            told = turns.read_counters({})
            await turns.close_step(step, {})
        assert not told if coupled else abs(told["exactness/exact_acceptance_z"]) > ALARM
