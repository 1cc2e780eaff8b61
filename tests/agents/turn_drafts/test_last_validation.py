import asyncio
from dataclasses import replace
from typing import Any

import pytest
import torch
from cores import CONFIG, tiny_llama
from plain_decoding import ends_rightly, plain_tokens
from recording_engine import RecordingEngine, a_turn

from turntree.agents.engines.local import LocalEngine
from turntree.agents.engines.protocol import Completion, FinishReason, Sampling, TurnRequest
from turntree.agents.turn_drafts.config import ValidationConfig
from turntree.agents.turn_drafts.last_validation import LastValidation
from turntree.agents.turn_drafts.pipeline import DraftedTurns

PROMPT = (3, 1, 4, 1, 5)
SAMPLING = Sampling(max_tokens=12, stop_token_ids=(31,))
SEEDS = range(8)


def validate(turns: Any, *, first_seed: int = 0) -> list[Completion]:
    async def play() -> list[Completion]:
        asked = (TurnRequest(PROMPT, replace(SAMPLING, seed=first_seed + seed), reuse=False) for seed in SEEDS)
        return [await turns.generate(request) for request in asked]

    return asyncio.run(play())


def said(turns: list[Completion]) -> list[tuple[int, ...]]:
    return [turn.token_ids for turn in turns]


def moved(model: torch.nn.Module, by: float) -> torch.nn.Module:
    new = tiny_llama()
    new.load_state_dict(model.state_dict())
    torch.manual_seed(1)
    with torch.no_grad():
        new.lm_head.weight.add_(by * torch.randn_like(new.lm_head.weight))  # type: ignore[operator, union-attr]
    return new


def test_the_same_policy_repeats_its_validation_in_one_pass_a_turn() -> None:
    with LocalEngine(tiny_llama(), config=replace(CONFIG, speculation=None)) as engine:
        turns = DraftedTurns(engine, [LastValidation(max_tokens=1000)])
        first, second = validate(turns), validate(turns)
        assert said(second) == said(first)
        assert [turn.draft.verify_steps for turn in second] == [1] * len(SEEDS)
        assert all(turn.draft.verify_steps == len(turn.token_ids) for turn in first)
        assert {turn.levels for turn in first} == {""}
        assert all(turn.levels == "B" * len(turn.token_ids) for turn in second)
        assert said(validate(turns, first_seed=100)) != said(first), "the control: the noise of another step"


@pytest.mark.parametrize("times", [1, 2])
def test_after_an_update_the_turns_are_those_of_plain_decoding_with_their_seeds(times: int) -> None:
    model = tiny_llama()
    new = moved(model, 0.003)
    with LocalEngine(model, config=replace(CONFIG, speculation=None)) as engine:
        turns = DraftedTurns(engine, [LastValidation(max_tokens=1000)])
        first = validate(turns)
        engine.update_weights(new.state_dict().items(), version=1)
        for _ in range(times):
            last = validate(turns)
    changed = [one != other for one, other in zip(said(first), said(last), strict=True)]
    assert 0 < sum(changed) < len(changed), "an update that changes nothing, or all, shows nothing"
    for seed, turn in zip(SEEDS, said(last), strict=True):
        assert plain_tokens(new, PROMPT, turn, SAMPLING, seed) == turn
        assert ends_rightly(turn, SAMPLING)
    old = tiny_llama()  # the control: the engine has overwritten the weights of ``model``
    assert any(plain_tokens(old, PROMPT, t, SAMPLING, seed) != t for seed, t in zip(SEEDS, said(last), strict=True))


async def test_a_turn_is_the_draft_of_the_next_one_with_its_seed_alone() -> None:
    engine = RecordingEngine(a_turn(7, 8, 9), a_turn(6), a_turn(5, finish_reason=FinishReason.ABORT), a_turn(4))
    turns = DraftedTurns(engine, [LastValidation(max_tokens=1000)])
    for seed, room in ((1, 12), (2, 12), (1, 2), (1, 12), (None, 12), (None, 12)):
        await turns.generate(TurnRequest(PROMPT, replace(SAMPLING, seed=seed, max_tokens=room), reuse=False))
    assert [list(asked.draft) for asked in engine.asked] == [[], [], [7, 8], [7, 8, 9], [], []]


async def test_a_full_store_keeps_what_it_holds() -> None:
    engine = RecordingEngine(lambda prompt, sampling: a_turn(*[sampling.seed] * 2))
    turns = DraftedTurns(engine, [LastValidation(max_tokens=5)])
    for _ in range(3):
        for seed in (1, 2, 3):
            await turns.generate(TurnRequest(PROMPT, replace(SAMPLING, seed=seed), reuse=False))
    drafts = [list(asked.draft) for asked in engine.asked]
    assert drafts == [[], [], [], *[[1, 1], [2, 2], []] * 2]


@pytest.mark.parametrize(
    ("values", "message"), [({"max_tokens": 0}, "at least 1"), ({"coupled": "yes"}, "true or false")]
)
def test_wrong_settings_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ValidationConfig(**values)
