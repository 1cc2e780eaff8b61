from collections.abc import Sequence

import torch

from turntree.agents.engines.local.forward.slots import SlotCache
from turntree.agents.engines.local.request import Request
from turntree.agents.engines.local.slot_pool import BLOCK, SlotPool
from turntree.agents.engines.protocol import Sampling
from turntree.spec_tree import DialogueState

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


def test_a_prompt_that_siblings_share_is_computed_once_and_copied_to_all_at_once() -> None:
    cache = RecordingCache(8)
    pool = SlotPool(cache)
    siblings = placed(pool, PROMPT, PROMPT, PROMPT, PROMPT)
    assert run(pool) == siblings[:1]
    assert run(pool) == siblings
    assert cache.copies == [(0, [1, 2, 3], len(PROMPT) - 1)]
    for request in siblings[1:]:
        assert request.cached == len(PROMPT) - 1
        assert cache.keys(request.slot, request.cached) == cache.keys(0, request.cached)


def test_a_dialogue_goes_on_in_its_own_slot_though_a_sibling_at_the_same_state_runs() -> None:
    cache = RecordingCache(8)
    pool = SlotPool(cache)
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


def test_a_longer_prefix_of_a_sibling_is_worth_a_copy() -> None:
    cache = RecordingCache(8)
    pool = SlotPool(cache)
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


def test_what_is_copied_on_is_copied_first() -> None:
    cache = RecordingCache(8)
    pool = SlotPool(cache)
    first, second, third = placed(pool, PROMPT, PROMPT, PROMPT)
    third.leader = second  # it came when the second one was the newest
    run(pool)
    run(pool)
    assert cache.keys(third.slot, third.cached) == cache.keys(first.slot, third.cached)
    assert third.cached == len(PROMPT) - 1
    assert second.leader is None
