from pathlib import Path

import pytest
import sympy

from turntree.envs import make
from turntree.envs.procedural.equations import Equations


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
    for said, reward in [
        (f"{one}, {other}", 1.0),
        (f"x={other}, x={one}", 1.0),
        (rf"\{{{other}.0, {one}\}}", 1.0),
        (one, 0.0),
        (f"{one}, {other}, 77", 0.0),
        ("x", 0.0),
    ]:
        env.reset(options={"index": index})
        assert env.step(rf"\boxed{{{said}}}")[1:4] == (reward, True, False), said


@pytest.mark.parametrize("level", [1, 2, 4])
def test_the_solution_wins_and_another_loses(level: int) -> None:
    env = make("turntree/Equations-v0", min_level=level, max_level=level, tool_format="compact")
    for index in range(5):
        env.reset(options={"index": index})
        assert env.step("calculator(6/4)")[0] == "1.5"
        assert env.step(rf"\boxed{{{env.current_task.answer}}}")[1] == 1.0
        env.reset(options={"index": index})
        wrong = "(100, 100)" if level == 4 else "1000"
        assert env.step(rf"\boxed{{{wrong}}}")[1:4] == (0.0, True, False)


def test_text_of_the_policy_is_never_run(tmp_path: Path) -> None:
    env = make("turntree/Equations-v0")
    env.reset(seed=0)
    victim = tmp_path / "x"
    env.step(rf'\boxed{{open("{victim}","w")}}')
    assert not victim.exists()
