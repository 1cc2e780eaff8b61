"""Generate the map of a small text adventure.

Rooms lie on a grid and are connected as a tree. The room with the treasure has a locked door, and the key lies in
another room. Invariant: every world can be won; ``walkthrough`` returns the commands that win.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

DIRECTIONS = {"north": (0, 1), "south": (0, -1), "east": (1, 0), "west": (-1, 0)}
OPPOSITE = {"north": "south", "south": "north", "east": "west", "west": "east"}
ROOM_NAMES = (
    *("hall", "kitchen", "library", "cellar", "attic", "garden", "workshop", "chapel"),
    *("tower", "pantry", "armory", "gallery", "study", "stable", "vault", "well house"),
)
ITEM_NAMES = ("lamp", "rope", "map", "coin", "candle", "spade")
KEY, TREASURE = "key", "treasure"


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    exits: dict[str, dict[str, str]]  #: room -> direction -> room
    items: dict[str, list[str]]  #: room -> items in it
    first: str  #: the room where the player begins
    locked: str  #: the room whose door is locked

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def make_world(rng: random.Random, *, rooms: int) -> World:
    names = rng.sample(ROOM_NAMES, rooms)
    cells = {(0, 0): names[0]}
    exits: dict[str, dict[str, str]] = {name: {} for name in names}
    for name in names[1:]:
        free = [
            (cell, direction)
            for cell in cells
            for direction, (dx, dy) in DIRECTIONS.items()
            if (cell[0] + dx, cell[1] + dy) not in cells
        ]
        (x, y), direction = rng.choice(free)
        exits[cells[x, y]][direction] = name
        exits[name][OPPOSITE[direction]] = cells[x, y]
        dx, dy = DIRECTIONS[direction]
        cells[x + dx, y + dy] = name
    items: dict[str, list[str]] = {name: [] for name in names}
    items[names[-1]].append(TREASURE)  # the last room is a leaf, so its door blocks no other room
    items[rng.choice(names[:-1])].append(KEY)
    for item in rng.sample(ITEM_NAMES, min(len(ITEM_NAMES), rooms // 2)):
        items[rng.choice(names[:-1])].append(item)
    return World(exits=exits, items=items, first=names[0], locked=names[-1])


def walkthrough(world: World) -> list[str]:
    key_room = next(room for room, items in world.items.items() if KEY in items)
    to_key = path(world, world.first, key_room)
    to_treasure = path(world, key_room, world.locked)
    go = [f"go {direction}" for direction in to_treasure]
    return [
        *(f"go {direction}" for direction in to_key),
        f"take {KEY}",
        *go[:-1],
        f"unlock {to_treasure[-1]}",
        go[-1],
        f"take {TREASURE}",
    ]


def path(world: World, start: str, end: str) -> Sequence[str]:
    ways: dict[str, list[str]] = {start: []}
    frontier = [start]
    for room in frontier:
        for direction, neighbour in world.exits[room].items():
            if neighbour not in ways:
                ways[neighbour] = [*ways[room], direction]
                frontier.append(neighbour)
    return ways[end]
