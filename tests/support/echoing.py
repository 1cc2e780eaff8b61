"""An environment whose prompts and tools contain the gold answer in every form that a reward accepts."""

from typing import Any

from playing import made_up

from turntree.agents.engines.protocol import Completion, FinishReason
from turntree.agents.episodes.episode import Episode, StopReason, Turn
from turntree.envs import Env, Message, Reply, Role, Task, ToolCall

GOLD = "42"
ECHO = f"The answer is {GOLD}. \\boxed{{{GOLD}}} <answer>{GOLD}</answer>\n#### {GOLD}"


SAID = Completion(token_ids=(1,), logprobs=(0.0,), finish_reason=FinishReason.STOP)


@made_up
def reveal(x: str) -> str:
    return ECHO


class Echoing(Env):
    """Ask the policy twice and put the gold answer between its turns; give no reward of its own."""

    tools = (reveal,)

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"tool_format": "compact", "system_prompt": ECHO, "describes_tools": True, **kwargs})

    def task(self, index: int) -> Task:
        return Task(id=f"echo/{index}", prompt=ECHO, answer=GOLD, data_source="math")

    def reply(self, message: Message) -> Reply:
        done = sum(said.role is Role.ASSISTANT for said in self.messages) >= 2
        return Reply(messages=(Message(role="user", content=ECHO),), done=done)


def spoken(*texts: str, observations: tuple[Message, ...] = (), calls: bool = False) -> Episode:
    turns = tuple(Turn(prompt_ids=(0,), completion=SAID, text=text, observation=observations) for text in texts)
    messages: list[Message] = [Message(role=Role.USER, content=ECHO)]
    for text in texts:
        called = (ToolCall(name="reveal"),) if calls else ()
        messages += [Message(role=Role.ASSISTANT, content=text, tool_calls=called), *observations]
    return Episode(
        env_id="e",
        task=Task(id="t", prompt=ECHO, answer=GOLD, data_source="math"),
        seed=0,
        messages=tuple(messages),
        turns=turns,
        stop_reason=StopReason.DONE,
    )
