from collections.abc import Iterator
from typing import Any

from catalogue_policies import Played, play_as
from playing import another, call

from turntree.envs import Env

Path = list[list[dict[str, Any]]]


def follow(env: Env, index: int, path: Path) -> Played:
    """Play a policy that makes the calls of ``path``: all calls of a turn at once, then a few words."""

    def turns(env: Env) -> Iterator[str]:
        for calls in path:
            if calls:
                yield "\n".join(call(env, one["name"], **one["arguments"]) for one in calls)
            yield "Done."

    return play_as(env, turns, index)


def path_of(env: Env, index: int) -> Path:
    return [list(calls) for calls in env.task(index).metadata["path"]]


def left_out(path: Path) -> Iterator[Path]:
    for turn, calls in enumerate(path):
        for number in range(len(calls)):
            yield [*path[:turn], calls[:number] + calls[number + 1 :], *path[turn + 1 :]]


def changed(path: Path) -> Iterator[Path]:
    for turn, calls in enumerate(path):
        for number, one in enumerate(calls):
            for name, value in one["arguments"].items():
                if value not in ([], {}):
                    other = {**one, "arguments": {**one["arguments"], name: another(value)}}
                    instead = [*calls[:number], other, *calls[number + 1 :]]
                    yield [*path[:turn], instead, *path[turn + 1 :]]
