"""An environment with two tools that a small model learns in minutes: look prices up, multiply, answer.

Its parts are those of ``docs/howto/environment.md``: two tools, a verifiable answer, a small reward for calls, and
``solution()``, from which ``turntree sft`` takes demonstrations.

    cd examples
    turntree sft two_tools:Shop --model DIR --out sft
    turntree train turntree.env=two_tools:Shop size=small actor_rollout_ref.model.path=sft
"""

import random
from collections.abc import Sequence

from turntree.envs import Env, Limits, Message, Reply, Task, ToolCall, ToolError, make, register, tool

ITEMS = ("apple", "pear", "plum", "kiwi", "melon", "lemon", "grape", "peach")


class Shop(Env):
    num_tasks = 400
    default_limits = Limits(max_turns=4, max_turn_tokens=48, max_context_tokens=768)
    quick = True
    forkable = True

    def task(self, index: int) -> Task:
        rng = random.Random(f"shop/{index}")
        item, count, price = rng.choice(ITEMS), rng.randint(2, 9), rng.randint(11, 49)
        prompt = f"What do {count} pieces of {item} cost?"
        facts = {"item": item, "count": count, "price": price}
        return Task(id=f"shop/{index}", prompt=prompt, answer=str(count * price), metadata=facts)

    def default_system_prompt(self) -> str:
        return "You sell fruit. Look the price up, multiply, and answer with the number alone."

    @tool
    def price(self, item: str) -> str:
        """Tell the price of one piece.

        Args:
            item: Name of the fruit, such as plum.
        """
        facts = self.current_task.metadata
        if item != facts["item"]:
            raise ToolError(f"there is no {item!r} today, only {facts['item']!r}")
        return str(facts["price"])

    @tool
    def multiply(self, a: int, b: int) -> str:
        """Multiply two numbers.

        Args:
            a: A number.
            b: Another number.
        """
        return str(a * b)

    def reply(self, message: Message) -> Reply:
        right = float(message.content.strip() == self.current_task.answer)
        called = float(any(one.tool_calls for one in self.messages))
        return Reply(reward=right + 0.1 * called, done=True, rewards={"correct": right, "called": called})

    def solution(self) -> Sequence[str]:
        facts = self.current_task.metadata
        calls = [
            ToolCall(name="price", arguments={"item": facts["item"]}),
            ToolCall(name="multiply", arguments={"a": facts["count"], "b": facts["price"]}),
        ]
        return [*map(self.parser.format_call, calls), self.current_task.answer]


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
