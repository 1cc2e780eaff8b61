import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from hostile_answers import BOXED, NEVER_ENDS, NEVER_ENDS_GOLD
from machine_speed import eventually, not_hanging, patience, soon
from tables import table

from turntree.rewards import (
    EXACT,
    Answer,
    Grader,
    IsolationError,
    PoolSettings,
    Status,
    Verdict,
    ascore_batch,
    score,
    score_batch,
)
from turntree.rewards.isolation import owner
from turntree.rewards.isolation.worker import Job, serve_comparisons
from turntree.rewards.reading import flags

SLOW = r"\gcd(999999!,3)"  # sympy writes out the factorial, which takes longer than any deadline here


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    with Grader(PoolSettings(workers=2, deadline_seconds=patience(1.0), patience_seconds=0.05), cache_size=0) as grader:
        score("\\boxed{x+x}", "2x", grader=grader)  # the fork server imports sympy once
        yield grader


@pytest.fixture(scope="module")
def hasty() -> Iterator[Grader]:
    # A short deadline, for comparisons that never end.
    settings = PoolSettings(workers=2, deadline_seconds=patience(0.3), patience_seconds=0.05)
    with Grader(settings, cache_size=8) as grader:
        yield grader


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def boxed(answer: str) -> str:
    return f"So it is \\boxed{{{answer}}}"


def hostile() -> Iterator[Any]:
    # Each answer comes with two gold answers; two thirds of the formulas run for a release only.
    for index, answer in enumerate(BOXED):
        name = ascii(answer[:24])
        yield pytest.param(answer, "5", id=name)
        late = [pytest.mark.release] if index % 3 else []
        yield pytest.param(answer, r"\frac{x^2+1}{2}", id=f"{name}-formula", marks=late)


@pytest.mark.parametrize(("answer", "gold"), hostile())
def test_a_hostile_answer_ends_within_its_deadline_and_is_never_right(answer: str, gold: str, grader: Grader) -> None:
    with not_hanging(60):
        verdict = score(boxed(answer), gold, grader=grader)
    expected = answer.endswith("-1001!+5") and gold == "5"
    assert bool(verdict.correct) is (expected or (gold == "5" and set(answer) == {",", "5"}))


def test_what_never_ends_is_ungraded_at_the_deadline_and_its_worker_is_replaced(hasty: Grader) -> None:
    running, seen = hasty.compare(NEVER_ENDS_GOLD, Answer(NEVER_ENDS), EXACT), set(hasty.worker_pids())
    eventually(lambda: seen.update(hasty.worker_pids()) or running.done(), 60)  # type: ignore[union-attr]
    verdict = running.result()  # type: ignore[union-attr]
    assert (verdict.status, verdict.correct, verdict.flags) == (Status.TIMEOUT, None, ())
    assert any(not alive(pid) for pid in seen)
    assert hasty.cached() == 0, "a time-out is not remembered"
    assert score(boxed(r"\sqrt{32}"), r"4\sqrt{2}", grader=hasty).correct  # by the worker that takes its place


def test_short_comparisons_do_not_wait_for_long_ones() -> None:
    with Grader(
        PoolSettings(workers=1, deadline_seconds=patience(600), patience_seconds=0.05), cache_size=0
    ) as patient:
        score(boxed("x+x"), "2x", grader=patient)
        long = [patient.compare(NEVER_ENDS_GOLD, Answer(NEVER_ENDS + "+0" * n), EXACT) for n in range(4)]
        with not_hanging(60):
            assert score(boxed(r"\sqrt{8}"), r"2\sqrt{2}", grader=patient).correct
        assert not any(future.done() for future in long)  # type: ignore[union-attr]
    assert all(future.result().correct is None for future in long)  # type: ignore[union-attr]


class Deadly(Grader):
    # While armed, kills one busy worker when a comparison ends.
    def __init__(self) -> None:
        super().__init__(PoolSettings(workers=2, deadline_seconds=patience(60)), cache_size=0)
        self.armed = False
        self.killed: set[int] = set()

    def compare(self, *job: Any) -> Any:
        verdict = super().compare(*job)
        verdict.add_done_callback(self.strike)  # type: ignore[union-attr]
        return verdict

    def strike(self, _: object) -> None:
        for pid in self.worker_pids()[-1:] if self.armed else ():
            self.armed = False
            os.kill(pid, signal.SIGKILL)
            self.killed.add(pid)


def test_killing_workers_again_and_again_changes_no_score() -> None:
    with Deadly() as deadly:
        for start in range(1, 61, 6):
            deadly.armed = True  # no comparison loses more than one worker: at its third it would be given up
            numbers = range(start, start + 6)
            texts = [boxed(f"\\sqrt{{{n * n * 2}}}") for n in numbers]
            scores = score_batch(texts, [f"{n}\\sqrt{{2}}" if n % 3 else "7" for n in numbers], grader=deadly)
            assert [one.correct for one in scores] == [n % 3 != 0 for n in numbers]
        assert len(deadly.killed) > 7


