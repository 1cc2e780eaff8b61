from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from turntree.envs.bridges.libraries import OwnRandomness, library
from turntree.envs.env import Env
from turntree.envs.errors import EnvError
from turntree.envs.message import Message, Reply, Role
from turntree.envs.task import Task


class TextArena(Env):
    """Plays a single-player game of TextArena per episode; the task's index is the seed.

    Use the game's own move format, for example ``[5]``. Games draw from the global random states of Python and NumPy,
    so every episode has its own copy of these. ``reset`` raises for multi-player games and games that need a download.
    """

    def __init__(self, name: str, *, settings: Any = None, **kwargs: Any) -> None:
        """Choose the game.

        Args:
            name: For example ``GuessTheNumber-v0``; a game for one player.
            settings: Arguments of ``textarena.make``.
            **kwargs: Arguments of ``Env``.
        """
        super().__init__(**kwargs)
        self._arena = name
        self._settings = dict(settings or {})
        self._game = _Game(None)
        self._random = OwnRandomness(0)
        library("textarena", "textarena")

    def task(self, index: int) -> Task:
        return Task(id=f"textarena/{self._arena}/{index}", prompt="", data_source=self._arena, metadata={"seed": index})

    def start(self, task: Task) -> Sequence[Message]:
        """Set up the game and show it.

        Raises:
            EnvError: If the game cannot be set up here, or is not for one player.
        """
        seed = task.metadata["seed"]
        self._random = OwnRandomness(seed)
        arena = library("textarena", "textarena")
        with self._random():
            try:
                game = arena.make(self._arena, **self._settings)
                game.reset(num_players=1, seed=seed)
            except Exception as error:
                reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
                raise EnvError(f"textarena cannot set up {self._arena} for one player here: {reason}") from error
        if not isinstance(game.state, arena.SinglePlayerState):
            raise EnvError(f"{self._arena} is not a single-player game; this bridge supports only those")
        self._game = _Game(game)
        return self._new_messages()

    def reply(self, message: Message) -> Reply:
        with self._random():
            done, _ = self._game.played.step(message.content)
        if not done:
            return Reply(messages=self._new_messages())
        reward = _reward(*self._game.played.close())
        return Reply(reward=reward, done=True, rewards={"game": reward})

    def _new_messages(self) -> list[Message]:
        _, text = self._game.played.get_observation()
        new, self._game.seen = text[self._game.seen :], len(text)
        return [Message(role=Role.USER, content=new.strip())]


class _Game:
    # Makes a game picklable. Unpickling a TextArena wrapper recurses without end, because it looks up an attribute in
    # itself before it has any. So the wrappers are pickled separately and put together again.

    def __init__(self, played: Any) -> None:
        self.played, self.seen = played, 0  # the TextArena game; the number of its observations already shown

    def __getstate__(self) -> Any:
        layers, inner = [], self.played
        while "env" in getattr(inner, "__dict__", {}):
            layers.append((type(inner), {name: value for name, value in vars(inner).items() if name != "env"}))
            inner = inner.env
        return layers, inner, self.seen

    def __setstate__(self, state: Any) -> None:
        layers, self.played, self.seen = state
        for kind, attributes in reversed(layers):
            wrapper = object.__new__(kind)
            vars(wrapper).update(attributes, env=self.played)
            self.played = wrapper


def _reward(rewards: Any, info: Any) -> float:
    # A bug of some games: after a second invalid move, reward and reason are swapped.
    reward = rewards[0]
    try:
        return float(reward.strip() if isinstance(reward, str) else reward)
    except ValueError:
        return float(str(info[0]["reason"]).removeprefix("Invalid Move: "))
