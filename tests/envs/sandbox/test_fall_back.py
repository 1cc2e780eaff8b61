import os
import subprocess
import sys
from pathlib import Path

import pytest
from poor_machine import SYSTEM_PYTHON, run_poorly
from tables import table

from turntree.envs.sandbox import Isolation, IsolationWarning, PythonSandbox

RUN = f"PYTHON = {SYSTEM_PYTHON!r}\n" + table(__file__, "two_runs")
WITHOUT_PRIVILEGE = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
needs_python = pytest.mark.skipif(not os.access(SYSTEM_PYTHON, os.X_OK), reason=f"there is no {SYSTEM_PYTHON}")


@needs_python
def test_it_is_said_once_and_why_can_be_forbidden_and_is_none_where_it_is_asked_for() -> None:
    done = run_poorly(RUN, TURNTREE_ISOLATION="")
    assert done.stdout == "ok process True\n" * 2
    assert done.stderr.count("IsolationWarning") == 1
    assert "Operation not permitted), and it can read every file that its user may read" in done.stderr
    done = run_poorly(RUN, TURNTREE_ISOLATION="namespaces")
    assert "cannot be confined here with isolation='namespaces'" in done.stderr
    assert not done.stdout
    assert "Warning" not in run_poorly(RUN, TURNTREE_ISOLATION="process").stderr


def only_root_may_read_python() -> bool:
    nobody = {"user": 65534, "group": 65534, "extra_groups": []}
    words = ["test", "-r", os.__file__]
    return os.getuid() == 0 and subprocess.run(words, **nobody, check=False).returncode != 0  # type: ignore[call-overload]


needs_closed_python = pytest.mark.skipif(not only_root_may_read_python(), reason="every user may read this Python")


@needs_closed_python
def test_python_that_only_root_may_read_is_read_and_nothing_else_of_root(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / "secret").write_text("hunter2")
    with PythonSandbox(isolation="process") as sandbox:
        other = "import subprocess, sys; print(subprocess.call([sys.executable, '-c', 'import json']))"
        assert sandbox.run(other).stdout == "0\n"
        for code in (f"open({str(tmp_path / 'secret')!r})", f"import os; os.listdir({str(tmp_path)!r})"):
            assert "PermissionError" in sandbox.run(code).error
        assert sandbox.run("import ctypes; print(ctypes.CDLL(None).open_by_handle_at(-1, 0, 0))").stdout == "-1\n"
        assert sandbox.run("import os; print(os.getuid() > 0, os.stat('.').st_uid > 0)").stdout == "True True\n"


@needs_closed_python
def test_or_it_is_said_in_a_line_why_it_cannot_be() -> None:
    done = run_poorly("from turntree.envs.sandbox import PythonSandbox; PythonSandbox().run('1')")
    message = done.stderr.splitlines()[-1]
    assert "PermissionError: only root may read" in message
    assert message.endswith("set python= to an interpreter that every user may read, or use DockerSandbox")


def test_the_variable_says_what_auto_means_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNTREE_ISOLATION", "process")
    assert PythonSandbox().wanted is Isolation.PROCESS
    assert PythonSandbox(isolation="namespaces").wanted is Isolation.NAMESPACES
    monkeypatch.setenv("TURNTREE_ISOLATION", "strong")
    with pytest.raises(ValueError, match="TURNTREE_ISOLATION must be one of auto, namespaces, process, got 'strong'"):
        PythonSandbox()


def test_where_namespaces_are_in_force_nothing_is_said(recwarn: pytest.WarningsRecorder) -> None:
    with PythonSandbox(isolation="auto") as sandbox:
        sandbox.run("1")
    if sandbox.isolation is not Isolation.NAMESPACES:
        pytest.skip(f"this machine has none: {sandbox.refused}")
    assert not [warning for warning in recwarn if warning.category is IsolationWarning]
    assert (sandbox.files, sandbox.weakness()) == (False, "")


def test_a_root_without_privileges_makes_namespaces_of_its_own() -> None:
    if os.getuid() != 0 or subprocess.run([*WITHOUT_PRIVILEGE, "unshare", "-Ur", "true"], check=False).returncode:
        pytest.skip("only root has a privilege to lose, and some kernels give no namespaces without it")
    code = "from turntree.envs.sandbox import *\nwith PythonSandbox(isolation='namespaces') as s: print(s.run('1'))"
    done = subprocess.run([*WITHOUT_PRIVILEGE, sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "stdout='1\\n'" in done.stdout
