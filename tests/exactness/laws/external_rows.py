"""Rows of the exactness table for vLLM and SGLang: reuse of whole turns with these engines.

The policy is a tiny random Llama whose weights move between the stored turns and their reuse, as by an update. Expected
values are computed by transformers in float64. Turns of 4 tokens after top-k 3 have at most 81 cells.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from cpu_sglang import beside, prepare
from policy_law import PolicyLaw, chi_square
from tiny_llama import save_tiny_llama

from laws import rule_draws
from laws.claims import LEVEL, Row
from laws.stored_turn import lenient_formula
from turntree.agents.engines.protocol import Completion, Sampling, TurnRequest
from turntree.agents.turn_drafts.config import ReuseConfig, ReuseMode
from turntree.agents.turn_drafts.prefix_reuse import PrefixReuse
from turntree.spec_tree import DialogueState
from turntree.spec_tree.rules.transforms import Transforms, distribution

PROMPT = tuple(1 + n % 30 for n in range(5))
LENGTH, KEPT, BIAS = 4, 3, 0.5  #: tokens per turn, top-k, logarithm of the lenience
MOVED = 0.02  #: size of the update: random noise relative to each weight's standard deviation
OF_A_STATE = 64  #: turns stored per dialogue state, like the samples of a task
CONTEXT, AT_ONCE = 96, 64
REPLAYED, REPLAYED_LENGTH = 200, 48


def rows(name: str, draws: int) -> Iterator[Row]:
    """Yield rows of replay, the ratio rule and lenience with one engine.

    Args:
        name: ``vllm`` or ``sglang``, whichever the environment has.
        draws: Turns per chi-square row.
    """
    if name == "sglang":
        prepare()  # before transformers is imported
    with tempfile.TemporaryDirectory() as folder:
        reference = PolicyLaw(save_tiny_llama(Path(folder), positions=CONTEXT))
        with _ENGINES[name](Path(folder)) as engine:
            yield _replay_row(name, engine, reference)
            yield from _law_rows(name, engine, reference, draws)


def _replay_row(name: str, engine: Any, reference: PolicyLaw) -> Row:
    asked = [
        TurnRequest((*PROMPT, 1 + n % 30, 1 + n // 30), Sampling(max_tokens=REPLAYED_LENGTH, seed=n))
        for n in range(REPLAYED)
    ]
    reuse = PrefixReuse(engine, ReuseConfig(mode=ReuseMode.SAME_SEED), vocabulary=engine.vocabulary, seed=1)
    stored = _played(reuse, asked)
    with _Moved(engine, reference, 0.1 * MOVED):
        reuse.close_step()
        replayed = _played(reuse, asked)
        engine.reset_prefix_cache()
        # A store step has no part in the seeds of these: each turn is drawn with the stored one's seed.
        plain = _played(engine, asked)
    wrong = sum(turn.token_ids != other.token_ids for turn, other in zip(replayed, plain, strict=True))
    believed = sum(turn.token_ids != other.token_ids for turn, other in zip(stored, plain, strict=True))
    whole = [new for new, old in zip(replayed, stored, strict=True) if new.token_ids == old.token_ids]
    most = max((turn.draft.verify_steps for turn in whole), default=REPLAYED_LENGTH)
    return Row(
        rule=f"{name}, float32: turns replayed from stored turns of older weights",
        level="C",
        statistic="differing",
        value=wrong,
        control="the stored turn is believed",
        control_value=believed,
        holds=wrong == 0 and believed > REPLAYED // 20 and most <= 2,
        note=f"of {REPLAYED} turns of {REPLAYED_LENGTH} tokens; {reuse.stats.reused / reuse.stats.offered:.2f} of the "
        f"stored tokens kept; {len(whole)} reproduced whole, in at most {most} passes",
    )


def _law_rows(name: str, engine: Any, reference: PolicyLaw, draws: int) -> Iterator[Row]:
    old = _after(reference)
    found: dict[ReuseMode, tuple[Counter[tuple[int, ...]], PrefixReuse]] = {}
    laws: dict[ReuseMode, dict[tuple[int, ...], float]] = {}
    for mode in (ReuseMode.REJECTION_SAMPLING, ReuseMode.SPEC_RL):
        config = ReuseConfig(mode=mode, bias=BIAS if mode is ReuseMode.SPEC_RL else None, max_tokens=1 << 30, top_k=8)
        reuse = PrefixReuse(engine, config, vocabulary=engine.vocabulary, seed=2)
        sampling = Sampling(max_tokens=LENGTH, top_k=KEPT)
        asked = [
            TurnRequest(PROMPT, replace(sampling, seed=n), state=DialogueState(exact=n // OF_A_STATE))
            for n in range(draws)
        ]
        _played(reuse, asked)
        with _Moved(engine, reference, MOVED) as moved:
            reuse.close_step()
            found[mode] = Counter(turn.token_ids for turn in _played(reuse, asked)), reuse
            new = _after(moved)
        laws[mode] = lenient_formula(new, old, LENGTH, config.lenience)
    exact, lenient = found[ReuseMode.REJECTION_SAMPLING][0], found[ReuseMode.SPEC_RL][0]
    policy = laws[ReuseMode.REJECTION_SAMPLING]
    cells = sum(p * draws >= 5 for p in policy.values())
    power = rule_draws.power(draws, cells, 0.01, LEVEL)
    shared = f"{draws} turns, {cells} cells; power {power:.2f} at TV 0.01"
    for mode, rule, level, control in (
        (
            ReuseMode.REJECTION_SAMPLING,
            "the ratio rule follows the new policy's law",
            "C",
            "lenience e^0.5 taken for it",
        ),
        (ReuseMode.SPEC_RL, "lenience e^0.5 follows its behaviour law", "D", "against the policy's law"),
    ):
        drawn, reuse = found[mode]
        value, faulty = chi_square(drawn, laws[mode]), chi_square(lenient, policy)
        kept = reuse.stats.reused / reuse.stats.offered
        yield Row(
            rule=f"{name}: {rule}",
            level=level,
            statistic="p",
            value=value,
            control=control,
            control_value=faulty,
            holds=value > LEVEL
            and faulty < LEVEL
            and reuse.stats.drafted_turns > 0.99 * draws
            and exact.total() == draws,
            note=f"{shared}; {kept:.2f} of the stored tokens kept",
        )


class _Moved:
    # Moves the engine's weights inside the block and yields the reference with these weights.

    def __init__(self, engine: Any, reference: PolicyLaw, size: float) -> None:
        import torch

        noise = torch.Generator().manual_seed(0)
        self._engine, self._reference, self._before = engine, reference, reference.weights()
        self._new = {
            name: w + size * w.std() * torch.randn(w.shape, generator=noise) if w.dim() > 1 else w
            for name, w in self._before.items()
        }

    def __enter__(self) -> PolicyLaw:
        self._engine.update_weights(list(self._new.items()))
        return self._reference.changed(self._new)

    def __exit__(self, *_: object) -> None:
        self._engine.update_weights(list(self._before.items()))


def _after(reference: PolicyLaw) -> Callable[[tuple[int, ...]], Any]:
    @cache
    def next_token(tokens: tuple[int, ...]) -> Any:
        return distribution(reference.logits([[*PROMPT, *tokens]]), Transforms(top_k=KEPT))[0]

    return next_token


def _played(engine: Any, asked: Sequence[TurnRequest]) -> list[Completion]:
    async def play() -> list[Completion]:
        slots = asyncio.Semaphore(4 * AT_ONCE)

        async def one(request: TurnRequest) -> Completion:
            async with slots:
                return await engine.generate(request)

        return list(await asyncio.gather(*(one(request) for request in asked)))

    return asyncio.run(play())


def _vllm(folder: Path) -> AbstractContextManager[Any]:
    from tiny_vllm import ENVIRONMENT

    from turntree.agents.engines.vllm.config import VllmEngineConfig
    from turntree.agents.engines.vllm.engine import VllmEngine
    from turntree.agents.engines.vllm.settings import speculative_config

    os.environ.update(ENVIRONMENT)
    return VllmEngine(
        folder,
        config=VllmEngineConfig(
            max_batch=AT_ONCE,
            max_context=CONTEXT,
            dtype="float32",
            kv_cache_bytes=1 << 26,
            speculative_config=speculative_config(4),
            seed=0,
            engine_args={"skip_tokenizer_init": True, "block_size": 32},
        ),
    )


def _sglang(folder: Path) -> AbstractContextManager[Any]:
    from turntree.agents.engines.sglang.config import SglangEngineConfig
    from turntree.agents.engines.sglang.engine import SglangEngine

    return SglangEngine(
        folder,
        config=SglangEngineConfig(
            max_batch=AT_ONCE,
            max_context=CONTEXT,
            dtype="float32",
            draft_tokens=8,
            seed=1,
            engine_args=beside("dtype", "max_running_requests", "random_seed", "log_level"),
        ),
    )


_ENGINES: dict[str, Callable[[Path], AbstractContextManager[Any]]] = {"vllm": _vllm, "sglang": _sglang}
