"""Single-player games of TextArena."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from turntree.envs.bridges.missing import library
from turntree.envs.env import Env
from turntree.envs.message import Message, Role
from turntree.envs.reply import Reply
from turntree.envs.task import Task


class TextArena(Env):
    """One game an episode, with the task's index as its seed.

    The game's own move format applies, for example ``[5]``. Games draw from the global random state while they
    are set up; that state is restored afterwards. A game cannot be part of a snapshot unless it pickles.
    """

    def __init__(self, name: str, *, settings: Any = None, **kwargs: Any) -> None:
        """Choose the game.

        Args:
            name: For example ``GuessTheNumber-v0``; a game for one player.
            settings: Arguments of the game, by name.
            **kwargs: Arguments of ``Env``.
        """
        super().__init__(**kwargs)
        self._arena = name
        self._settings = dict(settings or {})
        self._game: Any = None
        self._seen = 0
        library("textarena", "textarena")

    def task(self, index: int) -> Task:
        """The game that this seed sets up."""
        return Task(id=f"textarena/{self._arena}/{index}", prompt="", data_source=self._arena, metadata={"seed": index})

    def start(self, task: Task) -> Sequence[Message]:
        """Set the game up and show it."""
        import random

        state = random.getstate()
        try:
            self._game = library("textarena", "textarena").make(self._arena, **self._settings)
            self._game.reset(num_players=1, seed=task.metadata["seed"])
        finally:
            random.setstate(state)
        self._seen = 0
        return self._new_messages()

    def reply(self, message: Message) -> Reply:
        """Make the move."""
        done, _ = self._game.step(message.content)
        if not done:
            return Reply(messages=self._new_messages())
        rewards, _ = self._game.close()
        reward = float(rewards[0])
        return Reply(reward=reward, done=True, rewards={"game": reward})

    def _new_messages(self) -> list[Message]:
        _, text = self._game.get_observation()
        new, self._seen = text[self._seen :], len(text)
        return [Message(role=Role.USER, content=new.strip())]
