from collections.abc import Sequence

import pytest
import torch
from cores import tiny_llama

from turntree.agents.engines.local import LocalEngineConfig
from turntree.agents.engines.local.core import EngineCore
from turntree.agents.engines.local.forward.model import Policy
from turntree.agents.engines.local.forward.slots import SlotCache
from turntree.agents.engines.local.request import Request
from turntree.agents.engines.local.slot_pool import BLOCK, SlotPool
from turntree.agents.engines.protocol import FinishReason, Sampling
from turntree.spec_tree import DialogueState, SpecForest

PROMPT = list(range(3 * BLOCK))


class RecordingCache(SlotCache):
    """Records copies; each key holds 1000 times its slot plus its column."""

    def __init__(self, slots: int) -> None:
        super().__init__(slots, columns=64)
        self.copies: list[tuple[int, list[int], int]] = []
        keys, _values = self.layer(0, torch.zeros(1, 1, 1, 1), torch.zeros(1, 1, 1, 1))
        keys[:, 0, :, 0] = 1000 * torch.arange(slots)[:, None] + torch.arange(64)

    def copy(self, source: int, targets: Sequence[int], length: int) -> None:
        self.copies.append((source, list(targets), length))
        super().copy(source, targets, length)

    def keys(self, slot: int, length: int) -> list[float]:
        return self.layers[0][0][slot, 0, :length, 0].tolist()


@pytest.fixture
def cache() -> RecordingCache:
    return RecordingCache(8)


@pytest.fixture
def pool(cache: RecordingCache) -> SlotPool:
    return SlotPool(cache)


def asked(prompt: Sequence[int]) -> Request:
    state = DialogueState.from_tokens(prompt)
    return Request(prompt=list(prompt), sampling=Sampling(), state=state, seed=0, deliver=lambda done: None)


def placed(pool: SlotPool, *prompts: Sequence[int]) -> list[Request]:
    requests = [asked(prompt) for prompt in prompts]
    assert all(pool.assign(request) for request in requests)
    return requests


def run(pool: SlotPool) -> list[Request]:
    """Compute the prompts of all requests that can run."""
    rows = pool.runnable()
    for request in rows:
        request.computed = len(request.tokens)
    return rows


def ended(pool: SlotPool, request: Request, said: Sequence[int]) -> list[int]:
    """Park a request after it sampled some tokens, and return its dialogue."""
    request.tokens += said
    request.computed = len(request.tokens)
    pool.park(request)
    return request.tokens


def test_a_prompt_that_siblings_share_is_computed_once_and_copied_to_all_at_once(cache, pool):
    siblings = placed(pool, PROMPT, PROMPT, PROMPT, PROMPT)
    assert run(pool) == siblings[:1]
    assert run(pool) == siblings
    assert cache.copies == [(0, [1, 2, 3], len(PROMPT) - 1)]
    for request in siblings[1:]:
        assert request.cached == len(PROMPT) - 1
        assert cache.keys(request.slot, request.cached) == cache.keys(0, request.cached)


def test_a_dialogue_continues_in_its_own_slot_although_a_sibling_at_the_same_state_runs(cache, pool):
    requests = placed(pool, PROMPT, PROMPT)
    run(pool)
    run(pool)
    cache.copies.clear()
    first, second = (ended(pool, request, [7, 7, 7]) for request in requests)
    assert first == second
    slots = [request.slot for request in requests]
    goes_on = placed(pool, [*first, 5, 5], [*second, 5, 5])
    assert sorted(request.slot for request in goes_on) == slots
    assert [request.cached for request in goes_on] == [len(first), len(first)]
    assert len(run(pool)) == 2
    assert cache.copies == []


def test_a_longer_prefix_of_a_sibling_is_worth_a_copy(cache, pool):
    short, long = placed(pool, PROMPT, PROMPT)
    run(pool)
    run(pool)
    ended(pool, short, [7])
    dialogue = ended(pool, long, [7] * 2 * BLOCK)
    cache.copies.clear()
    (again,) = placed(pool, [*dialogue[:-1], 9, 9])
    run(pool)
    assert again.cached == len(dialogue) - 1
    assert cache.copies == [(long.slot, [again.slot], len(dialogue) - 1)]


def test_what_is_copied_on_is_copied_first(cache, pool):
    first, second, third = placed(pool, PROMPT, PROMPT, PROMPT)
    third.leader = second  # it came when the second one was the newest
    run(pool)
    run(pool)
    assert cache.keys(third.slot, third.cached) == cache.keys(first.slot, third.cached)
    assert third.cached == len(PROMPT) - 1
    assert second.leader is None


