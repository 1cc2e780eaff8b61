"""turntree's drafter inside vLLM: chains of tokens sampled earlier at the same point of the same dialogue.

vLLM creates one in each worker process (``speculative_config`` with
``method=custom_class``) and calls ``propose`` once per step, after sampling. The
plugin hands it the model runner, which holds the requests. A request's
turn is keyed by its dialogue state (``request_wire``), else by its prompt's tokens.

The store is asked on a thread of its own: vLLM passes the sampled tokens on to its
scheduler and its callers meanwhile, and waits when it takes the drafts (``settle``).

Drafts change how many passes a turn takes, never its tokens. The store belongs
to the drafter: it outlives ``reset_prefix_cache``, sleep and new weights.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turntree.agents.engines.drafting.session import DraftCounts, DraftingSession
from turntree.agents.engines.judged import ended_turn
from turntree.agents.engines.request_wire import draft_of, given_of, is_judged, judged_most, turn_state
from turntree.agents.engines.vllm import compat, cpu_repair
from turntree.agents.engines.vllm.chain_budget import ChainBudget
from turntree.agents.engines.vllm.live_turn import LiveTurn
from turntree.agents.engines.vllm.settings import DrafterSettings
from turntree.spec_tree import DialogueState, SpecForest
from turntree.spec_tree.exchange.exchange import SharedTurns
from turntree.spec_tree.exchange.folder_exchange import FolderExchange
from turntree.spec_tree.store.warm_up import warm_up

logger = logging.getLogger(__name__)

_REMEMBERED = 1 << 16
"""Finished requests whose counters are kept until they are read."""


class ForestDrafter:
    """Drafts for all requests of a step from one ``SpecForest``."""

    def __init__(self, vllm_config: Any) -> None:
        """Read the settings; vLLM calls this.

        Args:
            vllm_config: vLLM's configuration; turntree's is ``additional_config["turntree"]``.

        Raises:
            ValueError: If a setting is unknown or invalid.
        """
        settings = DrafterSettings.from_additional_config(vllm_config.additional_config)
        config = settings.forest
        if not config.end_tokens:
            config = dataclasses.replace(config, end_tokens=compat.end_tokens(vllm_config.model_config))
        self.settings = settings
        self.forest = SpecForest(config)
        self._session = DraftingSession(forest=self.forest)
        self._longest: int = vllm_config.model_config.max_model_len
        self._deepest: int = vllm_config.speculative_config.num_speculative_tokens
        self._most: int = vllm_config.scheduler_config.max_num_batched_tokens
        self._chain_budget: ChainBudget
        """Made for the runner's device, in ``bind``."""
        self._rows: dict[str, LiveTurn] = {}
        self._drawn: dict[str, list[int]] = {}
        """Tokens drawn at the positions of a guess, by request, until its pass is over."""
        self._finished: OrderedDict[str, tuple[int, int, int]] = OrderedDict()
        self._reading = 0
        """Prompt tokens of the requests that joined in the last step."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="turntree-drafts")
        self._drafting: Future[None] | None = None
        """Drafts that are being made."""
        self._runner: Any = None
        self._shared: SharedTurns | None = None
        self.leads = True
        """Whether this worker's drafts are verified: of several ranks one drafts, and the others do nothing."""

    @property
    def counts(self) -> DraftCounts:
        """Counters so far."""
        return self._session.counts

    def bind(self, runner: Any, *, leads: bool = True) -> None:
        """Take the model runner, which holds the requests; the plugin calls this.

        Args:
            runner: The model runner.
            leads: See ``leads``.

        Raises:
            RuntimeError: If the build would draw drafted positions from another distribution than the policy's.
        """
        if runner.device.type == "cpu" and not cpu_repair.expands_rightly():
            raise RuntimeError(
                "this CPU build of vLLM gives drafted positions temperatures, top-p and top-k from uninitialised "
                "memory, and turntree's repair was not applied; call turntree.agents.engines.vllm.cpu_repair.repair() "
                "before, or run without speculative_config"
            )
        compat.draft_near_the_end(runner, self._deepest)
        self._chain_budget = ChainBudget(self.settings, self._deepest, self._most, device=runner.device.type)
        compat.call_before_drafts_are_taken(runner, self.settle)
        self._runner = runner
        self.leads = leads
        exchange = FolderExchange.from_environment()
        self._shared = None if exchange is None else SharedTurns(self.forest, exchange)

    def load_model(self, *_: Any, **__: Any) -> None:
        """Compile the store's kernels; vLLM calls this where other drafters load their models.

        Raises:
            RuntimeError: If turntree's plugin is not loaded.
        """
        if self._runner is None:
            raise RuntimeError(
                "turntree's drafter needs turntree's vLLM plugin, which was not loaded: let VLLM_PLUGINS contain "
                "turntree, or leave it unset"
            )
        if self.leads:
            warm_up()

    def propose(
        self,
        sampled_token_ids: Sequence[list[int]],
        num_tokens_no_spec: NDArray[np.int32],
        token_ids_cpu: NDArray[np.int32],
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """Drafts for the next step, empty until ``settle``; vLLM calls this after each step.

        Args:
            sampled_token_ids: New tokens of each request, none while it still processes its prompt.
            num_tokens_no_spec: Tokens of each request, shape (requests or more,).
            token_ids_cpu: The tokens, shape (requests or more, longest context).
            slot_mappings: Not used.
        """
        if not self.leads:
            return [[] for _ in sampled_token_ids]
        self.settle()
        with self._session.timed() as began:
            self.counts.steps += 1
            self._sweep()
            self._session.mark_step(began, went_on=bool(self._rows))
            new: list[LiveTurn] = []
            said = self._read(sampled_token_ids, num_tokens_no_spec, token_ids_cpu, new)
            proposed: list[list[int]] = [[] for _ in sampled_token_ids]
        if not new and self._shared is None and self._chain_budget.rests(len(said)):
            self._work(began, said, new, proposed)  # next to nothing to do: threads cost more to change than it takes
        else:
            self._drafting = self._thread.submit(self._work, began, said, new, proposed)
        return proposed

    def settle(self) -> None:
        """Wait until the drafts of the last ``propose`` are made; nothing else may be asked of the drafter before."""
        drafting, self._drafting = self._drafting, None
        if drafting is not None:
            with self._session.waited():
                drafting.result()

    def _work(
        self,
        began: float,
        said: list[tuple[int, LiveTurn, list[int]]],
        new: list[LiveTurn],
        proposed: list[list[int]],
    ) -> None:
        """Tell the store of a step's tokens, and write the drafts of the next one into ``proposed``."""
        with self._session.timed(waits=False):
            rows = [row for _, row, _ in said]
            for _, row, tokens in said:
                row.verified(tokens, self.counts.steps)
            whole = len(rows) == len(proposed)  # no request stopped in the middle of a prompt
            self._chain_budget.learn(self.counts.steps, began, rows=len(rows), read=self._reading if whole else None)
            self._swap_if_idle()
            self._begin(new)
            self._commit(rows, [tokens for _, _, tokens in said])
            if self.settings.enabled:
                live = [(place, row) for place, row, _ in said if row.handle is not None]
                self._draft([row for _, row in live], [place for place, _ in live], proposed)
            self.counts.rows += len(rows)
            self._swap_if_idle()

    def hear(self, request_id: str, drawn: list[int]) -> None:
        """Take the tokens drawn at the positions of a request's guess; ``judged_prompts`` calls this."""
        if self.leads:
            self._drawn[request_id] = drawn

    def take_stats(self, request_id: str) -> tuple[int, int, int] | None:
        """Verify steps, verified and accepted draft tokens of a request; a finished one is then dropped here.

        Args:
            request_id: vLLM's internal id, or the caller's.
        """
        for id_, row in self._rows.items():
            if request_id in (id_, compat.callers_id(id_)):
                return row.counters
        for name in (request_id, compat.callers_id(request_id)):
            if name in self._finished:
                return self._finished.pop(name)
        return None

    def stats(self) -> dict[str, float]:
        """Counters since the engine started, as JSON values."""
        forest = self.forest.stats()
        names = ("states", "rollouts", "live", "tokens", "bytes")
        held = {f"held_{name}": float(getattr(forest, name)) for name in names}
        return self.counts.to_dict() | held

    def _read(
        self,
        sampled: Sequence[list[int]],
        ends: NDArray[np.int32],
        tokens: NDArray[np.int32],
        new: list[LiveTurn],
    ) -> list[tuple[int, LiveTurn, list[int]]]:
        """Index, turn and new tokens of each request that sampled; turns that begin are added to ``new``."""
        ids, requests = self._runner.input_batch.req_ids, self._runner.requests
        stands = ends[: len(sampled)].tolist()
        said = []
        self._reading = 0
        for place, last in enumerate(sampled):
            if not last:
                continue
            row = self._rows.get(ids[place])
            if row is None:
                request = requests[ids[place]]
                if request.prompt_token_ids is None:
                    continue
                if is_judged(request.sampling_params.extra_args):
                    self._learn(request, [*self._drawn.pop(ids[place], ()), *last])
                    continue
                row = self._rows[ids[place]] = self._open(request)
                new.append(row)
                self._reading += len(request.prompt_token_ids) - request.num_computed_tokens
            if stands[place] - row.seen != len(last):  # given tokens, or a step that asked for no drafts
                last = tokens[place, row.seen : stands[place]].tolist()
            said.append((place, row, row.own(list(last))))  # vLLM's scheduler shortens its own lists
        return said

    def _begin(self, new: list[LiveTurn]) -> None:
        prompts = [row.request.prompt_token_ids[: row.prompt] for row in new]
        states = [
            turn_state(row.request.sampling_params.extra_args, prompt) for row, prompt in zip(new, prompts, strict=True)
        ]
        for row, state in zip(new, states, strict=True):
            row.state = state
        self._session.begin(new, states, prompts)

    def _learn(self, request: Any, drawn: list[int]) -> None:
        """Tell the store of a turn that ended in the pass that judged it."""
        entries, tokens = request.sampling_params.extra_args, request.prompt_token_ids
        before = len(tokens) - given_of(entries)
        turn = ended_turn(tokens[before:], drawn, compat.stop_tokens(request.sampling_params), judged_most(entries))
        if turn:
            state = turn_state(entries, tokens[:before])
            self.forest.insert(state, turn)
            self._note(state, turn)

    def _open(self, request: Any) -> LiveTurn:
        parameters = request.sampling_params
        given = given_of(parameters.extra_args)
        prompt = len(request.prompt_token_ids) - given
        room = self._longest - prompt
        try:
            guess = draft_of(parameters.extra_args)
        except (TypeError, ValueError) as error:
            logger.warning("a request's draft is ignored, as it cannot be read: %s", error)
            guess = []
        return LiveTurn(
            request=request,
            prompt=prompt,
            stops=compat.stop_tokens(parameters),
            least=given + (parameters.min_tokens or 0),
            most=room if parameters.max_tokens is None else min(room, given + parameters.max_tokens),
            by_text=bool(parameters.stop),
            guess=guess,
        )

    def _commit(self, rows: list[LiveTurn], tokens: list[list[int]]) -> None:
        self._session.commit(rows, tokens)
        for row, said in zip(rows, tokens, strict=True):
            row.said += said
            if row.handle is not None and said and row.complete(said[-1]):
                self._end(row, keep=True)

    def _draft(self, rows: list[LiveTurn], places: list[int], proposed: list[list[int]]) -> None:
        """Write the drafts of ``rows`` into ``proposed`` at ``places``."""
        room = [row.room(self._deepest) for row in rows]
        left = most = self._chain_budget.most(len(rows))
        for index, row in enumerate(rows):
            row.drafted, row.by_guess = 0, False
            guess = row.cut(row.guessed(min(room[index], left)))
            left -= len(guess)
            if guess:
                proposed[places[index]] = guess
                row.drafted, row.by_guess, room[index] = len(guess), True, 0
        allowed = self._chain_budget.allow(len(rows), guessed=most - left) if rows else None
        if allowed is None or allowed.nodes == 0:
            self._chain_budget.drafted(rows, None)
            return
        batch = self._session.draft(
            rows,
            max_nodes=self._deepest,
            room=room,
            min_probability=allowed.min_probability,
            chain=True,
            total_nodes=allowed.nodes,
        )
        tokens, offsets = batch.tokens.tolist(), batch.offsets.tolist()
        for index, row in enumerate(rows):
            if offsets[index] < offsets[index + 1]:
                chain = row.cut(tokens[offsets[index] : offsets[index + 1]])
                proposed[places[index]] = chain
                row.drafted = len(chain)
        self._chain_budget.drafted(rows, batch)

    def _sweep(self) -> None:
        """Close the rows whose requests are gone; one that left before its turn was complete was aborted."""
        requests = self._runner.requests
        gone = [id_ for id_, row in self._rows.items() if requests.get(id_) is not row.request]
        for id_ in gone:
            row = self._rows.pop(id_)
            if row.handle is not None:
                self._end(row, keep=row.by_text)
            self._finished[compat.callers_id(id_)] = row.counters
            self.counts.drafted += row.offered
            self.counts.accepted += row.accepted
        while len(self._finished) > _REMEMBERED:
            self._finished.popitem(last=False)

    def _end(self, row: LiveTurn, *, keep: bool) -> None:
        self._session.end([row], keep=keep)
        row.drafted = 0
        if keep and row.state is not None:
            self._note(row.state, row.said)

    def _note(self, state: DialogueState, turn: list[int]) -> None:
        if self._shared is not None:
            self._shared.note(state, turn)

    def _swap_if_idle(self) -> None:
        """Exchange turns with other engines where no request would wait for it in the middle of its turn."""
        if self._shared is not None and all(row.handle is None for row in self._rows.values()):
            self._shared.swap()
