"""Episodes from which a policy cannot learn, one reason each."""

from typing import NamedTuple

from turntree.agents.engines.scripted import ScriptedEngine
from turntree.agents.episodes.episode import Episode
from turntree.agents.loop.renderer import Renderer
from turntree.agents.loop.rollout import rollout
from turntree.envs import Env, Limits, Message, Reply, Task, tool

CALL, WRONG, LONG = (
    '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>',
    "<tool_call>add",
    "go on " * 40,
)
OTHER = "<function=add><parameter=a>1</parameter><parameter=b>2</parameter></function>"


class Sums(Env):
    """Pay for ``good`` and end; continue after a long turn."""

    step_inline = True
    num_tasks = 2
    describes_tools = True  # the tiny model's context has no room for the schemas and four long turns
    default_limits = Limits(max_turns=4, max_turn_tokens=100)

    @tool
    def add(self, a: int, b: int) -> int:
        """Add two numbers.

        Args:
            a: First
            b: Second
        """
        return a + b

    @tool
    def multiply(self, a: int, b: int) -> int:
        """Multiply two numbers.

        Args:
            a: First
            b: Second
        """
        return a * b

    def task(self, index: int) -> Task:
        return Task(id=f"sums/{index}", prompt=f"What is {index} + {index}?")

    def reply(self, message: Message) -> Reply:
        if "go on" in message.content:
            return Reply(messages=[Message(role="user", content="Go on.")])
        return Reply(reward=float(message.content == "good"), done=True)


class Cause(NamedTuple):
    said: str  #: text of the only warning; empty for none
    groups: list[list[list[str]]]  #: turns by task and episode


FINE = [[[CALL, "good"], [CALL, "bad"]], [[CALL, "bad"], [CALL, "bad"]]]
CAUSES = {
    "fine": Cause("", FINE),
    "no call": Cause("no episode called a tool, but the environment has add, multiply", [[["good"], ["bad"]]]),
    "equal": Cause("the rewards are equal in every group", [[[CALL, "bad"]] * 2, [[CALL, "bad"]] * 2]),
    "unparsed": Cause(
        "2 of 3 tool calls could not be parsed, such as '<tool_call>add'", [[[WRONG, "good"], [WRONG, CALL, "bad"]]]
    ),
    "another format": Cause(
        "2 of 2 tool calls could not be parsed, such as '<function=add><parameter=a>1</parameter><parameter=b>2"
        "</parameter></function>': it looks like the format qwen3_coder; try ",
        [[[OTHER, "good"], [OTHER, "bad"]]],
    ),
    "half unparsed": Cause("", [[[WRONG, CALL, "good"], [CALL, WRONG, "bad"]]]),
    "cut": Cause(
        "75% of the turns were cut off at a token limit", [[[CALL, LONG, LONG, LONG], [LONG, LONG, LONG, "good"]]]
    ),
    "half cut": Cause("", [[[CALL, LONG, "good"], [LONG, "bad"]]]),
}


async def played(renderer: Renderer, turns: list[str]) -> Episode:
    return await rollout(Sums(), ScriptedEngine(turns, renderer.tokenizer), renderer, index=0)


async def played_groups(renderer: Renderer, groups: list[list[list[str]]]) -> list[list[Episode]]:
    return [[await played(renderer, turns) for turns in group] for group in groups]
