"""``LocalEngine``: the asynchronous interface of ``EngineCore``, which runs on its own thread.

Only that thread touches the model, the cache and the requests. Callers submit work through one inbox and get
futures back.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from turntree.agents.engines.drafting.tokenizer_hash import tokenizer_hash
from turntree.agents.engines.local.config import LocalEngineConfig
from turntree.agents.engines.local.core import EngineCore
from turntree.agents.engines.local.forward.model import Policy
from turntree.agents.engines.local.request import Request, checked
from turntree.agents.engines.local.stats import EngineStats
from turntree.agents.engines.protocol import Completion, FinishReason, Sampling, Scores, TurnRequest
from turntree.agents.errors import EngineAborted
from turntree.spec_tree import DialogueState, ForestConfig

if TYPE_CHECKING:
    from turntree.spec_tree import SpecForest

log = logging.getLogger(__name__)
T = TypeVar("T")


class LocalEngine:
    """Generates and scores turns with a Hugging Face decoder in this process, on the CPU or a GPU.

    >>> engine = LocalEngine.from_pretrained("path/to/model", forest=SpecForest())  # doctest: +SKIP
    >>> turn = await engine.generate(prompt_ids, Sampling(max_tokens=64))  # doctest: +SKIP
    """

    def __init__(
        self,
        model: nn.Module | Policy,
        *,
        config: LocalEngineConfig | None = None,
        forest: SpecForest | ForestConfig | None = None,
    ) -> None:
        """Start the engine's thread.

        Args:
            model: A ``transformers`` causal language model; only the engine may use it afterwards.
            forest: The draft store, or the settings of a new one if ``config`` enables speculation. A new store also
                knows the model's own end tokens.

        Raises:
            ValueError: If the model has fewer positions than ``config.max_context``, or the store's turns are from
                another tokenizer.
        """
        policy = model if isinstance(model, Policy) else Policy(model)
        config = config or LocalEngineConfig()
        if policy.max_positions is not None and config.max_context > policy.max_positions:
            raise ValueError(
                f"max_context is {config.max_context}, but the model has {policy.max_positions} positions; "
                "lower LocalEngineConfig.max_context"
            )
        self.config = config
        if config.memory_bytes is not None:
            self.config = config.fitted(weights=policy.weight_bytes, token=policy.token_bytes())
        self.forest = _store(forest, policy) if self.config.speculation is not None else None
        self._core = EngineCore(policy, self.config, self.forest)
        self._seeds = np.random.default_rng(self.config.seed)
        self._wake = threading.Condition()
        self._inbox: list[Request] = []
        self._jobs: list[tuple[Callable[[], Any], Future[Any]]] = []
        #: finished requests whose callers do not know yet, by the callers' event loops
        self._done: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Request], Request]]] = {}
        self._closing = False
        self._thread = threading.Thread(target=self._loop, name="turntree-local-engine", daemon=True)
        self._thread.start()

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path,
        *,
        config: LocalEngineConfig | None = None,
        forest: SpecForest | ForestConfig | None = None,
    ) -> LocalEngine:
        """Load a model from a directory or a Hugging Face id and start an engine with it."""
        config = config or LocalEngineConfig()
        return cls(Policy.load(path, dtype=config.dtype, device=config.device), config=config, forest=forest)

    async def generate(self, request: TurnRequest) -> Completion:
        """Sample one turn.

        The request's draft is verified one prefill chunk at a time, along with the store's drafts. Draft tokens after a
        stop token or beyond the turn's limit are ignored. ``stats`` counts precomputed turns only in passes and time.

        Raises:
            ValueError: If the prompt is empty or fills the context, if prompt or draft hold an unknown token, or if
                more ``top_logprobs`` are requested than the vocabulary has tokens.
            RuntimeError: If the engine is closed or failed.
        """
        sampling, state = request.sampling, request.state
        prompt, turn_draft = checked(request.prompt_ids, sampling, request.draft, "draft", vocabulary=self.vocabulary)
        if len(prompt) >= self.config.max_context:
            raise ValueError(
                f"the prompt has {len(prompt)} tokens, max_context is {self.config.max_context}: no token is left "
                "to sample; raise LocalEngineConfig.max_context or shorten the dialogue"
            )
        stop = next((i for i, token in enumerate(turn_draft) if token in sampling.stop_token_ids), len(turn_draft))
        done = await self._run(
            prompt=prompt,
            sampling=sampling,
            state=state or DialogueState.from_tokens(prompt),
            seed=int(self._seeds.integers(1 << 63)) if sampling.seed is None else sampling.seed % (1 << 64),
            turn_draft=turn_draft[: stop + 1],
            ahead=request.precomputed_for > 0,
            watch=request.watch,
        )
        return done.completion()

    async def score(
        self, prompt_ids: Sequence[int], token_ids: Sequence[int], sampling: Sampling, *, top: int = 0
    ) -> Scores:
        """Score given tokens by teacher forcing, in passes shared with other requests, one prefill chunk at a time.

        The keys and values are kept for reuse, as after a sampled turn. A following ``generate`` whose prompt is this
        prompt and some of the tokens does not compute them again. Stop tokens and ``max_tokens`` are ignored.

        Raises:
            ValueError: As ``generate``, and if prompt and tokens together do not fit the context.
            EngineAborted: If all requests were aborted or the engine closed meanwhile.
            RuntimeError: If the engine is closed or failed.
        """
        sampling = replace(sampling, top_logprobs=top)
        prompt, given = checked(prompt_ids, sampling, token_ids, "text to score", vocabulary=self.vocabulary)
        if len(prompt) + len(given) > self.config.max_context:
            raise ValueError(
                f"prompt and tokens to score have {len(prompt)} + {len(given)} tokens, max_context is "
                f"{self.config.max_context}; raise LocalEngineConfig.max_context or score fewer"
            )
        if not given and not top:
            return Scores(logprobs=(), weights_version=self._core.version)
        done = await self._run(
            prompt=prompt,
            sampling=sampling,
            state=DialogueState.from_tokens(prompt),
            seed=0,
            turn_draft=given,
            scoring=True,
        )
        if done.finish is FinishReason.ABORT:
            raise EngineAborted(f"scoring stopped at {done.scored} of {len(given)} tokens: the request was aborted")
        return done.scores()

    async def _run(self, **parts: Any) -> Request:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Request] = loop.create_future()
        request = Request(**parts, deliver=lambda done: self._done.setdefault(loop, []).append((future, done)))
        with self._wake:
            if self._closing:
                raise RuntimeError("the engine is closed; create a new LocalEngine")
            self._inbox.append(request)
            self._wake.notify()
        try:
            return await future
        except asyncio.CancelledError:
            request.cancelled = True
            raise

    def update_weights(self, named: Iterable[tuple[str, Tensor]], *, version: int | None = None) -> None:
        """Copy new weights by their names in ``state_dict`` in place, between two steps.

        Keys and values are dropped. The draft store is kept: drafts from an older policy are still exact. Without a
        ``version`` the version counts up.

        Raises:
            KeyError: If a name is unknown.
            ValueError: If a shape differs.
        """
        self._call(lambda: self._core.update_weights(named, version))

    def reset_prefix_cache(self) -> None:
        """Drop all keys and values; the draft store is kept."""
        self._call(self._core.forget_prefixes)

    def sleep(self) -> None:
        """Release the device's memory; requests wait for ``wake``.

        Keys and values are dropped. The weights move to the host's memory and may be updated there.
        """
        self._call(self._core.sleep)

    def wake(self) -> None:
        """Take the device's memory again; has no effect on an engine that is awake."""
        self._call(self._core.wake)

    def abort_all(self) -> int:
        """End every live request with its tokens so far and return their number."""
        return self._call(self._core.abort_all)

    async def abort_precomputed(self) -> int:
        """End every precomputed request with its tokens so far and return their number."""
        return await asyncio.to_thread(self._call, self._core.abort_precomputed)

    @property
    def vocabulary(self) -> int:
        return self._core.policy.vocabulary

    @property
    def live(self) -> int:
        """Number of requests that hold a slot."""
        return self._call(lambda: len(self._core.live))

    def stats(self) -> EngineStats:
        return self._core.stats.copy()

    def close(self) -> None:
        """Stop the thread; live requests end as aborted. May be called twice."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> LocalEngine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _call(self, job: Callable[[], T]) -> T:
        future: Future[T] = Future()
        with self._wake:
            if self._closing:
                raise RuntimeError("the engine is closed; create a new LocalEngine")
            self._jobs.append((job, future))
            self._wake.notify()
        return future.result()

    def _loop(self) -> None:
        if self.config.threads is not None:
            torch.set_num_threads(self.config.threads)
        while True:
            with self._wake:
                while not (self._inbox or self._jobs or self._closing or self._core.busy):
                    self._wake.wait()
                arrived, self._inbox = self._inbox, []
                jobs, self._jobs = self._jobs, []
                closing = self._closing
            for request in arrived:
                self._core.add(request)
            for job, future in jobs:
                try:
                    future.set_result(job())
                except Exception as error:  # handed to the caller
                    future.set_exception(error)
            if closing:
                self._core.abort_all()
                self._deliver()
                return
            if self._core.busy:
                self._step()
            self._deliver()

    def _step(self) -> None:
        try:
            self._core.step()
        except Exception as error:  # boundary of the thread: callers must not wait for a failed step
            log.exception("a step of the local engine failed")
            self._core.fail_all(error)

    def _deliver(self) -> None:
        finished, self._done = self._done, {}
        for loop, done in finished.items():
            if not loop.is_closed():
                loop.call_soon_threadsafe(_resolve, done)


def _store(forest: SpecForest | ForestConfig | None, policy: Policy) -> SpecForest:
    from turntree.spec_tree import SpecForest
    from turntree.spec_tree.store.warm_up import warm_up

    warm_up()
    known = policy.vocabulary, tokenizer_hash(policy.name)
    if forest is None or isinstance(forest, ForestConfig):
        config = (forest or ForestConfig()).of_policy(*known)
        return SpecForest(replace(config, end_tokens=config.end_tokens | policy.end_tokens))
    if isinstance(forest, SpecForest):
        forest.config = forest.config.of_policy(*known)
    return forest


def _resolve(done: list[tuple[asyncio.Future[Request], Request]]) -> None:
    for future, request in done:
        if future.done():
            continue
        if request.error is not None:
            future.set_exception(RuntimeError(f"the local engine failed: {request.error!r}"))
        else:
            future.set_result(request)
