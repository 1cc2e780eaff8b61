"""Run the hidden check: call the policy's program in a sandbox and compare the results outside.

Invariant: the sandbox receives the calls and never the expected values. Whatever the program prints or replaces, it is
right only if it computes the right values. The verdict on a program that ended by itself is cached, as many episodes of
a group leave the same files.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path

from turntree.envs.repair import calls
from turntree.envs.repair.programs import expected, find_program
from turntree.envs.repair.shell import WRITE_FILES
from turntree.envs.running.memo import ResultMemo
from turntree.envs.sandbox.python_sandbox import PythonSandbox

_JUDGED = ResultMemo(4096)
_OUTCOMES = Path(calls.__file__).read_text("utf-8")
_CALL = """
import importlib
dumps, write = json.dumps, os.write
os.chdir(work)
sys.path.insert(0, work)
found = outcomes(given["calls"], importlib.import_module(given["module"]), dumps=dumps)
write(1, ("\\n" + given["nonce"] + dumps(found) + "\\n").encode())
"""


def share_right(name: str, files: Mapping[str, str], make_runner: Callable[[], PythonSandbox]) -> float:
    """Return the share of a program's hidden calls with the right result; 0 if the program does not end by itself.

    Args:
        files: The policy's workspace, text by path.
        make_runner: Creates a sandbox that the policy has not used.

    Raises:
        SandboxError: If the sandbox failed.
    """
    judged = hashlib.sha256(json.dumps([name, dict(files)], sort_keys=True).encode()).hexdigest()
    known = _JUDGED.get(judged)
    if known is not None:
        return float(known)
    found, wanted = _found(name, files, make_runner), expected(name)
    if found is None or len(found) != len(wanted):
        return 0.0
    share = sum(one == other for one, other in zip(found, wanted, strict=True)) / len(wanted)
    _JUDGED.put(judged, str(share))
    return share


def _found(name: str, files: Mapping[str, str], make_runner: Callable[[], PythonSandbox]) -> list[object] | None:
    nonce = secrets.token_hex(16)
    given = {"module": name, "calls": find_program(name).calls, "files": dict(files), "nonce": nonce}
    with make_runner() as runner:
        result = runner.run(_OUTCOMES + WRITE_FILES.format(given=json.dumps(given)) + _CALL)
    lines = [line for line in result.stdout.splitlines() if line.startswith(nonce)]
    if not result.ok or len(lines) != 1:
        return None
    try:
        found = json.loads(lines[0].removeprefix(nonce))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, list) else None
