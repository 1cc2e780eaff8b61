"""The control of ``test_escapes``: outside the sandbox the same attempts succeed."""

import contextlib
import os
import signal
import socket
from pathlib import Path

import pytest
from escape_code import ORPHAN
from interpreter import python
from machine_speed import eventually, patience

from turntree.envs.sandbox.processes import descendants


def run(code: str) -> str:
    return python("-c", code, check=True).stdout


def test_environment_variables_and_files_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MY_SECRET", "hunter2")
    (tmp_path / "secret").write_text("hunter3")
    assert "hunter2" in run("import os; print(dict(os.environ))")
    assert "hunter3" in run(f"print(open({str(tmp_path / 'secret')!r}).read())")


def test_a_grandchild_outlives_its_parents() -> None:
    code = ORPHAN.replace("time.sleep(600)", "open(MARK, 'w').write(str(os.getpid())); time.sleep(600)")
    mark = f"/tmp/orphan-{os.getpid()}"
    try:
        assert run(f"MARK = {mark!r}\n{code}") == "left\n"
        eventually(lambda: os.path.exists(mark) and Path(mark).read_text())
        pid = int(Path(mark).read_text())
        assert pid not in descendants(os.getpid())
        os.kill(pid, signal.SIGKILL)  # raises if it were gone
    finally:
        with contextlib.suppress(OSError):
            os.unlink(mark)


def test_a_socket_reaches_a_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        run(f"import socket; socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), timeout={patience(5)})")
        server.settimeout(patience(5))
        server.accept()[0].close()


def test_memory_is_had_outside_of_processes_and_a_signal_can_be_left_behind() -> None:
    code = (
        "import ctypes, mmap, os; c = ctypes.CDLL(None)\nos.write(os.memfd_create('x'), b'x'); mmap.mmap(-1, 1 << 20)\n"
        "segment = c.shmget(0, 1 << 20, 0o1600); print(segment >= 0, c.shmctl(segment, 0, None))"
    )
    assert run(code) == "True 0\n"
    code = "import ctypes, fcntl; print(ctypes.CDLL(None).timer_create(0, 0, ctypes.byref(ctypes.c_void_p())))"
    assert run(f"{code}; fcntl.fcntl(0, 10, 18)") == "0\n"
