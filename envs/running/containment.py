"""Contain an environment's code: whatever it raises ends an episode, but never the process that runs it.

Invariant: ``contain`` raises only an ``Exception`` or the user's Ctrl-C. Not covered: code that ends the process by a
signal or a crash of compiled code, without a Python exception. Run such code in ``turntree.envs.sandbox``.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import NoReturn, TypeVar

from turntree.envs.errors import Escape

_T = TypeVar("_T")
_contained = threading.local()  # ``process``: id of the process in which this thread is inside contain; else 0
_leave_process = os._exit


def contain(call: Callable[[], _T]) -> _T:
    """Run ``call`` and return its result.

    While ``call`` runs, ``os._exit`` in this thread raises ``SystemExit`` instead of ending the process. A process that
    ``call`` forks can still end with ``os._exit``.

    Raises:
        Exception: Raised by ``call``, and converted by ``contained``.
        KeyboardInterrupt: If the user pressed Ctrl-C.
    """
    # os._exit stays replaced, because another thread may still be inside contain when this thread leaves it.
    os._exit = _exit
    outer = getattr(_contained, "process", 0)
    _contained.process = os.getpid()
    try:
        return call()
    except BaseException as error:
        raise contained(error)  # noqa: B904  # the error itself, or raised from it
    finally:
        _contained.process = outer


def contained(error: BaseException) -> Exception:
    """Return an ``Exception`` as it is, and any other exception as an ``Escape`` raised from it.

    Raises:
        KeyboardInterrupt: In the main thread, where Python raises it for the user's Ctrl-C.
    """
    if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
        raise error
    # asyncio refuses to set StopIteration on a future, so code that awaits the future would wait forever.
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    escape = Escape(f"{type(error).__name__}: {error}")
    escape.__cause__ = error
    return escape


def _exit(status: int) -> NoReturn:
    # A forked child inherits ``_contained`` but has another process id, and may really exit.
    if getattr(_contained, "process", 0) == os.getpid():
        raise SystemExit(f"os._exit({status})")
    _leave_process(status)
