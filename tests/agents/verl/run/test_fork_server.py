import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from interpreter import python
from machine_speed import patience
from tables import table
from warm_driver import warm_socket

from turntree.agents.verl.run import fork_client, prefork


class Forks:
    def __init__(self, root: Path, server: subprocess.Popen[str]) -> None:
        self.root, self.server = root, server

    def start(self, script: str, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        (self.root / "script.py").write_text(script)
        command = [sys.executable, "-S", fork_client.__file__, str(self.root / "socket")]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen([*command, str(self.root / "script.py"), *arguments], text=True, **{**pipes, **options})


@pytest.fixture
def forks(tmp_path: Path) -> Iterator[Forks]:
    (tmp_path / "preloaded.py").touch()
    paths = [str(tmp_path), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "THEIRS": "kept"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    command = [sys.executable, "-c", table(__file__, "fork_server"), str(tmp_path / "socket")]
    with subprocess.Popen(command, env=environment, **pipes) as server:
        assert server.stdout.readline() == "ready\n"
        yield Forks(tmp_path, server)
        server.kill()


def test_a_fork_is_started_as_an_interpreter_would_be(forks: Forks, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    command = [str(tmp_path / "script.py"), "a b", "c"]
    told = []
    for _ in range(2):
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        try:
            inherited = {"cwd": tmp_path / "here", "env": {**os.environ, "MINE": "ü"}}
            client = forks.start(table(__file__, "tells"), "a b", "c", **inherited)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
        out, error = client.communicate("heard", timeout=patience(60))
        assert (client.returncode, error) == (7, "said\n")
        told.append(json.loads(out))
    first, second = told
    assert first["argv"] == command
    assert (first["name"], first["cwd"]) == ("__main__", str(tmp_path / "here"))
    assert (first["mine"], first["theirs"], first["blocked"]) == ("ü", None, [signal.SIGUSR1])
    assert first["interrupt"]
    assert (first["parent"], first["group"]) == (forks.server.pid, os.getpgrp())
    assert first["read"] == "heard"
    assert first["preloaded"]
    assert not set(first["random"]) & set(second["random"])


def test_a_client_ends_as_its_fork_does_and_the_fork_with_its_client(forks: Forks) -> None:
    waits = "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(1000)\n"
    first = forks.start(waits)
    os.kill(int(first.stdout.readline()), signal.SIGKILL)
    assert first.wait(patience(60)) == -signal.SIGKILL
    second = forks.start(waits)
    second.stdout.readline()
    second.kill()
    assert second.stdout.read() == ""  # which ends when the fork does, whose stream it is too
    assert forks.start("print(1)").communicate(timeout=patience(60))[0] == "1\n"


def test_without_a_server_the_script_runs_in_an_interpreter_of_its_own(forks: Forks) -> None:
    forks.server.kill()
    forks.server.wait()
    client = forks.start("import os, sys\nprint(os.getpid(), 'preloaded' in sys.modules)")
    assert client.communicate(timeout=patience(60))[0] == f"{client.pid} False\n"


def test_the_server_ends_with_whoever_started_it_and_not_by_an_interrupt(forks: Forks) -> None:
    assert forks.start("print(1)").communicate(timeout=patience(60))[0] == "1\n"  # it serves by now
    forks.server.send_signal(signal.SIGINT)
    assert forks.start("print(1)").communicate(timeout=patience(60))[0] == "1\n"
    forks.server.stdin.close()
    assert forks.server.wait(patience(60)) == 0


def test_who_sends_no_request_disturbs_nobody(forks: Forks) -> None:
    for message in (b"", b"\0\0\0\7nothing"):
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(str(forks.root / "socket"))
            stranger.send(message) if message else None
    assert forks.start("print(1)").communicate(timeout=patience(60))[0] == "1\n"


def test_a_server_with_threads_is_refused() -> None:
    assert "threads are running" in python("-c", table(__file__, "serves_with_threads")).stderr


@pytest.mark.slow  # it asks the server that the trainings fork from
def test_what_is_imported_beforehand_starts_nothing_that_a_fork_would_lack(tmp_path: Path) -> None:
    # With threads the server would refuse, and the client would be an interpreter without torch.
    (tmp_path / "script.py").write_text(table(__file__, "preloads"))
    command = [sys.executable, "-S", fork_client.__file__, str(warm_socket()), str(tmp_path / "script.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "True False False\n", done.stderr[-2000:]
    assert len(set(prefork.PRELOADED)) == len(prefork.PRELOADED)


@pytest.mark.parametrize(("word", "told"), [("go\n", "__main__ ['a=1'] True\n"), ("", "")])
def test_the_driver_runs_once_the_word_is_said_and_never_without(tmp_path: Path, word: str, told: str) -> None:
    # Even if a preloaded module is missing, and in a shell's background, where SIGINT is ignored.
    (tmp_path / "driver.py").write_text(table(__file__, "drives"))
    script = table(__file__, "preforks").replace("SOCKET", str(tmp_path / "socket"))
    done = python("-c", script, input=word, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, told), done.stderr
