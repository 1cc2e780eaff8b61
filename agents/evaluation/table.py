from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Column, Table

from turntree.agents.episodes.episode import Episode
from turntree.agents.episodes.failures import program_error
from turntree.agents.episodes.learning_checks import Advice, figures_of, learning_warnings
from turntree.agents.evaluation.evaluate import Evaluation, solved
from turntree.agents.evaluation.metrics import repeated
from turntree.agents.evaluation.paired import Paired
from turntree.agents.files import json_value

# In an evaluation, even a few truncated turns change the results.
_ADVICE = Advice(tool_format="--tool-format", token_limit="--max-tokens, or --max-context", many_cut=0.05)


class EvalResult(NamedTuple):
    title: str
    model: str
    samples: int  #: episodes per task
    episodes: list[Episode]  #: samples of a task next to each other
    seconds: float  #: wall time of the episodes that this process played; 0 if all episodes were read from a file
    tools: tuple[str, ...] = ()  #: names of the environment's tools

    @property
    def groups(self) -> list[list[Episode]]:
        many = self.samples
        return [self.episodes[index : index + many] for index in range(0, len(self.episodes), many)]


def figures(result: EvalResult) -> dict[str, Any]:
    """Return numbers by name, ``None`` if unknown; estimates are mappings with value, low, high and tasks."""
    sums = Evaluation.of(result.episodes)
    # If a server returns only text, the number of tokens is unknown.
    counted = not sums.text_turns
    many, groups = result.samples, result.groups
    numbers: dict[str, Any] = {
        "evaluation": result.title,
        "model": result.model,
        "tasks": len(groups),
        "samples": many,
        "accuracy": sums.interval._asdict(),
    }
    if many > 1:
        several = repeated(groups)
        numbers[f"avg@{many}"] = several.average._asdict()
        numbers |= {f"pass@{k}": value._asdict() for k, value in several.passing.items()}
        numbers[f"maj@{many}"] = several.majority._asdict()
    return numbers | {
        "solved": sums.solved,
        "scored": sums.scored,
        "failures": sums.failures,
        "ungraded": sums.ungraded,
        "program errors": sum(bool(program_error(episode)) for episode in result.episodes),
        "reward per episode": sums.per_episode(sums.reward),
        "turns per episode": sums.per_episode(sums.turns),
        "cut turns": sums.cut_turns,
        "turns": sums.turns,
        "tokens per episode": sums.per_episode(sums.tokens) if counted else None,
        "tokens per forward pass": sums.tokens_per_forward_pass if counted else None,
        "cached prompt tokens": sums.cached_tokens if counted else None,
        "prompt tokens": sums.prompt_tokens if counted else None,
        "ended by": sums.stop_reasons,
        "seconds": result.seconds,
        "warnings": warnings(result),
    }


def rows(result: EvalResult) -> dict[str, str]:
    numbers = figures(result)
    cached, prompt = numbers["cached prompt tokens"], numbers["prompt tokens"]
    accuracy = numbers["accuracy"]
    lines = {
        "accuracy": f"{accuracy['value']:.3f} ({numbers['solved']} of {numbers['scored']})",
        "95 % interval": f"{accuracy['low']:.3f} to {accuracy['high']:.3f}",
    }
    for name, value in numbers.items():
        if "@" in name:
            lines[name] = f"{value['value']:.3f} ({value['low']:.3f} to {value['high']:.3f})"
    tokens = {"tokens": "unknown: the server returns only text"}
    if prompt is not None:
        tokens = {
            "tokens per episode": f"{numbers['tokens per episode']:.1f}",
            "tokens per forward pass": f"{numbers['tokens per forward pass']:.2f}",
            "cached prompt tokens": f"{cached} of {prompt} ({cached / prompt if prompt else 0.0:.0%})",
        }
    return lines | {
        "reward per episode": f"{numbers['reward per episode']:.3f}",
        "turns per episode": f"{numbers['turns per episode']:.2f}",
        "turns cut by a token limit": f"{numbers['cut turns']} of {numbers['turns']}",
        **tokens,
        **({"programs without an answer": str(errors)} if (errors := numbers["program errors"]) else {}),
        "failures (left out)": str(numbers["failures"]),
        "ungraded (left out)": str(numbers["ungraded"]),
        "ended by": ", ".join(f"{reason} {count}" for reason, count in numbers["ended by"].items()),
        "seconds": f"{numbers['seconds']:.1f}",
    }


