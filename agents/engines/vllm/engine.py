"""vLLM's asynchronous engine, started by this process, as an engine of turntree.

vLLM runs its model in its own process. vLLM's client runs in this process, on a thread with its own event loop. Callers
on any event loop can therefore share one engine, and a synchronous method blocks no other caller.

Not available from vLLM:

- The policy's log-probabilities before truncation by ``top_p`` or ``top_k``: ``Completion.logprobs`` then equals
  ``behaviour_logprobs``, after truncation. ``score`` returns both.
- Which tokens were drafted and accepted (``Completion.accepted``), and the sums that the exactness monitors test.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turntree.agents.engines.event_thread import EventThread
from turntree.agents.engines.protocol import DraftStats
from turntree.agents.engines.served.turns import ServedTurns
from turntree.agents.engines.vllm.config import VllmEngineConfig
from turntree.agents.engines.vllm.dialect import VllmDialect, VllmRequest, sampling_params, schedules_by_priority
from turntree.agents.engines.vllm.drawing import model_runner
from turntree.agents.engines.vllm.orphans import announce_server
from turntree.agents.engines.vllm.worker import TurnCounters, ask_workers, summed
from turntree.agents.errors import MissingExtra

if TYPE_CHECKING:
    from torch import Tensor


class VllmEngine(ServedTurns):
    """Generate and score turns with vLLM; ``model`` is a directory or a Hugging Face id.

    >>> engine = VllmEngine("path/to/model", config=VllmEngineConfig(max_context=4096))  # doctest: +SKIP
    >>> turn = await engine.generate(prompt_ids, Sampling(max_tokens=64))  # doctest: +SKIP

    Raises:
        MissingExtra: If vLLM is not installed.
        RuntimeError: If vLLM did not start, or would ignore turntree's seeds.
    """

    def __init__(self, model: str | Path, *, config: VllmEngineConfig | None = None) -> None:
        self.config = config or VllmEngineConfig()
        self._llm: Any = None  # vLLM's AsyncLLM, once it is started
        self._live: set[str] = set()  # ids of running and waiting requests
        self._thread = EventThread("the vLLM engine")
        try:
            vocabulary = self._thread.call(self._start(str(model)), seconds=self.config.start_seconds)
        except BaseException:
            self.close()
            raise
        super().__init__(
            VllmDialect(speculates=self.config.speculative_config is not None),
            max_context=self.config.max_context,
            vocabulary=vocabulary,
            priorities=schedules_by_priority(self._llm),
        )

    def update_weights(self, named: Iterable[tuple[str, Tensor]], *, version: int | None = None) -> None:
        """Load all weights in place; drop cached keys and values, keep the draft store.

        Running requests continue with the new weights. ``version=None`` adds 1 to the version.
        """
        from safetensors.torch import save_file

        folder = Path(tempfile.mkdtemp(prefix="turntree-weights-"))
        try:
            # Copies: safetensors refuses tensors that share memory.
            save_file({name: tensor.detach().cpu().clone() for name, tensor in named}, folder / "model.safetensors")
            self._thread.call(self._reload(str(folder)))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        self._updated(version)

    def figures(self) -> dict[str, float]:
        """Return the counters of turntree's drafter; empty without a drafter."""
        return summed(self._thread.call(ask_workers(self._llm, "turntree_drafter_stats")))

    @property
    def live(self) -> int:
        """Number of running and waiting requests."""
        return len(self._live)

    def reset_prefix_cache(self) -> None:
        """Drop all cached keys and values; keep the draft store."""
        self._thread.call(self._llm.reset_prefix_cache(reset_running_requests=True))

    def abort_all(self) -> int:
        """End every live request with the tokens sampled so far; return the number of requests."""
        live = list(self._live)
        self._thread.call(self._llm.abort(live))
        return len(live)

    def close(self) -> None:
        """Stop vLLM and abort live requests; safe to call twice."""
        if self._thread.closed:
            return
        if self._llm is not None:
            self._thread.call(self._stop())
        self._thread.close()

    async def _start(self, model: str) -> int:
        try:
            from vllm import AsyncEngineArgs
            from vllm.platforms import current_platform
            from vllm.v1.engine.async_llm import AsyncLLM
        except ModuleNotFoundError as error:
            raise MissingExtra("the vLLM engine", "vllm") from error
        model_runner.choose_first()
        announce_server()
        arguments = self.config.to_engine_args(model, on_cpu=current_platform.is_cpu())
        self._llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))
        self._turn_counters = TurnCounters(partial(ask_workers, self._llm))
        model_runner.check_seeded(await ask_workers(self._llm, "turntree_draws_by_seed"))
        size: int = self._llm.model_config.get_vocab_size()
        return size

    async def _ask(self, name: str, asked: VllmRequest) -> Any:
        return await self._thread.run(self._final(name, asked))

    async def _final(self, name: str, asked: VllmRequest) -> Any:
        self._live.add(name)
        final, prompt = None, {"prompt_token_ids": asked.prompt}
        try:
            async for output in self._llm.generate(
                prompt, sampling_params(asked.fields), name, priority=asked.priority
            ):
                final = output
        finally:
            self._live.discard(name)
        return final

    async def _abort(self, names: Sequence[str]) -> None:
        await self._thread.run(self._llm.abort(list(names)))

    async def _counters(self, name: str, tokens: int) -> DraftStats:
        if self.config.speculative_config is None:
            return DraftStats(verify_steps=tokens)
        return await self._thread.run(self._turn_counters.of(name))

    async def _reload(self, folder: str) -> None:
        await self._llm.collective_rpc("reload_weights", kwargs={"weights_path": folder})
        await self._llm.reset_prefix_cache(reset_running_requests=True)

    async def _stop(self) -> None:
        await self._llm.abort(list(self._live))
        self._llm.shutdown()
