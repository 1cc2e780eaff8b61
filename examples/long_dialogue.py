"""An environment that shortens its dialogue: a search through more pages than a token row can hold.

The policy reads the pages of an archive until one names the number that it looks for. After two pages the environment
replaces the dialogue by a summary, and the policy continues from there. The trainer gets each segment as a row of its
own. A script replaces the policy; only the tokenizer of the model in DIR is read.

    python examples/long_dialogue.py DIR
"""

import asyncio
import sys

from turntree.agents import Episode, Renderer, ScriptedEngine, TokenView, rollout
from turntree.agents.errors import needed_packages
from turntree.envs import Env, Limits, Message, Reply, Role, Task, ToolCall, ToolError, tool

with needed_packages("local"):
    from transformers import AutoTokenizer

PAGES = 6


class Archive(Env):
    """Find the page that names a number."""

    num_tasks = 100

    def __init__(self) -> None:
        super().__init__(limits=Limits(max_turns=20), system_prompt="Answer with the number of a page.")

    def task(self, index: int) -> Task:
        return Task(id=f"archive/{index}", prompt=f"Which page names {1000 + index}?", answer=str(index % PAGES))

    @tool
    def read(self, page: int) -> str:
        """Read a page.

        Args:
            page: A number from 0 on.
        """
        if not 0 <= page < PAGES:
            raise ToolError(f"there are {PAGES} pages, 0 to {PAGES - 1}")
        found = int(self.current_task.id.rpartition("/")[2]) % PAGES == page
        return (
            f"Page {page} names {self.current_task.prompt[17:-1] if found else 'other numbers'}. " + "And so on. " * 5
        )

    def compact(self) -> list[Message] | None:
        if sum(message.role is Role.TOOL for message in self.dialogue) < 2:
            return None  # the dialogue stays as it is
        pages = [str(call.arguments["page"]) for message in self.messages for call in message.tool_calls]
        last = [message.content.partition(".")[0] for message in self.dialogue if message.role is Role.TOOL]
        note = f"{self.current_task.prompt} You have read pages {', '.join(pages)}. Of the last two: {'; '.join(last)}."
        return [Message(role=Role.SYSTEM, content=self.system_prompt), Message(role=Role.USER, content=note)]

    def reply(self, message: Message) -> Reply:
        right = message.content.strip() == self.current_task.answer
        return Reply(reward=float(right), done=True)


def main(arguments: list[str]) -> Episode:
    """Play one episode and show its segments."""
    tokenizer = AutoTokenizer.from_pretrained(arguments[0])
    env, index = Archive(), 4
    calls = [env.parser.format_call(ToolCall(name="read", arguments={"page": page})) for page in range(index + 1)]
    engine = ScriptedEngine([*calls, str(index)], tokenizer)
    episode = asyncio.run(rollout(env, engine, Renderer(tokenizer), index=index))
    for number, view in enumerate(TokenView.of_each(episode), start=1):
        turns, sampled = len(view.turn_ends), sum(view.mask)
        print(f"segment {number}: {len(view.prompt_ids)} tokens before it, {turns} turns, {sampled} tokens to train on")
    print(f"reward: {episode.reward}")
    return episode


if __name__ == "__main__":
    main(sys.argv[1:])
