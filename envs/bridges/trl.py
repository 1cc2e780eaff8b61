from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from turntree.envs.env import Env
from turntree.envs.message import ToolCall
from turntree.envs.task import Context
from turntree.envs.tools.tool import Tool


def trl_environment(make: Callable[[], Env]) -> type[Any]:
    """Return a class for ``environment_factory=`` of TRL's ``GRPOTrainer``; its methods are the tools.

    A row selects its task by the column ``index``. TRL does not pass the policy's last turn to the environment, so add
    ``trl_reward``, which does, to the trainer's ``reward_funcs``.

    Args:
        make: Creates the environment of one episode; its tools must not depend on the task.
    """

    class TRLEnvironment:
        def __init__(self) -> None:
            self._env = make()
            self._total = 0.0
            self._info: dict[str, Any] = {}

        def reset(self, index: int | None = None, **row: Any) -> str:
            text, self._info = self._env.reset(options=None if index is None else {"index": index})
            self._total = 0.0
            return text

        def _say(self, action: str) -> str:
            if self._info["stop_reason"]:
                return "Error: the episode has ended"
            text, reward, _, _, self._info = self._env.step(action)
            self._total += reward
            return text

    for tool in make().offered_tools:
        setattr(TRLEnvironment, tool.name, _method(tool))
    return TRLEnvironment


def trl_reward(completions: Sequence[Any], environments: Sequence[Any], **_: Any) -> list[float | None]:
    """Reward function for TRL: pass each environment the policy's last turn and return the episode's reward.

    Args:
        completions: Texts or messages, shape (episodes,).
        environments: Environments made by ``trl_environment``, shape (episodes,).

    Returns:
        Rewards, shape (episodes,). ``None`` if the infrastructure failed; TRL leaves such an episode out.
    """
    totals: list[float | None] = []
    for completion, environment in zip(completions, environments, strict=True):
        environment._say(_answer(completion))
        totals.append(None if environment._info["failure"] else environment._total)
    return totals


def _answer(completion: Any) -> str:
    # Returns the policy's last turn; empty if the dialogue was cut off after a tool message.
    if isinstance(completion, str):
        return completion
    last = completion[-1] if completion else {}
    return (last.get("content") or "") if last.get("role", "assistant") == "assistant" else ""


def _method(tool: Tool) -> Callable[..., str]:
    def method(self: Any, **arguments: Any) -> str:
        return str(self._say(self._env.parser.format_call(ToolCall(name=tool.name, arguments=arguments))))

    # TRL builds a schema from a method's signature, annotations and docstring, so these are copied from the tool.
    given = inspect.signature(tool.function, eval_str=True)
    shown = [p for p in given.parameters.values() if p.annotation is not Context and p.name != "self"]
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    keyword_only = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in shown]
    method.__signature__ = given.replace(parameters=[own, *keyword_only])  # type: ignore[attr-defined]
    method.__annotations__ = {p.name: p.annotation for p in shown} | {"return": given.return_annotation}
    method.__name__, method.__doc__ = tool.name, tool.function.__doc__
    return method
