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
    gold: str
    answer: Answer | None  #: ``None`` only tests whether the gold answer can be parsed: right if so, else ungraded
    answer_format: AnswerFormat
    question: str = ""


def warm_up() -> None:
    # Import and use sympy once before forking, so that workers need not load it.
    import sympy  # noqa: F401  (the last stage; forks share it)

    from turntree.rewards.formula.compare import compare

    for gold, answer in ((r"\sin 2x", r"2\sin x\cos x"), (r"\frac{1}{2}\sqrt 2", "0.7"), ("(0,1]", "0<x\\le 1")):
        compare(gold, Answer(answer), EXACT)


def serve_comparisons(channel: Connection, memory_bytes: int, cpu_seconds: int) -> None:
    """Run comparisons until the caller is gone. Whatever a comparison raises becomes a verdict.

    Args:
        channel: Connection to the caller.
        memory_bytes: Address space allowed beyond what is in use now.
        cpu_seconds: Processor time allowed to each comparison.
    """
    from turntree.rewards.formula.compare import compare, understands

    _limit_memory(memory_bytes)
    while True:
        # Raise the limit for each comparison, because the kernel counts the time of the whole process.
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
        # After running out of memory, the state of the interpreter cannot be trusted.
        if exhausted:
            return


def _limit_memory(memory_bytes: int) -> None:
    with open("/proc/self/statm") as statm:
        in_use = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + memory_bytes, in_use + memory_bytes))
    # A killed worker must not write its memory to disk.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _limit_cpu(cpu_seconds: int) -> None:
    # The soft limit counts from the process's start, so the time already used is added.
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    soft = math.ceil(usage.ru_utime + usage.ru_stime) + cpu_seconds
    resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))
