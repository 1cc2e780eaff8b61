from __future__ import annotations

import keyword
import re
import sys
from pathlib import Path
from string import Template
from typing import NamedTuple

from turntree.agents.errors import AgentError
from turntree.agents.files import whole_file

ENVIRONMENT = Template('''\
"""Spell words backwards. Change the words, the question and the reward into your own."""

from turntree.envs import Env, Message, Reply, Task, register

WORDS = ("apple", "banana", "cherry", "damson")


class $name(Env):
    """Spell a word backwards."""

    num_tasks = len(WORDS)

    def task(self, index: int) -> Task:
        word = WORDS[index]
        return Task(id=f"$module/{word}", prompt=f"Spell {word!r} backwards.", answer=word[::-1])

    def reply(self, message: Message) -> Reply:
        return Reply(reward=float(message.content.strip() == self.current_task.answer), done=True)


register("$id", $name)
''')
TEST = Template("""\
from $module import $name
from turntree.envs import require_conformance


def test_the_right_answer_wins() -> None:
    env = $name()
    env.reset(options={"index": 0})
    assert env.step(env.current_task.answer)[1:4] == (1.0, True, False)


def test_another_answer_loses() -> None:
    env = $name()
    env.reset(options={"index": 0})
    assert env.step("no idea")[1:4] == (0.0, True, False)


def test_it_keeps_the_rules_of_every_environment() -> None:
    require_conformance($name)
""")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


class Written(NamedTuple):
    environment: Path
    test: Path
    id: str  #: registered environment id


class NameTaken(AgentError):
    """A file exists already, or the name is invalid."""


def write_env(name: str, folder: Path) -> Written:
    """Write ``name`` as a module with its test.

    Args:
        name: ``WordGame`` or ``word_game``.
        folder: Created if it does not exist.
    """
    if not _NAME.fullmatch(name):
        raise NameTaken(f"expected a name like WordGame or word_game, got {name!r}")
    module = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    if keyword.iskeyword(module) or module in sys.stdlib_module_names:
        raise NameTaken(
            f"{module!r} is a keyword or standard module of Python, so it could not be imported; choose another name"
        )
    title = "".join(part[:1].upper() + part[1:] for part in re.split("_+", module))
    words = {"module": module, "name": title, "id": f"local/{title}-v0"}
    written = Written(folder / f"{module}.py", folder / f"test_{module}.py", words["id"])
    for path in written[:2]:
        if path.exists():
            raise NameTaken(f"{path} exists already; choose another name or another folder")
    with whole_file(written.environment) as environment, whole_file(written.test) as test:
        environment.write_text(ENVIRONMENT.substitute(words), encoding="utf-8")
        test.write_text(TEST.substitute(words), encoding="utf-8")
    return written
