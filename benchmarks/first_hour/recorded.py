"""Play recorded dialogues with an engine, epoch after epoch, to measure drafts of real text step by step.

All ways play the same tokens (``engine_hooks``), so dialogue lengths and cached prompts are equal. Without the recorded
traces, and in the smallest size, dialogues are generated.
"""

from __future__ import annotations

import asyncio
import csv
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from drafting.traces import NoTraces, Trace, Turn, epochs, find, generated

from first_hour import models
from first_hour.engine_hooks import PLUGIN, hooked
from first_hour.setting import Row, Setting
from turntree.agents.engines.protocol import Sampling, TurnRequest

JOBS = {"math_cot_100x8": 256, "tau_airline_50x4": 100, "tot_text_100x10": 256}  #: trace -> dialogues at once
DRAFT = 8
RUNNING = (4, 16, 64, 256)  #: upper bounds of the ranges of concurrent requests by which steps are summarised


Play = Callable[[Turn], Awaitable[list[int]]]


class Job(NamedTuple):
    name: str
    at_once: int
    epochs: tuple[Trace, Trace]


@dataclass(slots=True, kw_only=True)
class Played:
    began: float  #: monotonic seconds
    ended: float = 0.0  #: monotonic seconds
    tokens: int = 0
    ends: list[float] = field(default_factory=list)  #: seconds after the start, per dialogue
    unlike: int = 0  #: turns that differ from the recorded ones


def rows(setting: Setting, engine: str, way: str) -> list[Row]:
    """Return a row per epoch.

    Raises:
        RuntimeError: If turns differ from the recorded ones.
    """
    folder, jobs = setting.folder / "recorded" / f"{engine}-{way}", list(_jobs(setting))
    turns = [turn for job in jobs for epoch in job.epochs for turn in epoch.turns]
    hooked(folder, turns)
    longest = max(len(turn.prompt) + len(turn.tokens) for turn in turns) + DRAFT + 1
    opened = {"vllm": _vllm, "sglang": _sglang}[engine]
    with ExitStack() as stack:
        play = opened(setting, way, max(job.at_once for job in jobs), longest, stack)
        index = {id(turn): row for row, turn in enumerate(turns)}
        found = asyncio.run(_rows(jobs, lambda turn: play(turn, index[id(turn)]), folder))
    return [{"engine": engine, "way": way, **row} for row in found]


async def _rows(jobs: Sequence[Job], play: Play, folder: Path) -> list[Row]:
    found: list[Row] = []
    await play(jobs[0].epochs[0].turns[0])  # engines start and compile with their first request
    for job in jobs:
        for number, epoch in enumerate(job.epochs, 1):
            played = await _epoch(play, epoch.turns, job.at_once)
            if played.unlike:
                raise RuntimeError(
                    f"{played.unlike} of {len(epoch.turns)} turns of {job.name} are not the recorded ones: the places "
                    "that first_hour.engine_hooks wraps are others in this version of the engine"
                )
            about = {"trace": job.name, "at once": job.at_once, "epoch": number}
            found.append(about | _figures(played, folder))
    return found


