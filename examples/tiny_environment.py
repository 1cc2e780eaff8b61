"""An environment in fifteen lines, and one episode of it.

python examples/tiny_environment.py
"""

from turntree.envs import Env, Message, Reply, Task


class Doubling(Env):
    """Double a number."""

    step_inline = True
    num_tasks = 50

    def task(self, index: int) -> Task:
        return Task(id=f"doubling/{index}", prompt=f"What is twice {index}?", answer=str(2 * index))

    def reply(self, message: Message) -> Reply:
        right = message.content.strip() == self.current_task.answer
        return Reply(reward=float(right), done=True, rewards={"correct": float(right)})


def main() -> float:
    env = Doubling()
    question, _ = env.reset(options={"index": 21})
    _, reward, terminated, _, info = env.step("42")
    print(question, "-> 42: reward", reward, info["rewards"], "over" if terminated else "goes on")
    return reward


if __name__ == "__main__":
    main()
