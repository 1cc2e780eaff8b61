from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from turntree.agents.commands.options import (
    PolicyOptions,
    StoreOption,
    ToolFormatOption,
    imported_turns,
    named_model,
    takes,
)
from turntree.agents.engines.engine_choice import EngineName


@dataclass(frozen=True, kw_only=True)
class ServeOptions(PolicyOptions):
    named: Annotated[str | None, typer.Argument(metavar="[MODEL]", help="As --model.", show_default=False)] = None
    host: Annotated[str, typer.Option(help="Address to listen at; any but this machine's own needs --api-key.")] = (
        "127.0.0.1"
    )
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000
    name: Annotated[str | None, typer.Option(help="Name of the model in requests; that of --model without it.")] = None
    api_key: Annotated[
        str | None, typer.Option(envvar="TURNTREE_API_KEY", help="Bearer token that requests must bring.")
    ] = None
    allowed_hosts: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A further name of this server in the header Host; repeatable, * is any."),
    ] = None
    allowed_origins: Annotated[
        list[str] | None,
        typer.Option(metavar="ORIGIN", help="Pages that may ask from a browser: https://NAME[:PORT]; repeatable."),
    ] = None
    max_context: Annotated[
        int | None, typer.Option(min=2, help="Tokens of prompt and answer; 4096, if the model has as many.")
    ] = None
    max_batch: Annotated[int, typer.Option(min=1, help="Turns that are sampled at once.")] = 16
    max_requests: Annotated[
        int | None, typer.Option(min=1, help="Turns sampled or waiting; further ones get 429. 4 * --max-batch.")
    ] = None
    max_body: Annotated[int, typer.Option(min=1, help="Largest body of a request, bytes.")] = 1 << 20
    seconds: Annotated[float, typer.Option(min=0.1, help="Time limit of an answer.")] = 600.0
    tool_format: ToolFormatOption = None
    record: Annotated[Path | None, typer.Option(help="Folder of a run: sessions become its episodes.")] = None
    reward: Annotated[
        list[str] | None,
        typer.Option(metavar="MODULE:NAME", help="A reward of your own that verdicts may name; repeatable."),
    ] = None
    max_sessions: Annotated[int, typer.Option(min=1, help="Sessions held at once.")] = 1024
    session_seconds: Annotated[float, typer.Option(min=1, help="Time after which an idle session ends.")] = 3600.0
    speculate: Annotated[bool, typer.Option(help="Draft turns from earlier ones.")] = True
    store: StoreOption = None
    max_stored_tokens: Annotated[
        int, typer.Option(min=1024, max=100_000_000, help="Tokens of these turns kept ready; ten times as many wait.")
    ] = 4_000_000


@takes(ServeOptions)
def serve_command(options: ServeOptions) -> None:
    """Serve a model over OpenAI's and Anthropic's APIs, with drafts from earlier turns.

    Example: turntree serve --model DIR --port 8000, then set OPENAI_BASE_URL=http://127.0.0.1:8000/v1
    """
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
    if options.engine is EngineName.OPENAI:
        raise UsageError("--engine openai is such a server already; serve with local, vllm or sglang")
    model, most = named_model(options.named, options.model), options.max_context
    for one in options.reward or ():
        Scorer({one: 0})  # registers it: a request imports nothing
    checkpoint = Checkpoint.open(model.path)
    positions = checkpoint.max_positions
    if most is not None and positions is not None and most > positions:
        raise UsageError(f"--max-context {most}: the model has {positions} positions; lower it")
    context = most or min(4096, positions or 4096)
    kept = (*("host", "port", "api_key", "max_body", "seconds"), *("tool_format", "record", "max_sessions"))
    settings = GatewaySettings(
        model=options.name or model.name,
        max_context=context,
        allowed_hosts=tuple(options.allowed_hosts or ()),
        allowed_origins=tuple(options.allowed_origins or ()),
        max_requests=options.max_requests or 4 * options.max_batch,
        **{name: getattr(options, name) for name in (*kept, "session_seconds")},
    )
    stored, speculate = options.max_stored_tokens, options.speculate
    imports = imported_turns(options.store, checkpoint.tokenizer, engine=options.engine, speculate=speculate)
    choice = options.engine_choice(
        model=model.path,
        max_batch=options.max_batch,
        max_context=context,
        speculate=speculate,
        forest=ForestConfig(max_tokens=stored, max_cold_tokens=10 * stored, import_turns=imports),
    )
    if _event_loop()(serve(choice, checkpoint.tokenizer, settings, options.renderer_options())):
        raise KeyboardInterrupt


def _event_loop() -> Callable[[Coroutine[Any, Any, bool]], bool]:
    # uvloop handles more requests per engine step.
    import asyncio

    try:
        import uvloop
    except ModuleNotFoundError:  # none on Windows
        return asyncio.run
    return uvloop.run
