"""Compare ways to run episodes with slow tools: coroutines, barriers and small thread pools.

Every contender plays the same episodes: TURNS calls of a tool that sleeps an exponentially distributed time (mean 50
milliseconds, determined by the episode and the turn), then an answer. SLOTS episodes run at once. Contenders:

- turntree: one coroutine per episode, ``env.step`` in a ``WorkerPool``
- Gymnasium ``AsyncVectorEnv``: a process per environment; every step waits for the slowest
- ``asyncio.to_thread``: one coroutine per episode over the interpreter's default pool
- gem-llm ``AsyncVectorEnv``: a thread per environment; every step waits for the slowest
- skyrl-gym: one coroutine per episode over its trainer's default pool of 32 threads

A second table shows the overhead of one step without tools. Starting processes and threads is not timed.

    python benchmarks/envs.py [--waves 3] [--json results/envs.json]
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

import gymnasium
from common.provenance import provenance
from common.script import arguments, keep

from turntree.envs import Context, Env, Limits, Message, Reply, Role, Task, ToolCall, WorkerPool, tool

TURNS = 8
MEAN_SECONDS = 0.05
SKYRL_THREADS = 32


def nap(episode: int, turn: int) -> float:
    return random.Random(f"{episode}/{turn}").expovariate(1 / MEAN_SECONDS)


@tool
def look_up(key: str, context: Context) -> str:
    """Look something up in a slow place.

    Args:
        key: What to look up
    """
    time.sleep(nap(int(context.task.id), context.turn))
    return f"value of {key}"


class Slow(Env):
    tools = (look_up,)

    def __init__(self) -> None:
        super().__init__(system_prompt="", limits=Limits(max_turns=None))

    def task(self, index: int) -> Task:
        return Task(id=str(index), prompt="Look things up, then answer.")

    def reply(self, message: Message) -> Reply:
        return Reply(reward=1.0, done=True)


class Echo(Env):
    def __init__(self) -> None:
        super().__init__(system_prompt="", limits=Limits(max_turns=None))

    def task(self, index: int) -> Task:
        return Task(id=str(index), prompt="Say something.")

    def reply(self, message: Message) -> Reply:
        return Reply(messages=[Message(role=Role.USER, content="Go on.")])


CALL = Slow().parser.format_call(ToolCall(name="look_up", arguments={"key": "x"}))
ACTIONS = [CALL] * TURNS + ["done"]


async def play_all(count: int, slots: int, play: Callable[[int], Any]) -> None:
    numbers = iter(range(count))

    async def slot() -> None:
        for number in numbers:
            await play(number)

    await asyncio.gather(*(slot() for _ in range(min(slots, count))))


def run_episodes(count: int, slots: int, pool: Executor | None) -> float:
    """Return seconds for ``count`` episodes, one coroutine each, over ``pool``; ``None`` is ``asyncio.to_thread``."""

    async def play(number: int) -> None:
        env = Slow()
        env.reset(seed=0, options={"index": number})
        for action in ACTIONS:
            if pool is None:
                *_, info = await asyncio.to_thread(env.step, action)
            else:
                *_, info = await asyncio.get_running_loop().run_in_executor(pool, env.step, action)
        assert info["stop_reason"] == "done", info

    begun = time.perf_counter()
    asyncio.run(play_all(count, slots, play))
    return time.perf_counter() - begun


def turntree(waves: int, slots: int) -> tuple[int, float]:
    with WorkerPool(slots) as pool:
        run_episodes(8, 8, pool)
        return waves * slots, run_episodes(waves * slots, slots, pool)


def to_thread(waves: int, slots: int) -> tuple[int, float]:
    count = max(48, slots // 4) * waves  # a rate needs no more, and this pool is slow
    return count, run_episodes(count, slots, None)


class Numbered(gymnasium.Wrapper[str, str, str, str]):
    """Play episodes ``slot``, ``slot + slots``, ... one after another, for vector environments."""

    def __init__(self, slot: int, slots: int) -> None:
        super().__init__(Slow())
        self.number, self.slots = slot - slots, slots

    def reset(self, **kwargs: Any) -> Any:
        self.number += self.slots
        return self.env.reset(seed=0, options={"index": self.number})


def gymnasium_vector(waves: int, slots: int) -> tuple[int, float]:
    from gymnasium.vector import AsyncVectorEnv, AutoresetMode

    makers = [lambda slot=slot: Numbered(slot, slots) for slot in range(slots)]
    vector = AsyncVectorEnv(makers, shared_memory=False, autoreset_mode=AutoresetMode.SAME_STEP)
    try:
        vector.reset()
        begun = time.perf_counter()
        for _ in range(waves):
            for action in ACTIONS:
                _, _, ended, *_ = vector.step([action] * slots)
            assert all(ended)
        return waves * slots, time.perf_counter() - begun
    finally:
        vector.close(terminate=True)


def gem_vector(waves: int, slots: int) -> tuple[int, float]:
    import gem
    from gem.vector.async_vector_env import AsyncVectorEnv

    class GemSlow(gem.Env):  # type: ignore[misc]
        def __init__(self, slot: int) -> None:
            self.env = Numbered(slot, slots)

        def reset(self, seed: int | None = None) -> Any:
            return self.env.reset()

        def step(self, action: str) -> Any:
            return self.env.step(action)

    vector = AsyncVectorEnv(["slow"] * slots, [lambda slot=slot: GemSlow(slot) for slot in range(slots)])
    vector.reset()
    begun = time.perf_counter()
    for _ in range(waves):
        for action in ACTIONS:
            _, _, ended, *_ = vector.step([action] * slots)
        assert all(ended)
    return waves * slots, time.perf_counter() - begun


def skyrl(waves: int, slots: int) -> tuple[int, float]:
    from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput

    class SkySlow(BaseTextEnv):  # type: ignore[misc]
        def __init__(self, number: int) -> None:
            super().__init__()
            self.env = Slow()
            self.env.reset(seed=0, options={"index": number})

        def step(self, action: str) -> Any:
            _, reward, terminated, truncated, info = self.env.step(action)
            return BaseTextEnvStepOutput(
                observations=info["messages"], reward=reward, done=terminated or truncated, metadata={}
            )

    async def play(number: int) -> None:
        env = SkySlow(number)
        for action in ACTIONS:
            output = await asyncio.get_running_loop().run_in_executor(pool, env.step, action)
        assert output["done"]

    with ThreadPoolExecutor(SKYRL_THREADS) as pool:
        begun = time.perf_counter()
        asyncio.run(play_all(waves * slots, slots, play))
        return waves * slots, time.perf_counter() - begun


CONTENDERS: dict[str, tuple[Callable[[int, int], tuple[int, float]], str]] = {
    "turntree": (turntree, "turntree"),
    "gymnasium AsyncVectorEnv": (gymnasium_vector, "gymnasium"),
    "asyncio.to_thread": (to_thread, "turntree"),
    "gem-llm AsyncVectorEnv": (gem_vector, "gem-llm"),
    "skyrl-gym, 32 threads": (skyrl, "skyrl-gym"),
}


def step_overhead(repeats: int = 5, steps: int = 2000) -> float:
    """Return microseconds per ``env.step`` of an environment that does nothing, the best of ``repeats``."""
    env = Echo()
    times = []
    for _ in range(repeats):
        env.reset(seed=0)
        begun = time.perf_counter()
        for _ in range(steps):
            env.step("Hello there.")
        times.append((time.perf_counter() - begun) / steps * 1e6)
    return min(times)


def measure(waves: int, slots: int, repeats: int) -> dict[str, Any]:
    rates: dict[str, list[float]] = {}
    missing: dict[str, str] = {}
    for _ in range(repeats):
        for name, (contender, package) in CONTENDERS.items():
            if name in missing:
                continue
            try:
                count, seconds = contender(waves, slots)
            except ImportError:
                missing[name] = f"not installed: pip install {package}"
                continue
            rates.setdefault(name, []).append(count / seconds)
    best = statistics.median(rates["turntree"])
    return {
        "slots": slots,
        "waves": waves,
        "turns": TURNS,
        "mean_tool_seconds": MEAN_SECONDS,
        "episodes_per_second": {name: round(statistics.median(values), 1) for name, values in rates.items()},
        "turntree_is_faster_by": {
            name: round(best / statistics.median(values), 2) for name, values in rates.items() if name != "turntree"
        },
        "missing": missing,
        "microseconds_per_step_without_tools": round(step_overhead(), 1),
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--waves", type=int, default=1, help="episodes of each slot")
    parser.add_argument("--slots", type=int, default=256, help="episodes at once")
    parser.add_argument("--repeats", type=int, default=1, help="rounds, of which the median counts")
    args = parser.parse_args()
    about = provenance(["gymnasium", *(package for _, package in CONTENDERS.values() if package)])
    print(about["machine"], about["command"], sep="\n")
    figures = {**about, **measure(args.waves, args.slots, args.repeats)}
    for name in CONTENDERS:
        rate = figures["episodes_per_second"].get(name)
        ratio = figures["turntree_is_faster_by"].get(name)
        shown = figures["missing"].get(name) or f"{rate:8.1f} episodes/s" + (f"   {ratio:5.2f}x" if ratio else "")
        print(f"{name:28} {shown}")
    print(f"{'step without tools':28} {figures['microseconds_per_step_without_tools']:8.1f} microseconds")
    keep(args.json, figures)
    if not figures["turntree_is_faster_by"]:
        sys.exit("nothing to compare with")


if __name__ == "__main__":
    main()
