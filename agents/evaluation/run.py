"""One evaluation from its settings to its episodes, on an open engine."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from pathlib import Path
from time import perf_counter
from typing import Any

from turntree.agents.engines.chat_server import ChatServer
from turntree.agents.engines.protocol import Engine, Sampling
from turntree.agents.evaluation.environments import checked_env, env_maker
from turntree.agents.evaluation.evaluate import Playing, Sampled, evaluate
from turntree.agents.evaluation.file import EvalFile
from turntree.agents.evaluation.paired import OtherPolicy
from turntree.agents.evaluation.suite import EvalTask
from turntree.agents.evaluation.table import EvalResult
from turntree.agents.loop.renderer import Renderer
from turntree.agents.turn_drafts.pipeline import DraftedTurns
from turntree.envs.limits import Limits

_UNLIMITED_TASKS = 20  #: tasks to play if the environment has unlimited tasks
_MIN_CONTEXT = 1024  #: default token limit per episode, unless a turn needs more


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    task: EvalTask
    make_env: Callable[[], Any]
    count: int  #: number of tasks to play
    limits: Limits
    more_tasks: bool = False  #: whether the environment has tasks beyond ``count``
    tools: tuple[str, ...] = ()  #: names of the environment's tools
    data: str = ""  #: digest of the tasks: ids, questions and gold answers

    @property
    def context(self) -> int:
        assert self.limits.max_context_tokens is not None
        return self.limits.max_context_tokens

    def within_context(self, max_positions: int | None) -> Planned:
        if max_positions is None or self.task.max_context is not None:
            return self
        return replace(self, limits=replace(self.limits, max_context_tokens=min(self.context, max_positions)))

    def configure(self, playing: Playing) -> Playing:
        sampling = Sampling(temperature=self.task.temperature, top_p=self.task.top_p)
        return replace(playing, limits=self.limits, sampling=sampling, samples=self.task.samples)

    @property
    def episodes(self) -> int:
        return self.count * self.task.samples


def plan(task: EvalTask) -> Planned:
    """Create the environment once to check it, and size the evaluation."""
    make_env = env_maker(task.env, task.env_args)
    env = checked_env(make_env, task.env)
    task_count = task.count or (_UNLIMITED_TASKS if env.num_tasks is None else env.num_tasks)
    context = task.max_context or max(_MIN_CONTEXT, 2 * task.max_tokens)
    limits = replace(env.limits, max_turn_tokens=task.max_tokens, max_context_tokens=context)
    count = task_count if env.num_tasks is None else min(task_count, env.num_tasks)
    more = env.num_tasks is None or count < env.num_tasks
    data = _digest(env)
    tools = tuple(tool.name for tool in env.offered_tools)
    env.close()
    return Planned(task=task, make_env=make_env, count=count, limits=limits, more_tasks=more, tools=tools, data=data)


def _digest(env: Any) -> str:
    number = _UNLIMITED_TASKS if env.num_tasks is None else env.num_tasks
    digest = blake2b(digest_size=8)
    for task in map(env.task, range(number)):
        digest.update(json.dumps([task.id, task.prompt, task.answer]).encode())
    return digest.hexdigest()


def open_file(
    planned: Planned, out: Path, playing: Playing, *, restart: bool = False, played_by: Mapping[str, Any] | None = None
) -> EvalFile:
    """Open the episode file of an evaluation, before a model is loaded.

    Args:
        out: The file, continued if it exists.
        played_by: Further settings that the episodes depend on, such as the engine; a file with other values is
            refused.
    """
    task = planned.task
    # Tasks and samples may be added to a file later.
    identity = asdict(task) | {"count": None, "samples": None, "model": playing.model, "seed": playing.seed}
    identity |= played_by or {}
    identity["data"] = planned.data
    whole = task.samples if playing.scorer is not None else 0
    # Group rewards need all samples of a task.
    identity["samples"] = whole or None
    return EvalFile(out, identity, whole=whole, restart=restart)


def finished(planned: Planned, file: EvalFile | None, *, model: str) -> EvalResult | None:
    # None if an episode is still missing.
    keys = [(index, sample) for index in range(planned.count) for sample in range(planned.task.samples)]
    if file is None or not all(key in file.done for key in keys):
        return None
    episodes = [file.done[key] for key in keys]
    return EvalResult(planned.task.title, model, planned.task.samples, episodes, 0.0, planned.tools)


async def play(
    planned: Planned,
    engine: Engine | ChatServer,
    renderer: Renderer | None,
    playing: Playing,
    *,
    file: EvalFile | None = None,
    turn_drafts: Mapping[int, Sequence[int]] | None = None,
    on_episode: Callable[[int], None] | None = None,
) -> EvalResult:
    """Play the remaining episodes.

    Args:
        renderer: ``None`` for a chat server.
        turn_drafts: Seed -> token ids of another policy's turns to use as drafts; see ``paired.OtherPolicy``.
        file: Episode file, closed at the end; ``None`` writes none.
        on_episode: Called with the number of finished episodes, at the start and after each episode.
    """
    task = planned.task
    if turn_drafts is not None and not isinstance(engine, ChatServer):
        engine = DraftedTurns(engine, [OtherPolicy(turn_drafts)])
    done = {} if file is None else file.done
    finished_count = sum(index < planned.count and sample < task.samples for index, sample in done)

    def record(sampled: Sampled) -> None:
        nonlocal finished_count
        finished_count += 1
        if file is not None:
            file.write(*sampled)
        if on_episode is not None:
            on_episode(finished_count)

    if on_episode is not None:
        on_episode(finished_count)
    began = perf_counter()
    try:
        if file is not None:
            file.begin()
        episodes = await evaluate(
            planned.make_env,
            engine,
            renderer,
            range(planned.count),
            planned.configure(playing),
            done=done,
            on_episode=record,
        )
    finally:
        if file is not None:
            file.close()
    return EvalResult(task.title, playing.model, task.samples, episodes, perf_counter() - began, planned.tools)
