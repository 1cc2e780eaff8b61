"""Tasks written as verifiers' own documents do; importing this module needs verifiers."""

import asyncio
from typing import Any

import verifiers.v1 as vf


class Sum(vf.TaskData):
    answer: str = ""


class SumTask(vf.Task[Sum]):
    @vf.reward(weight=2.0)
    async def exact(self, trace: Any) -> float:
        await asyncio.sleep(0)
        return float(trace.last_reply == self.data.answer)

    @vf.reward(weight=0.5)
    async def short(self, trace: Any) -> float:
        return float(len(trace.last_reply) < 5)

    @vf.metric
    async def turns(self, trace: Any) -> float:
        return float(trace.num_turns)


class Sums(vf.Taskset[SumTask, vf.TasksetConfig]):
    def load(self) -> Any:
        parts = [vf.TextContentPart(text="3+"), vf.TextContentPart(text="3?")]
        yield SumTask(Sum(prompt="2+2?", answer="4", system_prompt="Be brief."))
        yield SumTask(Sum(prompt=[vf.UserMessage(content=parts)], answer="6"))


class Seen(vf.State):
    words: list[str] = []


class Words(vf.Toolset[vf.ToolsetConfig, Seen]):
    async def setup_task(self, task: Any) -> None:
        self.word = task.answer

    @vf.tool
    async def look(self, index: int) -> str:
        """Look at a letter of the word."""
        if index >= len(self.word):
            raise ValueError("the word ends before")
        self.state.words.append(self.word[index])
        return self.word[index]


class WordTask(vf.Task[Sum, Seen]):
    @classmethod
    def toolsets(cls, config: Any) -> Any:
        return [Words(vf.ToolsetConfig())]

    @vf.reward
    async def right(self, trace: Any) -> float:
        asked = [call for message in trace.assistant_messages for call in message.tool_calls or []]
        return float(trace.last_reply == self.data.answer and len(asked) == len(trace.state.words))


class WordSet(vf.Taskset[WordTask, vf.TasksetConfig]):
    def load(self) -> Any:
        yield WordTask(Sum(prompt="Which word?", answer="no"))
        yield WordTask(Sum(prompt="Which word?", answer="yes"))


class Boxed(SumTask):
    NEEDS_CONTAINER = True

    @vf.reward
    async def file(self, runtime: Any) -> float:
        return 1.0


class Broken(SumTask):
    @vf.reward
    async def shares(self) -> float:
        return 1 / 0


def tasksets() -> dict[str, Any]:
    config = vf.TasksetConfig()
    return {
        "sums": Sums(config),
        "words": WordSet(config),
        "boxed": [Boxed(Sum(prompt="?"))],
        "broken": [Broken(Sum(prompt="?"))],
    }
