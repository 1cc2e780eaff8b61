from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from turntree.agents.gateway.http.errors import ApiError, ClientGone, internal_error
from turntree.agents.gateway.http.event_stream import OPENAI, Dialect
from turntree.agents.gateway.http.requests import check_key, check_sender
from turntree.agents.gateway.http.settings import GatewaySettings

Handler = Callable[[Request], Awaitable[Response]]


class Json(Response):
    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        # A policy may write lone surrogates, which are escaped here.
        return json.dumps(content, ensure_ascii=False, allow_nan=False).encode("utf-8", "backslashreplace")


class Routes:
    """The paths of an application, and the one boundary where errors become responses.

    Args:
        settings: API key and the allowed host names and origins.
        answered: Called with the path, the status and the seconds of each response.
    """

    def __init__(
        self, settings: GatewaySettings, *, answered: Callable[[str, int, float], None], gone: Callable[[], None]
    ) -> None:
        self._settings, self._answered, self._gone = settings, answered, gone
        self._routes: list[Route] = []

    def add(
        self, name: str, handler: Handler, *, method: str, open_to_all: bool = False, dialect: Dialect = OPENAI
    ) -> None:
        async def answer(request: Request) -> Response:
            clock = asyncio.get_running_loop().time
            began = clock()
            try:
                check_sender(request, self._settings)
                if not open_to_all:
                    check_key(request, self._settings.api_key)
                response = await handler(request)
            except ClientGone:
                self._gone()
                # Nobody reads this response; 499 is nginx's code for a closed connection.
                return Response(status_code=499)
            except ApiError as error:
                response = Json(dialect.refusal(error), status_code=error.status, headers=error.headers)
            except Exception:
                # The boundary: the client gets a response and the server keeps running.
                failed = internal_error(f"a request to {name}")
                response = Json(dialect.refusal(failed), status_code=failed.status)
            self._answered(name, response.status_code, clock() - began)
            return response

        self._routes.append(Route(name, answer, methods=[method]))

    def app(self) -> Starlette:
        origins = self._settings.allowed_origins
        browsers = Middleware(CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"])
        return Starlette(
            routes=self._routes, middleware=[browsers] if origins else [], exception_handlers={HTTPException: _no_path}
        )


def _no_path(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    problem = f"unknown path {request.method} {request.url.path!r:.200}; see docs/howto/serve.md"
    not_found = ApiError(error.status_code, problem, code="not_found")
    return Json(not_found.body, status_code=error.status_code, headers=dict(error.headers or {}))
