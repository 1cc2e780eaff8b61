import pytest

from turntree.envs import make


def test_halving_the_range_always_wins() -> None:
    env = make("turntree/NumberGuessing-v0", spare=0, max_number=20)
    for index in range(40):
        env.reset(options={"index": index})
        low, high, terminated, reward = 1, 20, False, 0.0
        while not terminated:
            guess = (low + high) // 2
            said, reward, terminated, truncated, _ = env.step(f"Perhaps {guess}")
            assert not truncated
            low, high = (guess + 1, high) if "higher" in said else (low, guess - 1)
        assert reward == 1.0


def test_saying_the_same_number_loses_after_the_last_guess() -> None:
    env = make("turntree/NumberGuessing-v0", spare=0)
    env.reset(options={"index": 0})
    steps = [env.step("It is 1000") for _ in range(7)]
    assert [step[2] for step in steps] == [False] * 6 + [True]
    assert sum(step[1] for step in steps) == 0.0
    assert "lower than 1000. Guesses left: 6" in steps[0][0]


def test_the_last_number_counts_and_a_turn_without_one_costs_a_guess() -> None:
    env = make("turntree/NumberGuessing-v0")
    env.reset(options={"index": 0})
    said, *_ = env.step("Hm.")
    assert "no number" in said
    secret = env.current_task.answer
    assert secret not in said
    assert env.step(f"Not 1000 but {secret}.")[1:3] == (1.0, True)


@pytest.mark.parametrize("text", ["1.5", "9" * 13, "5" * 5000])
def test_what_is_no_guess_is_not_taken_for_one(text: str) -> None:
    env = make("turntree/NumberGuessing-v0")
    env.reset(seed=0)
    assert "no number" in env.step(text)[0]
