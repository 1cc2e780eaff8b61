"""Single-player games of TextArena."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from turntree.envs.bridges.missing import library
from turntree.envs.bridges.randomness import OwnRandomness
from turntree.envs.env import Env
from turntree.envs.errors import EnvError
from turntree.envs.message import Message, Role
from turntree.envs.reply import Reply
from turntree.envs.task import Task


class TextArena(Env):
    """One game an episode, with the task's index as its seed.

    The game's own move format applies, for example ``[5]``. Games draw from the global random state of Python or numpy:
    each episode has one of its own, which stands there only while its game sets up or moves. Games of two or more
    players, and those whose words or texts would have to be downloaded, say so when an episode begins.
    """

    def __init__(self, name: str, *, settings: Any = None, **kwargs: Any) -> None:
        """Choose the game.

        Args:
            name: For example ``GuessTheNumber-v0``; a game for one player.
            **kwargs: Arguments of ``Env``.
        """
        super().__init__(**kwargs)
        self._arena = name
        self._settings = dict(settings or {})
        self._game = _Game(None)
        self._random = OwnRandomness(0)
        library("textarena", "textarena")

    def task(self, index: int) -> Task:
        """The game that this seed sets up."""
        return Task(id=f"textarena/{self._arena}/{index}", prompt="", data_source=self._arena, metadata={"seed": index})

    def start(self, task: Task) -> Sequence[Message]:
        """Set the game up and show it.

        Raises:
            EnvError: If it cannot be set up here, or is not for one player.
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
            raise EnvError(f"{self._arena} is a game of several players; this bridge plays those of one player")
        self._game = _Game(game)
        return self._new_messages()

    def reply(self, message: Message) -> Reply:
        """Make the move."""
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
    """A game that pickles: TextArena's wrappers look for their attributes in themselves while they are read back."""

    def __init__(self, played: Any) -> None:
        self.played, self.seen = played, 0

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
    """The player's reward; some games hand over the reward of a second bad move as its reason, and the reverse."""
    reward = rewards[0]
    try:
        return float(reward.strip() if isinstance(reward, str) else reward)
    except ValueError:
        return float(str(info[0]["reason"]).removeprefix("Invalid Move: "))
