"""``ChatServer``: a client of any server with OpenAI's chat completions, messages in, messages out.

Such servers have only text in common: they return no token ids, no log-probabilities, and take no drafts. So
``ChatServer`` is not an ``Engine``; only ``chat_rollout`` uses it, for evaluation.

A turn is one complete answer of the server. A request is retried only if the server gave no answer: no connection,
too many requests, or not ready yet. An answer that is cut off, late or endless raises an error.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from turntree.agents.engines.protocol import FinishReason, Sampling
from turntree.agents.errors import AgentError, MissingExtra
from turntree.envs.data.json_files import parse_json
from turntree.envs.message import ToolCall

_KEY = "OPENAI_API_KEY"
_PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504})  #: HTTP statuses that are worth a retry
_LONGEST_WAIT = 60.0  #: seconds between two tries, even if ``Retry-After`` asks for more
_FULL = re.compile(r"context.?(length|window|size)|prompt is too long|too many (input |prompt )?tokens", re.IGNORECASE)
#: finish reasons of a turn that the policy ended, as named by OpenAI, vLLM, SGLang, Together, TGI and Anthropic
_WHOLE = frozenset({"stop", "tool_calls", "function_call", "eos", "eos_token", "stop_sequence", "end_turn"})
#: finish reasons of a turn that hit a limit (``repetition`` is vLLM's); any other ("abort", "error") is a failure
_CUT = frozenset({"length", "max_tokens", "model_length", "repetition"})
_TOKEN_BYTES = 1 << 10  #: maximum bytes per token: at most 128 characters, of up to six bytes each in JSON
_BESIDE_BYTES = 1 << 20  #: maximum bytes of an answer apart from its tokens
_MOST_BYTES = 1 << 26  #: maximum bytes of any answer
_SEEDS = 2**31  #: seeds are sent modulo this number, since some servers store 32 bits
#: key for call arguments that are not a JSON object; no tool has this parameter, so the policy sees an error
UNREADABLE = "unreadable_arguments"


class ServerRefused(AgentError):
    """The server refused a request, or sent an answer that cannot be read."""


class ContextFull(ServerRefused):
    """The dialogue no longer fits into the model's context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTurn:
    content: str  #: text without the tool calls that the server has parsed
    calls: tuple[ToolCall, ...]  #: tool calls that the server has parsed
    finish_reason: FinishReason


