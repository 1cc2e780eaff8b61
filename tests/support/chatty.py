"""An environment of two turns for real trainings, whose processes import it from a file."""

from __future__ import annotations

from pathlib import Path

_SOURCE = '''
from turntree.envs import Env, Message, Reply, Task


class Chatty(Env):
    """Asks back once and pays for short answers."""

    def task(self, index):
        return Task(id=f"chatty/{index}", prompt=f"say {index}")

    def reply(self, message):
        if self._progress.turn < 2:
            return Reply(messages=(Message(role="user", content=f"you said {len(message.content) % 3}"),))
        return Reply(reward=1.0 / (1 + len(message.content)), done=True)
'''


def write_chatty(folder: Path) -> str:
    """Write its module into a folder that is on the import path; returns the environment's id."""
    (folder / "chatty_env.py").write_text(_SOURCE)
    return "chatty_env:Chatty"
