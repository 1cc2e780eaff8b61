from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from turntree.agents.commands.options import (
    MODELS,
    JsonOption,
    NamedModel,
    StoreOption,
    TaskOptions,
    imported_turns,
    named_models,
    takes,
)
from turntree.agents.commands.rewards import AnswerFormatOption, RewardOption
from turntree.agents.engines.engine_choice import EngineName, ToolCalls

if TYPE_CHECKING:
    from turntree.agents.commands.evaluating.playing import Policy
    from turntree.agents.engines.engine_choice import EngineChoice
    from turntree.agents.evaluation.paired import Paired
    from turntree.agents.evaluation.run import Planned
    from turntree.agents.evaluation.table import EvalResult
    from turntree.agents.loop.renderer import Renderer
    from turntree.agents.scoring.scorer import Scorer


class _Models(NamedTuple):
    firsts: list[NamedModel]  #: one model, or a training's checkpoints
    second: NamedModel | None = None  #: model compared with the first
    each: bool = False  #: every checkpoint of a training: one file each, one table for all


@dataclass(frozen=True, kw_only=True)
class EvalOptions(TaskOptions):
    what: Annotated[
        str,
        typer.Argument(
            metavar="ENV_ID|SUITE", help="Environment from `turntree list`, MODULE:NAME, suite name or suite file."
        ),
    ]
    model: Annotated[
        str | None,
        typer.Option(
            metavar="DIR|ID|RUN", help=f"{MODELS} RUN@all: every checkpoint. With --engine openai: the served name."
        ),
    ] = None
    engine: Annotated[EngineName, typer.Option(help="Inference engine.")] = EngineName.LOCAL
    base_url: Annotated[
        str | None, typer.Option(help="URL of a running server of that engine, for example http://localhost:8000.")
    ] = None
    tool_calls: Annotated[
        ToolCalls, typer.Option(help="With --engine openai: the server or the environment parses tool calls.")
    ] = ToolCalls.NATIVE
    count: Annotated[int | None, typer.Option("-n", min=1, help="Number of tasks; default: 20, or the suite's.")] = None
    samples: Annotated[int | None, typer.Option(min=1, help="Episodes per task; default: 1, or the suite's.")] = None
    reward: RewardOption = None
    answer_format: AnswerFormatOption = None
    temperature: Annotated[
        float | None, typer.Option(min=0.0, help="Sampling temperature; default: 0 (greedy), or the suite's.")
    ] = None
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens per turn; default: 256, or the suite's.")] = None
    speculate: Annotated[bool, typer.Option(help="Draft tokens from earlier turns.")] = True
    store: StoreOption = None
    out: Annotated[
        Path | None,
        typer.Option(help="JSONL file of the episodes, resumed after a kill; a folder for a suite or RUN@all."),
    ] = None
    restart: Annotated[bool, typer.Option("--restart", help="Overwrite --out.")] = False
    markdown: Annotated[Path | None, typer.Option(help="Markdown file for the table.")] = None
    against: Annotated[str | None, typer.Option(help="Second --model, compared on the same tasks and noise.")] = None
    against_temperature: Annotated[
        float | None, typer.Option(min=0.0, help="Temperature of the second model; default: the first model's.")
    ] = None
    against_dtype: Annotated[
        str | None, typer.Option(help="Dtype of the second model; default: the first model's.")
    ] = None

    @property
    def second(self) -> str | None:
        # The second model may be the first one with another sampling or dtype.
        if self.against_temperature is not None or self.against_dtype is not None:
            return self.against or self.model
        return self.against

    @cached_property
    def scorer(self) -> Scorer | None:
        from turntree.agents.commands.rewards import parse_rewards
        from turntree.agents.scoring.scorer import Scorer

        return Scorer(parse_rewards(self.reward), answer_format=self.answer_format) if self.reward else None


@takes(EvalOptions)
def eval_command(options: EvalOptions) -> None:
    """Play tasks with a model and print the results.

    Example: turntree eval turntree/GSM8K-v0 --model DIR --data test.jsonl -n 20 --out gsm8k.jsonl

    Example: turntree eval spec_rl --model DIR --out results/spec_rl

    Example: turntree eval turntree/GSM8K-v0 --model BEFORE --against AFTER --temperature 1 --samples 4 --out a.jsonl

    Example, every checkpoint of a training: turntree eval turntree/GSM8K-v0 --model runs/gsm8k@all --out evals

    Example: turntree eval turntree/GSM8K-v0 --engine openai --base-url http://localhost:8000/v1
    """
    from turntree.agents.evaluation.paired import compare
    from turntree.agents.evaluation.table import as_json, markdown
    from turntree.agents.files import write_whole

    suite = _suite(options)
    evaluations = _planned(options, suite)
    models = _models(options)
    files = _files(options, evaluations, suite, models)
    results = _played(options, _policies(options, evaluations, models, files))
    paired: list[Paired] = []
    if models.second is not None:
        half = len(results) // 2
        paired = [
            compare(a.episodes, b.episodes, a.samples) for a, b in zip(results[:half], results[half:], strict=True)
        ]
    if options.markdown is not None:
        write_whole(options.markdown, markdown(results))
    if options.out is not None and (suite is not None or models.each):
        write_whole(options.out / "results.md", markdown(results))
        write_whole(options.out / "results.json", as_json(results))
    _show(options, results, paired, models)
    if paired and not options.as_json and options.out is not None and suite is None:
        typer.echo(f"view both side by side: turntree view {files[0][0]} {files[1][0]} --out both.html")
    if all(episode.masked or not episode.turns for result in results for episode in result.episodes):
        raise typer.Exit(1)


