"""``turntree serve``."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer

from turntree.agents.commands.envs import TOOL_FORMATS
from turntree.agents.engines.engine_choice import EngineName, parsed_engine_args

EngineArgsOption = Annotated[
    str | None, typer.Option(metavar="JSON", help="Further arguments of vLLM or SGLang, an object.")
]

ModelOption = Annotated[
    str | None,
    typer.Option("--model", metavar="DIR|ID", help="Model directory, or its id on the Hugging Face hub."),
]
TokenEngineOption = Annotated[
    EngineName, typer.Option(metavar="<local|vllm|sglang>", help="What runs the model: openai gives no tokens.")
]
TemplateOption = Annotated[
    str | None,
    typer.Option(metavar="{NAME: VALUE}", help="Variables of the chat template: {enable_thinking: false}."),
]
ThinkingOption = Annotated[
    int | None,
    typer.Option(min=1, help="Tokens of a turn after which a thought that goes on is closed, and the answer follows."),
]


def named_model(argument: str | None, option: str | None) -> str:
    """The model of a command, which ``--model`` names as in every other one, or an argument.

    Raises:
        UsageError: If it is named twice, or not at all.
    """
    from turntree.agents.errors import UsageError

    if argument and option:
        raise UsageError(f"the model is named twice, {argument!r} and --model {option!r}; leave one out")
    if not (named := argument or option):
        raise UsageError("--model is needed: a model directory, or its id on the Hugging Face hub")
    return named


def renderer_options(template: str | None, max_thinking_tokens: int | None) -> dict[str, Any]:
    """The arguments of ``Renderer`` that options name; those that are not given are left out.

    Raises:
        UsageError: If the variables are no mapping.
    """
    from turntree.agents.errors import UsageError
    from turntree.agents.yaml_files import parse_yaml

    options: dict[str, Any] = {}
    if template is not None:
        options["template_options"] = parse_yaml(template, "--template")
        if not isinstance(options["template_options"], dict):
            raise UsageError(f"--template is {{NAME: VALUE}}, such as {{enable_thinking: false}}, got {template!r:.80}")
    if max_thinking_tokens is not None:
        options["max_thinking_tokens"] = max_thinking_tokens
    return options


StoreOption = Annotated[
    Path | None,
    typer.Option(help="Turns of another run to draft from: a store's file, or the folder of a run with checkpoints."),
]


def past_turns(
    store: Path | None, tokenizer: Any, *, engine: EngineName, speculate: bool, base_url: str | None = None
) -> str:
    """``--store`` as ``ForestConfig.past``; ``tokenizer`` is the model's.

    Raises:
        UsageError: If nothing here drafts from it, or as ``given_store``.
    """
    from turntree.agents.engines.drafting.given_store import given_store
    from turntree.agents.engines.drafting.tokenizer_hash import hash_of
    from turntree.agents.errors import UsageError

    if store is None:
        return ""
    if not speculate or base_url is not None or engine is EngineName.OPENAI:
        raise UsageError(
            "--store has turns that an engine started here drafts from; leave it out, or what forbids that"
        )
    return given_store(store, hash_of(tokenizer))


def serve_command(
    named: Annotated[str | None, typer.Argument(metavar="[MODEL]", help="As --model.", show_default=False)] = None,
    model: ModelOption = None,
    engine: TokenEngineOption = EngineName.LOCAL,
    host: Annotated[
        str, typer.Option(help="Address to listen at; any but this machine's own needs --api-key.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    name: Annotated[str | None, typer.Option(help="Name of the model in requests; that of --model without it.")] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="TURNTREE_API_KEY", help="Bearer token that requests must bring.")
    ] = None,
    allowed_hosts: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A further name of this server in the header Host; repeatable, * is any."),
    ] = None,
    allowed_origins: Annotated[
        list[str] | None,
        typer.Option(metavar="ORIGIN", help="Pages that may ask from a browser: https://NAME[:PORT]; repeatable."),
    ] = None,
    max_context: Annotated[
        int | None, typer.Option(min=2, help="Tokens of prompt and answer; 4096, if the model has as many.")
    ] = None,
    max_batch: Annotated[int, typer.Option(min=1, help="Turns that are sampled at once.")] = 16,
    max_requests: Annotated[
        int | None, typer.Option(min=1, help="Turns sampled or waiting; further ones get 429. 4 * --max-batch.")
    ] = None,
    max_body: Annotated[int, typer.Option(min=1, help="Largest body of a request, bytes.")] = 1 << 20,
    seconds: Annotated[float, typer.Option(min=0.1, help="Time limit of an answer.")] = 600.0,
    tool_format: Annotated[str, typer.Option(help=TOOL_FORMATS)] = "hermes",
    template: TemplateOption = None,
    max_thinking_tokens: ThinkingOption = None,
    record: Annotated[Path | None, typer.Option(help="Folder of a run: sessions become its episodes.")] = None,
    reward: Annotated[
        list[str] | None,
        typer.Option(metavar="MODULE:NAME", help="A reward of your own that verdicts may name; repeatable."),
    ] = None,
    max_sessions: Annotated[int, typer.Option(min=1, help="Sessions held at once.")] = 1024,
    session_seconds: Annotated[float, typer.Option(min=1, help="Time after which an idle session ends.")] = 3600.0,
    speculate: Annotated[bool, typer.Option(help="Draft turns from earlier ones.")] = True,
    store: StoreOption = None,
    max_stored_tokens: Annotated[
        int, typer.Option(min=1024, max=100_000_000, help="Tokens of these turns kept ready; ten times as many wait.")
    ] = 4_000_000,
    device: Annotated[str, typer.Option(help="Torch device.")] = "cpu",
    dtype: Annotated[
        str, typer.Option(help="Of weights and activations; auto: the model's own with vLLM or SGLang on a GPU.")
    ] = "auto",
    engine_args: EngineArgsOption = None,
) -> None:
    """Serve a model to OpenAI's clients, its turns drafted from earlier ones.

    Example: turntree serve --model DIR --port 8000, then OPENAI_BASE_URL=http://127.0.0.1:8000/v1
    """
    from turntree.agents.engines.engine_choice import EngineChoice
    from turntree.agents.errors import MissingExtra, UsageError
    from turntree.agents.evaluation.checkpoint import Checkpoint
    from turntree.agents.scoring.scorer import Scorer
    from turntree.spec_tree import ForestConfig

    try:
        from turntree.agents.gateway.http.settings import GatewaySettings
        from turntree.agents.gateway.serving import serve
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn", "h11"):
            raise
        raise MissingExtra("turntree serve", "serve") from error
    if engine is EngineName.OPENAI:
        raise UsageError("--engine openai is such a server already; serve with local, vllm or sglang")
    model = named_model(named, model)
    for one in reward or ():
        Scorer({one: 0})  # registers it: a request imports nothing
    checkpoint = Checkpoint.open(model)
    positions = checkpoint.max_positions
    if max_context is not None and positions is not None and max_context > positions:
        raise UsageError(f"--max-context {max_context}: the model has {positions} positions; lower it")
    context = max_context or min(4096, positions or 4096)
    settings = GatewaySettings(
        model=name or model,
        max_context=context,
        host=host,
        port=port,
        api_key=api_key,
        allowed_hosts=tuple(allowed_hosts or ()),
        allowed_origins=tuple(allowed_origins or ()),
        max_requests=max_requests or 4 * max_batch,
        max_body=max_body,
        seconds=seconds,
        tool_format=tool_format,
        record=record,
        max_sessions=max_sessions,
        session_seconds=session_seconds,
    )
    choice = EngineChoice(
        name=engine,
        model=model,
        max_batch=max_batch,
        max_context=context,
        speculate=speculate,
        forest=ForestConfig(
            max_tokens=max_stored_tokens,
            max_cold_tokens=10 * max_stored_tokens,
            past=past_turns(store, checkpoint.tokenizer, engine=engine, speculate=speculate),
        ),
        device=device,
        dtype=dtype,
        engine_args=parsed_engine_args(engine, engine_args),
    )
    options = renderer_options(template, max_thinking_tokens)
    if _event_loop()(serve(choice, checkpoint.tokenizer, settings, options)):
        raise KeyboardInterrupt


def _event_loop() -> Callable[[Coroutine[Any, Any, bool]], bool]:
    """What runs the server: uvloop where there is one, under which more requests come into the same pass."""
    import asyncio

    try:
        import uvloop
    except ModuleNotFoundError:  # none on Windows
        return asyncio.run
    return uvloop.run
