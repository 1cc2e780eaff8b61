"""Turntree environments as torchtitan's ``MessageEnv`` (``torchtitan.experiments.rl``)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from turntree.envs.bridges.failure import require_verdict
from turntree.envs.bridges.missing import library
from turntree.envs.env import Env
from turntree.envs.message import ToolCall

_MODULE = "torchtitan.experiments.rl.environment.message"


def torchtitan_environment(make: Callable[[], Env]) -> type[Any]:
    """A ``MessageEnv`` class; ``env_input`` is the index of the task.

    torchtitan parses tool calls itself, so they are written back in the environment's own format. The reward
    is in ``env_rewards["reward"]``. An infrastructure failure is raised.

    Raises:
        MissingExtra: If torchtitan is not installed.
    """
    titan = library(_MODULE, "torchtitan")

    class TorchtitanEnvironment(titan.MessageEnv):  # type: ignore[misc, name-defined]
        """An environment of turntree."""

        def __init__(self, config: Any = None, *, env_input: int | None = None) -> None:
            self.env = make()
            self.index = env_input

        async def init(self) -> Any:
            _, info = self.env.reset(options=None if self.index is None else {"index": self.index})
            return titan.MessageEnvInitOutput(init_prompt_messages=info["messages"], tools=info["tools"])

        async def step(self, completion_message: Mapping[str, Any]) -> Any:
            _, reward, terminated, truncated, info = self.env.step(_text(self.env, completion_message))
            require_verdict(info)
            return titan.MessageEnvStepOutput(
                env_messages=info["messages"], done=terminated or truncated, env_rewards={"reward": reward}
            )

        async def close(self) -> None:
            self.env.close()

    return TorchtitanEnvironment


def _text(env: Env, message: Mapping[str, Any]) -> str:
    parts = [message.get("content") or ""]
    for entry in message.get("tool_calls") or ():
        function = entry["function"] if isinstance(entry, Mapping) else entry.function
        name, arguments = (
            (function["name"], function["arguments"])
            if isinstance(function, Mapping)
            else (function.name, function.arguments)
        )
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
        parts.append(env.parser.format_call(ToolCall(name=name, arguments=arguments)))
    return "\n".join(part for part in parts if part)
