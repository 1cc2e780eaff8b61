from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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

if TYPE_CHECKING:
    from turntree.agents.engines.engine_choice import EngineChoice
    from turntree.agents.gateway.http.settings import GatewaySettings


_RENDERED = 256  #: cached renderings; requests come from outside and may be large


@dataclass(frozen=True, kw_only=True)
class ServeOptions(PolicyOptions):
    named: Annotated[str | None, typer.Argument(metavar="[MODEL]", help="Same as --model.", show_default=False)] = None
    host: Annotated[str, typer.Option(help="Address to listen on; any but loopback needs --api-key.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 picks a free one.")] = 8000
    name: Annotated[
        list[str] | None, typer.Option(help="Model name in requests; repeatable; default: --model.", show_default=False)
    ] = None
    wish: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD",
            help="Accept tool_choice or response_format without obeying it, instead of status 400; repeatable.",
            show_default=False,
        ),
    ] = None
    api_key: Annotated[
        str | None, typer.Option(envvar="TURNTREE_API_KEY", help="Bearer token that requests must carry.")
    ] = None
    allowed_hosts: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Extra allowed value of the Host header; repeatable, * allows any."),
    ] = None
    allowed_origins: Annotated[
        list[str] | None,
        typer.Option(metavar="ORIGIN", help="Origin of browser pages to allow, https://NAME[:PORT]; repeatable."),
    ] = None
    max_context: Annotated[
        int | None, typer.Option(min=2, help="Tokens of prompt and answer; default: 4096, or the model's limit.")
    ] = None
    max_batch: Annotated[int, typer.Option(min=1, help="Turns sampled at once.")] = 16
    max_requests: Annotated[
        int | None, typer.Option(min=1, help="Turns sampled or queued before status 429; default: 4 * --max-batch.")
    ] = None
    max_body: Annotated[int, typer.Option(min=1, help="Largest request body in bytes.")] = 1 << 20
    seconds: Annotated[float, typer.Option(min=0.1, help="Time limit of a response.")] = 600.0
    tool_format: ToolFormatOption = None
    record: Annotated[Path | None, typer.Option(help="Run folder in which sessions are recorded as episodes.")] = None
    reward: Annotated[
        list[str] | None, typer.Option(metavar="MODULE:NAME", help="Custom reward that clients may name; repeatable.")
    ] = None
    max_sessions: Annotated[int, typer.Option(min=1, help="Live sessions at once.")] = 1024
    session_seconds: Annotated[float, typer.Option(min=1, help="Time after which an idle session ends.")] = 3600.0
    speculate: Annotated[bool, typer.Option(help="Draft tokens from earlier turns.")] = True
    store: StoreOption = None
    max_stored_tokens: Annotated[
        int,
        typer.Option(
            min=1024, max=100_000_000, help="Tokens in the draft store; ten times as many are kept without an index."
        ),
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
        # The server module imports every package of the extra.
        import turntree.agents.gateway.http.server  # noqa: F401
        from turntree.agents.gateway.http.settings import GatewaySettings
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn", "h11"):
            raise
        raise MissingExtra("turntree serve", "serve") from error
    if options.engine is EngineName.OPENAI:
        raise UsageError("--engine openai is already a server; use local, vllm or sglang")
    model, most = named_model(options.named, options.model), options.max_context
    for reward in options.reward or ():
        # Registers the reward now, because requests must not import modules.
        Scorer({reward: 0})
    checkpoint = Checkpoint.open(model.path)
    positions = checkpoint.max_positions
    if most is not None and positions is not None and most > positions:
        raise UsageError(f"--max-context {most}: the model has {positions} positions; lower it")
    context = most or min(4096, positions or 4096)
    # Most settings are options of the same name; the others need a default or another type.
    names = [field.name for field in fields(GatewaySettings) if hasattr(options, field.name)]
    served_name, *other_names = options.name or [model.name]
    converted = {
        "model": served_name,
        "other_names": tuple(other_names),
        "wishes": tuple(wish for value in options.wish or () for wish in value.split(",")),
        "max_context": context,
        "allowed_hosts": tuple(options.allowed_hosts or ()),
        "allowed_origins": tuple(options.allowed_origins or ()),
        "max_requests": options.max_requests or 4 * options.max_batch,
    }
    settings = GatewaySettings(**{name: getattr(options, name) for name in names} | converted)
    stored, speculate = options.max_stored_tokens, options.speculate
    imports = imported_turns(options.store, checkpoint.tokenizer, engine=options.engine, speculate=speculate)
    choice = options.engine_choice(
        model=model.path,
        max_batch=options.max_batch,
        max_context=context,
        speculate=speculate,
        forest=ForestConfig(max_tokens=stored, max_cold_tokens=10 * stored, import_turns=imports),
    )
    if _event_loop()(_serve(choice, checkpoint.tokenizer, settings, options.renderer_options())):
        # Exit status 130, as after any Ctrl-C.
        raise KeyboardInterrupt


def _event_loop() -> Callable[[Coroutine[Any, Any, bool]], bool]:
    # uvloop handles more requests per engine step.
    import asyncio

    try:
        import uvloop
    except ModuleNotFoundError:
        # Not available on Windows.
        return asyncio.run
    return uvloop.run


async def _serve(
    choice: EngineChoice, tokenizer: Any, settings: GatewaySettings, options: Mapping[str, Any] | None = None
) -> bool:
    """Serve until SIGTERM or SIGINT.

    Args:
        options: Further arguments of ``Renderer``.

    Returns:
        Whether SIGINT stopped the server.
    """
    import gc
    import sys

    from turntree.agents.engines.engine_choice import open_engine
    from turntree.agents.gateway.app import Gateway, make_app
    from turntree.agents.gateway.http.server import listen, run
    from turntree.agents.loop.renderer import Renderer
    from turntree.agents.loop.thinking_budget import within_budget

    renderer = Renderer(tokenizer, cached=_RENDERED, **(options or {}))
    with listen(settings) as at:
        host, port = at.getsockname()[:2]
        async with open_engine(choice) as engine:
            gateway = Gateway(within_budget(engine, renderer), renderer, settings, model_path=choice.model)

            def close() -> None:
                gateway.admission.closing = True

            def ready() -> None:
                shown = f"[{host}]" if ":" in host else host
                sys.stdout.write(f"{settings.model} at http://{shown}:{port}/v1\n")
                sys.stdout.flush()
                if settings.api_key is None:
                    sys.stderr.write(
                        "turntree: no API key is set: every program on this machine can use the model, other machines "
                        "cannot; set a key with --api-key or TURNTREE_API_KEY\n"
                    )

            try:
                gc.collect()
                # Otherwise each full collection scans the model and the libraries for 0.3 s.
                gc.freeze()
                return await run(make_app(gateway), settings, at, closing=close, ready=ready)
            finally:
                gc.unfreeze()
                gateway.paths.close_all()
