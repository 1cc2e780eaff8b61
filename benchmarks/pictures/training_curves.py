"""Training curves with and without drafts: tokens per forward pass, and reward against wall-clock seconds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any

from pictures.sheet import Axis, Line, Plot, sheet, ticks
from turntree.agents.viewer.chart import moving_average

WAYS = (("none", "grey", "without drafts"), ("tree", "blue", "with drafts"))  # mode, colour, name
WINDOW = 4  # steps of the moving average of rewards
PER_PASS = "turntree/tokens_per_forward_pass"

Run = Mapping[str, Any]


def grpo(runs: Mapping[str, Run], mode: str) -> list[list[Run]]:
    """Return the steps of each seed trained by GRPO in ``mode``."""
    return [run["steps"] for run in runs.values() if (run["algorithm"], run["mode"]) == ("grpo", mode)]


def over_seeds(seeds: Iterable[Iterable[float]]) -> list[tuple[float, float, float]]:
    """Return the mean, lowest and highest value of each step."""
    return [(statistics.fmean(step), min(step), max(step)) for step in zip(*seeds, strict=True)]


def passes(record: Mapping[str, Any], scheme: str) -> str:
    """Draw the tokens per forward pass of each step, from ``algorithms.json``."""
    lines = []
    for mode, colour, name in WAYS:
        found = over_seeds([row[PER_PASS] for row in seed] for seed in grpo(record["runs"], mode))
        lines.append(
            Line(
                name=f"{name} (last step: {found[-1][0]:.1f})",
                colour=colour,
                points=[(step, mean) for step, (mean, _, _) in enumerate(found, start=1)],
                band=[(step, low, high) for step, (_, low, high) in enumerate(found, start=1)],
            )
        )
    steps = len(lines[0].points)
    plot = Plot(
        title="Local engine, 2 CPU cores",
        measured_on="GRPO on multi-turn arithmetic with the demo's policy. Mean and range of 3 seeds.",
        across=Axis(label="training step", ticks=[1, *range(4, steps + 1, 4)], low=1, high=steps),
        up=Axis(label="tokens per forward pass", ticks=ticks(1, 6), low=0, high=6),
        lines=lines,
        mark=5,
        mark_text="tasks repeat from here",
    )
    below = "Tokens per forward pass of one request. Both ways sample from the same distribution."
    return sheet(
        scheme, "Drafts get more tokens out of each forward pass", below, 560, 380, plot.draw(16, 62, 528, 310)
    )


def reward_seconds(record: Mapping[str, Any], scheme: str) -> str:
    """Draw the reward against the wall-clock seconds of all steps so far, from ``wall_clock.json``."""
    faint, bold = [], []
    for mode, colour, name in WAYS:
        seeds = grpo(record["runs"], mode)
        seconds = [list(accumulate(row["seconds"] for row in seed)) for seed in seeds]
        rewards = [moving_average([row["reward"] for row in seed], WINDOW) for seed in seeds]
        faint += [
            Line(name="", colour=colour, points=list(zip(*seed, strict=True)), dots=False, faint=True)
            for seed in zip(seconds, rewards, strict=True)
        ]
        means = [[mean for mean, _, _ in over_seeds(figures)] for figures in (seconds, rewards)]
        ends = f"{name}: {len(means[0])} steps in {means[0][-1]:.0f} s"
        bold.append(Line(name=ends, colour=colour, points=list(zip(*means, strict=True))))
    last = max(x for line in faint for x, _ in line.points)
    high = 20 * math.ceil(last / 20)
    plot = Plot(
        title="Local engine, 2 CPU cores",
        measured_on=f"Thin: 3 seeds. Bold: their mean, a dot per step. Reward: mean of the last {WINDOW} steps.",
        across=Axis(label="wall-clock seconds of training", ticks=ticks(20, high), low=0, high=high),
        up=Axis(label="mean reward", ticks=[0, 0.2, 0.4, 0.6, 0.8, 1], low=0, high=1),
        lines=[*faint, *bold],
    )
    below = "GRPO on multi-turn arithmetic with the demo's policy. Each step has the same reward both ways."
    return sheet(
        scheme, "Reward against wall-clock time, with and without drafts", below, 660, 400, plot.draw(16, 62, 628, 330)
    )
