"""GEM (``gem-llm``) environments as turntree environments, and turntree environments in GEM."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from turntree.envs.bridges.libraries import OwnRandomness, library, require_verdict
from turntree.envs.env import Env
from turntree.envs.errors import EnvError
from turntree.envs.message import Message, Reply, Role
from turntree.envs.task import Task


class Gem(Env):
    """Plays one episode of a GEM environment per task; the task's index is the seed.

    Use the GEM environment's own action format, for example ``\\boxed{5}``. GEM draws from the global random states of
    Python and NumPy, so every episode has its own copy of these states. GEM's truncation ends the task, too.
    """

    static_attributes = Env.static_attributes | {"_id", "_settings"}

    def __init__(self, id: str, *, settings: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        """Choose the environment.

        Args:
            id: For example ``game:Sudoku-v0-easy`` or ``rg:chain_sum``.
            settings: Arguments of ``gem.make``.
            **kwargs: Arguments of ``Env``.
        """
        super().__init__(**kwargs)
        library("gem", "gem-llm")
        self._id, self._settings = id, dict(settings or {})
        self._played: Any = None
        self._random = OwnRandomness(0)

    def task(self, index: int) -> Task:
        return Task(id=f"gem/{self._id}/{index}", prompt="", data_source=self._id, metadata={"seed": index})

    def start(self, task: Task) -> Sequence[Message]:
        """Begin the GEM environment's episode.

        Raises:
            EnvError: If GEM cannot set up the environment here, for example because a download is not possible.
        """
        seed = task.metadata["seed"] % 2**32  # NumPy's generators take seeds of 32 bits
        self._random = OwnRandomness(seed)
        with self._random():
            try:
                self._played = library("gem", "gem-llm").make(self._id, **self._settings)
                observation, info = self._played.reset(seed=seed)
            except Exception as error:
                reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
                raise EnvError(f"gem cannot set up {self._id} here: {reason}") from error
        return [_message(observation, info)]

    def reply(self, message: Message) -> Reply:
        with self._random():
            observation, reward, terminated, truncated, info = self._played.step(message.content)
        done = bool(terminated or truncated)
        # GEM may send a placeholder instead of a last observation; the policy must not see it.
        ended = done and observation == library("gem.utils.constants", "gem-llm").TERMINAL_STATE
        messages = [] if ended else [_message(observation, info)]
        return Reply(messages=messages, reward=float(reward), done=done, rewards={"gem": float(reward)})


def gem_environment(make: Callable[[], Env]) -> type[Any]:
    """Return a ``gem.Env`` class, to register with ``gem.register(id, gem_environment(make))``.

    ``reset(seed=n)`` begins the task with index n. An infrastructure failure raises ``EpisodeFailure``.

    Raises:
        MissingExtra: If gem-llm is not installed.
    """
    base = library("gem.core", "gem-llm").Env

    class GemEnvironment(base):  # type: ignore[misc, valid-type]
        def __init__(self, seed: int | None = None) -> None:
            self._env = make()
            self._seed = seed

        def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
            seed, self._seed = self._seed if seed is None else seed, None
            if seed is None:
                return self._env.reset()
            index = seed if self._env.num_tasks is None else seed % self._env.num_tasks
            return self._env.reset(seed=seed, options={"index": index})

        def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
            step = self._env.step(action)
            require_verdict(step[4])
            return step

        def spawn(self, same_state: bool = False, **kwargs: Any) -> GemEnvironment:
            spawned = type(self)(**kwargs)
            if same_state:
                spawned._env.restore(self._env.snapshot())
            return spawned

    return GemEnvironment


def _message(observation: Any, info: Mapping[str, Any]) -> Message:
    parts = (info.get("prefix"), observation, info.get("suffix"))
    return Message(role=Role.USER, content="\n".join(str(part).strip() for part in parts if part))
