import re
from fractions import Fraction

import gymnasium
import pytest
from hypothesis import given
from hypothesis import strategies as st
from machine_speed import not_hanging
from playing import play
from tables import table

from turntree.envs import ToolError, make
from turntree.envs.math.arithmetic import Arithmetic, intermediate_results
from turntree.envs.math.expression import MAX_BITS, evaluate, format_number

numbers = st.integers(0, 99).map(str)
expressions = st.recursive(
    numbers,
    lambda inner: (
        st.tuples(inner, st.sampled_from("+-*/"), inner).map(" ".join)
        | inner.map("({})".format)
        | inner.map("-{}".format)
    ),
    max_leaves=8,
)


@given(expression=expressions)
def test_agrees_with_python_on_fractions(expression: str) -> None:
    exact = re.sub(r"\d+", r"Fraction(\g<0>)", expression)
    try:
        expected = eval(exact, {"Fraction": Fraction})  # an expression of our own making
    except ZeroDivisionError:
        with pytest.raises(ToolError, match="division by zero"):
            evaluate(expression)
        return
    assert evaluate(expression) == expected


@pytest.mark.parametrize(("expression", "value"), table(__file__, "values"))
def test_value_of(expression: str, value: str) -> None:
    assert evaluate(expression) == Fraction(value)


@pytest.mark.parametrize(("expression", "complaint"), table(__file__, "wrong_expressions"))
def test_what_is_wrong_is_told_to_the_model(expression: str, complaint: str) -> None:
    with pytest.raises(ToolError) as error:
        evaluate(expression)
    assert complaint in str(error.value)


@pytest.mark.parametrize("expression", ["**".join(["9"] * 60), "(" * 199, "9**9**9**9**9", "10**200*10**200"])
def test_hostile_input_is_refused_at_once(expression: str) -> None:
    with not_hanging(), pytest.raises(ToolError):
        evaluate(expression)


@given(text=st.text(alphabet="0123456789+-*/%^().,$ x", max_size=60))
def test_every_text_has_a_bounded_value_or_a_tool_error(text: str) -> None:
    try:
        value = evaluate(text)
    except ToolError:
        return
    assert value.numerator.bit_length() <= MAX_BITS
    format_number(value)


def test_operations_are_counted_without_signs() -> None:
    assert evaluate("-3*-4", max_operations=1) == 12
    assert evaluate("(14)", max_operations=1) == 14
    with pytest.raises(ToolError, match="at most 1 operation a call, got 2 in '2\\+3\\*4'"):
        evaluate("2+3*4", max_operations=1)


@pytest.mark.parametrize(("value", "text"), table(__file__, "written_numbers"))
def test_numbers_are_written_plainly(value: str, text: str) -> None:
    assert format_number(Fraction(value)) == text


def test_a_whole_episode_in_the_compact_format() -> None:
    env = Arithmetic(tool_format="compact", system_prompt="")
    task = env.task(5)
    assert (task.id, task.prompt) == ("arithmetic/train/5", "2+5+1*9-8")
    text, info = env.reset(options={"index": 5})
    assert text == task.prompt
    assert info["messages"] == [{"role": "user", "content": "2+5+1*9-8"}]
    said = [env.step(f"calculator({operation})")[0] for operation in ("1*9", "2+5", "7+9", "16-8")]
    assert said == ["9", "7", "16", "8"]
    assert env.step("calculator(2+5+1*9-8)")[0].startswith("Error: at most 1 operation a call")
    text, reward, terminated, truncated, info = env.step("#### 8")
    assert (text, reward, terminated, truncated) == ("", 1.0, True, False)
    assert info["rewards"] == {"correct": 1.0}


@pytest.mark.parametrize(
    "answer",
    ["#### 9", "8", "", "The result is 8", "#### 8 or 9", "####", "<think>#### 8", "<!-- #### 8", "<!--\n#### 8\n-->"],
)
def test_any_other_last_turn_earns_nothing(answer: str) -> None:
    [(_, reward, terminated, _, info)] = play(Arithmetic(), [answer], 5)
    assert (reward, terminated, info["rewards"]) == (0.0, True, {"correct": 0.0})