def _jobs(setting: Setting) -> Iterator[Job]:
    def made(states: int, samples: int) -> tuple[Trace, Trace]:
        whole = generated(steps=2, states=states, samples=samples)
        first, second = ([turn for turn in whole.turns if turn.sample // samples == step] for step in range(2))
        return replace(whole, turns=first), replace(whole, turns=second)

    if setting.small:
        yield Job("generated", 4, made(2, 4))
        return
    try:
        for name, at_once in JOBS.items():
            yield Job(name, at_once, epochs(find(name)))
    except NoTraces:
        yield Job("generated", 256, made(64, 8))


async def _epoch(play: Play, turns: Sequence[Turn], at_once: int) -> Played:
    dialogues = iter([list(group) for _, group in groupby(turns, key=lambda turn: (turn.start, turn.sample))])
    played = Played(began=time.monotonic())

    async def worker() -> None:
        for dialogue in dialogues:
            for turn in dialogue:
                said = await play(turn)
                played.tokens += len(said)
                played.unlike += said != turn.tokens.tolist()
            played.ends.append(time.monotonic() - played.began)

    await asyncio.gather(*(worker() for _ in range(at_once)))
    played.ended = time.monotonic()
    return played


def _figures(played: Played, folder: Path) -> Row:
    seconds = played.ended - played.began
    steps = [step for step in _steps(folder) if played.began <= step[0] <= played.ended]
    sampled = sum(requests for _, requests, *_ in steps)
    lasted: dict[int, list[float]] = {}
    for (at, requests, *_), (after, *_) in pairwise(steps):
        lasted.setdefault(next((most for most in RUNNING if requests <= most), RUNNING[-1]), []).append(after - at)
    return {
        "s": round(seconds, 3),
        "half s": round(sorted(played.ends)[len(played.ends) // 2], 3),
        "tokens/s": round(played.tokens / seconds, 1),
        "tokens per forward pass": round(played.tokens / sampled, 3),
        "drafts/pass": round(sum(drafts for _, _, drafts, _ in steps) / sampled, 3),
        "steps": len(steps),
        "full %": round(100 * sum(mode == "FULL" for *_, mode in steps) / len(steps), 1),
        **{f"ms to {most}": round(1e3 * median(lasted[most]), 2) if most in lasted else None for most in RUNNING},
    }


def _steps(folder: Path) -> list[tuple[float, int, int, str]]:
    found = []
    for file in folder.glob("steps-*.csv"):
        with file.open() as lines:
            for line in csv.DictReader(lines):
                if line["mode"] != "READ":
                    found.append((float(line["at"]), int(line["requests"]), int(line["drafts"]), line["mode"]))
    return sorted(found)


def _asked(turn: Turn, seed: int) -> TurnRequest:
    sampling = Sampling(temperature=1.0, max_tokens=len(turn.tokens), seed=seed)
    return TurnRequest(tuple(turn.prompt.tolist()), sampling, state=turn.state)


def _ours(engine: Any) -> Any:
    async def play(turn: Turn, seed: int) -> list[int]:
        return list((await engine.generate(_asked(turn, seed))).token_ids)

    return play


def _vllm(setting: Setting, way: str, at_once: int, longest: int, stack: ExitStack) -> Any:
    # ``stock`` lacks turntree's plugin, ``plain`` uses its seeds alone, ``ours`` also its drafts.
    os.environ["VLLM_PLUGINS"] = PLUGIN if way == "stock" else f"{PLUGIN},turntree"
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"
    arguments: dict[str, Any] = {"skip_tokenizer_init": True}
    if setting.device == "cpu":
        from vllm_drafters import CPU

        os.environ.update(CPU)
        arguments |= {"kv_cache_memory_bytes": 1 << 26, "block_size": 32}
    from turntree.agents.engines.vllm.config import VllmEngineConfig
    from turntree.agents.engines.vllm.engine import VllmEngine
    from turntree.agents.engines.vllm.settings import DrafterSettings, speculative_config

    if way == "ours":
        arguments["additional_config"] = DrafterSettings().to_additional_config()
    config = VllmEngineConfig(
        max_batch=at_once,
        max_context=longest,
        dtype=setting.dtype,
        seed=0,
        speculative_config=speculative_config(DRAFT) if way == "ours" else None,
        engine_args=arguments,
    )
    model = models.sharp(setting)
    if way != "stock":
        engine = VllmEngine(model, config=config)
        stack.callback(engine.close)
        return _ours(engine)
    return _unmodified(config.to_engine_args(str(model), on_cpu=setting.device == "cpu"), stack)


def _unmodified(arguments: dict[str, Any], stack: ExitStack) -> Any:
    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    from turntree.agents.engines.request_wire import request_entries
    from turntree.agents.engines.vllm.dialect import sampling_params

    del arguments["worker_extension_cls"]
    engine: Any = None

    async def play(turn: Turn, seed: int) -> list[int]:
        nonlocal engine
        if engine is None:
            engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))
            stack.callback(engine.shutdown)
        fields = {"temperature": 1.0, "max_tokens": len(turn.tokens), "ignore_eos": True, "logprobs": 0}
        parameters = sampling_params(fields | {"extra_args": request_entries(seed=seed)})
        prompt = {"prompt_token_ids": turn.prompt.tolist()}
        answers = [answer async for answer in engine.generate(prompt, parameters, f"turn-{seed}")]
        return list(answers[-1].outputs[0].token_ids)

    return play


def _sglang(setting: Setting, way: str, at_once: int, longest: int, stack: ExitStack) -> Any:
    # ``plain``, ``n-gram`` with SGLang's own drafts, ``ours`` with turntree's.
    arguments: dict[str, Any] = {"mem_fraction_static": 0.5, "attention_backend": "flashinfer", "page_size": 1}
    if setting.device == "cpu":
        sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))
        from cpu_sglang import beside, prepare

        prepare()
        arguments = beside("dtype", "max_running_requests", "random_seed", "log_level")
    else:
        arguments["cuda_graph_max_bs"] = at_once
    if way == "n-gram":
        arguments |= {"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": DRAFT + 1}
    from turntree.agents.engines.sglang.config import SglangEngineConfig
    from turntree.agents.engines.sglang.engine import SglangEngine

    config = SglangEngineConfig(
        max_batch=at_once,
        max_context=longest,
        dtype=setting.dtype,
        draft_tokens=DRAFT + 1 if way == "ours" else 0,
        seed=0,
        engine_args=arguments,
    )
    engine = SglangEngine(models.sharp(setting), config=config)
    stack.callback(engine.close)
    return _ours(engine)
