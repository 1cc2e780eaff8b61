"""Stored turns as drafts: what an earlier trajectory sampled at the same state.

A turn is keyed by the exact tokens of its prompt, the sampler's transforms and the sample's number in its group. After
a tool call, reuse therefore continues only if the tool returned the same tokens as before. A turn drawn at another
temperature is never used. Three modes:

- ``same_seed``: the turn is drawn again with its own seed, with the stored tokens as its draft. The result is what that
  seed samples under the current policy.
- ``rejection_sampling``: one pass scores the stored turn. Its tokens are accepted by the ratio of new to old
  probability. The token at the first rejected position is drawn from the residual distribution (``acceptance``), and
  the rest is sampled. The result is exact however few top tokens are recorded (``rules.top_k``).
- ``spec_rl``: SPEC-RL's rule (arXiv 2509.23232), which keeps more tokens and is biased (level D). The distribution that
  drew each token is recorded.

A stored turn is used once, in a later step than its own, and chosen without looking at its tokens (``ledger``). Coins
(the random numbers that accept tokens) and noise are new in every step, even if the caller's seeds repeat.

With ``early``, the passes over an episode's later stored turns start with the first turn (``later_prompts``). If every
turn is reproduced, the episode waits as long as for one turn. The sampled tokens stay the same.

Not supported: turns that are sampled while the policy is updated (asynchronous training).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace

import numpy as np

from turntree.agents.engines.protocol import Sampling, TurnRequest, derive_seed
from turntree.agents.turn_drafts.config import ReuseConfig, ReuseMode
from turntree.agents.turn_drafts.later_prompts import LaterPrompts
from turntree.agents.turn_drafts.source import DraftedRequest, Drawn, Source, TurnDraft
from turntree.agents.turn_drafts.turn_storage import offer, storage_key, stored_turn, within
from turntree.agents.turn_drafts.turn_verification import RatioRule
from turntree.spec_tree import DialogueState
from turntree.spec_tree.rules.ledger import Ledger, StoredTurn
from turntree.spec_tree.rules.level import Level, worst_level


@dataclass(slots=True, kw_only=True)
class ReuseStats:
    """Counters since creation."""

    turns: int = 0  #: turns sampled
    drafted_turns: int = 0  #: turns with a stored turn as their draft
    offered: int = 0  #: stored tokens that were verified
    reused: int = 0  #: stored tokens that were accepted
    whole: int = 0  #: turns that kept every token of their draft
    wider: int = 0  #: passes that asked for more of the distribution after a rejection
    early: int = 0  #: prefetched passes: passes over stored turns that started before the turn was requested
    early_used: int = 0  #: prefetched passes whose turn was then requested


class StoredTurns(Source):
    """Earlier turns at the same state, as drafts.

    ``max_context`` is the engine's limit of prompt and response together. ``seed`` seeds the turns that are requested
    without a seed.
    """

    def __init__(
        self, config: ReuseConfig, *, vocabulary: int, max_context: int | None = None, seed: int | None = None
    ) -> None:
        self.config = config
        self.ledger = Ledger(max_tokens=config.max_tokens)
        self.stats = ReuseStats()
        self._vocabulary = vocabulary
        self._max_context = max_context
        #: most probable tokens to record with each token
        self._width = 0 if config.mode is ReuseMode.SAME_SEED else min(config.top_k, vocabulary)
        self._later_prompts = LaterPrompts()
        self._seeds = np.random.default_rng(seed)

    def base_seed(self, seed: int, after: int = 0) -> int:
        """Return the noise seed of a turn requested with ``seed`` after ``after`` more closed steps."""
        # A caller that repeats the same seeds in every epoch must not get the same coins.
        step = self.ledger.step + after
        return seed if step == 0 else derive_seed(seed, step)

    def wanted(self, request: TurnRequest) -> TurnRequest:
        """Return the request with the noise of this step, and with the records that storing the turn needs.

        Raises:
            ValueError: If ``sampling`` has a penalty that counts the turn's own tokens, and the mode scores turns.
        """
        if not request.reuse:
            return request
        prompt, sampling = tuple(request.prompt_ids), request.sampling
        if self._width and (sampling.presence_penalty or sampling.frequency_penalty):
            raise ValueError(
                f"reuse mode {self.config.mode} continues a turn as a new prompt, which presence_penalty and "
                "frequency_penalty would not count; set both to 0 or use mode same_seed"
            )
        most = sampling.max_tokens
        if self._max_context is not None and len(prompt) < self._max_context:
            # A continued turn is a new prompt, and the engine refuses a prompt that fills the context.
            most = min(most, self._max_context - len(prompt))
        seed = int(self._seeds.integers(1 << 63)) if sampling.seed is None else sampling.seed
        top = max(self._width, sampling.top_logprobs)
        sampling = replace(sampling, max_tokens=most, seed=self.base_seed(seed), top_logprobs=top)
        request = replace(request, prompt_ids=prompt, sampling=sampling)
        if (dialogue := self._dialogue(request)) is not None:
            self._later_prompts.reach(prompt, dialogue)
        return request

    def turn_draft(self, request: TurnRequest) -> TurnDraft | None:
        if not request.reuse or self._has_no_ratio(request.sampling):
            return None
        seed = _turn_seed(request)
        if _fraction(seed, 1) < self.config.fresh:
            return None
        # `derive_seed(seed, n)`: every use of the turn's randomness has its own number n, so no two uses share noise.
        replayed = self.ledger.take(_key(request), pick=derive_seed(seed, 2))
        if replayed is None:
            return None
        level = Level.D if self.config.mode is ReuseMode.SPEC_RL else replayed.level
        coins = derive_seed(seed, 3, replayed.number)
        turn_draft = self._turn_draft_of(replayed.turn, request.sampling, level, coins=coins)
        if self._dialogue(request) is None:
            return turn_draft
        return replace(turn_draft, later=tuple(self._later(request, replayed.turn)))

    def _later(self, request: TurnRequest, turn: StoredTurn) -> Iterator[tuple[DraftedRequest, ...]]:
        def drafted_request(prompt: tuple[int, ...], stored: StoredTurn) -> DraftedRequest:
            sampling = replace(request.sampling, max_tokens=stored.token_limit)
            state = within(request.state, prompt)
            # A prefetched pass of the ratio rule only scores tokens, so the coins of this draft are never used.
            turn_draft = self._turn_draft_of(stored, sampling, Level.C, coins=0)
            later = replace(request, prompt_ids=prompt, sampling=sampling, state=state, draft=())
            return DraftedRequest(later, turn_draft)

        def waiting(prompt: tuple[int, ...]) -> list[StoredTurn]:
            return list(self.ledger.waiting(_key(request, prompt)))

        for prompt, turns in self._later_prompts.after(tuple(request.prompt_ids), turn, waiting):
            yield tuple(drafted_request(prompt, stored) for stored in turns)

    def _turn_draft_of(self, turn: StoredTurn, sampling: Sampling, level: Level, *, coins: int) -> TurnDraft:
        if self.config.mode is ReuseMode.SAME_SEED:
            tokens = turn.tokens[: sampling.max_tokens].tolist()
            return TurnDraft(source=self, tokens=tokens, level=level, seed=turn.seed, stored=turn)
        offered = offer(turn, sampling)
        rule = RatioRule(lenience=self.config.lenience, top=self._width, vocabulary=self._vocabulary, seed=coins)
        return TurnDraft(source=self, tokens=offered.tokens, level=level, stored=turn, rule=rule, most=offered.most)

    def record(self, drawn: Drawn) -> None:
        if not drawn.request.reuse:
            return
        self.stats.turns += 1
        turn_draft = drawn.from_source(self)
        if turn_draft is not None:
            self.stats.drafted_turns += 1
            self.stats.offered += len(turn_draft.tokens)
            self.stats.reused += drawn.kept
            self.stats.whole += drawn.kept == len(turn_draft.tokens)
            self.stats.wider += drawn.wider
            self.stats.early += drawn.begun
            self.stats.early_used += drawn.early
        if (dialogue := self._dialogue(drawn.request)) is not None:
            stored = None if turn_draft is None else turn_draft.stored
            expected = () if stored is None else stored.tokens.tolist()
            sampled = drawn.completion.token_ids
            self._later_prompts.end(tuple(drawn.request.prompt_ids), sampled, expected, dialogue)
        self._store(drawn)

    def _store(self, drawn: Drawn) -> None:
        completion, sampling = drawn.completion, drawn.request.sampling
        turn = stored_turn(completion, sampling, seed=drawn.seed, width=self._width)
        if turn is None or self._has_no_ratio(sampling):
            return
        # If the policy was trained on the draft, this turn depends on the noise that the policy was trained on.
        trained = worst_level(completion.levels) in (Level.C, Level.D)
        # `ledger` chooses among stored turns by rank. The rank depends on the seed alone: a retry has the same rank.
        rank = derive_seed(_turn_seed(drawn.request), 6)
        self.ledger.add(_key(drawn.request), turn, rank=rank, trained=trained)

    def close_step(self, step: int, *, trained: bool) -> None:
        self.ledger.close_step(trained=trained)
        self._later_prompts.close_step()

    def counters(self) -> Mapping[str, float]:
        return {f"reuse_{name}": value for name, value in asdict(self.stats).items()}

    def _dialogue(self, request: TurnRequest) -> DialogueState | None:
        state = request.state
        return state if self.config.early and state is not None and state.task else None

    def _has_no_ratio(self, sampling: Sampling) -> bool:
        # A greedy turn has no ratio of probabilities to verify it by.
        return sampling.temperature == 0 and self.config.mode is not ReuseMode.SAME_SEED


def _turn_seed(request: TurnRequest) -> int:
    assert request.sampling.seed is not None
    return request.sampling.seed


# The key under which a request's turn is stored, optionally for another prompt.
def _key(request: TurnRequest, prompt: tuple[int, ...] | None = None) -> tuple[float, ...]:
    return *storage_key(request.prompt_ids if prompt is None else prompt, request.sampling), request.sample


def _fraction(*parts: int) -> float:  # uniform in [0, 1)
    return derive_seed(*parts) / (1 << 63)