def _suite(options: EvalOptions) -> Path | None:
    # Returns the suite's file, if one is named. Options that exclude each other are refused here.
    from turntree.agents.errors import UsageError
    from turntree.agents.evaluation.suite import find_suite, nearest_suite
    from turntree.envs import list_envs

    chat, what = options.engine is EngineName.OPENAI, options.what
    if options.second is not None and chat:
        raise UsageError("--against needs an engine that returns tokens; a chat server's noise cannot be shared")
    suite = find_suite(what)
    if suite is None and what not in list_envs() and (near := nearest_suite(what)):
        raise UsageError(f"unknown suite or environment {what!r}; did you mean {near!r}?")
    if suite is not None and (options.data or options.env_arg):
        raise UsageError("--data and --env-arg are for one environment; a suite's file sets its own")
    # Refuse unknown rewards before tasks are read.
    _ = options.scorer
    if chat and options.max_context is not None:
        raise UsageError("--max-context needs an engine that returns tokens; a chat server sets its own limit")
    if chat and (options.template is not None or options.max_thinking_tokens is not None):
        raise UsageError("--template and --max-thinking-tokens need an engine that returns tokens, not a chat server")
    return suite


def _planned(options: EvalOptions, suite: Path | None) -> list[Planned]:
    from turntree.agents.errors import UsageError
    from turntree.agents.evaluation.run import plan
    from turntree.agents.evaluation.suite import EvalTask, read_suite

    arguments, sizes = options.env_arguments(), options.sizes()
    if suite is not None:
        tasks = read_suite(suite)
        return [plan(replace(task, env_args={**task.env_args, **arguments}, **sizes)) for task in tasks]
    planned = plan(EvalTask(env=options.what, env_args=arguments, **{"count": 20, **sizes}))
    if options.count is not None and options.count > planned.count:
        problem = f"-n {options.count}: {options.what} has only {planned.count} tasks"
        raise UsageError(f"{problem}; lower -n or leave it out")
    return [planned]


def _models(options: EvalOptions) -> _Models:
    from turntree.agents.errors import UsageError

    if options.engine is EngineName.OPENAI:
        return _Models([NamedModel(options.model or "", options.model or "")])
    each = (options.model or "").endswith("@all")
    if options.second is not None and (each or options.second.endswith("@all")):
        raise UsageError("--against compares two models: name RUN@STEP, not RUN@all")
    firsts = named_models(None, options.model)
    second = None if options.second is None else named_models(None, options.second)[0]
    return _Models(firsts, second, each and firsts[0].step is not None)


def _policies(
    options: EvalOptions, evaluations: Sequence[Planned], models: _Models, files: Sequence[Sequence[Path | None]]
) -> list[Policy]:
    # Every model is read before the first one plays.
    from turntree.agents.commands.evaluating.playing import Policy
    from turntree.agents.evaluation.checkpoint import Checkpoint
    from turntree.agents.loop.renderer import Renderer

    if options.engine is EngineName.OPENAI:
        model = models.firsts[0]
        return [Policy(model, evaluations, _choice(options, evaluations, None, model), None, files[0])]
    policies: list[Policy] = []
    choice = None
    for model, model_files in zip(filter(None, (*models.firsts, models.second)), files, strict=True):
        planned, dtype = list(evaluations), options.dtype
        if model is models.second:
            dtype = options.against_dtype or dtype
            if (temperature := options.against_temperature) is not None:
                planned = [
                    replace(task_plan, task=replace(task_plan.task, temperature=temperature)) for task_plan in planned
                ]
        checkpoint = Checkpoint.open(model.path)
        planned = [task_plan.within_context(checkpoint.max_positions) for task_plan in planned]
        renderer = Renderer(checkpoint.tokenizer, **options.renderer_options())
        choice = choice or _choice(options, planned, renderer, model)
        policies.append(Policy(model, planned, replace(choice, model=model.path, dtype=dtype), renderer, model_files))
    return policies


def _choice(
    options: EvalOptions, planned: Sequence[Planned], renderer: Renderer | None, model: NamedModel
) -> EngineChoice:
    from turntree.spec_tree.config import ForestConfig

    tokenizer, drafts, url = None if renderer is None else renderer.tokenizer, options.speculate, options.base_url
    imported = imported_turns(options.store, tokenizer, engine=options.engine, speculate=drafts, base_url=url)
    return options.engine_choice(
        model=model.path,
        max_batch=min(options.concurrency, max(task_plan.episodes for task_plan in planned)),
        max_context=max(task_plan.context for task_plan in planned),
        speculate=drafts,
        forest=ForestConfig(import_turns=imported) if imported else None,
        base_url=url,
    )


