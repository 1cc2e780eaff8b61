"""``turntree eval``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from turntree.agents.commands.options import StoreOption, TaskOptions, named_model, past_turns, takes
from turntree.agents.commands.rewards import ContractOption, RewardOption
from turntree.agents.engines.engine_choice import EngineName, ToolCalls

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from turntree.agents.engines.engine_choice import EngineChoice
    from turntree.agents.evaluation.evaluate import Playing
    from turntree.agents.evaluation.file import EvalFile
    from turntree.agents.evaluation.paired import Paired
    from turntree.agents.evaluation.run import Planned
    from turntree.agents.evaluation.suite import EvalTask
    from turntree.agents.evaluation.table import EvalResult
    from turntree.agents.loop.renderer import Renderer
    from turntree.agents.scoring.scorer import Scorer


class _Policy(NamedTuple):
    """A policy, and what it plays."""

    planned: Sequence[Planned]
    choice: EngineChoice
    renderer: Renderer | None
    """``None`` for a chat server."""
    files: Sequence[Path | None]
    """Where the episodes of each evaluation go."""
    guesses: Sequence[Mapping[int, Sequence[int]] | None]
    """The other policy's turns in each, by their seeds."""


@dataclass(frozen=True, kw_only=True)
class EvalOptions(TaskOptions):
    """The options of ``turntree eval``."""

    what: Annotated[
        str,
        typer.Argument(
            metavar="ENV_ID|SUITE", help="An environment of `turntree list`, MODULE:NAME, a suite or its file."
        ),
    ]
    model: Annotated[
        str | None,
        typer.Option(help="Model directory, or its id on the Hugging Face hub; of --engine openai its name there."),
    ] = None
    engine: Annotated[EngineName, typer.Option(help="What runs the model.")] = EngineName.LOCAL
    base_url: Annotated[
        str | None, typer.Option(help="A server of that engine, instead of starting one: http://localhost:8000.")
    ] = None
    tool_calls: Annotated[
        ToolCalls, typer.Option(help="Of --engine openai: who reads tool calls, the server or the environment.")
    ] = ToolCalls.NATIVE
    count: Annotated[int | None, typer.Option("-n", min=1, help="Tasks, from the first; 20, or a suite's own.")] = None
    samples: Annotated[int | None, typer.Option(min=1, help="Episodes of each task; 1, or a suite's own.")] = None
    reward: RewardOption = None
    contract: ContractOption = None
    temperature: Annotated[float | None, typer.Option(min=0.0, help="0 is greedy; 0, or a suite's own.")] = None
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens of one turn; 256, or a suite's own.")] = None
    speculate: Annotated[bool, typer.Option(help="Draft turns from earlier ones.")] = True
    store: StoreOption = None
    out: Annotated[
        Path | None, typer.Option(help="Episodes as JSON lines, continued after a kill; of a suite, a folder.")
    ] = None
    restart: Annotated[bool, typer.Option("--restart", help="Begin --out anew.")] = False
    markdown: Annotated[Path | None, typer.Option(help="Write the table here, as Markdown.")] = None
    against: Annotated[
        str | None, typer.Option(help="A second model for the same tasks and noise: what differs, with its interval.")
    ] = None
    against_temperature: Annotated[
        float | None, typer.Option(min=0.0, help="Temperature of the second one; the first one's without it.")
    ] = None
    against_dtype: Annotated[str | None, typer.Option(help="Dtype of the second one; the first one's without it.")] = (
        None
    )

    @property
    def second(self) -> str | None:
        """The model that is compared with the first one, which may be the same with another sampling or dtype."""
        if self.against_temperature is not None or self.against_dtype is not None:
            return self.against or self.model
        return self.against

    @cached_property
    def scorer(self) -> Scorer | None:
        """Computes the rewards instead of the environment, where one is named."""
        from turntree.agents.commands.rewards import parse_rewards
        from turntree.agents.scoring.scorer import Scorer

        return Scorer(parse_rewards(self.reward), contract=self.contract) if self.reward else None


