from fractions import Fraction

import pytest

from turntree.envs import make
from turntree.envs.expression import evaluate
from turntree.envs.procedural.countdown import Countdown, complaint, solve
from turntree.envs.procedural.final_line import final_line


def test_puzzles_are_those_that_were_asked_for() -> None:
    env = Countdown(count=3, max_number=5, max_target=10)
    for index in range(50):
        task = env.task(index)
        assert len(task.metadata["numbers"]) == 3
        assert max(task.metadata["numbers"]) <= 5
        assert 1 <= task.metadata["target"] <= 10
    assert {env.task(i).prompt for i in range(50)} != {
        Countdown(count=3, split="test").task(i).prompt for i in range(50)
    }


@pytest.mark.parametrize(
    ("expression", "hint"),
    [
        (None, "no expression"),
        ("(8-2)*4 = 24", "cannot be read"),
        ("(8-2)*4; import os", "cannot be read"),
        ("24", "The number 24 is not there"),
        ("(8-2)*4*4/4", "The number 4 is not there"),
        ("8*2+8", "The number 8 is not there"),
        ("(8+4)*2-2+2", "The number 2 is not there"),
        ("8*4", "Every number must be used"),
        ("8*2+4", "The value is 20, not 24"),
        ("2**4+8", "Only + - * / are allowed, not **"),
        ("8//2*4", "Only + - * / are allowed"),
        ("8/(4-4)", "division by zero"),
        ("84-2", "The number 84"),
    ],
)
def test_an_answer_that_breaks_the_rules_is_told_why(expression: str | None, hint: str) -> None:
    assert hint in complaint(expression, [2, 4, 8], 24, True)


def test_a_right_answer_has_nothing_wrong() -> None:
    assert complaint("(8-2)*4", [2, 4, 8], 24, True) == ""
    assert complaint("8*3", [3, 4, 8], 24, False) == ""
    assert complaint("8/(3-8/3)", [3, 3, 8, 8], 24, True) == ""


def test_with_attempts_left_the_mistake_is_named() -> None:
    env = make("turntree/Game24-v0", attempts=2)
    env.reset(options={"index": 0})
    said, reward, terminated, *_ = env.step("#### 1+1")
    assert (reward, terminated) == (0.0, False)
    assert "Attempts left: 1." in said
    assert env.step(f"#### {env.current_task.answer}")[1:3] == (1.0, True)


def test_the_solver_finds_fractions_on_the_way_and_says_when_there_is_none() -> None:
    assert evaluate(solve([3, 3, 8, 8], 24)) == Fraction(24)
    assert solve([1, 1, 1, 1], 24) == ""


def test_the_last_marked_line_is_the_answer() -> None:
    assert final_line("#### 1\n#### 2 \nso") == "2"
    assert final_line("####") is None
