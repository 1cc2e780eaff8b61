from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from turntree.envs import Env, ToolCall
from turntree.envs.data.json_files import parse_json

_COMMAND = re.compile("/[a-z]+")


class Played(NamedTuple):
    reward: float  #: sum over the turns
    rewards: dict[str, float]
    stop_reason: str  #: ``quit`` if the person left


def play(
    env: Env,
    ask: Callable[[], str],
    show: Callable[[str, str], None],
    *,
    seed: int | None = None,
    options: dict[str, Any] | None = None,
) -> Played:
    """Let a person play one episode.

    Args:
        ask: Returns the person's next line; raises ``EOFError`` at the end.
        show: Called with the role and the text.
    """
    _, info = env.reset(seed=seed, options=options)
    _show_messages(info["messages"], show)
    show("help", _help(env))
    reward = 0.0
    while True:
        try:
            turn = _turn(env, ask, show)
        except EOFError:
            return Played(reward, dict(info["rewards"]), "quit")
        _, gained, terminated, truncated, info = env.step(turn)
        reward += gained
        _show_messages(info["messages"], show)
        if info["failure"]:
            show("failure", info["failure"])
        if terminated or truncated:
            return Played(reward, dict(info["rewards"]), info["stop_reason"])


def _turn(env: Env, ask: Callable[[], str], show: Callable[[str, str], None]) -> str:
    while True:
        text = _lines(ask)
        command, _, rest = text.partition(" ")
        if command == "/quit":
            raise EOFError
        if command == "/tools":
            if not env.offered_tools:
                show("help", "this environment has no tools")
            for tool in env.offered_tools:
                show("tool", f"{tool.name}({', '.join(tool.properties)}): {tool.schema['function']['description']}")
        elif command == "/help":
            show("help", _help(env))
        elif command == "/call":
            try:
                call = _call(env, rest)
            except ValueError as error:
                show("help", str(error))
            else:
                show("you", call)
                return call
        elif _COMMAND.fullmatch(command):
            show("help", f"unknown command {command}; start with a space to send it as a turn. {_help(env)}")
        else:
            return text


def _help(env: Env) -> str:
    usage = "Each line is a turn; end a line with \\ to continue on the next. /quit ends the game."
    if names := ", ".join(tool.name for tool in env.offered_tools):
        usage += f" /call TOOL TEXT or /call TOOL {{JSON}} calls a tool, /tools describes them: {names}."
    return usage


def _lines(ask: Callable[[], str]) -> str:
    lines = [ask()]
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1][:-1]
        lines.append(ask())
    return "\n".join(lines)


def _call(env: Env, words: str) -> str:
    name, _, given = words.strip().partition(" ")
    tool = next((tool for tool in env.offered_tools if tool.name == name), None)
    if tool is None:
        names = ", ".join(tool.name for tool in env.offered_tools) or "none"
        raise ValueError(f"unknown tool {name!r}; the tools are: {names}")
    given = given.strip()
    if given.startswith("{"):
        try:
            arguments = parse_json(given)
        except ValueError as error:
            raise ValueError(f"the arguments of {name} are not JSON: {error}") from error
    elif not given and not tool.properties:
        arguments = {}
    elif len(tool.properties) == 1:
        arguments = {next(iter(tool.properties)): given}
    else:
        raise ValueError(f'{name} takes {", ".join(tool.properties)}: write /call {name} {{"...": ...}}')
    return env.parser.format_call(ToolCall(name=name, arguments=arguments))


def _show_messages(messages: Sequence[dict[str, Any]], show: Callable[[str, str], None]) -> None:
    for message in messages:
        show(message.get("name") or message["role"], message["content"])
