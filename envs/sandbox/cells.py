"""Execution of pieces of code in one namespace, inside of the sandbox."""

from __future__ import annotations

import ast
import contextlib
import linecache
import os
import sys
import traceback
from typing import Any

from turntree.envs.sandbox import frames


def serve_cells(requests: int, results: int, *, session: bool, error_chars: int) -> int:
    """Run the code of every request, or of one, and report how it ended.

    The report explains an end; whether it was a success is decided by the process's exit code.

    Args:
        requests: Descriptor that delivers ``{"code": ...}``.
        results: Descriptor that receives ``{"status": ..., "error": ...}``.
        session: Whether to wait for the next request afterwards.
        error_chars: Characters of an error that are reported: its end.

    Returns:
        The exit code: 1 if the only piece of code failed.
    """
    process = os.getpid()
    namespace: dict[str, Any] = {"__name__": "__main__", "__builtins__": __builtins__}
    number = 0
    while True:
        try:
            code = frames.read(requests)["code"]
        except (frames.Closed, OSError):  # an OSError where the code closed it
            return 0
        number += 1
        result = run_cell(code, namespace, f"<cell {number}>")
        if os.getpid() != process:  # the code forked, and this is the child
            os._exit(0)
        result["error"] = result["error"][-error_chars:]
        with contextlib.suppress(OSError):
            frames.write(results, result)
        if not session:
            return int(result["status"] != "ok")


def run_cell(code: str, namespace: dict[str, Any], name: str) -> dict[str, str]:
    """Run one piece of code; the value of a last expression is printed, as a notebook does.

    Args:
        code: Python source.
        namespace: Global variables, kept for the next piece.
        name: Stands in tracebacks.

    Returns:
        ``status`` (``ok``, ``error``, ``memory``) and ``error``, a traceback or empty.
    """
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    status, error = "ok", ""
    try:
        tree = ast.parse(code, name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, name, "exec"), namespace)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), name, "eval"), namespace)
            if value is not None:
                print(repr(value))
    except SystemExit as stop:
        if stop.code not in (None, 0):
            status, error = "error", f"SystemExit: {stop.code}"
    except MemoryError:
        status, error = "memory", "MemoryError"
    except BaseException as problem:
        status, error = "error", _traceback(problem, name)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError) as problem:  # the code may have closed or replaced it
            if status == "ok":
                status, error = "error", f"{type(problem).__name__}: {problem}"
    return {"status": status, "error": error}


def _traceback(problem: BaseException, name: str) -> str:
    trace = problem.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(problem), problem, trace, limit=-20))
