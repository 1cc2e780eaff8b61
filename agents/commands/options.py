"""Options that several commands share."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar, get_type_hints

import typer

from turntree.agents.engines.engine_choice import EngineName, parsed_engine_args

if TYPE_CHECKING:
    from turntree.agents.engines.engine_choice import EngineChoice

Options = TypeVar("Options")

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
MODELS = "Model folder, Hugging Face id, or checkpoint of a training: RUN or RUN@STEP."
ModelOption = Annotated[str | None, typer.Option("--model", metavar="DIR|ID|RUN", help=MODELS)]
TokenEngineOption = Annotated[
    EngineName,
    typer.Option(
        metavar="<local|vllm|sglang>", help="Inference engine. openai returns no tokens and cannot be used here."
    ),
]
TemplateOption = Annotated[
    str | None, typer.Option(metavar="{NAME: VALUE}", help="Chat template variables: {enable_thinking: false}.")
]
DataOption = Annotated[str | None, typer.Option(help="Tasks: JSONL file, Parquet file or data set id.")]
TOOL_FORMATS = (
    "Tool call format: hermes, qwen3_coder, llama3_json, pythonic, mistral, mistral_v11, deepseek_v3, deepseek_v31, "
    "glm45, kimi_k2, minimax_m2, granite, harmony, tags, compact, or a parser name of vLLM or SGLang. "
    "Default: the format of the model's chat template."
)
ToolFormatOption = Annotated[str | None, typer.Option(help=TOOL_FORMATS)]
EnvArgOption = Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="Environment argument; repeatable.")]

StoreOption = Annotated[
    Path | None, typer.Option(help="Warm-start the draft store: a store file, or a run folder with checkpoints.")
]


def takes(options: type[Options]) -> Callable[[Callable[[Options], None]], Callable[..., None]]:
    """Turn a function of one options dataclass into a command whose options are the dataclass's fields.

    >>> @dataclass
    ... class Greeting:
    ...     name: Annotated[str, typer.Argument(help="Whom to greet.")]
    >>> @takes(Greeting)
    ... def greet(options):
    ...     print("hello,", options.name)
    >>> greet(name="world")
    hello, world
    """

    def decorate(run: Callable[[Options], None]) -> Callable[..., None]:
        def command(**given: Any) -> None:
            run(options(**given))

        hints = get_type_hints(options, include_extras=True)
        command.__name__, command.__doc__ = run.__name__, run.__doc__
        command.__annotations__ = hints
        command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [
                inspect.Parameter(
                    field.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=inspect.Parameter.empty if field.default is MISSING else field.default,
                    annotation=hints[field.name],
                )
                for field in fields(options)  # type: ignore[arg-type]
            ]
        )
        return command

    return decorate


@dataclass(frozen=True, kw_only=True)
class PolicyOptions:
    """Options of every command that runs a model."""

    model: ModelOption = None
    engine: TokenEngineOption = EngineName.LOCAL
    template: TemplateOption = None
    max_thinking_tokens: Annotated[
        int | None,
        typer.Option(
            min=1, help="Tokens per turn after which an unfinished thought is closed, so that the answer follows."
        ),
    ] = None
    device: Annotated[str, typer.Option(help="Torch device.")] = "cpu"
    dtype: Annotated[
        str, typer.Option(help="Dtype of weights and activations; auto: the model's own for vLLM or SGLang on a GPU.")
    ] = "auto"
    engine_args: Annotated[
        str | None, typer.Option(metavar="JSON", help="Further arguments of vLLM or SGLang, as a JSON object.")
    ] = None

    def renderer_options(self) -> dict[str, Any]:
        # Options that were not given are left out.
        from turntree.agents.errors import UsageError
        from turntree.agents.yaml_files import parse_yaml

        options: dict[str, Any] = {}
        if self.template is not None:
            options["template_options"] = parse_yaml(self.template, "--template")
            if not isinstance(options["template_options"], dict):
                raise UsageError(
                    f"expected --template {{NAME: VALUE}}, e.g. {{enable_thinking: false}}, got {self.template!r:.80}"
                )
        if self.max_thinking_tokens is not None:
            options["max_thinking_tokens"] = self.max_thinking_tokens
        return options

    def engine_choice(self, **settings: Any) -> EngineChoice:
        from turntree.agents.engines.engine_choice import EngineChoice

        given = parsed_engine_args(self.engine, self.engine_args, base_url=settings.get("base_url"))
        merged_args = {**settings.get("engine_args", {}), **given}
        options = {"name": self.engine, "model": self.model or "", "device": self.device, "dtype": self.dtype}
        return EngineChoice(**(options | settings | {"engine_args": merged_args}))


@dataclass(frozen=True, kw_only=True)
class TaskOptions(PolicyOptions):
    """Options of every command that plays tasks with a model."""

    data: DataOption = None
    tool_format: ToolFormatOption = None
    env_arg: EnvArgOption = None
    max_context: Annotated[
        int | None, typer.Option(min=1, help="Tokens per episode; default: 1024 or two turns, at most the model's.")
    ] = None
    concurrency: Annotated[int, typer.Option(min=1, help="Episodes played at once.")] = 16
    seed: Annotated[int, typer.Option(help="Seed of tasks and sampling.")] = 0
    as_json: JsonOption = False

    def env_arguments(self) -> dict[str, Any]:
        from turntree.agents.evaluation.environments import env_arguments

        return env_arguments(self.env_arg or (), data=self.data, tool_format=self.tool_format)

    def sizes(self) -> dict[str, Any]:
        # The fields that `eval` and `bench` share with `EvalTask`; options that were not given are left out.
        names = ("count", "samples", "temperature", "max_tokens", "max_context")
        return {name: size for name in names if (size := getattr(self, name)) is not None}


class NamedModel(NamedTuple):
    path: str  #: folder or Hugging Face id
    name: str  #: name in tables: as given, or ``RUN@STEP``
    step: int | None = None  #: training step of a checkpoint
    checkpoint: str = ""  #: digest of the checkpoint


def named_models(argument: str | None, option: str | None) -> list[NamedModel]:
    """Return the models of a command, several for ``RUN@all``; merges checkpoints or finds them in the cache."""
    from turntree.agents.errors import UsageError
    from turntree.agents.verl.run.trained_model import merged, trained_models

    if argument and option:
        raise UsageError(f"the model is named twice, {argument!r} and --model {option!r}; leave one out")
    if not (named := argument or option):
        raise UsageError("--model is required: a model folder, a Hugging Face id, or the run folder of a training")
    found = trained_models(named)
    folders = [merged(checkpoint, lambda words: typer.echo(words, err=True)) for checkpoint in found]
    checkpoints = zip(folders, found, strict=True)
    return [
        NamedModel(str(folder), checkpoint.name, checkpoint.step, checkpoint.digest)
        for folder, checkpoint in checkpoints
    ] or [NamedModel(named, named)]


def named_model(argument: str | None, option: str | None) -> NamedModel:
    from turntree.agents.errors import UsageError

    if (argument or option or "").endswith("@all"):
        raise UsageError(f"{argument or option} names several models, expected one: RUN@STEP")
    return named_models(argument, option)[0]


def imported_turns(
    store: Path | None, tokenizer: Any, *, engine: EngineName, speculate: bool, base_url: str | None = None
) -> str:
    """Return ``--store`` as ``ForestConfig.import_turns``.

    Args:
        tokenizer: The model's.
    """
    from turntree.agents.engines.drafting.tokenizer_hash import given_store, hash_of
    from turntree.agents.errors import UsageError

    if store is None:
        return ""
    if not speculate or base_url is not None or engine is EngineName.OPENAI:
        raise UsageError(
            "--store needs an engine started here with speculation; leave out --store, --base-url or --no-speculate"
        )
    return given_store(store, hash_of(tokenizer))
