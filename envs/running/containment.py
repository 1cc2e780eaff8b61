"""Contain an environment's code: whatever it raises ends an episode, but never the process that runs it.

Invariant: only an ``Exception`` or the user's Ctrl-C leaves ``contain``. Not covered: code that ends the process
without asking Python, by a signal or a crash of compiled code. Run such code in ``turntree.envs.sandbox``.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import NoReturn, TypeVar

from turntree.envs.errors import Escape

_T = TypeVar("_T")
_contained = threading.local()
_leave_process = os._exit


def contain(call: Callable[[], _T]) -> _T:
    """Return what ``call`` returns.

    While it runs, ``os._exit`` in its thread raises ``SystemExit``; a process that it forks can still end that way.

    Raises:
        Exception: As converted by ``contained``.
        KeyboardInterrupt: The user's.
    """
    # Replaced for good, because another thread may be inside contain when this one leaves it.
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
    """Convert any exception to an ``Exception``: itself, or an ``Escape`` raised from it.

    Raises:
        KeyboardInterrupt: If it comes from the main thread, where Python raises the user's.
    """
    if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
        raise error
    # asyncio refuses to set StopIteration on a future, so whoever awaits the future would wait forever.
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    escape = Escape(f"{type(error).__name__}: {error}")
    escape.__cause__ = error
    return escape


def _exit(status: int) -> NoReturn:
    # A forked child has inherited the thread's mark but has another process id: it may really exit.
    if getattr(_contained, "process", 0) == os.getpid():
        raise SystemExit(f"os._exit({status})")
    _leave_process(status)
