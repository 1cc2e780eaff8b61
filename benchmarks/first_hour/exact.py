"""Check an engine's guarantees on this device: a tiny random Llama in float32 against transformers in float64.

The claims are those of ``tests/support/engine_checks.py``, as figures with controls: on a new device, the size of a
deviation says more than a failed test. ``exactness.py --engine`` has the rows of reused whole turns.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from first_hour.setting import Row, Setting
from first_hour.turns import differing, played, requests, tokens_per_forward_pass
from turntree.agents.engines.engine_choice import EngineChoice, EngineName, open_engine
from turntree.agents.engines.local import LocalEngine, LocalEngineConfig, Speculation
from turntree.agents.engines.vllm.settings import DrafterSettings

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "exactness"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))
from laws.claims import LEVEL
from laws.claims import Row as Claim
from policy_law import PolicyLaw, chi_square
from tiny_llama import save_tiny_llama

CONTEXT, AT_ONCE, DRAWN = 128, 64, 3
CLOSE = 1e-3  #: tolerance of float32 log-probabilities against the reference
LEAST = 0.02  #: smallest estimated probability of a drafted token
COLDER = 0.7  #: temperature of the controls


def rows(setting: Setting, name: str) -> list[Row]:
    # Only the second claim involves chance; its seeds are fresh.
    return asyncio.run(_rows(setting, EngineName(name)))


async def _rows(setting: Setting, name: EngineName) -> list[Row]:
    model = save_tiny_llama(setting.folder / "models" / "tiny", positions=CONTEXT)
    policy, count, draws = PolicyLaw(model), setting.of(200, 24), setting.of(6000, 600)
    prompts = [[1 + (n + i) % 30 for i in range(12)] for n in range(8)]
    asked = requests(prompts, count, tokens=setting.of(48, 12))
    others = requests(prompts, count, tokens=setting.of(48, 12), epoch=1)
    async with _opened(setting, name, model, drafts=False) as engine:
        plain, apart = await played(engine, asked), await played(engine, others)
    async with _opened(setting, name, model, drafts=True) as engine:
        await played(engine, asked)
        drafted = await played(engine, asked)
        drawn = await played(engine, requests(prompts[:1], draws, tokens=DRAWN, seeded=False, env="drawn"))
    return [
        _differing(drafted, plain, apart, count),
        _law(drawn, policy, prompts[0]),
        _logprobs(drafted, asked, policy),
    ]


def _differing(drafted: Any, plain: Any, apart: Any, count: int) -> Row:
    wrong, faulty = differing(drafted, plain), differing(apart, plain)
    return _row(
        Claim(
            rule="seeded turns with drafts are those without, token for token",
            level="B",
            statistic="differing",
            value=wrong,
            control="other seeds",
            control_value=faulty,
            holds=wrong == 0 and faulty > count // 2,
            note=f"of {count} turns; {tokens_per_forward_pass(drafted):.2f} tokens per forward pass",
        )
    )


def _law(drawn: Any, policy: PolicyLaw, prompt: list[int]) -> Row:
    seen = Counter(turn.token_ids for turn in drawn)
    value, faulty = (
        chi_square(seen, policy.turns(prompt, DRAWN, temperature=temperature)) for temperature in (1.0, COLDER)
    )
    accepted = sum(turn.draft.accepted for turn in drawn)
    return _row(
        Claim(
            rule="turns without seeds follow the policy's law",
            level="A",
            statistic="p",
            value=value,
            control=f"the law at temperature {COLDER}",
            control_value=faulty,
            holds=value > LEVEL and faulty < LEVEL,
            note=f"{len(drawn)} turns of {DRAWN} tokens, {accepted} of them accepted from drafts",
        )
    )


def _logprobs(drafted: Any, asked: Any, policy: PolicyLaw) -> Row:
    def farthest(temperature: float) -> float:
        return max(
            abs(said - right)
            for turn, request in zip(drafted[:AT_ONCE], asked, strict=False)
            for said, right in zip(
                turn.logprobs, policy.logprobs(request.prompt_ids, turn.token_ids, temperature), strict=True
            )
        )

    value, faulty = farthest(1.0), farthest(COLDER)
    return _row(
        Claim(
            rule="log-probabilities are those of transformers",
            level="A",
            statistic="largest difference",
            value=value,
            control=f"those at temperature {COLDER}",
            control_value=faulty,
            holds=value < CLOSE < faulty,
        )
    )


def _row(claim: Claim) -> Row:
    return {
        "claim": claim.rule, "statistic": claim.statistic, "value": claim.value, "control": claim.control,
        "control's": claim.control_value, "holds": claim.holds, "note": claim.note,
    }  # fmt: skip


@asynccontextmanager
async def _opened(setting: Setting, name: EngineName, model: Path, *, drafts: bool) -> AsyncIterator[Any]:
    # With drafts, the engine drafts all it can, whether it pays or not.
    if name is EngineName.LOCAL:
        speculation = Speculation(adaptive=False, min_probability=LEAST) if drafts else None
        size = {"max_batch": AT_ONCE, "max_context": CONTEXT, "dtype": "float32", "device": setting.device}
        with LocalEngine.from_pretrained(model, config=LocalEngineConfig(**size, speculation=speculation)) as engine:
            yield engine
        return
    settings = DrafterSettings(adaptive=False, min_probability=LEAST)
    arguments: dict[str, Any] = {"skip_tokenizer_init": True, "additional_config": settings.to_additional_config()}
    if setting.device == "cpu":
        from vllm_drafters import CPU

        os.environ.update(CPU)
        arguments |= {"kv_cache_memory_bytes": 1 << 26, "block_size": 32}
    else:
        arguments |= {"kv_cache_memory_bytes": 1 << 30}
    choice = EngineChoice(
        name=name, model=str(model), max_batch=AT_ONCE, max_context=CONTEXT, speculate=drafts, device=setting.device,
        dtype="float32", engine_args=arguments,
    )  # fmt: skip
    async with open_engine(choice) as engine:
        yield engine
