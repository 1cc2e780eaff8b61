"""turntree's drafter inside vLLM: it drafts chains of tokens that were sampled earlier at the same dialogue state.

vLLM creates one drafter in each worker process (``speculative_config`` with ``method=custom_class``) and calls
``propose`` once per step, after sampling. turntree's vLLM plugin passes the model runner, which holds the requests.
A turn is keyed by the dialogue state sent with its request (``request_wire``), or else by the tokens of its prompt.

Drafting runs on its own thread while vLLM passes the sampled tokens to its scheduler and its callers. vLLM waits for
that thread only when it takes the drafts (``settle``).

Drafts change how many passes a turn takes, never its tokens. The draft store belongs to the drafter: the store
survives ``reset_prefix_cache``, sleep and weight updates.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from operator import is_
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from turntree.agents.engines.drafting import chain_rows
from turntree.agents.engines.drafting.chain_rows import ChainTurn, StepResult
from turntree.agents.engines.drafting.step_bound import common_length
from turntree.agents.engines.request_wire import given_of, is_reverified
from turntree.agents.engines.served.chain_budget import ChainBudget
from turntree.agents.engines.served.drafter import ServedDrafter, reverified_turn
from turntree.agents.engines.vllm import compat, cpu_repair
from turntree.agents.engines.vllm.settings import DrafterSettings
from turntree.spec_tree import SpecForest
from turntree.spec_tree.store.warm_up import warm_up

logger = logging.getLogger(__name__)

_MAX_FINISHED = 1 << 16  #: Finished requests whose counters are kept until the caller reads them.


class _Served(NamedTuple):
    request: Any  #: vLLM's object; a different object under the same id is a different request
    slot: int  #: index of the turn in ``Chains``, the drafter's table of live turns
    by_text: bool  #: whether a stop string may end the turn, which only vLLM's front end sees


class ForestDrafter(ServedDrafter):
    """Draft for all requests of a step from one ``SpecForest``."""

    def __init__(self, vllm_config: Any) -> None:
        """Read the settings from ``additional_config["turntree"]``; vLLM calls this.

        Raises:
            ValueError: If a setting is unknown or invalid.
        """
        settings = DrafterSettings.from_additional_config(vllm_config.additional_config)
        config = settings.forest
        if not config.end_tokens:
            config = dataclasses.replace(config, end_tokens=compat.end_tokens(vllm_config.model_config))
        self._deepest: int = vllm_config.speculative_config.num_speculative_tokens
        super().__init__(SpecForest(config.of_policy(*compat.known_tokens(vllm_config.model_config))), self._deepest)
        self.settings = settings
        self._max_context: int = vllm_config.model_config.max_model_len
        self._max_step_tokens: int = vllm_config.scheduler_config.max_num_batched_tokens
        self._chain_budget: ChainBudget  #: created in ``bind``, for the runner's device
        self._rows: dict[str, _Served] = {}
        self._requests: list[Any] = []  #: vLLM's objects of the last step's batch
        self._request_count = 0  #: number of vLLM's requests in the last step
        self._slots = np.zeros(0, np.int32)  #: index of each request's turn in ``Chains``, -1 for none
        self._all_known = False  #: whether each request of the batch has a slot
        self._drafts = np.zeros((0, self._deepest), np.int32)
        self._lengths = np.zeros(0, np.int32)
        self._drawn: dict[str, list[int]] = {}  #: tokens drawn at a draft's positions, by request, until its pass ends
        self._finished: OrderedDict[str, tuple[int, int, int]] = OrderedDict()  #: counters that no caller has read
        self._prompt_tokens = 0  #: prompt tokens of the requests that joined in the last step
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="turntree-drafts")
        self._drafting: Future[None] | None = None
        self._runner: Any = None
        #: Ascending draft lengths with CUDA graphs (``graphs``). Unless empty, all drafts of a step get one of them.
        self.lengths: Sequence[int] = ()
        #: Whether vLLM verifies this worker's drafts. Of several ranks, only the leading one drafts.
        self.leads = True

    def bind(self, runner: Any, *, leads: bool = True) -> None:
        """Take the model runner, which holds the requests; turntree's plugin calls this.

        Raises:
            RuntimeError: If this vLLM build would draw drafted positions from a wrong distribution.
        """
        if runner.device.type == "cpu" and not cpu_repair.expands_rightly():
            raise RuntimeError(
                "this CPU build of vLLM reads the temperature, top-p and top-k of drafted positions from uninitialised "
                "memory, and turntree's repair was not applied; call turntree.agents.engines.vllm.cpu_repair.repair() "
                "first, or run without speculative_config"
            )
        compat.draft_near_the_end(runner, self._deepest)
        self._chain_budget = ChainBudget(self.settings, self._deepest, self._max_step_tokens, device=runner.device.type)
        compat.call_before_drafts_are_taken(runner, self.settle)
        self._runner = runner
        self.leads = leads

    def load_model(self, *_: Any, **__: Any) -> None:
        """Compile the draft store's kernels; vLLM calls this where other drafters load their models.

        Raises:
            RuntimeError: If turntree's vLLM plugin is not loaded.
        """
        if self._runner is None:
            raise RuntimeError(
                "turntree's drafter needs turntree's vLLM plugin, which was not loaded: let VLLM_PLUGINS contain "
                "turntree, or leave it unset"
            )
        if self.leads:
            warm_up()
            chain_rows.warm_up()

    def propose(
        self,
        sampled_token_ids: Sequence[list[int]],
        num_tokens_no_spec: NDArray[np.int32],
        token_ids_cpu: NDArray[np.int32],
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """Start drafting for the next step; vLLM calls this after each step.

        ``sampled_token_ids`` has an empty list for each request that is still inside its prompt. ``num_tokens_no_spec``
        counts the tokens of each row of ``token_ids_cpu``. The returned lists are filled once ``settle`` returns.
        """
        if not self.leads:
            return [[] for _ in sampled_token_ids]
        self.settle()
        with self._session.timed() as began:
            self.counts.steps += 1
            self._update_batch(self._runner.input_batch.req_ids, self._runner.requests)
            self._session.mark_step(began, went_on=bool(self._rows))
            # A request that is still inside its prompt sampled nothing: with end 0, `read` skips its row.
            ends = num_tokens_no_spec[: len(sampled_token_ids)]
            if not all(sampled_token_ids):
                ends = ends * np.fromiter(map(bool, sampled_token_ids), np.bool_, len(ends))
            opened = self._open(self._runner.input_batch.req_ids, ends > 0, sampled_token_ids)
            step = self._chains.read(self._slots, token_ids_cpu, ends)
            proposed: list[list[int]] = [[] for _ in sampled_token_ids]
        if not opened and self._chain_budget.rests(step.rows):
            self._work(began, step, proposed)  # a thread switch would cost more than this work
        else:
            self._drafting = self._thread.submit(self._work, began, step, proposed)
        return proposed

    def settle(self) -> None:
        """Wait until the drafts of the last ``propose`` are computed.

        Every method that reads the drafter's state must call ``settle`` first.
        """
        drafting, self._drafting = self._drafting, None
        if drafting is not None:
            with self._session.waited():
                drafting.result()

    def catch_up(self) -> None:
        """Commit the tokens of all finished steps to the draft store."""
        self.settle()

    def _work(self, began: float, step: StepResult, proposed: list[list[int]]) -> None:
        with self._session.timed(waits=False):
            whole = step.rows == len(proposed)  # no request stopped in the middle of a prompt
            self._chain_budget.learn(step, began, read=self._prompt_tokens if whole else None)
            allowed, most = None, self._chain_budget.most(step.live)
            if self.settings.enabled and step.live:
                allowed = self._chain_budget.allow(step.live, turn_drafted=min(step.turn_drafted, most))
            if len(proposed) > len(self._lengths):
                self._drafts = np.zeros((2 * len(proposed), self._deepest), np.int32)
                self._lengths = np.zeros(2 * len(proposed), np.int32)
            drafts, lengths = self._drafts[: len(proposed)], self._lengths[: len(proposed)]
            self._chains.propose(self._slots, drafts, lengths, allowed=allowed, most=most)
            if self.lengths:
                lengths[:] = self._cut_to_common_length(drafts, lengths, self.lengths)
                lengths[self._slots < 0] = 0
            # `propose` has already returned this list to vLLM: change it in place.
            if lengths.any():
                proposed[:] = drafts.tolist()
                short = np.flatnonzero(lengths < self._deepest)
                for row, length in zip(short.tolist(), lengths[short].tolist(), strict=True):
                    del proposed[row][length:]
            self.counts.rows += step.rows
            self.counts.tokens += step.tokens

    def _cut_to_common_length(
        self, drafts: NDArray[np.int32], lengths: NDArray[np.int32], choices: Sequence[int]
    ) -> int:
        # Cut longer drafts to the common length, and fill shorter drafts with token 0.
        length = common_length(lengths, choices, self._chain_budget.most(len(lengths)))
        self._chains.cut(self._slots, length)
        np.maximum(drafts, 0, out=drafts)  # padding is verified too, and -1 is not a token id
        return length

    def record_given(self, request_id: str, drawn: list[int]) -> None:
        """Record the tokens that the policy drew at the positions of a whole turn's draft (``reverified_prompts``)."""
        if self.leads:
            self._drawn[request_id] = drawn

    def take_stats(self, request_id: str) -> tuple[int, int, int] | None:
        """Return verify steps, verified and accepted draft tokens of a request; forget finished requests.

        Args:
            request_id: vLLM's internal id, or the caller's.
        """
        self.settle()
        return self._stats_of(request_id)

    def _stats_of(self, request_id: str) -> tuple[int, int, int] | None:
        for id_, row in self._rows.items():
            if request_id in (id_, compat.callers_id(id_)):
                return self._chains.counters(row.slot)
        for name in (request_id, compat.callers_id(request_id)):
            if name in self._finished:
                return self._finished.pop(name)
        return None

    def stats(self) -> dict[str, float]:
        """Return the counters since the engine started, as JSON values."""
        forest = self.forest.stats()
        names = ("states", "rollouts", "live", "tokens", "bytes")
        held = {f"held_{name}": float(getattr(forest, name)) for name in names}
        return self.counts.to_dict() | held | self.forest.imported_counters()

    def _update_batch(self, ids: Sequence[str], requests: Mapping[str, Any]) -> None:
        # Compare request objects, not ids: a caller may reuse an id for another request.
        batch = list(map(requests.get, ids))
        unchanged = len(batch) == len(self._requests) and self._request_count == len(requests)
        if unchanged and all(map(is_, batch, self._requests)):
            return
        self._drop_finished(requests)
        self._requests, self._request_count = batch, len(requests)
        slots = (row.slot if (row := self._rows.get(id_)) else -1 for id_ in ids)
        self._slots = np.fromiter(slots, np.int32, len(ids))
        self._all_known = False

    def _open(self, ids: Sequence[str], samples: NDArray[np.bool_], sampled: Any) -> bool:
        self._prompt_tokens = 0
        opened = False
        if self._all_known:
            return False
        for index in np.flatnonzero((self._slots < 0) & samples).tolist():
            id_, request = ids[index], self._requests[index]
            if request is None or request.prompt_token_ids is None:
                continue
            if is_reverified(request.sampling_params.extra_args):
                # A re-verified turn (its prompt ends with the draft) ends in the pass over its prompt: draft nothing.
                self._insert_reverified(request, [*self._drawn.pop(id_, ()), *sampled[index]])
                continue
            (slot,) = self._chains.begin([self._turn(request)])
            self._rows[id_] = _Served(request, slot, bool(request.sampling_params.stop))
            self._slots[index] = slot
            self._prompt_tokens += len(request.prompt_token_ids) - request.num_computed_tokens
            opened = True
        self._all_known = bool((self._slots >= 0).all())
        return opened

    def _insert_reverified(self, request: Any, drawn: list[int]) -> None:
        entries, tokens = request.sampling_params.extra_args, request.prompt_token_ids
        turn = reverified_turn(entries, tokens, drawn, compat.stop_tokens(request.sampling_params))
        if turn:
            self._insert(entries, tokens, turn)

    def _turn(self, request: Any) -> ChainTurn:
        parameters, tokens = request.sampling_params, request.prompt_token_ids
        given, available = given_of(parameters.extra_args), self._max_context - len(tokens)
        return self._asked(
            parameters.extra_args,
            tokens,
            available if parameters.max_tokens is None else min(available, parameters.max_tokens),
            least=given + (parameters.min_tokens or 0),
            stops=compat.stop_tokens(parameters),
        )

    def _drop_finished(self, requests: Mapping[str, Any]) -> None:
        # vLLM has dropped these requests. `Chains` discards incomplete turns, which were aborted, unless a stop string
        # may have ended them (`keep`).
        gone = [id_ for id_, row in self._rows.items() if requests.get(id_) is not row.request]
        for id_ in gone:
            row = self._rows.pop(id_)
            counters = self._finished[compat.callers_id(id_)] = self._chains.counters(row.slot)
            self._chains.end([row.slot], keep=row.by_text)
            self.counts.drafted += counters.offered
            self.counts.accepted += counters.accepted
        while len(self._finished) > _MAX_FINISHED:
            self._finished.popitem(last=False)