class ChatServer:
    """A client that requests the next message of a dialogue. Use it in one event loop, as a context manager.

    >>> async with ChatServer("http://localhost:8000/v1") as server:  # doctest: +SKIP
    ...     turn = await server.complete(messages, Sampling(max_tokens=64))

    Args:
        base_url: URL up to ``/v1`` or its equivalent; a bare host gets ``/v1``.
        model: Name of the model on the server; ``None`` uses the server's only model.
        key: Bearer token; ``None`` reads ``OPENAI_API_KEY``.
        seconds: Time limit of a turn, including all retries and waits.
        tries: Maximum number of attempts per request.
        first_wait: Seconds before the second attempt, doubled before each later one; a ``Retry-After`` header wins.
        transport: An ``httpx`` transport, for tests.

    Raises:
        MissingExtra: If httpx is not installed.
        ServerRefused: On entering the context, if the server does not answer or lacks the model.
    """

    def __init__(
        self,
        base_url: str,
        *,
        model: str | None = None,
        key: str | None = None,
        seconds: float = 600.0,
        tries: int = 5,
        first_wait: float = 0.5,
        transport: Any = None,
    ) -> None:
        try:
            import httpx
        except ModuleNotFoundError as error:
            raise MissingExtra("an OpenAI-compatible server", "data") from error
        if urlsplit(base_url).scheme not in ("http", "https"):
            raise ServerRefused(f"expected a URL such as http://localhost:8000/v1, got {base_url!r}")
        self.base_url = base_url.rstrip("/") + ("" if urlsplit(base_url).path.strip("/") else "/v1")
        self.model = model or ""  #: set on entry if the caller did not name one
        self._httpx = httpx
        self._seconds, self._tries, self._first_wait = seconds, tries, first_wait
        #: name of the parameter for the token limit; whether the server takes seeds
        self._limit, self._seeds = "max_tokens", True
        key = os.environ.get(_KEY) if key is None else key
        self._client = httpx.AsyncClient(
            timeout=httpx.Timeout(seconds, connect=10.0),
            limits=httpx.Limits(max_connections=None),
            headers={"Authorization": f"Bearer {key}"} if key else {},
            transport=transport,
        )

    async def __aenter__(self) -> Self:
        try:
            await self._find()
        except BaseException:
            await self._client.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()

    async def complete(
        self, messages: Sequence[Mapping[str, Any]], sampling: Sampling, *, tools: Sequence[Mapping[str, Any]] = ()
    ) -> ChatTurn:
        """Return the next message of the dialogue.

        Args:
            sampling: Temperature, top-p, penalties, maximum tokens and seed; a server that refuses seeds gets none.
            tools: OpenAI tool schemas.

        Raises:
            ValueError: If ``sampling`` has a parameter that chat completions do not have.
            ContextFull: If the dialogue is too long.
            ServerRefused: If the server refused, did not answer in time, or did not end the turn normally.
        """
        body = {"model": self.model, "messages": list(messages), **_fields(sampling)}
        if tools:
            body["tools"] = list(tools)
        reply = await self._ask(body, sampling)
        try:
            (choice,) = reply["choices"]
            return _turn(choice)
        except (KeyError, TypeError, ValueError) as error:
            raise ServerRefused(f"expected a chat completion with one choice, got {str(reply)[:300]}") from error

    async def _find(self) -> None:
        status, text = await self._send("GET", "/models", None, most=_MOST_BYTES, until=self._deadline())
        if status in (404, 405) and self.model:  # not every server lists its models
            return
        if status != 200:
            raise self._refusal("GET", "/models", status, text)
        try:
            names = [str(card["id"]) for card in parse_json(text)["data"]]
        except (KeyError, TypeError, ValueError) as error:
            raise ServerRefused(f"{self.base_url}/models: expected a list of models, got {text[:200]!r}") from error
        if self.model:
            return
        if len(names) != 1:
            known = ", ".join(names) or "none"
            raise ServerRefused(f"expected --model to name one of the server's models; the server has {known}")
        self.model = names[0]

    async def _ask(self, body: dict[str, Any], sampling: Sampling) -> Any:
        # If the server refuses a parameter, rename it or leave it out: both keep the policy's distribution.
        until = self._deadline()
        most = min(_BESIDE_BYTES + _TOKEN_BYTES * sampling.max_tokens, _MOST_BYTES)
        while True:
            limit, seeds = self._limit, self._seeds
            asked = {**body, limit: sampling.max_tokens}
            if seeds and sampling.seed is not None:
                asked["seed"] = sampling.seed % _SEEDS
            status, text = await self._send("POST", "/chat/completions", asked, most=most, until=until)
            if status == 200:
                try:
                    return parse_json(text)
                except ValueError as error:
                    raise ServerRefused(f"{self.base_url}: expected JSON, got {text[:200]!r}") from error
            refused = status in (400, 422)
            if refused and limit == "max_tokens" and "max_completion_tokens" in text and not _FULL.search(text):
                self._limit = "max_completion_tokens"
            elif refused and "seed" in asked and re.search(r"\bseed\b", text):
                self._seeds = False
            elif (refused or status == 413) and _FULL.search(text):
                raise ContextFull(text[:300])
            else:
                raise self._refusal("POST", "/chat/completions", status, text)

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._seconds

    async def _send(self, method: str, path: str, body: Any, *, most: int, until: float) -> tuple[int, str]:
        wait, now = self._first_wait, asyncio.get_running_loop().time
        for left in range(self._tries - 1, -1, -1):
            try:
                async with (
                    asyncio.timeout_at(until),
                    self._client.stream(method, self.base_url + path, json=body) as reply,
                ):
                    text = await self._read(reply, most)
            except (TimeoutError, self._httpx.TimeoutException) as error:
                raise ServerRefused(
                    f"{self.base_url} did not answer {method} {path} within {self._seconds:g} s, all tries included: "
                    f"{error!r}"
                ) from error
            except (self._httpx.HTTPError, self._httpx.InvalidURL) as error:
                if left and body is not None and now() + wait < until:
                    await asyncio.sleep(wait)
                    wait *= 2
                    continue
                raise ServerRefused(
                    f"no answer from {self.base_url} to {method} {path}: {error!r}; is a server running there?"
                ) from error
            pause = min(_named_wait(reply.headers, wait), _LONGEST_WAIT)
            if not left or reply.status_code not in _PASSING or now() + pause >= until:
                break
            await asyncio.sleep(pause)
            wait *= 2
        return reply.status_code, text

    async def _read(self, reply: Any, most: int) -> str:
        data = bytearray()
        async for piece in reply.aiter_bytes():
            data += piece
            if len(data) > most:
                raise ServerRefused(
                    f"{reply.request.method} {reply.request.url}: expected an answer of at most {most:,} bytes, more "
                    "than the requested tokens can take, got more; is this a server of chat completions?"
                )
        return data.decode(reply.encoding or "utf-8", "replace")

    def _refusal(self, method: str, path: str, status: int, text: str) -> ServerRefused:
        advice = ""
        if status in (401, 403):
            advice = f"; set {_KEY} to a key that the server takes"
        elif status == 404:
            advice = "; is this the URL up to /v1, and the model's name on the server?"
        elif "tool" in text:
            advice = "; if the server cannot parse tool calls, let the policy write them as text: --tool-calls text"
        return ServerRefused(f"{method} {self.base_url}{path} was answered {status}: {text[:500]}{advice}")


