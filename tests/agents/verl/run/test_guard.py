import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from machine_speed import eventually, patience
from processes import alive, heed_hangups
from tables import table

from turntree.agents.errors import UsageError
from turntree.agents.files import OneWriter


class Launcher:
    # A process with a guard and a session of a leader, a child, and a grandchild in its own group.
    def __init__(self, root: Path, *, watched: bool = True) -> None:
        self.folder = root / "ray"
        self.folder.mkdir()
        command = [sys.executable, "-c", table(__file__, "launcher"), str(root), str(self.folder), str(int(watched))]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, preexec_fn=heed_hangups, **pipes)
        assert self.process.stdout is not None, "a pipe"
        self.session = [int(self.process.stdout.readline()) for _ in range(3)]

    def end(self) -> None:
        for pid in self.session:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    launcher = Launcher(tmp_path)
    yield launcher
    launcher.end()


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, None])
def test_a_session_ends_with_the_process_that_began_it_however_it_ends(launcher: Launcher, ending: int | None) -> None:
    assert all(map(alive, launcher.session))
    if ending is None:
        launcher.process.communicate("go on\n", timeout=patience(30))
        assert not any(map(alive, launcher.session)), "what the guard has ended is gone before it goes on"
        assert launcher.process.returncode == 0
    else:
        launcher.process.send_signal(ending)
    eventually(lambda: not any(map(alive, launcher.session)))
    eventually(lambda: not launcher.folder.exists())


def test_a_session_that_no_guard_knows_would_go_on(tmp_path: Path) -> None:
    launcher = Launcher(tmp_path, watched=False)
    launcher.process.kill()
    eventually(lambda: not launcher.folder.exists())
    assert all(map(alive, launcher.session))
    launcher.end()


def test_the_lock_is_held_until_the_last_process_has_ended(launcher: Launcher, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"by process {launcher.process.pid} "):
        OneWriter(tmp_path, inherited=patience(20))
    launcher.process.kill()
    launcher.process.wait()
    lock = OneWriter(tmp_path, inherited=patience(20))
    assert not any(map(alive, launcher.session))
    lock.close()