def _files(
    options: EvalOptions, planned: Sequence[Planned], suite: Path | None, models: _Models
) -> list[list[Path | None]]:
    # Everything that is written is checked now, not after hours of playing.
    from turntree.agents.files import ensure_writable, keep_apart

    out, files = options.out, []
    for model in models.firsts:
        own: list[Path | None] = [out] * len(planned)
        if out is not None and suite is not None:
            folder = out / f"step_{model.step}" if models.each else out
            own = [folder / f"{one.task.title.replace('/', '_')}.jsonl" for one in planned]
        elif out is not None and models.each:
            own = [out / f"step_{model.step}.jsonl"]
        files.append(own)
    if models.second is not None:
        files.append([file and file.with_name(f"{file.stem}.against{file.suffix}") for file in files[0]])
    paths = [*(model.path for model in models.firsts), models.second and models.second.path]
    read = [suite, *paths, *(task_plan.task.env_args for task_plan in planned)]
    tables = [] if out is None or (suite is None and not models.each) else [out / "results.md", out / "results.json"]
    episodes = [path for model_files in files for path in model_files if path is not None]
    for path in filter(None, [*episodes, *tables, options.markdown]):
        # An episode file to resume may lie in an input folder: its content is checked when it is opened.
        keep_apart(path, read, folders=options.restart or path not in episodes)
        ensure_writable(path)
    if options.markdown is not None:
        keep_apart(options.markdown, episodes)
    return files


def _played(options: EvalOptions, policies: Sequence[Policy]) -> list[EvalResult]:
    # Turns of each policy are drafts for the next one, which has the same seeds.
    from turntree.agents.commands.evaluating.playing import play_policy
    from turntree.agents.engines.drafting.tokenizer_hash import hash_of
    from turntree.agents.evaluation.evaluate import Playing
    from turntree.agents.evaluation.paired import turn_drafts_of

    playing = Playing(
        seed=options.seed, concurrency=options.concurrency, scorer=options.scorer, tool_calls=options.tool_calls
    )
    results: list[EvalResult] = []
    for index, policy in enumerate(policies):
        count = len(policy.planned)
        if policy.renderer is None:
            by: dict[str, Any] = {"engine": options.engine, "tool_calls": options.tool_calls}
        else:
            by = {"dtype": policy.choice.precision}
        by |= {
            "reward": sorted(options.reward or ()),
            "answer_format": options.answer_format,
            **options.renderer_options(),
        }
        turn_drafts: list[Any] = [None] * count
        readers = [
            neighbour.renderer.tokenizer
            for neighbour in policies[max(0, index - 1) : index + 1]
            if neighbour.renderer is not None
        ]
        # Turns of another tokenizer cannot be drafts.
        if len(readers) == 2 and hash_of(readers[0]) == hash_of(readers[1]):
            turn_drafts = [turn_drafts_of(result.episodes, result.samples, options.seed) for result in results[-count:]]
        results += play_policy(policy, playing, by, turn_drafts, restart=options.restart)
    return results


def _show(options: EvalOptions, results: Sequence[EvalResult], paired: Sequence[Paired], models: _Models) -> None:
    import json

    from rich.console import Console

    from turntree.agents.evaluation.table import as_json, print_difference, print_result, print_rows
    from turntree.agents.files import json_value

    if options.as_json:
        rows = [*json.loads(as_json(results)), *(json_value(comparison.figures()) for comparison in paired)]
        Console().print_json(json.dumps(rows))
        return
    if models.each:
        print_rows(results)
        return
    for result in results:
        print_result(result)
    for comparison in paired:
        print_difference(f"{models.second and models.second.name} against {models.firsts[0].name}", comparison)


def compare_command(
    before: Annotated[
        Path, typer.Argument(metavar="A", help="Episode file of the first policy (`turntree eval --out`).")
    ],
    after: Annotated[Path, typer.Argument(metavar="B", help="Episode file of the second policy, same tasks.")],
    as_json: JsonOption = False,
) -> None:
    """Compare two finished evaluations task by task: the difference, its interval, and changed episodes.

    Example: turntree compare before.jsonl after.jsonl
    """
    from rich.console import Console

    from turntree.agents.evaluation.compared import FinishedEvaluation, compare_files
    from turntree.agents.evaluation.table import print_difference
    from turntree.agents.files import json_value

    first, second = FinishedEvaluation.read(before), FinishedEvaluation.read(after)
    found = compare_files(first, second)
    console = Console()
    if as_json:
        console.print_json(json.dumps(json_value(found.figures())))
        return
    print_difference(f"{second.model} against {first.model}", found.paired)
    for line in found.notes:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
