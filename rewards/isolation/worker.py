"""The worker process: one comparison after another, within its limits.

Invariant: whatever a comparison raises becomes a verdict. After running out of memory the worker ends, because
its memory can no longer be trusted.
"""

from __future__ import annotations

import logging
import math
import resource
from multiprocessing.connection import Connection
from time import perf_counter
from typing import NamedTuple

from turntree.rewards.answer_format import EXACT, AnswerFormat
from turntree.rewards.reading.extract import Answer
from turntree.rewards.result import Status, Verdict

_log = logging.getLogger(__name__)


class Job(NamedTuple):
    """A worker's job: to compare, or to try the gold answer alone."""

    gold: str
    """The right answer."""
    answer: Answer | None
    """The answer found in the text; ``None`` asks whether the gold answer is understood: right, or ungraded."""
    answer_format: AnswerFormat
    """Rules of the data set."""
    question: str = ""
    """The question asked of the policy."""


def warm_up() -> None:
    """Import and use once what comparisons need, so that forks start warm."""
    import sympy  # noqa: F401  (the last stage; forks share it)

    from turntree.rewards.formula.compare import compare

    for gold, answer in ((r"\sin 2x", r"2\sin x\cos x"), (r"\frac{1}{2}\sqrt 2", "0.7"), ("(0,1]", "0<x\\le 1")):
        compare(gold, Answer(answer), EXACT)


def serve_comparisons(channel: Connection, memory_bytes: int, cpu_seconds: int) -> None:
    """Answer comparisons until the caller is gone.

    Args:
        channel: Connection to the caller.
        memory_bytes: Address space allowed beyond what is in use now.
        cpu_seconds: Processor time allowed to each comparison.
    """
    from turntree.rewards.formula.compare import compare, understands

    _limit_memory(memory_bytes)
    while True:
        _limit_cpu(cpu_seconds)
        began = perf_counter()
        exhausted = False
        try:
            gold, answer, answer_format, question = channel.recv()
            began = perf_counter()
            if answer is None:
                verdict = Verdict(correct=understands(gold, answer_format) or None)
            else:
                verdict = compare(gold, answer, answer_format, question)
        except (EOFError, ConnectionError):
            return
        except MemoryError:
            verdict, exhausted = Verdict(correct=None, status=Status.MEMORY), True
        except Exception:
            _log.exception("a comparison failed")
            verdict = Verdict(correct=None, status=Status.CRASHED)
        try:
            channel.send((verdict, perf_counter() - began))
        except OSError:
            return
        if exhausted:
            return


def _limit_memory(memory_bytes: int) -> None:
    with open("/proc/self/statm") as statm:
        in_use = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + memory_bytes, in_use + memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _limit_cpu(cpu_seconds: int) -> None:
    """Set the soft limit beyond the time already used; the kernel ends the process at the limit."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    soft = math.ceil(usage.ru_utime + usage.ru_stime) + cpu_seconds
    resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))
