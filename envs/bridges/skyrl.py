from __future__ import annotations

from collections.abc import Callable
from typing import Any

from turntree.envs.bridges.libraries import library, require_verdict
from turntree.envs.env import Env


def skyrl_environment(make: Callable[[], Env]) -> type[Any]:
    """Return a ``BaseTextEnv`` class, to register with ``skyrl_gym.envs.registration.register``.

    The row's ``extras`` select the task: ``{"extra_info": {"index": 17}}`` or ``{"index": 17}``. The opening messages
    of the turntree environment replace the row's prompt. An infrastructure failure raises ``EpisodeFailure``.

    Raises:
        MissingExtra: If skyrl-gym is not installed.
    """
    base = library("skyrl_gym.envs.base_text_env", "skyrl-gym")

    class SkyRLEnvironment(base.BaseTextEnv):  # type: ignore[misc, name-defined]
        def __init__(self, env_config: Any = None, extras: Any = None) -> None:
            super().__init__()
            extras = extras or {}
            self.index = extras.get("index", (extras.get("extra_info") or {}).get("index"))
            self.env = make()
            if self.env.limits.max_turns is not None:
                self.max_turns: int = self.env.limits.max_turns

        def init(self, prompt: Any) -> tuple[Any, dict[str, Any]]:
            options = None if self.index is None else {"index": self.index}
            _, info = self.env.reset(options=options)
            return info["messages"], {"tools": info["tools"]}

        def step(self, action: str) -> Any:
            _, reward, terminated, truncated, info = self.env.step(action)
            require_verdict(info)
            self.turns = info["turn"]
            return base.BaseTextEnvStepOutput(
                observations=info["messages"], reward=reward, done=terminated or truncated, metadata=info
            )

        def close(self) -> None:
            self.env.close()

    return SkyRLEnvironment