def _fields(sampling: Sampling) -> dict[str, Any]:
    plain = Sampling()
    for name in ("top_k", "min_p", "repetition_penalty", "top_logprobs", "stop_token_ids"):
        if getattr(sampling, name) != getattr(plain, name):
            raise ValueError(f"chat completions have no {name}, got {getattr(sampling, name)}; leave {name} out")
    fields: dict[str, Any] = {"temperature": sampling.temperature}
    for name in ("top_p", "presence_penalty", "frequency_penalty"):
        if getattr(sampling, name) != getattr(plain, name):
            fields[name] = getattr(sampling, name)
    return fields


def _turn(choice: Mapping[str, Any]) -> ChatTurn:
    message, reason = choice["message"], choice.get("finish_reason")
    if reason == "content_filter":
        raise ServerRefused("the server's content filter cut the turn off, so the turn is not the policy's")
    if reason not in _WHOLE | _CUT:
        raise ServerRefused(
            f"the server did not end the turn (finish_reason {reason!r:.40}), so the turn is not the policy's; "
            f"expected one of {', '.join(sorted(_WHOLE | _CUT))}; the server's log may tell why"
        )
    return ChatTurn(
        content=message.get("content") or "",
        calls=tuple(map(_call, message.get("tool_calls") or ())),
        finish_reason=FinishReason.LENGTH if reason in _CUT else FinishReason.STOP,
    )


def _call(entry: Mapping[str, Any]) -> ToolCall:
    function = entry["function"]
    given = function.get("arguments") or "{}"
    try:
        arguments = parse_json(given) if isinstance(given, str) else given
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        arguments = {UNREADABLE: str(given)}
    return ToolCall(name=str(function["name"]), arguments=arguments, id=str(entry.get("id") or ""))


def _named_wait(headers: Mapping[str, str], otherwise: float) -> float:
    try:
        return max(0.0, float(headers.get("retry-after", "")))
    except ValueError:
        return otherwise
