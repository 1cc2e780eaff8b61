import asyncio
import gc
import importlib.util
import threading

import pytest
from machine_speed import patience

from turntree.agents.engines.event_thread import EventThread
from turntree.agents.engines.vllm.engine import VllmEngine
from turntree.agents.errors import MissingExtra


async def where() -> str:
    return threading.current_thread().name


def test_work_of_several_loops_runs_on_the_one_thread_to_its_deadline_until_it_is_closed() -> None:
    thread = EventThread("the worker")
    assert thread.call(where()) == "the worker"
    assert [asyncio.run(thread.run(where())) for _ in range(2)] == ["the worker"] * 2
    thread.close()
    thread = EventThread("the worker")
    with pytest.raises(TimeoutError):
        thread.call(asyncio.sleep(60), seconds=0.01)
    thread.close()
    thread.close()
    assert thread.closed
    with pytest.raises(RuntimeError, match="the worker is closed"):
        thread.call(where())


async def test_cancelling_the_caller_cancels_the_work() -> None:
    thread, begun, cancelled = EventThread("the worker"), threading.Event(), threading.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    task = asyncio.create_task(thread.run(work()))
    while not begun.is_set():
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(cancelled.wait, patience(5))
    thread.close()


async def test_closing_ends_what_still_runs_and_tells_who_waits_for_it() -> None:
    thread, begun = EventThread("the worker"), threading.Event()

    async def work() -> None:
        begun.set()
        await asyncio.sleep(3600)

    waiting = asyncio.create_task(thread.run(work()))
    assert await asyncio.to_thread(begun.wait, patience(5))
    await asyncio.to_thread(thread.close)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(waiting, patience(5))


def test_work_that_was_given_up_leaves_nothing_pending(caplog: pytest.LogCaptureFixture) -> None:
    # The collector would report leftovers in the middle of any later test.
    gc.collect()  # what other tests left
    caplog.clear()
    thread = EventThread("the worker")
    with pytest.raises(TimeoutError):
        thread.call(asyncio.sleep(3600), seconds=0.01)
    thread.close()
    del thread
    gc.collect()
    assert not caplog.records


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed here")
def test_without_vllm_the_extra_is_named() -> None:
    with pytest.raises(MissingExtra, match=r'pip install .*\[vllm\]"'):
        VllmEngine("some/model")