def test_killing_idle_workers_and_the_fork_server_changes_no_score(grader: Grader) -> None:
    for victims in (grader.worker_pids(), [grader.server_pid()]):
        for pid in victims:
            os.kill(pid, signal.SIGKILL)  # type: ignore[arg-type]
        assert score(boxed(r"\sqrt{18}"), r"3\sqrt{2}", grader=grader).correct


def test_killing_the_fork_server_under_running_comparisons_changes_no_score() -> None:
    with Grader(PoolSettings(workers=2, deadline_seconds=patience(60)), cache_size=0) as own:
        assert score(boxed(r"\sqrt{18}"), r"3\sqrt{2}", grader=own).correct  # the server is up
        sums = ["+".join([r"\sqrt{2}"] * 2 + ["0"] * n) for n in range(60)]
        running = [own.compare(r"2\sqrt{2}", Answer(text), EXACT) for text in sums]
        os.kill(own.server_pid(), signal.SIGKILL)  # type: ignore[arg-type]
        verdicts = [future.result(timeout=patience(60)) for future in running]  # type: ignore[union-attr]
    assert {(verdict.correct, verdict.status) for verdict in verdicts} == {(True, Status.OK)}


def test_many_threads_get_the_scores_of_one(grader: Grader) -> None:
    texts = [boxed(f"\\frac{{{n}}}{{\\sqrt{{{n}}}}}") for n in range(2, 18)]
    golds = [f"\\sqrt{{{n if n % 2 else n + 1}}}" for n in range(2, 18)]
    alone = [one.correct for one in score_batch(texts, golds, grader=grader)]
    assert {True, False} <= set(alone)
    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(lambda _: score_batch(texts, golds, grader=grader), range(8)))
    for result in results:
        assert [one.correct for one in result] == alone, {one.status for one in result}


async def test_the_event_loop_runs_while_answers_are_compared() -> None:
    asked: list[threading.Thread] = []
    verdict: Future[Verdict] = Future()

    def compare(*job: object) -> Future[Verdict]:
        asked.append(threading.current_thread())
        return verdict

    with not_hanging():  # the verdict comes from the loop itself
        scoring = asyncio.create_task(ascore_batch([boxed("x")], ["y"], grader=SimpleNamespace(compare=compare)))  # type: ignore[arg-type]
        await soon(lambda: asked)
        verdict.set_result(Verdict(correct=True, status=Status.OK))
        assert (await scoring)[0].correct
    assert asked != [threading.current_thread()]


def test_the_callers_alarm_is_left_alone(hasty: Grader) -> None:
    rung: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: rung.append(number))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        score(boxed(NEVER_ENDS), NEVER_ENDS_GOLD, grader=hasty)
        assert rung == [signal.SIGALRM]
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_forked_child_starts_workers_of_its_own(grader: Grader) -> None:
    pid = os.fork()
    if pid == 0:
        right = score(boxed(r"\sqrt{50}"), r"5\sqrt{2}", grader=grader).correct
        grader.close()
        os._exit(0 if right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert score(boxed(r"\sqrt{50}"), r"5\sqrt{2}", grader=grader).correct


@contextlib.contextmanager
def lone_worker(monkeypatch: pytest.MonkeyPatch, compare, cpu_seconds: int = 10) -> Iterator[tuple[Connection, int]]:
    # A worker with one job, which it grades by ``compare``; yields the channel to the worker and its process id.
    ours, theirs = Pipe()
    pid = os.fork()
    if pid == 0:
        ours.close()
        monkeypatch.setattr("turntree.rewards.formula.compare.compare", compare)
        serve_comparisons(theirs, memory_bytes=1 << 26, cpu_seconds=cpu_seconds)
        os._exit(0)
    theirs.close()
    ours.send(Job("1", Answer("2"), EXACT))
    with ours:
        yield ours, pid


def test_running_out_of_memory_is_ungraded_and_ends_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    with lone_worker(monkeypatch, lambda *job: bytearray(1 << 30)) as (channel, pid):
        verdict, _ = channel.recv()
        assert (verdict.correct, verdict.status) == (None, Status.MEMORY)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.parametrize("error", [RecursionError("too deep"), OSError("a disk")])
def test_an_exception_of_a_comparison_is_a_crash_and_the_worker_stays_alive(monkeypatch, error) -> None:
    with lone_worker(monkeypatch, Mock(side_effect=error)) as (channel, pid):
        for _ in range(2):
            verdict, _ = channel.recv()
            assert (verdict.correct, verdict.status) == (None, Status.CRASHED)
            channel.send(Job("1", Answer("2"), EXACT))
        channel.close()
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_worker_that_uses_up_its_processor_time_is_ended_by_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    def spin(*job: object) -> None:
        while True:
            pass

    with lone_worker(monkeypatch, spin, cpu_seconds=0) as (channel, pid):
        with pytest.raises(EOFError):
            channel.recv()
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGXCPU


@pytest.mark.parametrize(("gold", "answer", "death", "verdict"), table(__file__, "deaths"))
def test_a_comparison_whose_workers_die_again_and_again_ends(gold, answer, death, verdict) -> None:
    correct = {"wrong": False, "ungraded": None}[verdict]
    with Grader(PoolSettings(workers=1, deadline_seconds=60.0), cache_size=0) as grader:
        found = grader.compare(gold, Answer(answer), EXACT)
        killed: set[int] = set()
        while not found.done():  # type: ignore[union-attr]
            for pid in set(grader.worker_pids()) - killed if len(killed) < 3 else ():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.Signals[death])
                killed.add(pid)
            time.sleep(0.02)
        assert (found.result().correct, found.result().status) == (correct, Status.CRASHED)  # type: ignore[union-attr]


