import random
from fractions import Fraction

import pytest
import sympy
from playing import halving, play
from tables import table

from turntree.envs import Limits, make
from turntree.envs.math.expression import evaluate
from turntree.envs.procedural.adventure import Adventure
from turntree.envs.procedural.countdown import Countdown, complaint, solve
from turntree.envs.procedural.equations import Equations
from turntree.envs.procedural.units import KINDS, convert
from turntree.envs.procedural.world import make_world, path


@pytest.mark.parametrize("rooms", [2, 5, 16])
def test_the_walkthrough_wins_at_its_last_command(rooms: int) -> None:
    env = make("turntree/Adventure-v0", min_rooms=rooms, max_rooms=rooms, limits=Limits(max_turns=None))
    for index in range(20):
        steps = play(env, [f"I go on.\n> {command}." for command in env.task(index).answer.split("; ")], index)
        assert [step[2] for step in steps] == [False] * (len(steps) - 1) + [True]
        assert [step[1] for step in steps] == [0.0] * (len(steps) - 1) + [1.0]


def test_the_locked_door_opens_only_with_the_key_and_what_is_dropped_lies_where_it_was_dropped() -> None:
    env = Adventure(min_rooms=2, max_rooms=2)
    env.reset(options={"index": 0})
    (way,) = env.world.exits[env.world.first]  # type: ignore[union-attr]
    assert env.step(f"go {way}")[0] == "The door is locked."
    assert env.step(f"unlock {way}")[0] == "You have no key."
    assert f"{way} (locked)" in env.step("look")[0]
    assert env.step("take the key")[0] == "Taken: key."
    assert env.step("inventory")[0] == "You carry: key."
    assert env.step(f"unlock {way}")[0] == "The door is open."
    assert env.step(f"unlock {way}")[0] == "There is nothing to unlock."
    assert "You see: treasure" in env.step(f"go {way}")[0]
    env = Adventure(min_rooms=2, max_rooms=2)
    env.reset(options={"index": 0})
    env.step("take key")
    assert "key" not in env.step("look")[0].partition("You see")[2]
    assert env.step("drop key")[0] == "Dropped: key."
    assert "key" in env.step("look")[0].partition("You see")[2]
    assert env.step("drop key")[0] == "You have no key."


@pytest.mark.parametrize(
    ("said", "hint"),
    [*[(said, "no command") for said in ("", "dance", "go")], *[("go up", "Directions are"), ("take sun", "no sun")]],
)
def test_what_cannot_be_done_is_said(said: str, hint: str) -> None:
    assert hint in play(make("turntree/Adventure-v0"), [said])[0][0]


def test_ways_lead_back_and_every_room_can_be_reached() -> None:
    world = make_world(random.Random(3), rooms=16)
    for room in world.exits:
        way = path(world, world.first, room)
        assert len(way) == len(path(world, room, world.first))
    assert len(world.exits[world.locked]) == 1


def test_puzzles_are_those_that_were_asked_for_and_no_number_is_the_solution() -> None:
    env = Countdown(count=3, max_number=5, max_target=10)
    for index in range(50):
        task = env.task(index)
        assert len(task.metadata["numbers"]) == 3
        assert max(task.metadata["numbers"]) <= 5
        assert 1 <= task.metadata["target"] <= 10
    assert {env.task(i).prompt for i in range(50)} != {
        Countdown(count=3, split="test").task(i).prompt for i in range(50)
    }
    env = make("turntree/Countdown-v0", count=3, max_number=9, max_target=9)
    for index in range(100):
        facts = env.task(index).metadata
        assert facts["target"] not in facts["numbers"]


@pytest.mark.parametrize(("expression", "hint"), [(None, "no expression"), *table(__file__, "broken_rules")])
def test_an_answer_that_breaks_the_rules_is_told_why(expression: str | None, hint: str) -> None:
    assert hint in complaint(expression, [2, 4, 8], 24, True)


def test_a_right_answer_has_nothing_wrong_and_a_mistake_is_named_where_attempts_are_left() -> None:
    env = make("turntree/Game24-v0", attempts=2)
    [(said, reward, terminated, *_)] = play(env, ["#### 1+1"])
    assert (reward, terminated) == (0.0, False)
    assert "Attempts left: 1." in said
    assert env.step(f"#### {env.current_task.answer}")[1:3] == (1.0, True)
    assert complaint("(8-2)*4", [2, 4, 8], 24, True) == ""
    assert complaint("8*3", [3, 4, 8], 24, False) == ""
    assert complaint("8/(3-8/3)", [3, 3, 8, 8], 24, True) == ""
    assert evaluate(solve([3, 3, 8, 8], 24)) == Fraction(24)
    assert solve([1, 1, 1, 1], 24) == ""


