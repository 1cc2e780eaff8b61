from turntree.agents.turn_drafts.precomputed_store import PrecomputedStore, precomputed_arrays, precomputed_from_arrays


def store(max_tokens: int = 100) -> PrecomputedStore:
    return PrecomputedStore(max_tokens=max_tokens)


def test_a_turn_is_handed_out_once_to_its_own_prompt_and_seed():
    held = store()
    held.put("a", 1, (5, 6), step=2)
    assert held.take("b", 1) is None
    assert held.take("a", 2) is None
    made = held.take("a", 1)
    assert made.tokens == (5, 6)
    assert held.take("a", 1) is None
    assert held.tokens == 0
    held = store()
    held.put("a", 1, (5,), step=2)
    held.put("a", 1, (5, 6, 7), step=2)
    assert held.peek("a", 1) == (5, 6, 7)
    assert (held.tokens, held.counts.dropped) == (3, 0)


def test_a_turn_of_a_seed_that_was_trained_on_is_refused():
    held = store()
    held.show(1)
    held.put("a", 1, (5, 6), step=2)
    assert held.holds("a", 1), "nothing was trained on yet"
    assert 1 not in held.trained
    held.close_step(1)
    assert not held.holds("a", 1)
    assert held.take("a", 1) is None
    assert (held.counts.refused, held.counts.dropped) == (1, 2)
    held.put("other", 1, (5,), step=3)
    assert held.take("other", 1) is None, "what is made after that is refused, too"


def test_what_is_left_of_a_step_is_dropped_when_it_is_over():
    held = store()
    held.put("a", 1, (5, 6), step=2)
    held.put("a", 2, (7,), step=3)
    held.close_step(1)
    assert held.tokens == 3
    held.close_step(2)
    assert (held.tokens, held.counts.dropped) == (1, 2)
    assert not held.used(1)
    assert held.used(2)


def test_the_oldest_turns_go_first_where_there_is_no_room():
    held = store(max_tokens=4)
    for seed in range(3):
        held.put("a", seed, (seed, seed), step=2)
    assert [seed for _, seed, _ in held.turns()] == [1, 2]
    assert held.counts.dropped == 2
    assert held.used(0), "its noise was used all the same"


KEYS = [(1 << 63, 1.0, -1), (5, 0.5, 3)]


def full() -> PrecomputedStore:
    store = PrecomputedStore(max_tokens=100)
    store.show(3)
    store.close_step(1)
    store.put(KEYS[0], 1, (5, 6), step=3)
    store.put(KEYS[1], 2, (7,), step=4)
    store.put(KEYS[1], 3, (8, 9), step=4)
    store.use(9, 4)
    store.show(2)
    return store


def test_a_restored_store_hands_out_and_refuses_what_the_saved_one_would():
    store = precomputed_from_arrays(precomputed_arrays(full()), max_tokens=100)
    assert list(store.turns()) == list(full().turns())
    assert [store.used(seed) for seed in (1, 9, 4)] == [True, True, False]
    made = store.take(KEYS[0], 1)
    assert made.tokens == (5, 6)
    assert store.take(KEYS[1], 3) is None
    assert store.counts.refused == 1
    assert store.holds(KEYS[1], 2)
    store.close_step(2)
    assert not store.holds(KEYS[1], 2), "what the running step showed is trained on when it closes"


def test_less_room_keeps_the_newest_turns():
    store = precomputed_from_arrays(precomputed_arrays(full()), max_tokens=3)
    assert [seed for _, seed, _ in store.turns()] == [2, 3]