@pytest.mark.parametrize(("gold", "answer", "correct"), [("3", SLOW, False), (NEVER_ENDS_GOLD, "3", None)])
def test_running_out_of_time_is_wrong_unless_the_gold_answer_alone_does(gold, answer, correct, hasty, monkeypatch):
    ticks = count(0, 1000)
    monkeypatch.setattr(owner, "cpu_seconds", lambda pid: next(ticks))  # the worker never looks starved
    result = score(boxed(answer), gold, grader=hasty)
    assert (result.correct, result.status) == (correct, Status.TIMEOUT)
    assert result.flags == ((flags.NOT_UNDERSTOOD,) if correct is False else ())


def test_a_worker_that_the_machine_gives_no_time_leaves_its_answer_ungraded() -> None:
    with Grader(PoolSettings(workers=1, deadline_seconds=0.3), cache_size=0) as grader:
        verdict = grader.compare("3", Answer(SLOW), EXACT)
        while not verdict.done():  # type: ignore[union-attr]
            for pid in grader.worker_pids():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
            time.sleep(0.01)
        assert (verdict.result().correct, verdict.result().status) == (None, Status.TIMEOUT)  # type: ignore[union-attr]


def test_a_gold_answer_beyond_the_limits_is_ungraded(grader: Grader) -> None:
    verdict = score("5", "7" * 100_000, grader=grader)
    assert (verdict.status, verdict.correct) == (Status.REJECTED_LIMITS, None)


def test_workers_end_with_a_caller_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time; from turntree.rewards import Grader, score\n"
        "grader = Grader(); score(r'\\boxed{x+x}', '2x', grader=grader)\n"
        "print(grader.server_pid(), *grader.worker_pids(), flush=True); time.sleep(1000)"
    )
    caller = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    pids = [int(pid) for pid in caller.stdout.readline().split()]
    assert len(pids) >= 2
    assert all(map(alive, pids))
    caller.kill()
    caller.wait()
    caller.stdout.close()
    eventually(lambda: not any(map(alive, pids)))


def test_closing_ends_every_worker() -> None:
    grader = Grader()
    score(boxed("x+x"), "2x", grader=grader)
    pids = [grader.server_pid(), *grader.worker_pids()]
    grader.close()
    grader.close()
    eventually(lambda: not any(alive(pid) for pid in pids if pid is not None))
    with pytest.raises(IsolationError, match="closed"):
        score(boxed("y+y"), "2y", grader=grader)


def test_workers_are_replaced_after_their_share_of_jobs_and_memory_stays_bounded() -> None:
    with Grader(PoolSettings(workers=1, jobs_per_worker=2), cache_size=0) as grader:
        seen = set()
        for _ in range(6):
            assert score(boxed("x+x"), "2x", grader=grader).correct
            seen.update(grader.worker_pids())
        assert len(seen) >= 2
    with Grader(PoolSettings(workers=1), cache_size=64) as bounded:
        for start in range(0, 120, 40):
            texts = [boxed(f"\\sqrt{{{n}}}+x") for n in range(start, start + 40)]
            score_batch(texts, ["x"] * 40, grader=bounded)
        assert bounded.cached() == 64


@pytest.mark.parametrize(("arguments", "named"), table(__file__, "impossible_pools"))
def test_settings_that_cannot_work_are_refused(arguments: dict[str, float], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        PoolSettings(**arguments)  # type: ignore[arg-type]
