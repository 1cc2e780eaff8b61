from __future__ import annotations

import gc
import sys
from collections.abc import Mapping
from typing import Any

from turntree.agents.engines.engine_choice import EngineChoice, open_engine
from turntree.agents.gateway.app import Gateway, make_app
from turntree.agents.gateway.http.server import listen, run
from turntree.agents.gateway.http.settings import GatewaySettings
from turntree.agents.loop.renderer import Renderer
from turntree.agents.loop.thinking_budget import within_budget

_RENDERED = 256  #: cached renderings; requests come from outside and may be large


async def serve(
    choice: EngineChoice, tokenizer: Any, settings: GatewaySettings, options: Mapping[str, Any] | None = None
) -> bool:
    """Serve until SIGTERM or SIGINT.

    Args:
        options: Further arguments of ``Renderer``.

    Returns:
        Whether SIGINT stopped the server.

    Raises:
        UsageError: If the address cannot be bound.
        RenderError: If the model's chat template is missing or unusable.
    """
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
