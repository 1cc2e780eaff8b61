from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from turntree.envs.env import Env
from turntree.envs.limits import Limits
from turntree.envs.message import Message, Reply, Role
from turntree.envs.procedural.world import DIRECTIONS, KEY, ROOM_NAMES, TREASURE, World, make_world, walkthrough
from turntree.envs.task import Task

_HELP = "You can: look, inventory, go DIRECTION, take ITEM, drop ITEM, unlock DIRECTION."


class Adventure(Env):
    """Explore rooms and bring home a treasure; the last line of a turn is the command.

    Each command changes the player's location, the carried items and the items in the rooms. The reward is 1 when the
    player takes the treasure. There are at most ``limits.max_turns`` commands.
    """

    step_inline = True  # fast enough to run in the event loop, see Env.step_inline
    forkable = True
    default_limits = Limits(max_turns=40)

    def __init__(self, *, min_rooms: int = 3, max_rooms: int = 6, split: str = "train", **kwargs: Any) -> None:
        """Choose the worlds.

        Args:
            min_rooms: Minimum number of rooms, at least 2.
            max_rooms: Maximum number of rooms, at most 16.
            split: Part of every task's id and seed.
            **kwargs: Arguments of ``Env``.

        Raises:
            ValueError: If a number of rooms is out of range.
        """
        super().__init__(**kwargs)
        if not 2 <= min_rooms <= max_rooms <= len(ROOM_NAMES):
            raise ValueError(f"expected 2 <= min_rooms <= max_rooms <= {len(ROOM_NAMES)}, got {min_rooms}, {max_rooms}")
        self.min_rooms = min_rooms
        self.max_rooms = max_rooms
        self.split = split
        self.world: World | None = None
        self.room = ""
        self.items: dict[str, list[str]] = {}
        self.carried: list[str] = []
        self.unlocked = False

    def default_system_prompt(self) -> str:
        return (
            "You are in a house. Somewhere a treasure lies behind a locked door; find the key, and take the treasure. "
            f"The last line of each of your messages is one command. {_HELP}"
        )

    def task(self, index: int) -> Task:
        # `answer` holds a list of commands that wins, separated by semicolons.
        name = f"{self.min_rooms}-{self.max_rooms}/{self.split}/{index}"
        rng = random.Random(f"turntree/adventure/{name}")
        world = make_world(rng, rooms=rng.randint(self.min_rooms, self.max_rooms))
        return Task(
            id=f"adventure/{name}",
            prompt="You wake up.",
            answer="; ".join(walkthrough(world)),
            data_source="adventure",
            metadata={"world": world.to_json()},
        )

    def solution(self) -> Sequence[str]:
        return self.current_task.answer.split("; ")

    def start(self, task: Task) -> Sequence[Message]:
        self.world = World(**task.metadata["world"])
        self.room = self.world.first
        self.items = {room: list(items) for room, items in self.world.items.items()}
        self.carried = []
        self.unlocked = False
        return [Message(role=Role.USER, content=f"{task.prompt} {self._look()}")]

    def reply(self, message: Message) -> Reply:
        lines = message.spoken.strip().lower().splitlines()
        verb, _, rest = (lines[-1] if lines else "").strip(" >.!`\"'").partition(" ")
        command = {"look": self._look, "inventory": self._inventory}.get(verb)
        with_word = {"go": self._go, "take": self._take, "drop": self._drop, "unlock": self._unlock}.get(verb)
        if command is not None:
            shown = command()
        elif with_word is not None and rest:
            shown = with_word(rest.removeprefix("the ").strip())
        else:
            shown = f"That is no command. {_HELP}"
        won = TREASURE in self.carried
        rewards = {"won": 1.0} if won else {}
        return Reply(messages=[Message(role=Role.USER, content=shown)], reward=float(won), done=won, rewards=rewards)

    @property
    def _exits(self) -> dict[str, str]:
        assert self.world is not None
        return self.world.exits[self.room]

    def _is_shut(self, room: str) -> bool:
        assert self.world is not None
        return room == self.world.locked and not self.unlocked

    def _look(self) -> str:
        ways = [f"{way} (locked)" if self._is_shut(room) else way for way, room in self._exits.items()]
        things = ", ".join(self.items[self.room]) or "nothing"
        return f"You are in the {self.room}. Exits: {', '.join(ways)}. You see: {things}."

    def _inventory(self) -> str:
        return f"You carry: {', '.join(self.carried) or 'nothing'}."

    def _go(self, way: str) -> str:
        if way not in self._exits:
            return f"There is no way {way}." if way in DIRECTIONS else f"Directions are {', '.join(DIRECTIONS)}."
        if self._is_shut(self._exits[way]):
            return "The door is locked."
        self.room = self._exits[way]
        return self._look()

    def _take(self, item: str) -> str:
        if item not in self.items[self.room]:
            return f"There is no {item} here."
        self.items[self.room].remove(item)
        self.carried.append(item)
        return f"Taken: {item}."

    def _drop(self, item: str) -> str:
        if item not in self.carried:
            return f"You have no {item}."
        self.carried.remove(item)
        self.items[self.room].append(item)
        return f"Dropped: {item}."

    def _unlock(self, way: str) -> str:
        if way not in self._exits or not self._is_shut(self._exits[way]):
            return "There is nothing to unlock."
        if KEY not in self.carried:
            return "You have no key."
        self.unlocked = True
        return "The door is open."
