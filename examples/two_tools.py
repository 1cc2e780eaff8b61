"""An environment with two tools that a small chat model learns in minutes: choose the tool, read its answer.

Its parts are those of ``docs/howto/environment.md``: two tools, a verifiable answer, a small reward for a call, and
``solution()``, from which ``turntree sft`` takes demonstrations.

    cd examples
    turntree sft two_tools:Shop --model DIR --out sft --steps 6
    turntree train turntree.env=two_tools:Shop size=small actor_rollout_ref.model.path=sft
"""

import random
from collections.abc import Sequence

from turntree.envs import Env, Limits, Message, Reply, Task, ToolCall, make, register, tool

ITEMS = ("apple", "pear", "plum", "kiwi", "melon", "lemon", "grape", "peach")


class Shop(Env):
    num_tasks = 400
    default_limits = Limits(max_turns=3, max_turn_tokens=32)
    step_inline = True
    forkable = True

    def task(self, index: int) -> Task:
        rng = random.Random(f"shop/{index}")
        item, price, stock = rng.choice(ITEMS), rng.randint(100, 999), rng.randint(100, 999)
        asked = rng.choice(("price", "stock"))
        prompt = f"What does one {item} cost?" if asked == "price" else f"How many of {item} are left?"
        facts = {"item": item, "asked": asked, "price": price, "stock": stock}
        return Task(id=f"shop/{index}", prompt=prompt, answer=str(facts[asked]), metadata=facts)

    def default_system_prompt(self) -> str:
        return "Look it up, then answer with the number."

    @tool
    def price(self, item: str) -> str:
        """Get the price.

        Args:
            item: A fruit.
        """
        return self.fact("price", item)

    @tool
    def stock(self, item: str) -> str:
        """Get the amount.

        Args:
            item: A fruit.
        """
        return self.fact("stock", item)

    def fact(self, name: str, item: str) -> str:
        facts = self.current_task.metadata
        return str(facts[name]) if item == facts["item"] else "not sold here"

    def reply(self, message: Message) -> Reply:
        right = float(message.content.strip() == self.current_task.answer)
        called = float(any(turn.tool_calls for turn in self.messages))
        return Reply(reward=0.9 * right + 0.1 * called, done=True, rewards={"correct": right, "called": called})

    def solution(self) -> Sequence[str]:
        facts = self.current_task.metadata
        call = ToolCall(name=facts["asked"], arguments={"item": facts["item"]})
        return [self.parser.format_call(call), self.current_task.answer]


def main() -> float:
    """Play the solution of a task, and return the reward."""
    register("examples/Shop-v0", Shop)
    env = make("examples/Shop-v0", render_mode="ansi")
    env.reset(options={"index": 0})
    reward = [env.step(turn)[1] for turn in env.unwrapped.solution()][-1]
    print(env.render())
    print(f"reward: {reward}")
    return float(reward)


if __name__ == "__main__":
    main()
