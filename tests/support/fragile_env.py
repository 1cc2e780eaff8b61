from typing import Any, ClassVar

from playing import made_up

from turntree.envs import Env, Message, Reply, Task, ToolError


@made_up
def fragile(x: str) -> str:
    if x == "boom":
        raise OSError("the disk is full")
    if x == "wrong":
        raise ToolError("not like this")
    return "fine"


class Fragile(Env):
    """Take turns that call ``fragile``, then an answer: reward 1 for ``good``, none for ``broken``, else 7."""

    tools = (fragile,)
    made: ClassVar[int] = 0

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"tool_format": "compact", "describes_tools": True, **kwargs})
        Fragile.made += 1

    def task(self, index: int) -> Task:
        return Task(id=f"fragile/{index}", prompt="say something", answer="5", data_source="math")

    def reply(self, message: Message) -> Reply:
        if message.content == "broken":
            raise OSError("the disk is full")
        return Reply(reward=1.0 if message.content == "good" else 7.0, done=True)
