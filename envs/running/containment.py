"""Code of an environment, whatever it raises: it breaks an episode, never the process that plays it.

Invariant: what leaves ``contain`` is an ``Exception``, or the user's Ctrl-C. ``SystemExit`` would end a command with a
status of the environment's choice, and ``CancelledError`` would look like a cancellation of whoever waits.
Not covered: what ends the process without asking Python, such as a signal or a crash of compiled code. Code that may do
so belongs in ``turntree.envs.sandbox``.
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

    ``os._exit`` of its own thread raises ``SystemExit`` meanwhile; a process that it forks still ends by it.

    Raises:
        Exception: What it raised, as by ``contained``.
        KeyboardInterrupt: The user's.
    """
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
    """Return the ``Exception`` that stands for an error: itself, or an ``Escape``.

    Raises:
        KeyboardInterrupt: The error, if it is one of the main thread, where Python raises the user's.
    """
    if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
        raise error
    # An asyncio future refuses StopIteration, and who waits for it would wait forever.
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    escape = Escape(f"{type(error).__name__}: {error}")
    escape.__cause__ = error
    return escape


def _exit(status: int) -> NoReturn:
    if getattr(_contained, "process", 0) == os.getpid():
        raise SystemExit(f"os._exit({status})")
    _leave_process(status)
