"""vLLM in this process, stepped by hand, as an engine for turntree's own loop: the same for every drafter."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trained.side_by_side import Spent
from turntree.agents.engines.protocol import DraftStats, Engine
from turntree.agents.engines.served.turns import ServedTurns
from turntree.agents.engines.vllm.dialect import VllmDialect, VllmRequest, sampling_params
from turntree.agents.engines.vllm.drafter import ForestDrafter
from turntree.agents.engines.vllm.settings import speculative_config
from turntree.agents.turn_drafts.config import ReuseConfig, ReuseMode
from turntree.agents.turn_drafts.prefix_reuse import PrefixReuse

CONTEXT = 256
WAYS: dict[str, dict[str, Any] | None] = {
    "none": None,
    "n-gram": {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 5},
    "suffix": {"method": "suffix", "num_speculative_tokens": 16},
    "ours": speculative_config(8),
}
"""vLLM's ``speculative_config`` of each."""
REUSE: dict[str, ReuseConfig] = {
    "ours + same_seed": ReuseConfig(mode=ReuseMode.SAME_SEED),
    "ours + rejection_sampling": ReuseConfig(mode=ReuseMode.REJECTION_SAMPLING),
    "ours + spec_rl": ReuseConfig(mode=ReuseMode.SPEC_RL, preset="grpo"),
}
"""Ways in which a turn also begins with one of the epoch before."""


class Stepped(ServedTurns):
    """An engine of the protocol; whoever waits drives it."""

    def __init__(self, way: str, folder: Path, *, batch: int, arguments: dict[str, Any]) -> None:
        from vllm import LLM

        drafter = WAYS["ours" if way in REUSE else way]
        self.llm = LLM(
            str(folder),
            skip_tokenizer_init=True,
            max_model_len=CONTEXT,
            max_num_seqs=batch,
            speculative_config=drafter,
            logprobs_mode="processed_logprobs",
            max_logprobs=-1,
            **arguments,
        )
        size = self.llm.llm_engine.model_config.get_vocab_size()
        super().__init__(VllmDialect(speculates=drafter is not None), max_context=CONTEXT, vocabulary=size)
        self._reuse = REUSE.get(way)
        self.spent = Spent()
        self._waiting: dict[str, asyncio.Future[Any]] = {}
        self._driver: asyncio.Task[None] | None = None

    @property
    def runner(self) -> Any:
        return self.llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner

    def forget(self) -> None:
        """A drafter that knows nothing yet, and no stored turns."""
        self.turns: Engine = self
        if self._reuse is not None:
            self.turns = PrefixReuse(
                self, self._reuse, vocabulary=self.vocabulary, max_context=self.max_context, seed=0
            )
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
        if isinstance(self.turns, PrefixReuse):
            self.turns.close_step()

    @contextmanager
    def counting(self, spent: Spent) -> Iterator[None]:
        """Add what the steps of the block cost."""
        self.spent = spent
        yield

    async def _ask(self, name: str, asked: VllmRequest) -> Any:
        from vllm.sampling_params import RequestOutputKind

        answer = self._waiting[name] = asyncio.get_running_loop().create_future()
        parameters = sampling_params(asked.fields)
        parameters.output_kind = RequestOutputKind.CUMULATIVE  # an answer a step, which is counted
        self.llm.llm_engine.add_request(name, {"prompt_token_ids": asked.prompt}, parameters)
        if self._driver is None or self._driver.done():
            self._driver = asyncio.create_task(self._drive())
        return await answer

    async def _counters(self, name: str, tokens: int) -> DraftStats:
        drafter = getattr(self.runner, "drafter", None)
        steps, drafted, accepted = (isinstance(drafter, ForestDrafter) and drafter.take_stats(name)) or (0, 0, 0)
        return DraftStats(verify_steps=steps, drafted=drafted, accepted=accepted)

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
                    self._waiting.pop(answer.request_id).set_result(answer)
            for _ in range(4):  # let those who got an answer ask again
                await asyncio.sleep(0)