@takes(EvalOptions)
def eval_command(options: EvalOptions) -> None:
    """Play tasks with a model and print how it did.

    Example: turntree eval turntree/GSM8K-v0 --model DIR --data test.jsonl -n 20 --out gsm8k.jsonl

    Example: turntree eval spec_rl --model DIR --out results/spec_rl

    Example: turntree eval turntree/GSM8K-v0 --model BEFORE --against AFTER --temperature 1 --samples 4 --out a.jsonl

    Example: turntree eval turntree/GSM8K-v0 --engine openai --base-url http://localhost:8000/v1
    """
    from dataclasses import replace

    from turntree.agents.engines.drafting.tokenizer_hash import hash_of
    from turntree.agents.evaluation.paired import compare, guesses_of
    from turntree.agents.evaluation.table import as_json, markdown
    from turntree.agents.files import write_whole

    suite = _suite(options)
    rendering = options.renderer_options()
    made = _planned(options, suite)
    files, others = _files(options, made, suite)
    planned, renderer = (made, None) if options.engine is EngineName.OPENAI else _fitted(made, options.model, rendering)
    second = options.second
    if second is not None:  # read now, before the first one is played
        heat = options.against_temperature
        hotter: dict[str, Any] = {} if heat is None else {"temperature": heat}
        after, reading = _fitted([replace(one, task=replace(one.task, **hotter)) for one in made], second, rendering)
    choice = _choice(options, planned, renderer)
    results = _played(options, _Policy(planned, choice, renderer, files, [None] * len(planned)))
    paired: list[Paired] = []
    if second is not None:
        choice = replace(choice, model=second, dtype=options.against_dtype or options.dtype)
        assert renderer is not None, "engines of tokens have one"
        alike = hash_of(renderer.tokenizer) == hash_of(reading.tokenizer)  # else its tokens are no guesses
        guesses = [guesses_of(one.episodes, one.samples, options.seed) if alike else None for one in results]
        seconds = _played(options, _Policy(after, choice, reading, others, guesses))
        paired = [compare(a.episodes, b.episodes, a.samples) for a, b in zip(results, seconds, strict=True)]
        results += seconds
    if options.markdown is not None:
        write_whole(options.markdown, markdown(results))
    if suite is not None and options.out is not None:
        write_whole(options.out / "results.md", markdown(results))
        write_whole(options.out / "results.json", as_json(results))
    _show(options, results, paired)
    if paired and not options.as_json and options.out is not None and suite is None:
        typer.echo(f"both beside each other: turntree view {files[0]} {others[0]} --out both.html")
    if all(episode.masked or not episode.turns for result in results for episode in result.episodes):
        raise typer.Exit(1)


def _suite(options: EvalOptions) -> Path | None:
    """The suite's file, if one is played; options that exclude each other are refused here.

    Raises:
        UsageError: If two options exclude each other, or the name is of nothing, or a reward is unknown.
    """
    from turntree.agents.errors import UsageError
    from turntree.agents.evaluation.suite import find_suite, nearest_suite
    from turntree.envs import list_envs

    chat, what = options.engine is EngineName.OPENAI, options.what
    if options.second is not None and chat:
        raise UsageError("--against needs an engine of tokens; a chat server has no noise to share")
    suite = find_suite(what)
    if suite is None and what not in list_envs() and (near := nearest_suite(what)):
        raise UsageError(f"there is no suite or environment {what!r}; did you mean {near!r}?")
    if suite is not None and (options.data or options.env_arg):
        raise UsageError("--data and --env-arg belong to one environment; a suite names its own in its file")
    _ = options.scorer  # unknown rewards are refused before tasks are read
    if chat and options.max_context is not None:
        raise UsageError("--max-context is for engines that count tokens; a chat server knows its own context")
    if chat and (options.template is not None or options.max_thinking_tokens is not None):
        raise UsageError("--template and --max-thinking-tokens are for engines of tokens; a chat server has its own")
    return suite


