"""The oracle's own oracle: its graph's invariant, against a plain count of n-grams."""

from hypothesis import given, settings
from hypothesis import strategies as st
from plain_forest.contexts import START, ContextGraph

LEVELS = [(4, 1.0), (2, 1.0), (1, 1.0)]
KEYS = {"a": [(1, 0), (9, 1), (9, 2)], "b": [(2, 0), (9, 1), (9, 2)]}
turns = st.lists(st.tuples(st.sampled_from("ab"), st.lists(st.integers(0, 3), max_size=10)), min_size=1, max_size=8)


def by_hand(said: list[tuple[str, list[int]]]) -> dict[int, dict[int, int]]:
    """Continuation counts from their definition."""
    narrow: dict[tuple[int, int, tuple[int, ...]], dict[int, int]] = {}
    for who, tokens in said:
        path = [START, *tokens]
        for end in range(1, len(path)):
            context = (KEYS[who][0][0], 0, tuple(path[max(0, end - 4) : end]))
            known = narrow.setdefault(context, {})
            known[path[end]] = known.get(path[end], 0) + 1
    everything = dict(narrow)
    for level in (1, 2):
        wider: dict[tuple[int, int, tuple[int, ...]], dict[int, int]] = {}
        for (_, _, context), known in narrow.items():
            name = (9, level, context[-LEVELS[level][0] :])
            for token in known:
                counts = wider.setdefault(name, {})
                counts[token] = counts.get(token, 0) + 1
        everything.update(wider)
        narrow = wider
    return {hash((key, level, *context)): known for (key, level, context), known in everything.items()}


def known(graph: ContextGraph) -> dict[int, dict[int, int]]:
    """Counted continuations; contexts that nothing followed are left out."""
    return {name: counts for name, counts in graph.counts().items() if counts}


@settings(max_examples=80, deadline=None)
@given(said=turns)
def test_wider_counts_are_the_number_of_narrower_contexts(said: list[tuple[str, list[int]]]) -> None:
    graph = ContextGraph(LEVELS)
    for who, tokens in said:
        graph.learn(graph.hold(KEYS[who]), tokens, [START])
    assert known(graph) == by_hand(said)


@settings(max_examples=80, deadline=None)
@given(said=turns, data=st.data())
def test_forgetting_in_any_order_leaves_what_the_rest_would_have_built(
    said: list[tuple[str, list[int]]], data: st.DataObject
) -> None:
    graph = ContextGraph(LEVELS)
    starts = [graph.hold(KEYS[who]) for who, _ in said]
    for start, (_, tokens) in zip(starts, said, strict=True):
        graph.learn(start, tokens, [START])
    gone = data.draw(st.permutations(range(len(said))))[: data.draw(st.integers(0, len(said)))]
    for index in gone:
        graph.forget(starts[index], said[index][1])
        graph.release(starts[index])
    rest = [turn for index, turn in enumerate(said) if index not in gone]
    assert known(graph) == by_hand(rest)
    if not rest:
        assert len(graph) == 0


def test_a_known_token_costs_the_wider_levels_nothing() -> None:
    graph = ContextGraph(LEVELS)
    start = graph.hold(KEYS["a"])
    graph.learn(start, [1, 2], [START])
    before = graph.counts()
    graph.learn(start, [1, 2], [START])
    changed = [name for name, counts in graph.counts().items() if counts != before[name]]
    assert len(changed) == 2


def test_opinions_blend_narrow_and_wide() -> None:
    graph = ContextGraph(LEVELS)
    a, b = graph.hold(KEYS["a"]), graph.hold(KEYS["b"])
    graph.learn(b, [5], [START])
    graph.learn(a, [6], [START])
    # narrow: 6 once; middle: 5 and 6 from one state each; wide: both again, seen by one middle context
    narrow, middle, wide = 1 / 2, 1 / 2 * 1 / 3, 1 / 2 * 1 / 3 * 1 / 3
    (six, five) = graph.continuations(a)
    assert (six[1], five[1]) == (6, 5)
    assert abs(-six[0] - (narrow + middle + wide)) < 1e-12
    assert abs(-five[0] - (middle + wide)) < 1e-12


def test_opinions_follow_changes_on_the_wider_levels() -> None:
    graph = ContextGraph(LEVELS)
    a, b = graph.hold(KEYS["a"]), graph.hold(KEYS["b"])
    assert graph.continuations(a) == ()
    graph.learn(b, [5], [START])
    assert [token for _, token, _ in graph.continuations(a)] == [5]
    graph.forget(b, [5])
    assert graph.continuations(a) == ()


def test_of_many_continuations_the_most_frequent_are_asked() -> None:
    graph = ContextGraph([(4, 1.0)])
    start = graph.hold([(1, 0)])
    for token in range(30):
        graph.learn(start, [token], [START])
    for token in (7, 21, 29):
        for _ in range(token):
            graph.learn(start, [token], [START])
    assert [token for _, token, _ in graph.continuations(start)][:3] == [29, 21, 7]
    for _ in range(60):
        graph.learn(start, [3], [START])
    assert [token for _, token, _ in graph.continuations(start)][:2] == [3, 29]