@pytest.mark.parametrize("level", [1, 2, 3, 4])
def test_sympy_finds_the_same_solutions(level: int) -> None:
    env = Equations(min_level=level, max_level=level)
    for index in range(25):
        task = env.task(index)
        sides = [side.split("=") for side in task.prompt.removeprefix("Solve: ").split(" and ")]
        equations = [sympy.Eq(*(sympy.sympify(_python(part)) for part in side)) for side in sides]
        if level == 4:
            solution = sympy.solve(equations, sympy.symbols("x y"))
            assert str(tuple(solution.values())) == task.answer
        else:
            solutions = sorted(sympy.solve(equations[0], sympy.Symbol("x")))
            assert ", ".join(map(str, solutions)) == task.answer


def _python(side: str) -> str:
    text = ""
    for character in side.replace("^", "**"):
        if character in "xy" and text and text[-1].isdigit():
            text += "*"
        text += character
    return text


def test_solutions_win_in_any_order_and_form_and_wrong_ones_lose() -> None:
    env = make("turntree/Equations-v0", min_level=3, max_level=3)
    index = next(i for i in range(50) if env.task(i).answer.count(",") == 1)
    one, other = env.task(index).answer.split(", ")
    for said, reward in table(__file__, "solutions"):
        said = said.replace("ONE", one).replace("OTHER", other)
        assert play(env, [rf"\boxed{{{said}}}"], index)[0][1:4] == (reward, True, False), said


def test_halving_the_range_always_wins() -> None:
    env = make("turntree/NumberGuessing-v0", spare=0, max_number=20)
    for index in range(40):
        env.reset(options={"index": index})
        assert halving(env, "Perhaps {}", 1, 20)[1:4] == (1.0, True, False)


def test_the_last_number_of_a_turn_is_a_guess_and_a_turn_without_one_costs_one() -> None:
    steps = play(make("turntree/NumberGuessing-v0", spare=0), ["It is 1000"] * 7)
    assert [step[2] for step in steps] == [False] * 6 + [True]
    assert sum(step[1] for step in steps) == 0.0
    assert "lower than 1000. Guesses left: 6" in steps[0][0]
    env = make("turntree/NumberGuessing-v0")
    [(said, *_)] = play(env, ["Hm."])
    assert "no number" in said
    secret = env.current_task.answer
    assert secret not in said
    assert env.step(f"Not 1000 but {secret}.")[1:3] == (1.0, True)


@pytest.mark.parametrize("text", ["1.5", "9" * 13, "5" * 5000])
def test_what_is_no_draft_is_not_taken_for_one(text: str) -> None:
    assert "no number" in play(make("turntree/NumberGuessing-v0"), [text])[0][0]


@pytest.mark.parametrize("unseen", ["<think>{}</think>", "<think>{}", "<!-- {} -->", r"\phantom{{{}}}"])
def test_a_guess_or_an_expression_that_nobody_sees_is_none(unseen: str) -> None:
    guessing, countdown = make("turntree/NumberGuessing-v0"), make("turntree/Countdown-v0")
    assert "no number" in play(guessing, [unseen.format(guessing.task(0).answer)])[0][0]
    hidden = unseen.format(f"\n#### {countdown.task(0).answer}\n")
    assert play(countdown, [hidden])[0][1] == 0.0
    assert play(countdown, [f"{hidden}\n#### {countdown.task(0).answer}"])[0][1] == (unseen != "<think>{}")


@pytest.mark.parametrize("kind", KINDS)
def test_the_number_wins_and_the_question_said_again_loses(kind: str) -> None:
    env = make("turntree/UnitConversion-v0", kinds=(kind,))
    for index in range(15):
        task = env.task(index)
        given = task.prompt.removeprefix("How much is ").partition(" in ")[0]
        for said, reward in ((task.answer, 1.0), (rf"\text{{{given}}}", 0.0)):
            assert play(env, [rf"It is \boxed{{{said}}}."], index)[0][1:4] == (reward, True, False), task


@pytest.mark.parametrize(("value", "source", "target", "result"), table(__file__, "conversions"))
def test_factors_are_exact(value: str, source: str, target: str, result: str) -> None:
    units = {unit.name: unit for kind in KINDS.values() for unit in kind}
    assert convert(Fraction(value), units[source], units[target]) == Fraction(result)
