"""Runs pieces of code (cells) as the module ``__main__``, inside the sandbox.

A run ends like a script: its threads are joined, its ``atexit`` functions are called and its objects are released. In
a session (variables persist between runs) this happens only in children that the code forks. Differences from a script:
if the last statement is an expression, its value is printed; and there is no ``__file__``.
"""

from __future__ import annotations
import __future__

import ast
import atexit
import builtins
import contextlib
import gc
import linecache
import os
import sys
import threading
import traceback
import types
from typing import Any, NamedTuple

from turntree.envs.sandbox import frames

#: Compiler flag of the only ``from __future__`` import that has an effect in Python 3.
_FUTURE = __future__.annotations.compiler_flag


class Ended(NamedTuple):
    status: str  #: ``ok``, ``error`` or ``memory``
    error: str = ""  #: a traceback; empty if there was no error
    exit_code: int = 0  #: the exit code that a script would have


def serve_cells(requests: int, results: int, *, session: bool, error_chars: int) -> int:
    """Run the code of one request, or in a session of every request; report how each run ended.

    The supervisor uses a report only as an explanation, because the code could forge it. Outside of a session, the exit
    code of this process decides whether the run succeeded.

    Args:
        requests: Descriptor that delivers ``{"code": ...}``.
        results: Descriptor that receives ``{"status": ..., "error": ...}``.
        session: Whether to wait for another request afterwards.
        error_chars: Maximum characters of an error in the report; only the end of a longer error is kept.

    Returns:
        The exit code of this process: 1 if the code failed outside of a session.
    """
    process = os.getpid()
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    vars(main)["__builtins__"] = builtins
    number = flags = 0
    while True:
        try:
            code = frames.read(requests)["code"]
        except (frames.Closed, OSError):  # OSError: the code has closed the descriptor
            return 0
        number += 1
        ended, flags = run_cell(code, vars(main), f"<cell {number}>", flags)
        error = ended.error[-error_chars:]
        if os.getpid() != process:  # the code forked, and this is the child
            with contextlib.suppress(Exception):
                print(error, end="", file=sys.stderr)
            del main
            finish()
            os._exit(ended.exit_code)
        with contextlib.suppress(OSError):
            frames.write(results, {"status": ended.status, "error": error})
        if not session:
            del main
            finish()
            return int(ended.status != "ok")


def run_cell(code: str, namespace: dict[str, Any], name: str, flags: int = 0) -> tuple[Ended, int]:
    """Run one piece of code. If its last statement is an expression, print the value, as a notebook does.

    Args:
        flags: Compiler flags from the ``from __future__`` imports of earlier pieces.

    Returns:
        How the run ended, and the flags for the next piece of code.
    """
    # Register the code's lines, because tracebacks read them from linecache: the code is in no file.
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    ended = Ended("ok")
    try:
        tree = compile(code, name, "exec", ast.PyCF_ONLY_AST | flags, dont_inherit=True)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        body = compile(tree, name, "exec", flags, dont_inherit=True)
        flags |= body.co_flags & _FUTURE
        exec(body, namespace)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), name, "eval", flags, dont_inherit=True), namespace)
            if value is not None:
                print(repr(value))
    except SystemExit as stop:
        exit_code = stop.code & 0xFF if isinstance(stop.code, int) else int(stop.code is not None)
        if exit_code:
            ended = Ended("error", f"SystemExit: {stop.code}", exit_code)
    except MemoryError:
        ended = Ended("memory", "MemoryError", 1)
    except BaseException as problem:
        ended = Ended("error", _traceback(problem, name), 1)
        if sys.excepthook is not sys.__excepthook__:
            with contextlib.suppress(BaseException):
                sys.excepthook(type(problem), problem, problem.__traceback__)
    unwritten = _flush()
    return (Ended("error", unwritten, 1) if unwritten and ended.status == "ok" else ended), flags


def finish() -> None:
    """Do what the interpreter does at exit, but keep the process. No caller may keep a reference to ``__main__``."""
    # The order is that of Py_FinalizeEx: threads, atexit, then the module's objects with their finalisers.
    steps = (threading._shutdown, atexit._run_exitfuncs, lambda: sys.modules.pop("__main__"), gc.collect)  # type: ignore[attr-defined]
    for step in steps:
        with contextlib.suppress(BaseException):
            step()
    _flush()


def _flush() -> str:
    # Flushes both streams and returns the first error: the code may have closed or replaced the streams.
    errors = []
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError, AttributeError) as problem:
            errors.append(f"{type(problem).__name__}: {problem}")
    return errors[0] if errors else ""


def _traceback(problem: BaseException, name: str) -> str:
    trace = problem.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(problem), problem, trace, limit=-20))
