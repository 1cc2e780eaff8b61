import random

import pytest

from turntree.envs import Limits, make
from turntree.envs.procedural.adventure import Adventure
from turntree.envs.procedural.world import make_world, path


@pytest.mark.parametrize("rooms", [2, 5, 16])
def test_the_walkthrough_wins_at_its_last_command(rooms: int) -> None:
    env = make("turntree/Adventure-v0", min_rooms=rooms, max_rooms=rooms, limits=Limits(max_turns=None))
    for index in range(20):
        env.reset(options={"index": index})
        steps = [env.step(f"I go on.\n> {command}.") for command in env.current_task.answer.split("; ")]
        assert [step[2] for step in steps] == [False] * (len(steps) - 1) + [True]
        assert [step[1] for step in steps] == [0.0] * (len(steps) - 1) + [1.0]


def test_wandering_about_without_the_key_loses() -> None:
    env = make("turntree/Adventure-v0", limits=Limits(max_turns=30))
    env.reset(options={"index": 1})
    rng = random.Random(0)
    while True:
        _, reward, terminated, truncated, info = env.step(f"go {rng.choice(['north', 'south', 'east', 'west'])}")
        assert reward == 0.0
        assert not terminated
        if truncated:
            break
    assert info["stop_reason"] == "max_turns"


def test_the_locked_door_opens_only_with_the_key() -> None:
    env = Adventure(min_rooms=2, max_rooms=2)
    env.reset(options={"index": 0})
    (way,) = env.world.exits[env.world.first]  # type: ignore[union-attr]
    assert env.step(f"go {way}")[0] == "The door is locked."
    assert env.step(f"unlock {way}")[0] == "You have no key."
    assert f"{way} (locked)" in env.step("look")[0]
    assert env.step("take the key")[0] == "Taken: key."
    assert env.step("inventory")[0] == "You carry: key."
    assert env.step(f"unlock {way}")[0] == "The door is open."
    assert env.step(f"unlock {way}")[0] == "There is nothing to unlock."
    assert "You see: treasure" in env.step(f"go {way}")[0]


def test_what_is_dropped_lies_where_it_was_dropped() -> None:
    env = Adventure(min_rooms=2, max_rooms=2)
    env.reset(options={"index": 0})
    env.step("take key")
    assert "key" not in env.step("look")[0].partition("You see")[2]
    assert env.step("drop key")[0] == "Dropped: key."
    assert "key" in env.step("look")[0].partition("You see")[2]
    assert env.step("drop key")[0] == "You have no key."


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ("", "no command"),
        ("dance", "no command"),
        ("go", "no command"),
        ("go up", "Directions are"),
        ("take sun", "no sun"),
    ],
)
def test_what_cannot_be_done_is_said(said: str, hint: str) -> None:
    env = make("turntree/Adventure-v0")
    env.reset(options={"index": 0})
    assert hint in env.step(said)[0]


def test_ways_lead_back_and_every_room_can_be_reached() -> None:
    world = make_world(random.Random(3), rooms=16)
    for room in world.exits:
        way = path(world, world.first, room)
        assert len(way) == len(path(world, room, world.first))
    assert len(world.exits[world.locked]) == 1