def warnings(result: EvalResult) -> list[str]:
    # If every episode is solved, equal rewards in a group need no warning.
    checks = figures_of(result.groups)
    episodes = [episode for episode in result.episodes if not episode.masked]
    if all(map(solved, episodes)):
        checks = replace(checks, equal_groups=None)
    unparsed = (turn for episode in episodes for turn in episode.turns if turn.parse_error)
    return learning_warnings(checks, _ADVICE, tools=lambda: result.tools, unparsed_turn=lambda: next(unparsed, None))


def summary(results: Sequence[EvalResult]) -> list[list[str]]:
    numbers = [figures(result) for result in results]
    repeats = list(dict.fromkeys(name for row in numbers for name in row if "@" in name))
    table = [["evaluation", "model", "tasks", "accuracy", *repeats, "reward", "tokens per episode", "left out"]]
    for row in numbers:
        cells = [row["evaluation"], row["model"], str(row["tasks"]), _interval(row["accuracy"])]
        cells += [_interval(row[name]) if name in row else "" for name in repeats]
        tokens = row["tokens per episode"]
        cells += [f"{row['reward per episode']:.3f}", "unknown" if tokens is None else f"{tokens:.1f}"]
        table.append([*cells, str(row["failures"] + row["ungraded"])])
    return table


def markdown(results: Sequence[EvalResult]) -> str:
    head, *rows = summary(results)
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |" for cells in rows]
    return "\n".join(lines) + "\n"


def as_json(results: Sequence[EvalResult]) -> str:
    return json.dumps([json_value(figures(result)) for result in results], indent=1, ensure_ascii=False)


def _interval(estimate: Mapping[str, float]) -> str:
    return f"{estimate['value']:.3f} [{estimate['low']:.3f}, {estimate['high']:.3f}]"


_MAX_CHANGES = 10  #: changed episodes to list


def print_result(result: EvalResult) -> None:
    table = Table("", "", title=f"{result.title}, {result.model}", show_header=False)
    for name, value in rows(result).items():
        table.add_row(name, value)
    console = Console()
    console.print(table)
    for problem in _problems(result):
        console.print(problem, markup=False, highlight=False, soft_wrap=True)


def print_rows(results: Sequence[EvalResult]) -> None:
    head, *cells = summary(results)
    single_title = len({result.title for result in results}) == 1
    numbers = [
        index
        for index, name in enumerate(head)
        if not name.startswith(("pass@", "maj@")) and not (single_title and not index)
    ]
    table = Table(
        *(Column(head[index], overflow="fold") for index in numbers), title=results[0].title if single_title else None
    )
    for row in cells:
        table.add_row(*(row[index] for index in numbers))
    console = Console()
    console.print(table)
    models_of: dict[str, list[str]] = {}
    for result in results:
        for problem in _problems(result):
            models_of.setdefault(problem, []).append(result.model)
    for problem, models in models_of.items():
        console.print(f"{', '.join(models)}: {problem}", markup=False, highlight=False, soft_wrap=True)


def _problems(result: EvalResult) -> list[str]:
    problems = [f"warning: {warning}" for warning in warnings(result)]
    failures = (episode.failure for episode in result.episodes)
    for name, causes in (("failure", failures), ("program error", map(program_error, result.episodes))):
        if cause := next(filter(None, causes), ""):
            problems.append(f"first {name}: {cause}")
    return problems


def print_difference(title: str, found: Paired) -> None:
    table = Table("", "", title=title, show_header=False)
    for name, estimate in (("difference", found.difference), ("as independent evaluations", found.independent)):
        table.add_row(
            name, f"{estimate.value:+.3f} ({estimate.low:+.3f} to {estimate.high:+.3f}), {estimate.tasks} tasks"
        )
    table.add_row("pairs equal token for token", str(found.equal))
    table.add_row("pairs left out", str(found.left_out))
    if all(found.passes):
        table.add_row("forward passes", f"{found.passes[0]} and {found.passes[1]}")
        table.add_row("fraction of the passes without drafts", f"{found.share_of_passes:.2f}")
    console = Console()
    console.print(table)
    for change in found.changes[:_MAX_CHANGES]:
        line = f"{change.task} #{change.sample}: {change.before:g} to {change.after:g}, {change.why}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if len(found.changes) > _MAX_CHANGES:
        console.print(f"{len(found.changes) - _MAX_CHANGES} more changed")