def core(*, slots: int = 2, sharpness: float = 3.0, **settings) -> EngineCore:
    config = LocalEngineConfig(max_batch=slots, max_context=64, **settings)
    return EngineCore(Policy(tiny_llama(sharpness=sharpness)), config, SpecForest())


def request(
    number: int, prompt: list[int] | None = None, *, ahead: bool = False, tokens: int = 6, **sampling
) -> Request:
    prompt = prompt or [1, 2, 3 + number]
    return Request(
        prompt=prompt,
        sampling=Sampling(max_tokens=tokens, **sampling),
        state=DialogueState.from_tokens(prompt),
        seed=number,
        deliver=lambda done: None,
        ahead=ahead,
    )


def add(engine: EngineCore, *requests: Request, steps: int = 0) -> None:
    for one in requests:
        engine.add(one)
    for _ in range(steps):
        engine.step()


def finish(engine: EngineCore, *requests: Request) -> None:
    add(engine, *requests)
    while engine.busy:
        engine.step()


def live(engine: EngineCore, requests: list[Request]) -> list[bool]:
    return [r.slot >= 0 and r.finish is None for r in requests]


def test_wanted_requests_get_the_slots_of_precomputed_ones_at_the_next_step():
    engine = core(slots=2)
    early = [request(number, ahead=True, tokens=30) for number in range(2)]
    add(engine, *early, steps=4)
    assert live(engine, early) == [True, True]
    wanted = [request(number) for number in (5, 6)]
    add(engine, *wanted, steps=1)
    assert live(engine, wanted) == [True, True]
    assert [one.finish for one in early] == [FinishReason.ABORT] * 2
    assert all(one.sampled >= 4 for one in early), "what they had is not lost"


def test_only_as_many_give_way_as_slots_are_missing_and_the_youngest_first():
    engine = core(slots=3)
    early = [request(number, ahead=True, tokens=30) for number in range(3)]
    for one in (*early, request(7)):
        add(engine, one, steps=1)
    assert live(engine, early) == [True, True, False]


def test_nothing_precomputed_is_admitted_while_a_wanted_request_waits():
    engine = core(slots=1)
    wanted, ahead = [request(0), request(1)], request(2, ahead=True)
    add(engine, ahead, *wanted)
    while any(one.finish is None for one in wanted):
        engine.step()
        assert ahead.slot < 0
    finish(engine)
    assert ahead.finish is FinishReason.LENGTH


def test_precomputed_requests_hold_their_share_of_the_slots_at_most():
    engine = core(slots=4, precomputed_slots=2)
    early = [request(number, ahead=True) for number in range(4)]
    add(engine, *early, steps=1)
    assert sum(live(engine, early)) == 2
    finish(engine)
    assert all(one.finish is FinishReason.LENGTH for one in early)


def test_precomputed_turns_feed_the_trees_when_they_are_whole_and_no_counter():
    engine = core()
    finish(engine, request(0, ahead=True))
    assert (engine.stats.requests, engine.stats.tokens, engine.stats.verify_steps) == (0, 0, 0)
    assert engine.stats.forward_passes > 0
    engine, whole, broken = core(), request(0, ahead=True), request(1, ahead=True, tokens=30)
    finish(engine, whole)
    add(engine, broken, steps=1)
    assert engine.abort_precomputed() == 1
    assert engine.forest.finished([whole.state, broken.state]) == [1, 0]


def test_the_keys_and_values_of_a_precomputed_turn_are_given_away_before_those_of_wanted_turns():
    engine, long = core(slots=1, parked_slots=2), [list(range(1, 13)), list(range(21, 9, -1))]
    for number, ahead in enumerate((False, True)):
        finish(engine, request(number, long[number], ahead=ahead))
    for number in (5, 6):
        finish(engine, request(number, tokens=12))
    again = request(9, long[0])
    finish(engine, again)
    assert again.cached == len(long[0]) - 1


def test_requests_are_admitted_as_they_arrive_and_say_the_same_alone_and_together():
    sizes = [2, 3, 12, 1, 7]
    requests = [request(number, tokens=size) for number, size in enumerate(sizes)]
    ended: list[int] = []
    for one in requests:
        one.deliver = lambda done: ended.append(done.seed)
    finish(core(slots=1, speculation=None), *requests)
    assert ended == [0, 1, 2, 3, 4]
    again = [request(number, tokens=size) for number, size in enumerate(sizes)]
    finish(core(slots=5, speculation=None), *again)
    assert [one.tokens for one in requests] == [one.tokens for one in again]
