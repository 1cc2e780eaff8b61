"""SGLang's engine, started by this process, as an engine of turntree.

SGLang runs its model in its own processes. SGLang's client runs in this process, on a thread with its own event loop.
Callers on any event loop can therefore share one engine.

Not available from SGLang:

- The distribution after top-p or min-p if it keeps more than 64 tokens. ``Completion.behaviour_logprobs`` and ``top``
  are then empty; ``score`` computes both from the whole vocabulary, which is slow.
- The sums that the exactness monitors test.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from turntree.agents.engines.event_thread import EventThread
from turntree.agents.engines.served.turns import ServedTurns
from turntree.agents.engines.server_client import free_port
from turntree.agents.engines.sglang.answers import forget_aborted
from turntree.agents.engines.sglang.config import SglangEngineConfig, allowance
from turntree.agents.engines.sglang.dialect import SglangDialect, reverifies_drafts, wait_until
from turntree.agents.engines.sglang.settings import VARIABLE
from turntree.agents.errors import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor


class SglangEngine(ServedTurns):
    """Generate and score turns with SGLang. Create it in the main thread, whose signals SGLang handles.

    >>> engine = SglangEngine("path/to/model", config=SglangEngineConfig(draft_tokens=8))  # doctest: +SKIP
    >>> turn = await engine.generate(prompt_ids, Sampling(max_tokens=64))  # doctest: +SKIP

    Raises:
        MissingExtra: If SGLang is not installed.
        ValueError: If the model's context is shorter than ``config.max_context``.
    """

    def __init__(self, model: str | Path, *, config: SglangEngineConfig | None = None) -> None:
        self.config = config or SglangEngineConfig()
        try:
            import sglang
        except ModuleNotFoundError as error:
            raise MissingExtra("the SGLang engine", "sglang") from error
        # SGLang would choose a port now and bind it seconds later; meanwhile Ray may take that port.
        arguments = {"nccl_port": free_port(), **self.config.to_engine_args(str(model))}
        with _environment({VARIABLE: self.config.to_variable(), **allowance(arguments)}):
            self._engine: Any = sglang.Engine(**arguments)
        self._thread = EventThread("the SglangEngine")
        # SGLang's synchronous methods use only `run_until_complete` of their loop: run it on this engine's thread.
        self._engine.loop = SimpleNamespace(run_until_complete=self._thread.call)
        self._live: set[str] = set()
        vocabulary = int(self._engine.tokenizer_manager.model_config.vocab_size)
        super().__init__(
            SglangDialect(speculates=self.config.speculates, vocabulary=vocabulary),
            max_context=self.config.max_context,
            vocabulary=vocabulary,
            priorities=self._engine.tokenizer_manager.server_args.enable_priority_scheduling,
        )

    def update_weights(self, named: Iterable[tuple[str, Tensor]], *, version: int | None = None) -> None:
        """Load new weights in place, once running requests have ended.

        Cached keys and values are dropped, the draft store is kept. ``version=None`` adds 1 to the version.

        Raises:
            RuntimeError: If SGLang refuses the weights.
            TimeoutError: If running requests did not end.
        """
        self._update(lambda: self._engine.update_weights_from_tensor(list(named)), version)

    def update_weights_from_disk(self, model: str | Path, *, version: int | None = None) -> None:
        """Load new weights from a checkpoint's directory; otherwise like ``update_weights``."""
        self._update(lambda: self._engine.update_weights_from_disk(str(model)), version)

    def reset_prefix_cache(self) -> None:
        """Drop all keys and values, once running requests have ended; keep the draft store."""

        def flushed() -> bool:
            answer = self._engine.flush_cache()
            return bool(getattr(answer, "success", answer))

        wait_until(flushed)

    def release_memory(self) -> None:
        """Free the memory of weights, keys and values until ``resume_memory``; keep the draft store."""
        self.reset_prefix_cache()
        self._engine.release_memory_occupation()

    def resume_memory(self) -> None:
        """Allocate the memory again; the weights are undefined until they are updated."""
        self._engine.resume_memory_occupation()

    @property
    def live(self) -> int:
        """Number of running and waiting requests."""
        return len(self._live)

    def abort_all(self) -> int:
        """End every live request with the tokens sampled so far; return the number of requests."""
        live = self.live
        self._thread.call(self._abort_by(everything=True))
        return live

    def figures(self) -> dict[str, Any]:
        """Return the counters of turntree's draft worker; empty without a draft worker."""
        state: dict[str, Any] = self._engine.get_server_info()["internal_states"][0]
        figures: dict[str, Any] = state.get("turntree") or {}
        return figures

    def close(self) -> None:
        """Stop SGLang, which fails live requests; safe to call twice."""
        if not self._thread.closed:
            self._engine.shutdown()
            self._thread.close()

    async def _ask(self, name: str, asked: dict[str, Any]) -> dict[str, Any]:
        self._live.add(name)
        try:
            answer: dict[str, Any] = await self._thread.run(self._engine.async_generate(**asked, rid=name))
            forget_aborted(self._engine.tokenizer_manager, answer)
            return answer
        except asyncio.CancelledError:
            self._thread.start(self._abort_by([name]))
            raise
        finally:
            self._live.discard(name)

    async def _reverifies(self) -> bool:
        return reverifies_drafts(await self._thread.run(self._engine.tokenizer_manager.get_internal_state()))

    async def _abort(self, names: Sequence[str]) -> None:
        await self._thread.run(self._abort_by(names))

    async def _abort_by(self, names: Sequence[str] = (), *, everything: bool = False) -> None:
        # Runs on the client's event loop, which owns SGLang's request table.
        for name in [""] if everything else names:
            self._engine.tokenizer_manager.abort_request(rid=name, abort_all=everything)

    def _update(self, update: Any, version: int | None) -> None:
        self.reset_prefix_cache()
        _accepted(update())
        self._updated(version)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    # SGLang's child processes inherit the variables.
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _accepted(answer: Any) -> None:
    # SGLang answers with success and a message, as a tuple or as an object.
    success, message = answer[:2] if isinstance(answer, tuple) else (answer.success, getattr(answer, "message", ""))
    if not success:
        raise RuntimeError(f"SGLang did not take the weights: {message}")
