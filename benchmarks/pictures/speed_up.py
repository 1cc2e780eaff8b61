"""Speed-up from drafts by epoch and by number of concurrent requests, for each recorded engine and machine.

A speed-up is tokens per second with drafts divided by tokens per second without. Both come from the same run.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from pictures.sheet import Axis, Line, Plot, sheet, ticks

BATCHES = ((1, "blue"), (4, "green"), (16, "orange"), (64, "purple"))
GPU_TRACES = (("math", "math", "blue"), ("tot", "creative text", "orange"))  # name in the rows, in the legend, colour

Row = Mapping[str, Any]
Record = Mapping[str, Any]


def up(high: float) -> Axis:
    return Axis(label="speed-up", ticks=ticks(0.5, high), low=0, high=high, unit="x")


def of_drafts(record: Record) -> list[Row]:
    """Return the rows with turntree's drafts from a record of `vllm_drafters.py` or `sglang_drafters.py`."""
    return [row for row in record["rows"] if row["way"] == "ours"]


def by_epoch(records: Mapping[str, Record], scheme: str) -> str:
    """Draw four plots: the local engine, vLLM and SGLang on a CPU, and vLLM on a GPU."""
    epochs = Axis(label="epoch over the same tasks", ticks=[1, 2, 3, 4], low=0.85, high=4.15)
    served = [
        Plot(
            title=name,
            measured_on=machine,
            across=epochs,
            up=up(2),
            lines=[
                Line(
                    name=f"{batch} request{'s' * (batch > 1)}",
                    colour=colour,
                    points=[
                        (row["epoch"], row["ratio_to_none"])
                        for row in of_drafts(records[file])
                        if row["batch"] == batch
                    ],
                )
                for batch, colour in BATCHES
            ],
            level=1,
        )
        for file, name, machine in (
            ("vllm_fresh", "vLLM 0.28 on a CPU", "2 cores of an AMD EPYC; one run; 1 to 64 concurrent requests"),
            ("sglang", "SGLang 0.5.12 on a CPU", "1 thread of an AMD EPYC; one run; 1 to 64 concurrent requests"),
        )
    ]
    plots = [local(records["training"], records["demo"]), *served, gpu(records["gpu_h200"])]
    parts = [
        part
        for index, plot in enumerate(plots)
        for part in plot.draw(16 + 428 * (index % 2), 66 + 306 * (index // 2), 400, 292)
    ]
    below = "Tokens per second with drafts divided by tokens per second without. Dashed: the speed without drafts."
    return sheet(scheme, "Speed-up from drafts, by epoch", below, 860, 680, parts)


def local(training: Record, demo: Record) -> Plot:
    """Plot the engine time of two trainings, and of training steps that the demo repeated without drafts."""
    plain, drafted = (training["ways"][way] for way in ("none", "tree"))
    epochs = [
        (epoch, none["engine"] / tree["engine"])
        for epoch, (none, tree) in enumerate(zip(plain, drafted, strict=True), start=1)
    ]
    thirds = [(2.5, "engine first third"), (10.5, "engine last third")]
    both = [(x, statistics.fmean(seed[name][0] for seed in demo["seeds"])) for x, name in thirds]
    band = [(x, *(pick(seed[name][0] for seed in demo["seeds"]) for pick in (min, max))) for x, name in thirds]
    return Plot(
        title="Local engine on a CPU, trained by verl",
        measured_on="2 cores of a Xeon (blue) or an EPYC (grey); demo's policy; engine time",
        across=Axis(label="epoch over the same tasks", ticks=range(1, 13), low=0.6, high=12.4),
        up=up(2),
        lines=[
            Line(name="same steps with and without, 5 seeds", colour="blue", points=both, band=band),
            Line(name="two trainings, 1 seed", colour="grey", points=epochs),
        ],
        level=1,
    )


def gpu(record: Record) -> Plot:
    """Plot whole epochs of recorded dialogues on the H200, compared with unmodified vLLM in the same run."""

    def ratio(run: int, trace: str, epoch: str) -> float:
        unmodified, ours = (
            next(
                row["seconds"]
                for row in record["epochs"]
                if (row["run"], row["way"], row["trace"], row["epoch"]) == (run, way, trace, epoch)
            )
            for way in ("stockv1", "ours")
        )
        return float(unmodified / ours)

    lines = [
        Line(name=name, colour=colour, points=[(1, ratio(2, trace, "A")), (2, ratio(2, trace, "B"))])
        for trace, name, colour in GPU_TRACES
    ]
    lines += [
        Line(name="", colour=colour, points=[(2, ratio(1, trace, "B"))], joined=False, hollow=True)
        for trace, _, colour in GPU_TRACES
    ]
    return Plot(
        title="vLLM 0.24 on an NVIDIA H200",
        measured_on="1.5 B parameters, 150 to 250 concurrent requests; hollow: an earlier run",
        across=Axis(label="epoch over the same tasks", ticks=[1, 2], low=0.7, high=2.3),
        up=up(2),
        lines=lines,
        level=1,
    )


def by_requests(records: Mapping[str, Record], scheme: str) -> str:
    """Draw one plot of all engines over the number of concurrent requests."""
    lines = [
        Line(name="vLLM 0.24, H200: steps with drafts, epoch 2", colour="green", points=gpu_steps(records["gpu_h200"])),
        over_batches("SGLang 0.5.12, CPU: mean and range of 4 epochs", "orange", of_drafts(records["sglang"])),
        over_batches("vLLM 0.28, CPU: mean and range of 4 epochs", "blue", of_drafts(records["vllm_fresh"])),
    ]
    for index, file in enumerate(("engine", "engine_vllm", "engine_vllm_xeon")):
        rows = [row for row in records[file]["rows"] if row["way"] == "engine + drafts"]
        name = "local engine, CPU: SmolLM2-135M as published, 3 runs" if index == 0 else ""
        lines.append(Line(name=name, colour="grey", points=[(row["batch"], row["ratio_to_plain"]) for row in rows]))
    requests = [2.0**power for power in range(8)]
    plot = Plot(
        title="vLLM, SGLang and the local engine",
        measured_on="CPU: 2 cores of an AMD EPYC (SGLang: 1 thread; one grey line: a Xeon). GPU: NVIDIA H200.",
        across=Axis(label="concurrent requests", ticks=requests, low=0.9, high=142, logarithmic=True),
        up=up(3),
        lines=lines,
        level=1,
    )
    below = "Tokens per second with drafts divided by tokens per second without. Dashed: the speed without drafts."
    return sheet(scheme, "Speed-up from drafts, by concurrent requests", below, 860, 460, plot.draw(16, 66, 828, 384))


def over_batches(name: str, colour: str, rows: Sequence[Row]) -> Line:
    """Return a line through the mean over epochs of each batch size, with a band from lowest to highest epoch."""
    found = {row["batch"]: [one["ratio_to_none"] for one in rows if one["batch"] == row["batch"]] for row in rows}
    points = sorted((batch, statistics.fmean(ratios)) for batch, ratios in found.items())
    band = sorted((batch, min(ratios), max(ratios)) for batch, ratios in found.items())
    return Line(name=name, colour=colour, points=points, band=band)


def gpu_steps(record: Record) -> list[tuple[float, float]]:
    """Compare steps with drafts and unmodified vLLM's steps at the same number of requests: run 2, math, second epoch.

    A range of requests, such as "33-64", is drawn at its geometric mean.
    """
    rows = [row for row in record["steps"] if (row["run"], row["trace"], row["epoch"]) == (2, "math", "B")]
    unmodified = {row["requests"]: row["tokens"] / row["ms"] for row in rows if row["way"] == "stock"}
    return [
        (
            math.sqrt(math.prod(map(int, row["requests"].split("-")))),
            row["tokens"] / row["ms"] / unmodified[row["requests"]],
        )
        for row in rows
        if row["way"] == "ours" and row["drafts"]
    ]
