"""A custom environment: guess a number with a tool that answers higher or lower.

The environment itself is the class below; the rest plays one scripted dialogue.

    python examples/custom_environment.py
"""

from turntree.envs import Env, Message, Reply, Task, ToolCall, ToolError, make, register, tool


class GuessNumber(Env):
    num_tasks = 100

    def task(self, index: int) -> Task:
        return Task(id=f"guess/{index}", prompt="Find my number between 0 and 99.", answer=str(index * 37 % 100))

    @tool
    def compare(self, guess: int) -> str:
        """Compare a guess with the number.

        Args:
            guess: A number between 0 and 99.
        """
        if not 0 <= guess <= 99:
            raise ToolError(f"the number lies between 0 and 99, {guess} does not")
        number = int(self.current_task.answer)
        return "equal" if guess == number else "higher" if guess < number else "lower"

    def reply(self, message: Message) -> Reply:
        right = message.content.strip() == self.current_task.answer
        return Reply(reward=float(right), done=True, rewards={"correct": float(right)})


def main() -> float:
    """Play by bisection, as a policy would, and return the reward."""
    register("examples/GuessNumber-v0", GuessNumber)
    env = make("examples/GuessNumber-v0", render_mode="ansi")
    env.reset(options={"index": 5})
    low, high = 0, 99
    while True:
        guess = (low + high) // 2
        reply, *_ = env.step(env.parser.format_call(ToolCall(name="compare", arguments={"guess": guess})))
        if reply == "equal":
            break
        low, high = (guess + 1, high) if reply == "higher" else (low, guess - 1)
    _, reward, terminated, _, _ = env.step(str(guess))
    assert terminated
    print(env.render())
    print(f"reward: {reward}")
    return reward


if __name__ == "__main__":
    main()
