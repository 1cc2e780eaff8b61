from turntree.spec_tree import DialogueState


def backoff_states(**known: str) -> tuple[int, int, int, int]:
    return DialogueState.from_tokens([1, 2, 3], **known).backoff_states()


def test_there_are_four_backoff_states_nearest_first_and_texts_that_run_together_are_told_apart() -> None:
    keys = backoff_states(task="t", tools="look", env="e")
    assert len(set(keys)) == 4
    assert all(0 < key < 2**64 for key in keys)
    assert all(DialogueState(exact=0).backoff_states())
    assert backoff_states(task="ab", tools="c")[1] != backoff_states(task="a", tools="bc")[1]
    assert backoff_states(task="ab", env="c")[2] != backoff_states(task="b", env="ca")[2]
    exact, tools, task, env = backoff_states()
    assert exact == tools == task
    assert env == DialogueState.from_tokens([9]).backoff_states()[3]
    assert env != backoff_states(env="e")[3]


def test_each_key_depends_on_what_it_stands_for_alone() -> None:
    here = backoff_states(task="t", tools="look", env="e")

    def same(**known: str) -> list[bool]:
        return [a == b for a, b in zip(here, backoff_states(**known), strict=True)]

    assert same(task="t", tools="look", env="e") == [True] * 4
    assert same(task="t", tools="else", env="e") == [True, False, True, True]
    assert same(task="u", tools="look", env="e") == [True, False, False, True]
    assert same(task="t", tools="look", env="f") == [True, False, False, False]
    other = DialogueState.from_tokens([1, 2, 4], task="t", tools="look", env="e").backoff_states()
    assert [a == b for a, b in zip(here, other, strict=True)] == [False, True, True, True]


def test_token_ids_are_hashed_as_numbers_in_order() -> None:
    ways = [[], [1], [1, 2], [2, 1], [12], [1, 2**31 - 1], [0], [0, 0]]
    assert len({DialogueState.from_tokens(way).exact for way in ways}) == len(ways)
    assert DialogueState.from_tokens(iter((1, 2))) == DialogueState.from_tokens([1, 2])
