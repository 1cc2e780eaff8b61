"""``turntree eval``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turntree.agents.commands.envs import EnvArgOption, ToolFormatOption
from turntree.agents.commands.rewards import ContractOption, RewardOption
from turntree.agents.commands.serve import (
    EngineArgsOption,
    StoreOption,
    TemplateOption,
    ThinkingOption,
    named_model,
    past_turns,
    renderer_options,
)
from turntree.agents.engines.engine_choice import EngineName, ToolCalls, parsed_engine_args

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from turntree.agents.engines.chat_server import ChatServer
    from turntree.agents.engines.engine_choice import EngineChoice
    from turntree.agents.engines.protocol import Engine
    from turntree.agents.evaluation.paired import Paired
    from turntree.agents.evaluation.run import Planned
    from turntree.agents.evaluation.suite import EvalTask
    from turntree.agents.evaluation.table import EvalResult
    from turntree.agents.loop.renderer import Renderer


_MANY_CUT = 0.05
"""Share of turns cut at a limit of tokens above which a warning says that the figures are in doubt."""


def eval_command(
    what: Annotated[
        str,
        typer.Argument(
            metavar="ENV_ID|SUITE", help="An environment of `turntree list`, MODULE:NAME, a suite or its file."
        ),
    ],
    model: Annotated[
        str | None,
        typer.Option(help="Model directory, or its id on the Hugging Face hub; of --engine openai its name there."),
    ] = None,
    engine: Annotated[EngineName, typer.Option(help="What runs the model.")] = EngineName.LOCAL,
    base_url: Annotated[
        str | None, typer.Option(help="A server of that engine, instead of starting one: http://localhost:8000.")
    ] = None,
    tool_calls: Annotated[
        ToolCalls, typer.Option(help="Of --engine openai: who reads tool calls, the server or the environment.")
    ] = ToolCalls.NATIVE,
    data: Annotated[str | None, typer.Option(help="Tasks: JSONL, Parquet or a data set id.")] = None,
    count: Annotated[int | None, typer.Option("-n", min=1, help="Tasks, from the first; 20, or a suite's own.")] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Episodes of each task; 1, or a suite's own.")] = None,
    reward: RewardOption = None,
    contract: ContractOption = None,
    tool_format: ToolFormatOption = None,
    template: TemplateOption = None,
    max_thinking_tokens: ThinkingOption = None,
    env_arg: EnvArgOption = None,
    temperature: Annotated[float | None, typer.Option(min=0.0, help="0 is greedy; 0, or a suite's own.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens of one turn; 256, or a suite's own.")] = None,
    max_context: Annotated[
        int | None, typer.Option(min=1, help="Tokens of an episode; 1024 or two turns, if the model has as many.")
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Episodes at once.")] = 16,
    speculate: Annotated[bool, typer.Option(help="Draft turns from earlier ones.")] = True,
    store: StoreOption = None,
    device: Annotated[str, typer.Option(help="Torch device.")] = "cpu",
    dtype: Annotated[
        str, typer.Option(help="Of weights and activations; auto: the model's own with vLLM or SGLang on a GPU.")
    ] = "auto",
    engine_args: EngineArgsOption = None,
    seed: Annotated[int, typer.Option(help="Of tasks and sampling.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Episodes as JSON lines, continued after a kill; of a suite, a folder.")
    ] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Begin --out anew.")] = False,
    markdown: Annotated[Path | None, typer.Option(help="Write the table here, as Markdown.")] = None,
    against: Annotated[
        str | None, typer.Option(help="A second model for the same tasks and noise: what differs, with its interval.")
    ] = None,
    against_temperature: Annotated[
        float | None, typer.Option(min=0.0, help="Temperature of the second one; the first one's without it.")
    ] = None,
    against_dtype: Annotated[
        str | None, typer.Option(help="Dtype of the second one; the first one's without it.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print for machines.")] = False,
) -> None:
    """Play tasks with a model and print how it did.

    Example: turntree eval turntree/GSM8K-v0 --model DIR --data test.jsonl -n 20 --out gsm8k.jsonl

    Example: turntree eval spec_rl --model DIR --out results/spec_rl

    Example: turntree eval turntree/GSM8K-v0 --model BEFORE --against AFTER --temperature 1 --samples 4 --out a.jsonl

    Example: turntree eval turntree/GSM8K-v0 --engine openai --base-url http://localhost:8000/v1
    """
    import asyncio
    import json
    from dataclasses import replace

    from rich.console import Console

    from turntree.agents.commands.rewards import parse_rewards
    from turntree.agents.engines.drafting.tokenizer_hash import hash_of
    from turntree.agents.engines.engine_choice import EngineChoice
    from turntree.agents.errors import UsageError
    from turntree.agents.evaluation.environments import env_arguments
    from turntree.agents.evaluation.paired import compare, guesses_of
    from turntree.agents.evaluation.run import plan
    from turntree.agents.evaluation.suite import find_suite, nearest_suite
    from turntree.agents.evaluation.table import as_json as to_json
    from turntree.agents.evaluation.table import markdown as to_markdown
    from turntree.agents.files import ensure_writable, json_value, keep_apart, write_whole
    from turntree.agents.scoring.scorer import Scorer
    from turntree.envs import list_envs
    from turntree.spec_tree.config import ForestConfig

    second = against or (model if against_temperature is not None or against_dtype is not None else None)
    if second is not None and engine is EngineName.OPENAI:
        raise UsageError("--against needs an engine of tokens; a chat server has no noise to share")
    suite = find_suite(what)
    if suite is None and what not in list_envs() and (near := nearest_suite(what)):
        raise UsageError(f"there is no suite or environment {what!r}; did you mean {near!r}?")
    if suite is not None and (data or env_arg):
        raise UsageError("--data and --env-arg belong to one environment; a suite names its own in its file")
    scorer = Scorer(parse_rewards(reward), contract=contract) if reward else None
    given = {
        **{"count": count, "samples": samples, "temperature": temperature},
        **{"max_tokens": max_tokens, "max_context": max_context},
    }
    arguments = env_arguments(env_arg or (), data=data, tool_format=tool_format)
    tasks = _tasks(what, suite, arguments, given)
    if engine is EngineName.OPENAI and max_context is not None:
        raise UsageError("--max-context is for engines that count tokens; a chat server knows its own context")
    rendering = renderer_options(template, max_thinking_tokens)
    if engine is EngineName.OPENAI and rendering:
        raise UsageError("--template and --max-thinking-tokens are for engines of tokens; a chat server has its own")
    made = [plan(task) for task in tasks]
    if suite is None and count is not None and count > made[0].count:
        raise UsageError(f"-n {count}: {what} has {made[0].count} tasks here; ask for as many at most, or leave -n out")
    files = _files(made, out, is_suite=suite is not None)
    others = [None if file is None else file.with_name(f"{file.stem}.against{file.suffix}") for file in files]
    read = [suite, model, second, *(task.env_args for task in tasks)]
    tables = [] if suite is None or out is None else [out / "results.md", out / "results.json"]
    written = [*files, *(others if second else ()), *tables, markdown]
    for path in filter(None, written):  # checked now, not after hours of playing
        # Episodes that are continued may lie in a folder of what is read: they are never taken for something else.
        keep_apart(path, read, folders=restart or path not in [*files, *others])
        ensure_writable(path)
    if markdown is not None:
        keep_apart(markdown, [path for path in files if path is not None])
    planned, renderer = (made, None) if engine is EngineName.OPENAI else _fitted(made, model, rendering)
    if second is not None:  # read now, before the first one is played
        hotter: dict[str, Any] = {} if against_temperature is None else {"temperature": against_temperature}
        after, reading = _fitted([replace(one, task=replace(one.task, **hotter)) for one in made], second, rendering)
    tokenizer = None if renderer is None else renderer.tokenizer
    past = past_turns(store, tokenizer, engine=engine, speculate=speculate, base_url=base_url)
    choice = EngineChoice(
        name=engine,
        model=model or "",
        max_batch=min(concurrency, max(one.episodes for one in planned)),
        max_context=max(one.context for one in planned),
        speculate=speculate,
        forest=ForestConfig(past=past) if past else None,
        device=device,
        dtype=dtype,
        base_url=base_url,
        engine_args=parsed_engine_args(engine, engine_args, base_url=base_url),
    )

    def played(
        planned: list[Planned],
        choice: EngineChoice,
        renderer: Renderer | None,
        files: list[Path | None],
        guesses: Sequence[Mapping[int, Sequence[int]] | None],
    ) -> list[EvalResult]:
        by = {"engine": engine, "tool_calls": tool_calls} if renderer is None else {"dtype": choice.precision}
        playing = _play_all(
            planned,
            choice,
            renderer,
            files=files,
            options={"concurrency": concurrency, "seed": seed, "scorer": scorer, "tool_calls": tool_calls},
            identity={
                **{"seed": seed, "scorer": scorer, "restart": restart},
                "played_by": {"reward": sorted(reward or ()), "contract": contract, **by, **rendering},
            },
            guesses=guesses,
        )
        try:
            return asyncio.run(playing)
        except KeyboardInterrupt:
            typer.echo(_where_it_stopped(planned, files), err=True)
            raise

    results = played(planned, choice, renderer, files, [None] * len(planned))
    paired: list[Paired] = []
    if second is not None:
        choice = replace(choice, model=second, dtype=against_dtype or dtype)
        assert renderer is not None, "engines of tokens have one"
        alike = hash_of(renderer.tokenizer) == hash_of(reading.tokenizer)  # else its tokens are no guesses
        guesses = [guesses_of(one.episodes, one.samples, seed) if alike else None for one in results]
        seconds = played(after, choice, reading, others, guesses)
        paired = [compare(a.episodes, b.episodes, a.samples) for a, b in zip(results, seconds, strict=True)]
        results += seconds
    if markdown is not None:
        write_whole(markdown, to_markdown(results))
    if suite is not None and out is not None:
        write_whole(out / "results.md", to_markdown(results))
        write_whole(out / "results.json", to_json(results))
    if as_json:
        shown = [*json.loads(to_json(results)), *(json_value(one.figures()) for one in paired)]
        Console().print_json(json.dumps(shown))
    else:
        for result in results:
            _print(result)
        for one in paired:
            _print_difference(f"{second} against {model}", one)
        if paired and out is not None and suite is None:
            typer.echo(f"both beside each other: turntree view {files[0]} {others[0]} --out both.html")
    if all(episode.masked for result in results for episode in result.episodes):
        raise typer.Exit(1)


def _tasks(what: str, suite: Path | None, arguments: dict[str, Any], given: dict[str, Any]) -> list[EvalTask]:
    from dataclasses import replace

    from turntree.agents.evaluation.suite import EvalTask, read_suite

    given = {name: value for name, value in given.items() if value is not None}
    if suite is None:
        return [EvalTask(env=what, env_args=arguments, **{"count": 20, **given})]
    return [replace(task, env_args={**task.env_args, **arguments}, **given) for task in read_suite(suite)]


def _fitted(planned: Sequence[Planned], model: str | None, rendering: dict[str, Any]) -> tuple[list[Planned], Renderer]:
    """The evaluations within the positions of the model, which is read here, and its renderer."""
    from turntree.agents.evaluation.checkpoint import Checkpoint
    from turntree.agents.loop.renderer import Renderer

    checkpoint = Checkpoint.open(named_model(None, model))
    return [one.fitted(checkpoint.max_positions) for one in planned], Renderer(checkpoint.tokenizer, **rendering)


def _files(planned: Sequence[Planned], out: Path | None, *, is_suite: bool) -> list[Path | None]:
    if out is None or not is_suite:
        return [out] * len(planned)
    return [out / f"{one.task.title.replace('/', '_')}.jsonl" for one in planned]


def _where_it_stopped(planned: Sequence[Planned], files: Sequence[Path | None]) -> str:
    """What an interrupted evaluation has, and how it goes on."""
    there = [(one, file, _lines(file)) for one, file in zip(planned, files, strict=True) if file is not None]
    if not there:
        return "interrupted: no episode is kept without --out"
    counts = ", ".join(f"{lines} of {one.episodes} episodes in {file}" for one, file, lines in there)
    return f"interrupted: {counts}; run the same command to go on"


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


async def _play_all(
    planned: Sequence[Planned],
    choice: EngineChoice,
    renderer: Renderer | None,
    *,
    files: Sequence[Path | None],
    options: dict[str, Any],
    identity: dict[str, Any],
    guesses: Sequence[Mapping[int, Sequence[int]] | None],
) -> list[EvalResult]:
    """The results in order; files are opened before the engine, which is not started if nothing is left to play."""
    from contextlib import AsyncExitStack
    from functools import partial

    from rich.console import Console

    from turntree.agents.engines.engine_choice import open_policy
    from turntree.agents.evaluation.run import finished, open_file, play
    from turntree.agents.progress import episode_progress, shown

    async with AsyncExitStack() as stack:
        model, engine = choice.model, None
        if not model:  # a chat server knows what it serves
            engine = await stack.enter_async_context(open_policy(choice))
            model = getattr(engine, "model", "")
        opened = [
            None if file is None else open_file(one, file, model=model, **identity)
            for one, file in zip(planned, files, strict=True)
        ]
        for file in filter(None, opened):
            stack.callback(file.close)
        there = [finished(one, file, model=model) for one, file in zip(planned, opened, strict=True)]
        if (results := [result for result in there if result is not None]) and len(results) == len(planned):
            count = sum(len(result.episodes) for result in results)
            typer.echo(f"all {count} episodes are there already: no model is loaded", err=True)
            return results
        progress = stack.enter_context(shown(episode_progress(Console(stderr=True))))
        starting = progress.add_task(f"starting the engine {choice.name}", total=None)
        policy: Engine | ChatServer
        policy = await stack.enter_async_context(open_policy(choice)) if engine is None else engine
        progress.remove_task(starting)
        return [
            await play(
                one,
                policy,
                renderer,
                model=model,
                file=file,
                guesses=guessed,
                on_episode=partial(_advance, progress, progress.add_task(one.task.title, total=one.episodes)),
                **options,
            )
            for one, file, guessed in zip(planned, opened, guesses, strict=True)
        ]


def _advance(progress: Progress, bar: TaskID, count: int) -> None:
    progress.update(bar, completed=count)


def _print(result: EvalResult) -> None:
    from rich.console import Console
    from rich.table import Table

    from turntree.agents.evaluation.table import cut_share, rows

    table = Table("", "", title=f"{result.title}, {result.model}", show_header=False)
    for name, value in rows(result).items():
        table.add_row(name, value)
    console = Console()
    console.print(table)
    if (share := cut_share(result)) > _MANY_CUT:
        console.print(
            f"{share:.0%} of the turns were cut at a limit of tokens, so their answers may be missing; "
            "raise --max-tokens, or --max-context",
            highlight=False,
        )
    failure = next((episode.failure for episode in result.episodes if episode.failure), None)
    if failure is not None:
        console.print(f"first failure: {failure}", markup=False, highlight=False)


_SHOWN = 10
"""Changed episodes that are listed."""


def _print_difference(title: str, found: Paired) -> None:
    """The table of a second policy against a first one."""
    from rich.console import Console
    from rich.table import Table

    table = Table("", "", title=title, show_header=False)
    for name, one in (("difference", found.difference), ("of independent evaluations", found.independent)):
        table.add_row(name, f"{one.value:+.3f} ({one.low:+.3f} to {one.high:+.3f}), {one.tasks} tasks")
    table.add_row("pairs equal token for token", str(found.equal))
    table.add_row("pairs left out", str(found.left_out))
    table.add_row("verify steps", f"{found.passes[0]} and {found.passes[1]}")
    table.add_row("share of plain decoding's passes", f"{found.share_of_passes:.2f}")
    console = Console()
    console.print(table)
    for change in found.changes[:_SHOWN]:
        line = f"{change.task} #{change.sample}: {change.before:g} to {change.after:g}, {change.why}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if len(found.changes) > _SHOWN:
        console.print(f"{len(found.changes) - _SHOWN} more changed")