def _planned(options: EvalOptions, suite: Path | None) -> list[Planned]:
    """The evaluations, whose environments exist.

    Raises:
        UsageError: If more tasks are asked for than there are.
    """
    from turntree.agents.errors import UsageError
    from turntree.agents.evaluation.run import plan

    made = [plan(task) for task in _tasks(options, suite)]
    if suite is None and options.count is not None and options.count > made[0].count:
        known = f"{options.what} has {made[0].count} tasks here"
        raise UsageError(f"-n {options.count}: {known}; ask for as many at most, or leave -n out")
    return made


def _tasks(options: EvalOptions, suite: Path | None) -> list[EvalTask]:
    from dataclasses import replace

    from turntree.agents.evaluation.suite import EvalTask, read_suite

    arguments = options.env_arguments()
    sizes = {name: getattr(options, name) for name in ("count", "samples", "temperature", "max_tokens", "max_context")}
    given = {name: value for name, value in sizes.items() if value is not None}
    if suite is None:
        return [EvalTask(env=options.what, env_args=arguments, **{"count": 20, **given})]
    return [replace(task, env_args={**task.env_args, **arguments}, **given) for task in read_suite(suite)]


def _fitted(planned: Sequence[Planned], model: str | None, rendering: dict[str, Any]) -> tuple[list[Planned], Renderer]:
    """The evaluations within the positions of the model, which is read here, and its renderer."""
    from turntree.agents.evaluation.checkpoint import Checkpoint
    from turntree.agents.loop.renderer import Renderer

    checkpoint = Checkpoint.open(named_model(None, model))
    return [one.fitted(checkpoint.max_positions) for one in planned], Renderer(checkpoint.tokenizer, **rendering)


def _choice(options: EvalOptions, planned: Sequence[Planned], renderer: Renderer | None) -> EngineChoice:
    from turntree.spec_tree.config import ForestConfig

    tokenizer, drafts, url = None if renderer is None else renderer.tokenizer, options.speculate, options.base_url
    past = past_turns(options.store, tokenizer, engine=options.engine, speculate=drafts, base_url=url)
    return options.engine_choice(
        max_batch=min(options.concurrency, max(one.episodes for one in planned)),
        max_context=max(one.context for one in planned),
        speculate=drafts,
        forest=ForestConfig(past=past) if past else None,
        base_url=url,
    )


def _files(
    options: EvalOptions, planned: Sequence[Planned], suite: Path | None
) -> tuple[list[Path | None], list[Path | None]]:
    """The files of the episodes, and of those of the second model. All that is written is checked now, not after hours
    of playing.

    Raises:
        UsageError: If a file cannot be written, or is one that is read.
    """
    from turntree.agents.files import ensure_writable, keep_apart

    out, files = options.out, [options.out] * len(planned)
    if out is not None and suite is not None:
        files = [out / f"{one.task.title.replace('/', '_')}.jsonl" for one in planned]
    others = [None if file is None else file.with_name(f"{file.stem}.against{file.suffix}") for file in files]
    read = [suite, options.model, options.second, *(one.task.env_args for one in planned)]
    tables = [] if suite is None or out is None else [out / "results.md", out / "results.json"]
    written = [*files, *(others if options.second else ()), *tables, options.markdown]
    for path in filter(None, written):
        # Episodes that are continued may lie in a folder of what is read: they are never taken for something else.
        keep_apart(path, read, folders=options.restart or path not in [*files, *others])
        ensure_writable(path)
    if options.markdown is not None:
        keep_apart(options.markdown, [path for path in files if path is not None])
    return files, others


