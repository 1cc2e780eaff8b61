from threading import current_thread
from typing import Any

import gymnasium
from recording_engine import RecordingEngine

from turntree.agents.engines.scripted import ScriptedEngine
from turntree.agents.episodes.episode import Episode
from turntree.agents.loop.renderer import Renderer
from turntree.agents.loop.rollout import rollout
from turntree.envs.limits import Limits
from turntree.envs.task import Task


class Adder(gymnasium.Env[str, str]):
    """Run a tool for ``call N`` and take anything else as the answer."""

    step_inline = True

    def __init__(self, **limits: Any) -> None:
        self.limits = Limits(**limits)
        self.threads: list[str] = []

    def task(self, index: int) -> Task:
        return Task(id=f"adder/{index}", prompt=f"{index}+1", answer=str(index + 1))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        options = options or {"index": int(self.np_random.integers(100))}
        self.current_task = options.get("task") or self.task(options["index"])
        self.turn = 0
        self.threads.append(current_thread().name)
        return self.current_task.prompt, self.info([{"role": "user", "content": self.current_task.prompt}])

    def step(self, action: str) -> Any:
        self.turn += 1
        self.threads.append(current_thread().name)
        if action == "crash":
            raise RuntimeError("the disk is\nfull")
        if action == "report":
            return "", 0.0, False, True, self.info([], stop="failure", failure="calculator raised OSError")
        if action.startswith("call "):
            call = {"type": "function", "function": {"name": "add", "arguments": {"x": action[5:]}}}
            heard = [{"role": "tool", "content": f"heard {action[5:]}", "name": "add"}]
            stop = "max_turns" if self.turn == self.limits.max_turns else ""
            return "", 0.25, False, bool(stop), self.info(heard, calls=[{**call, "id": "7"}], stop=stop)
        right = float(action == self.current_task.answer)
        return "", right, True, False, self.info([], stop="done", rewards={"right": right})

    def info(
        self, messages: Any, *, calls: Any = (), stop: str = "", failure: str = "", rewards: Any = None
    ) -> dict[str, Any]:
        said = {"messages": messages, "tools": [], "tool_calls": list(calls), "rewards": rewards or {}}
        kind = "tool" if failure else ""
        said |= {"stop_reason": stop, "failure": failure, "failure_kind": kind}
        return {**said, "task_id": self.current_task.id, "turn": self.turn}


async def play(renderer: Renderer, *texts: str, env: Any = None, **options: Any) -> tuple[Episode, RecordingEngine]:
    engine = RecordingEngine(ScriptedEngine(texts, renderer.tokenizer))
    episode = await rollout(env or Adder(), engine, renderer, **{"index": 4, **options})
    return episode, engine
