import gymnasium
import pytest
from playing import play

from turntree.envs import make
from turntree.envs.arithmetic import Arithmetic, intermediate_results
from turntree.envs.expression import evaluate


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


@pytest.mark.parametrize("answer", ["#### 9", "8", "", "The result is 8", "#### 8 or 9", "####"])
def test_any_other_last_turn_earns_nothing(answer: str) -> None:
    [(_, reward, terminated, _, info)] = play(Arithmetic(), [answer], 5)
    assert (reward, terminated, info["rewards"]) == (0.0, True, {"correct": 0.0})


def test_the_answer_is_the_value_of_the_prompt() -> None:
    for task in map(Arithmetic(allow_negative=True).task, range(300)):
        assert evaluate(task.prompt) == int(task.answer)


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


def test_all_lengths_and_operators_occur() -> None:
    prompts = [Arithmetic().task(index).prompt for index in range(300)]
    assert {sum(character in "+-*" for character in prompt) for prompt in prompts} == {1, 2, 3, 4}
    assert {character for prompt in prompts for character in prompt} == set("123456789+-*")


def test_splits_have_tasks_of_their_own() -> None:
    train, test = Arithmetic(), Arithmetic(split="test")
    assert test.task(7).id == "arithmetic/test/7"
    assert [train.task(i).prompt for i in range(20)] != [test.task(i).prompt for i in range(20)]


@pytest.mark.parametrize(
    ("numbers", "operators", "results"),
    [
        *[([2, 3, 4, 1], "+*-", [12, 14, 13]), ([2, 3, 4], "**", [6, 24])],
        *[([1, 2, 3, 4], "-*+", [6, -5, -1]), ([7], "", [7])],
    ],
)
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
    shared = {"shared_memory": False} if mode == "async" else {}
    envs = gymnasium.make_vec(
        "turntree.envs:turntree/Arithmetic-v0",
        num_envs=2,
        vectorization_mode=mode,
        vector_kwargs=shared,
        tool_format="compact",
        system_prompt="",
    )
    try:
        prompts, infos = envs.reset(seed=3)
        alone = [make("turntree/Arithmetic-v0", system_prompt="").reset(seed=3 + i)[0] for i in range(2)]
        assert list(prompts) == alone
        assert [tools[0]["function"]["name"] for tools in infos["tools"]] == ["calculator"] * 2
        texts, rewards, terminated, truncated, infos = envs.step(("calculator(2*3)", f"#### {evaluate(prompts[1])}"))
        assert texts == ("6", "")
        assert rewards.tolist() == [0.0, 1.0]
        assert terminated.tolist() == [False, True]
        assert truncated.tolist() == [False, False]
        assert infos["stop_reason"].tolist() == ["", "done"]
    finally:
        envs.close()
