"""Escape attempts: each is contained, leaves nothing running, and does not affect the next run."""

import os
import signal
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import sleep

import pytest
from escape_code import CHANNEL, ORPHAN
from machine_speed import eventually, not_hanging, patience
from tables import table

from turntree.envs.sandbox import CodeResult, CodeStatus, PythonSandbox, SandboxError, SandboxLimits
from turntree.envs.sandbox.processes import descendants, ticks

LIMITS = SandboxLimits(seconds=patience(1.0), memory_bytes=200 * 2**20, processes=8, output_bytes=1000)
HASTY = replace(LIMITS, seconds=patience(0.3))  #: for code that only the deadline stops


@pytest.fixture(scope="module", params=["namespaces", "process"])
def sandbox(request: pytest.FixtureRequest) -> Iterator[PythonSandbox]:
    for python in (sys.executable, "/usr/local/bin/python3", "/usr/bin/python3"):
        sandbox = PythonSandbox(limits=LIMITS, isolation=request.param, python=python, packages=False)
        try:
            sandbox.run("pass")
        except SandboxError:
            continue
        with sandbox:
            yield sandbox
        return
    pytest.skip(f"this machine offers no interpreter that can be confined by {request.param}")


@pytest.fixture(autouse=True)
def aftermath(sandbox: PythonSandbox) -> Iterator[None]:
    yield
    assert sandbox.supervisor_pid is not None
    assert descendants(sandbox.supervisor_pid) == [], "the run left processes behind"
    assert sandbox.run("print('well')").to_text() == "well"


@pytest.fixture
def open_folder() -> Iterator[Path]:
    with TemporaryDirectory(dir="/tmp") as name:
        os.chmod(name, 0o777)
        yield Path(name)


def like(sandbox: PythonSandbox, limits: SandboxLimits, session: bool = False) -> PythonSandbox:
    settings = {"isolation": sandbox.wanted, "python": sandbox.python, "packages": False, "session": session}
    return PythonSandbox(limits=limits, **settings)


def run(sandbox: PythonSandbox, code: str) -> CodeResult:
    with not_hanging(60):
        return sandbox.run(code)


