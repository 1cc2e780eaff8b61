"""``turntree demo``: create a policy, train it, replay it without speculation, show the run.

With ``model``, a copy of a real model is trained by the configuration ``demo_model`` instead of ``demo``.
"""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from turntree.agents.demo.compared import Comparison, Spread, StepComparison, passes_saved, seconds_saved
from turntree.agents.demo.comparison import compare
from turntree.agents.demo.warm_start import WarmStart, warm_started_policy
from turntree.agents.files import OneWriter
from turntree.agents.progress import bar_columns, show_progress
from turntree.agents.verl.config.compose import Composition, compose, quoted
from turntree.agents.verl.launch import StepReport, train
from turntree.agents.verl.run.variables import hub_variables
from turntree.agents.viewer.page import view
from turntree.agents.viewer.source import Source

_WINDOW = 10  #: number of steps over which the first and the last success rate are averaged

_DRAFT = 12  #: draft tokens per request; more than the default 8 speeds up the few long requests at the end of a step


def main(
    *, model: str | None = None, steps: int | None = None, out: Path = Path("runs/demo"), seed: int = 0, every: int = 3
) -> int:
    """Run the demo.

    Args:
        model: Folder or Hugging Face id of a model, which stays unchanged; ``None`` creates a tiny model.
        steps: Training steps; ``None`` takes the configuration's.
        out: Run folder; an earlier run in it is replaced.
        seed: Seed of the warm start, the tasks and the sampling.
        every: Distance between the steps that are replayed.

    Returns:
        Exit status: 0 if training finished and, with the tiny policy, both replays agree token for token. With a given
        model, differences are only reported: see ``differences``.
    """
    for name, value in (("steps", steps), ("every", every)):
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    console = Console()
    config = "demo" if model is None else "demo_model"
    overrides = partial(settings, steps=steps, out=out, seed=seed, every=every)
    if model is None:
        start = WarmStart(seed=seed)
    else:
        # Both calls raise for unusable settings before anything runs.
        hub_variables(_model(model))
        composed = compose(config, overrides(_model(model)))
        start = WarmStart.of_model(_model(model), composed.settings.env_kwargs, seed=seed)
    policy = str(_warm_start(console, start))
    composition = compose(config, overrides(policy))
    steps = int(composition.verl.trainer.total_training_steps)
    reports = _train(console, config, overrides(policy), steps)
    if reports is None:
        return 1
    # Hold the folder's lock: another training in this folder would delete the files being compared.
    with closing(OneWriter(out)):
        comparison = _compare(console, composition, (steps - 1) // every + 1)
        comparison.save(out / "comparison.jsonl")
        source = Source.open(out)
        page = view(source, out / "view.html", tokenizer=source.tokenizer()).path
    console.print(summary(reports, comparison))
    if not comparison.equal:
        console.print(differences(comparison, given=model is not None), soft_wrap=True)
    console.print(f"episodes and curves: {page}", soft_wrap=True)
    return 0 if comparison.equal or model is not None else 1


def settings(policy: str, *, steps: int | None, out: Path, seed: int, every: int = 3) -> list[str]:
    return [
        f"actor_rollout_ref.model.path={quoted(policy)}",
        f"actor_rollout_ref.rollout.seed={seed}",
        *([] if steps is None else [f"trainer.total_training_steps={steps}"]),
        f"turntree.run_dir={quoted(str(out.absolute()))}",
        f"turntree.save_policy_every={every}",
        f"actor_rollout_ref.rollout.engine_kwargs.turntree.speculation={{max_nodes: {_DRAFT}, max_depth: {_DRAFT}}}",
    ]


def differences(comparison: Comparison, *, given: bool) -> str:  # given: the user chose the model
    # The last bits of float32 logits depend on how many tokens one pass computes. If two tokens nearly tie, either
    # may be sampled, and both are valid. The tiny policy has never shown a difference, so a difference is a bug there.
    episodes = sum(step.episodes for step in comparison.steps)
    differ = episodes - sum(step.equal for step in comparison.steps)
    problem = f"{differ} of {episodes} episodes differ with and without drafts"
    if given:
        return (
            f"{problem}: in float32 the last bits of a logit depend on how many tokens are computed at once, which can "
            "flip a near tie; both tokens are valid samples"
        )
    return f"{problem}: with the demo's own policy this is a bug, please report it"


def summary(reports: list[StepReport], comparison: Comparison) -> Table:
    window = min(_WINDOW, len(reports))
    table = Table(title="Results of training and speculation", title_justify="left")
    table.add_column("")
    table.add_column(f"first {window} steps", justify="right")
    table.add_column(f"last {window} steps", justify="right")
    for name, values in (
        ("success rate", [report.reward for report in reports]),
        ("tokens per forward pass", [report.tokens_per_forward_pass for report in reports]),
        ("seconds per training step", [report.seconds for report in reports]),
    ):
        table.add_row(name, f"{_mean(values[:window]):.2f}", f"{_mean(values[-window:]):.2f}")
    table.add_section()
    table.add_row("[bold]same tasks and seeds", "[bold]without", "[bold]with speculation")
    thirds = (("first third", comparison.first_third), ("last third", comparison.last_third))
    for name, part in (("all compared steps", comparison.steps), *thirds):
        plain, drafted = [s.plain for s in part], [s.speculative for s in part]
        table.add_row(
            f"forward passes, {name}",
            f"{sum(c.forward_passes for c in plain)}",
            f"{sum(c.forward_passes for c in drafted)}",
        )
        table.add_row(
            f"engine seconds, {name}", f"{sum(c.seconds for c in plain):.2f}", f"{sum(c.seconds for c in drafted):.2f}"
        )
    table.add_section()
    table.add_row("[bold]without / with (middle half of the steps)", "[bold]forward passes", "[bold]engine seconds")
    for name, part in thirds:
        table.add_row(name, spread_text(passes_saved(part)), spread_text(seconds_saved(part)))
    episodes, equal = sum(s.episodes for s in comparison.steps), sum(s.equal for s in comparison.steps)
    table.add_row("episodes equal token for token", "", f"{equal} of {episodes}")
    return table


def spread_text(spread: Spread) -> str:
    """Return a ratio with the quartiles of the per-step ratios.

    >>> spread_text(Spread(1.5, 1.25, 1.75))
    '1.50 (1.25 to 1.75)'
    """
    return f"{spread.whole:.2f} ({spread.low:.2f} to {spread.high:.2f})"


def _model(name: str) -> str:
    # verl runs in another folder, so a relative path must become absolute.
    path = Path(name).expanduser()
    return str(path.absolute()) if path.exists() else name


def _warm_start(console: Console, start: WarmStart) -> Path:
    with show_progress(_bar(console)) as progress:
        bar = progress.add_task("warm start on demonstrations", total=start.steps, note="once")

        def learned(step: int, loss: float) -> None:
            progress.update(bar, completed=step, note=f"once: {loss:.2f} nats per token")

        policy = warm_started_policy(start, on_step=learned)
        progress.update(bar, completed=start.steps)
        return policy


def _train(console: Console, config: str, overrides: list[str], steps: int) -> list[StepReport] | None:
    reports: list[StepReport] = []
    with show_progress(_bar(console)) as progress:
        bar = progress.add_task("training: starting verl and Ray", total=steps, note="")

        def trained(report: StepReport) -> None:
            reports.append(report)
            recent = [r.reward for r in reports[-_WINDOW:]]
            progress.update(
                bar,
                advance=1,
                description="training",
                note=f"success {_mean(recent):.2f}  tokens per forward pass "
                f"{report.tokens_per_forward_pass:.2f}  {report.seconds:.1f} s",
            )

        status = train(config, overrides, on_step=trained, advice="for a shorter run: --steps 10")
    return reports if status == 0 and reports else None


def _compare(console: Console, composition: Composition, steps: int) -> Comparison:
    with show_progress(_bar(console)) as progress:
        bar = progress.add_task("with and without speculation", total=steps, note="")

        def compared(step: StepComparison) -> None:
            progress.update(bar, advance=1, note=f"step {step.step}: {step.speedup:.2f}x")

        comparison = compare(composition, every=1, on_step=compared)
        progress.update(bar, total=len(comparison.steps))
    return comparison


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        *bar_columns(console),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
    )


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else float("nan")
