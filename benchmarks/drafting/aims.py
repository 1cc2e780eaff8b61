"""What the store must show beside the public drafters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

OURS, PEER, BEST, CORPUS = "turntree", "arctic default", "arctic best", "sglang bfs"
"""Drafters that the aims name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """One line of what must be shown."""

    figure: str
    key: str
    """Under which it is measured."""
    bound: float
    least: bool = True
    """``bound`` is the least, else the most."""

    def met(self, value: float) -> bool:
        return value >= self.bound if self.least else value <= self.bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """An aim and what was measured."""

    figure: str
    required: str
    measured: float | None
    """``None`` where it was not."""
    outcome: str
    """met, not met or not measured."""


AIMS = (
    Aim(figure="tokens per step, over arctic's best", key=f"quality over {BEST}", bound=1.20),
    Aim(figure="tokens per step, over arctic's default", key=f"quality over {PEER}", bound=1.40),
    Aim(figure="tokens per step, over SGLang BFS", key=f"quality over {CORPUS}", bound=1.15),
    Aim(figure="tokens per step at equal work, over arctic's default", key="equal work", bound=1.07),
    Aim(figure="time per draft at batch 256, arctic's default over ours", key="draft speed", bound=8.0),
    Aim(figure="insertion, over arctic", key="insertion", bound=30.0),
    Aim(figure="bytes per token, hot", key="hot bytes", bound=30.0, least=False),
    Aim(figure="bytes per token, cold", key="cold bytes", bound=4.0, least=False),
    Aim(figure="malformed drafts while writing", key="malformed", bound=0.0, least=False),
    Aim(figure="first compilation, seconds", key="compilation", bound=10.0, least=False),
    Aim(figure="the same when cached, seconds", key="cached compilation", bound=1.0, least=False),
)


def judged(measured: Mapping[str, float]) -> list[Verdict]:
    """Hold the figures, by key, against the aims."""
    verdicts = []
    for aim in AIMS:
        value = measured.get(aim.key)
        outcome = "not measured" if value is None else "met" if aim.met(value) else "not met"
        required = f"{'>=' if aim.least else '<='} {aim.bound:g}"
        verdicts.append(Verdict(figure=aim.figure, required=required, measured=value, outcome=outcome))
    return verdicts


def table(measured: Mapping[str, float]) -> str:
    """The verdicts as text."""
    lines = [f"\n{'figure':<60}{'required':>10}{'measured':>12}"]
    for verdict in judged(measured):
        value = "-" if verdict.measured is None else f"{verdict.measured:.3f}"
        lines.append(f"{verdict.figure:<60}{verdict.required:>10}{value:>12}  {verdict.outcome}")
    return "\n".join(lines)