def test_tasks_are_of_all_lengths_and_operators_with_a_long_one_now_and_then_and_splits_differ() -> None:
    for task in map(Arithmetic(allow_negative=True).task, range(300)):
        assert evaluate(task.prompt) == int(task.answer)
    prompts = [Arithmetic().task(index).prompt for index in range(300)]
    assert {sum(character in "+-*" for character in prompt) for prompt in prompts} == {1, 2, 3, 4}
    assert {character for prompt in prompts for character in prompt} == set("123456789+-*")
    train, test = Arithmetic(), Arithmetic(split="test")
    assert test.task(7).id == "arithmetic/test/7"
    assert [train.task(i).prompt for i in range(20)] != [test.task(i).prompt for i in range(20)]
    plain, tailed = Arithmetic(), Arithmetic(long_every=4, long_numbers=9)
    counts = [len(re.findall(r"\d+", tailed.task(index).prompt)) for index in range(40)]
    assert [index for index, count in enumerate(counts) if count == 9] == list(range(3, 40, 4))
    assert all(tailed.task(index) == plain.task(index) for index in range(40) if index % 4 != 3)
    assert tailed.task(3) == tailed.task(3)


@pytest.mark.parametrize("negative", [False, True])
def test_intermediate_results_keep_to_their_bounds(negative: bool) -> None:
    env = Arithmetic(max_value=20, allow_negative=negative)
    lowest = 0
    for index in range(400):
        prompt = env.task(index).prompt
        operators = [character for character in prompt if character in "+-*"]
        numbers = [int(n) for n in prompt.replace("+", " ").replace("-", " ").replace("*", " ").split()]
        results = intermediate_results(numbers, operators)
        lowest = min(lowest, *results)
        assert max(map(abs, results)) <= 999
        assert all(1 <= number <= 20 for number in numbers)
        assert 2 <= len(numbers) <= 5
    assert (lowest < 0) == negative


@pytest.mark.parametrize(("numbers", "operators", "results"), table(__file__, "intermediate_results"))
def test_intermediate_results_follow_precedence(numbers: list[int], operators: str, results: list[int]) -> None:
    assert intermediate_results(numbers, list(operators)) == results


@pytest.mark.parametrize(
    ("tool_format", "example"), [("compact", "calculator(3*4)"), ("hermes", '"arguments": {"expression": "3*4"}')]
)
def test_the_system_prompt_shows_a_call_in_the_format_in_use(tool_format: str, example: str) -> None:
    env = Arithmetic(tool_format=tool_format)
    assert example in env.system_prompt
    assert "#### x" in env.system_prompt


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_it_runs_in_a_vector(mode: str) -> None:
    how = {"vectorization_mode": mode, "vector_kwargs": {"shared_memory": False} if mode == "async" else {}}
    settings = {"tool_format": "compact", "system_prompt": ""}
    envs = gymnasium.make_vec("turntree.envs:turntree/Arithmetic-v0", num_envs=2, **how, **settings)
    try:
        prompts, infos = envs.reset(seed=3)
        alone = [make("turntree/Arithmetic-v0", system_prompt="").reset(seed=3 + i)[0] for i in range(2)]
        assert list(prompts) == alone
        assert [tools[0]["function"]["name"] for tools in infos["tools"]] == ["calculator"] * 2
        texts, rewards, terminated, truncated, infos = envs.step(("calculator(2*3)", f"#### {evaluate(prompts[1])}"))
        assert (texts, rewards.tolist()) == (("6", ""), [0.0, 1.0])
        assert (terminated.tolist(), truncated.tolist()) == ([False, True], [False, False])
        assert infos["stop_reason"].tolist() == ["", "done"]
    finally:
        envs.close()
