"""Print the estimates of the shipped sizes as Markdown: ``python -m turntree.agents.verl.memory.table``.

Not here: the estimate of your own configuration, which ``turntree doctor --config`` prints.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from turntree.agents.verl.config.compose import compose
from turntree.agents.verl.config.groups import offered
from turntree.agents.verl.memory.phases import Estimate, estimate

_LONGEST, _SHORT = "airline", "gsm8k"  #: environments with long and short episodes
_HEAD = """\
| size | GPUs | engine | rollout | log-probs | update | transfer | memory share | with PPO | episodes at once | host |
|---|---|---|---|---|---|---|---|---|---|---|"""


def sizes() -> list[tuple[str, str]]:
    pairs = dict.fromkeys((choice.size, choice.engine) for choice in offered() if choice.device == "gpu")
    return sorted(pairs, key=lambda pair: (float(pair[0].partition("b")[0]), pair))


@lru_cache
def estimated(size: str, engine: str, env: str, algorithm: str = "grpo") -> Estimate:
    options = (f"size={size}", f"engine={engine}", f"env={env}", f"algorithm={algorithm}")
    return estimate(compose(None, options).verl)


def markdown() -> str:
    """Return the table: gigabytes (10^9 bytes) per GPU and phase, for the longest episodes."""
    return "\n".join([_HEAD, *_rows()]) + "\n"


def _rows() -> Iterator[str]:
    for size, engine in sizes():
        grpo, ppo = (estimated(size, engine, _LONGEST, algorithm) for algorithm in ("grpo", "ppo"))
        short = estimated(size, engine, _SHORT)
        phases = [f"{sum(parts.values()) / 1e9:.0f}" for parts in grpo.phases.values()]
        cells = [
            *(f"`{size}`", f"{grpo.gpus}", engine, *phases),
            *(f"{grpo.peak / grpo.gpu:.0%}", f"{ppo.peak / ppo.gpu:.0%}"),
            *(f"{short.episodes:,} / {grpo.episodes:,}", f"{grpo.host / 1e9:,.0f}" if grpo.host else ""),
        ]
        yield f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    print(markdown(), end="")