def test_environment_variables_stay_outside(sandbox: PythonSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SECRET", "hunter2")
    with like(sandbox, limits=LIMITS) as later:
        assert later.run("import os; print('hunter2' in str(os.environ))").to_text() == "False"
        others = "import glob\nfor p in glob.glob('/proc/*/environ'):\n  try: print('hunter2' in open(p).read())\n"
        assert "True" not in later.run(others + "  except OSError: pass").to_text()


def test_files_outside_cannot_be_read(sandbox: PythonSandbox, open_folder: Path) -> None:
    (open_folder / "secret").write_text("hunter2")
    for code in (f"open({str(open_folder / 'secret')!r}).read()", f"import os; os.listdir({str(open_folder)!r})"):
        result = run(sandbox, code)
        assert result.status is CodeStatus.ERROR
        assert "hunter2" not in result.to_text()
    assert sandbox.files is False


def test_nothing_outside_can_be_written(sandbox: PythonSandbox, open_folder: Path) -> None:
    assert run(sandbox, f"open({str(open_folder / 'mark')!r}, 'w').write('was here')").status is CodeStatus.ERROR
    assert not (open_folder / "mark").exists()
    if sandbox.isolation == "namespaces":
        assert run(sandbox, "import os; print(os.statvfs('/usr').f_flag & os.ST_RDONLY)").to_text() == "1"
    assert run(sandbox, "open('/usr/mark', 'w')").status is CodeStatus.ERROR
    assert run(sandbox, "import os; open(os.__file__, 'a')").status is CodeStatus.ERROR


def test_files_of_a_run_are_gone_in_the_next_and_a_flood_of_output_is_counted_and_dropped(
    sandbox: PythonSandbox,
) -> None:
    assert run(sandbox, "open('mine', 'w').write('x'); print(open('mine').read())").to_text() == "x"
    assert run(sandbox, "import os; print(os.path.exists('mine'))").to_text() == "False"
    result = run(sandbox, "import sys\nfor _ in range(64): sys.stdout.write('x' * (1 << 20))")
    assert (result.status, result.stdout) == (CodeStatus.OK, "x" * LIMITS.output_bytes)
    assert result.dropped_bytes == (1 << 26) - LIMITS.output_bytes
    assert "bytes of output left out" in result.to_text()


def test_a_fork_bomb_is_bounded_and_threads_count_as_processes(sandbox: PythonSandbox) -> None:
    # A second bound inside of the bomb keeps a broken sandbox from taking the machine down.
    code = "import os, time\nfor _ in range(60):\n    if os.fork() == 0: time.sleep(1000)\nprint('unbounded')"
    result = run(sandbox, code)
    assert result.status in (CodeStatus.ERROR, CodeStatus.PROCESSES)
    assert "unbounded" not in result.stdout
    code = "import threading, time\nfor _ in range(60): threading.Thread(target=time.sleep, args=(1000,)).start()"
    assert not run(sandbox, code).ok


def test_memory_is_bounded_that_of_several_processes_together_and_files_one_by_one(sandbox: PythonSandbox) -> None:
    assert run(sandbox, "x = bytearray(1 << 30)").status is CodeStatus.MEMORY
    code = (
        "import os, time\nfor _ in range(5):\n    if os.fork() == 0:\n"
        "        x = b'x' * (100 << 20)\n        time.sleep(1000)\ntime.sleep(1000)"
    )
    assert run(sandbox, code).status is CodeStatus.MEMORY
    code = "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); open('f', 'wb').write(bytes(32 << 20))"
    assert "File too large" in run(sandbox, code).error


def test_grandchildren_that_left_their_session_are_killed_and_do_not_delay_the_answer(sandbox: PythonSandbox) -> None:
    assert run(sandbox, ORPHAN).to_text() == "left"  # the fixture sees that none is alive
    with like(sandbox, limits=replace(LIMITS, seconds=1000)) as patient:
        assert run(patient, ORPHAN.replace("for d in range(3): os.close(d)", "pass")).to_text() == "left"


def test_sockets_reach_nothing(sandbox: PythonSandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = f"import socket; socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), timeout=1)"
        assert [run(sandbox, each).status for each in (code, "import socket; socket.socket(type=2)")] == ["error"] * 2
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert sandbox.network is False


def test_the_parents_cannot_be_killed_from_inside_nor_privileges_had_back(sandbox: PythonSandbox) -> None:
    code = "import os\nfor pid in (1, os.getppid()):\n  try: os.kill(pid, 9)\n  except OSError as e: print('refused')"
    run(sandbox, code)
    if sandbox.isolation == "namespaces":
        assert "ProcessLookupError" in run(sandbox, f"import os; os.kill({os.getpid()}, 0)").error
    code = "import ctypes; c = ctypes.CDLL(None); print(c.unshare(0x10000000), c.setuid(0), c.mount(0, 0, 0, 0, 0))"
    assert run(sandbox, code).to_text().replace("0\n", "") in ("-1 -1 -1", "-1 0 -1")
    assert "Operation not permitted" in run(sandbox, "import os; os.chown('/tmp', 0, 0)").error


@pytest.mark.parametrize(("said", "status"), table(__file__, "forged"))
def test_what_the_code_says_in_the_sandboxs_name_changes_nothing(sandbox, said, status):
    before = sandbox.supervisor_pid
    assert run(sandbox, CHANNEL + said).status == status
    assert sandbox.supervisor_pid == before
    peak = Path(f"/proc/{before}/status").read_text().partition("VmHWM:")[2].split()[0]
    assert int(peak) < 40 << 10, "kilobytes"


@pytest.mark.parametrize(("said", "status", "reason"), table(__file__, "forged_in_sessions"))
def test_nor_does_it_in_a_session(sandbox: PythonSandbox, said: str, status: str, reason: str) -> None:
    with like(sandbox, HASTY, session=True) as session:
        session.run("x = 1")
        before = session.supervisor_pid
        result = run(session, CHANNEL + said)
        assert (result.status, reason in result.error) == (status, True)
        assert session.run("1 + 1").stdout == "2\n"
        assert session.supervisor_pid == before


def test_who_ends_a_call_of_a_session_early_has_the_rest_told_in_the_next(sandbox: PythonSandbox) -> None:
    with like(sandbox, LIMITS, session=True) as session:
        results = [run(session, CHANNEL + "send(frame({'status': 'ok'})); os._exit(3)"), run(session, "1 + 1")]
        assert "exit code 3" in results[0].error + results[1].error
        assert run(session, "1 + 1").stdout == "2\n"


def test_code_that_is_not_taken_or_sleeps_is_stopped_at_its_deadline(sandbox: PythonSandbox) -> None:
    with like(sandbox, HASTY, session=True) as session:  # the first run says that it has ended, and goes on
        assert run(session, CHANNEL + "send(frame({'status': 'ok', 'error': ''})); time.sleep(1000)").ok
        assert run(session, "#" * (1 << 20)).status is CodeStatus.TIMEOUT
    code = "import signal, time\nfor s in (2, 15): signal.signal(s, signal.SIG_IGN)\ntime.sleep(1000)"
    with like(sandbox, HASTY) as hasty:
        result = run(hasty, code)
    assert (result.status, result.error) == (CodeStatus.TIMEOUT, f"stopped after {HASTY.seconds:g} s")


@pytest.mark.parametrize("code", table(__file__, "hoards"))
def test_there_is_no_memory_outside_of_the_processes(sandbox: PythonSandbox, code: str) -> None:
    assert run(sandbox, "import os, ctypes; c = ctypes.CDLL(None)\n" + code).status is CodeStatus.ERROR


def test_pages_that_processes_share_count_once(sandbox: PythonSandbox) -> None:
    code = "import os, time\nx = bytearray(80 << 20)\nfor _ in range(5):\n    if os.fork() == 0: time.sleep(1000)\n"
    assert run(sandbox, code + f"time.sleep({LIMITS.seconds / 4}); print('once')").to_text() == "once"


@pytest.mark.parametrize("hidden", ["", "os.unlink(str(n))"])
def test_files_of_a_run_are_bounded_together(sandbox: PythonSandbox, hidden: str) -> None:
    code = f"import os, time\nfiles = []\nfor n in range(20):\n    files.append(open(str(n), 'wb', 0)); {hidden}\n"
    with like(sandbox, limits=replace(LIMITS, seconds=20 * LIMITS.seconds)) as patient:  # a busy disk writes slowly
        result = run(patient, code + "    files[-1].write(bytes(15 << 20))\ntime.sleep(1000)")
    assert result.status is (CodeStatus.ERROR if sandbox.isolation == "namespaces" else CodeStatus.KILLED)
    assert ("No space left" in result.error) or ("MiB or 10000 files" in result.error)


def test_a_session_stands_still_between_two_calls(sandbox: PythonSandbox) -> None:
    busy = "import os, threading\nn = 0\ndef count():\n    global n\n    while True: n += 1\n"
    with like(sandbox, replace(LIMITS, seconds=patience(20)), session=True) as session:
        assert session.run(busy + "threading.Thread(target=count).start()\nif os.fork() == 0: count()").ok
        assert session.supervisor_pid is not None
        below = descendants(session.supervisor_pid)
        sleep(0.1)  # what was running is charged a little late
        used = ticks(below)
        sleep(0.3)
        assert ticks(below) == used
        assert session.run("import time\nbefore = n\nwhile n == before: time.sleep(0.01)").ok
        sleep(0.1)
        used = ticks(below)
        for pid in below:  # the control: somebody outside wakes them
            os.kill(pid, signal.SIGCONT)
        eventually(lambda: ticks(below) > used + 20)
        assert "kept running between two calls" in session.run("1").error


@pytest.mark.parametrize("code", ["assert c.timer_create(0, 0, 0) == 0", "fcntl.fcntl(1, 10, 18)"])
def test_no_signal_can_be_left_behind_that_wakes_it(sandbox: PythonSandbox, code: str) -> None:
    assert run(sandbox, "import ctypes, fcntl; c = ctypes.CDLL(None)\n" + code).status is CodeStatus.ERROR
