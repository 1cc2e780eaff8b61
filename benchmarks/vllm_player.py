"""vLLM in this process, stepped by hand, as an engine for turntree's own loop: the same for every drafter."""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from turntree.agents.engines.protocol import Completion, FinishReason, Sampling, TurnRequest
from turntree.agents.engines.request_wire import request_entries
from turntree.agents.engines.vllm.settings import speculative_config
from turntree.agents.loop.renderer import Renderer
from turntree.agents.loop.rollout import rollout
from turntree.agents.verl.episodes.dataset import make_env

WAYS: dict[str, dict[str, Any] | None] = {
    "none": None,
    "n-gram": {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 5},
    "suffix": {"method": "suffix", "num_speculative_tokens": 16},
    "ours": speculative_config(8),
}
"""vLLM's ``speculative_config`` of each."""


@dataclass(kw_only=True)
class Spent:
    """What some episodes cost."""

    tokens: int = 0
    """Sampled."""
    steps: int = 0
    """Of the engine."""
    row_steps: int = 0
    """Requests that sampled, summed over steps."""
    seconds: float = 0.0
    """In the engine's steps."""
    cpu_seconds: float = 0.0
    """Of this process's processor time in them."""
    draft_seconds: float = 0.0
    """Of them in the drafter."""
    episodes: int = 0
    rewards: float = 0.0
    """Of the episodes together."""

    @property
    def reward(self) -> float:
        """Mean of the episodes."""
        return self.rewards / self.episodes

    def add(self, other: Spent) -> None:
        """What others cost besides."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


class Stepped:
    """An engine of the protocol; whoever waits drives it."""

    def __init__(self, way: str, folder: Path, *, batch: int, arguments: dict[str, Any]) -> None:
        from vllm import LLM

        self.llm = LLM(
            str(folder),
            skip_tokenizer_init=True,
            max_model_len=256,
            max_num_seqs=batch,
            speculative_config=WAYS[way],
            **arguments,
        )
        self.spent = Spent()
        self._ids = itertools.count()
        self._waiting: dict[str, asyncio.Future[Any]] = {}
        self._driver: asyncio.Task[None] | None = None

    @property
    def runner(self) -> Any:
        return self.llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner

    def forget(self) -> None:
        """A drafter that knows nothing yet."""
        old = getattr(self.runner, "drafter", None)
        if old is None:
            return
        new = type(old)(self.runner.vllm_config)
        if hasattr(new, "bind"):
            new.bind(self.runner)
            new.load_model()
        inner = new.propose

        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return inner(*args, **kwargs)
            finally:
                self.spent.draft_seconds += time.perf_counter() - began

        new.propose = timed
        self.runner.drafter = new

    def load(self, folder: Path) -> None:
        self.llm.collective_rpc("reload_weights", kwargs={"weights_path": str(folder)})
        self.llm.reset_prefix_cache()

    async def generate(self, request: TurnRequest) -> Completion:
        from vllm import SamplingParams

        sampling = request.sampling
        parameters = SamplingParams(
            temperature=sampling.temperature,
            max_tokens=sampling.max_tokens,
            stop_token_ids=list(sampling.stop_token_ids),
            ignore_eos=True,
            detokenize=False,
            extra_args=request_entries(state=request.state),
        )
        name = str(next(self._ids))
        answer = self._waiting[name] = asyncio.get_running_loop().create_future()
        self.llm.llm_engine.add_request(name, {"prompt_token_ids": list(request.prompt_ids)}, parameters)
        if self._driver is None or self._driver.done():
            self._driver = asyncio.create_task(self._drive())
        output = await answer
        reason = FinishReason.STOP if output.finish_reason == "stop" else FinishReason.LENGTH
        tokens = tuple(output.token_ids)
        return Completion(token_ids=tokens, logprobs=(0.0,) * len(tokens), finish_reason=reason)

    async def _drive(self) -> None:
        engine = self.llm.llm_engine
        while self._waiting:
            busy, began = time.process_time(), time.perf_counter()
            answers = engine.step()
            self.spent.seconds += time.perf_counter() - began
            self.spent.cpu_seconds += time.process_time() - busy
            self.spent.steps += 1
            self.spent.row_steps += len(answers)
            for answer in answers:
                if answer.finished:
                    self.spent.tokens += len(answer.outputs[0].token_ids)
                    self._waiting.pop(answer.request_id).set_result(answer.outputs[0])
            for _ in range(4):  # let those who got an answer ask again
                await asyncio.sleep(0)


class Loop:
    """Plays all samples of all tasks, ``batch`` at once, samples of a task side by side."""

    def __init__(self, renderer: Renderer, env: str, kwargs: dict[str, Any], *, tasks: int, samples: int) -> None:
        self._renderer = renderer
        self._make = lambda: make_env(env, kwargs)
        self._jobs = [(task, sample) for task in range(tasks) for sample in range(samples)]
        self._envs: list[Any] = []

    def play(self, engine: Stepped, *, batch: int, first: int, count: int) -> Spent:
        """``count`` episodes from the one of number ``first``."""
        while len(self._envs) < batch:
            self._envs.append(self._make())
        jobs = iter(self._jobs[first : first + count])
        spent = engine.spent = Spent()

        async def one(env: Any) -> None:
            for task, _ in jobs:
                episode = await rollout(
                    env, engine, self._renderer, index=task, seed=task, sampling=Sampling(temperature=1.0)
                )
                if episode.masked:
                    raise RuntimeError(f"an episode failed: {episode.failure}")
                spent.rewards += episode.reward
                spent.episodes += 1

        async def all_() -> None:
            await asyncio.gather(*(one(env) for env in self._envs[:batch]))

        asyncio.run(all_())
        return spent