def _where_it_stopped(planned: Sequence[Planned], files: Sequence[Path | None]) -> str:
    """What an interrupted evaluation has, and how it goes on."""
    there = [(one, file, _lines(file)) for one, file in zip(planned, files, strict=True) if file is not None]
    if not there:
        return "interrupted: no episode is kept without --out"
    counts = ", ".join(f"{lines} of {one.episodes} episodes in {file}" for one, file, lines in there)
    return f"interrupted: {counts}; run the same command to go on"


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _played(options: EvalOptions, policy: _Policy) -> list[EvalResult]:
    """The results in order. What is left to play is said where it is interrupted."""
    import asyncio

    if policy.renderer is None:
        by: dict[str, Any] = {"engine": options.engine, "tool_calls": options.tool_calls}
    else:
        by = {"dtype": policy.choice.precision}
    by |= {"reward": sorted(options.reward or ()), "contract": options.contract, **options.renderer_options()}
    try:
        return asyncio.run(_play_all(options, policy, by))
    except KeyboardInterrupt:
        typer.echo(_where_it_stopped(policy.planned, policy.files), err=True)
        raise


async def _play_all(options: EvalOptions, policy: _Policy, by: Mapping[str, Any]) -> list[EvalResult]:
    """The results in order; files are opened before the engine, which is not started if nothing is left to play."""
    from contextlib import AsyncExitStack
    from functools import partial

    from rich.console import Console

    from turntree.agents.engines.engine_choice import open_policy
    from turntree.agents.evaluation.evaluate import Playing
    from turntree.agents.evaluation.run import finished, play
    from turntree.agents.progress import episode_progress, shown

    planned, choice, renderer, _, guesses = policy
    async with AsyncExitStack() as stack:
        model, engine = choice.model, None
        if not model:  # a chat server knows what it serves
            engine = await stack.enter_async_context(open_policy(choice))
            model = getattr(engine, "model", "")
        playing = Playing(
            model=model,
            seed=options.seed,
            concurrency=options.concurrency,
            scorer=options.scorer,
            tool_calls=options.tool_calls,
        )
        opened = _opened(policy, playing, by, restart=options.restart)
        for file in filter(None, opened):
            stack.callback(file.close)
        there = [finished(one, file, model=model) for one, file in zip(planned, opened, strict=True)]
        if (results := [result for result in there if result is not None]) and len(results) == len(planned):
            count = sum(len(result.episodes) for result in results)
            typer.echo(f"all {count} episodes are there already: no model is loaded", err=True)
            return results
        progress = stack.enter_context(shown(episode_progress(Console(stderr=True))))
        starting = progress.add_task(f"starting the engine {choice.name}", total=None)
        if engine is None:
            engine = await stack.enter_async_context(open_policy(choice))
        progress.remove_task(starting)
        return [
            await play(
                one,
                engine,
                renderer,
                playing,
                file=file,
                guesses=guessed,
                on_episode=partial(_advance, progress, progress.add_task(one.task.title, total=one.episodes)),
            )
            for one, file, guessed in zip(planned, opened, guesses, strict=True)
        ]


def _opened(policy: _Policy, playing: Playing, by: Mapping[str, Any], *, restart: bool) -> list[EvalFile | None]:
    """The files, without what is to be played again."""
    from turntree.agents.evaluation.run import open_file

    return [
        None if file is None else open_file(one, file, playing, restart=restart, played_by=by)
        for one, file in zip(policy.planned, policy.files, strict=True)
    ]


def _advance(progress: Progress, bar: TaskID, count: int) -> None:
    progress.update(bar, completed=count)


def _show(options: EvalOptions, results: Sequence[EvalResult], paired: Sequence[Paired]) -> None:
    import json

    from rich.console import Console

    from turntree.agents.evaluation.printed import print_difference, print_result
    from turntree.agents.evaluation.table import as_json
    from turntree.agents.files import json_value

    if options.as_json:
        shown = [*json.loads(as_json(results)), *(json_value(one.figures()) for one in paired)]
        Console().print_json(json.dumps(shown))
        return
    for result in results:
        print_result(result)
    for one in paired:
        print_difference(f"{options.second} against {options.model}", one)
