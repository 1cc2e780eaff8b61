from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from turntree.agents.engines.protocol import Engine, Sampling, TurnRequest, derive_seed
from turntree.agents.episodes.dialogue import dialogue_state
from turntree.agents.errors import RenderError
from turntree.agents.gateway.answering import Answering, Plan
from turntree.agents.gateway.answers import Dictionaries, to_dictionaries
from turntree.agents.gateway.choices import Answer, ChatChoice, Choices, ReadTurn, TextChoice
from turntree.agents.gateway.http.errors import ApiError
from turntree.agents.gateway.http.requests import read_body
from turntree.agents.gateway.http.routes import Json, Routes
from turntree.agents.gateway.http.settings import GatewaySettings
from turntree.agents.gateway.http.wire import ChatRequest, CompletionRequest, SamplingFields, read
from turntree.agents.gateway.messages.answer import ANTHROPIC, MessageAnswer
from turntree.agents.gateway.messages.request import CountRequest, MessagesRequest
from turntree.agents.gateway.metrics import Metrics
from turntree.agents.gateway.responses.answer import RESPONSES, ResponseAnswer
from turntree.agents.gateway.responses.request import LOGPROBS, ResponsesRequest
from turntree.agents.gateway.session_episodes import SessionRecord
from turntree.agents.gateway.session_paths import SessionPaths, name_in_header
from turntree.agents.gateway.sessions import CONTEXT_FULL, Position, Session, Sessions
from turntree.agents.gateway.turn_text import TurnText, byte_token
from turntree.agents.gateway.turns import SampledTurn
from turntree.agents.loop.renderer import Renderer
from turntree.agents.loop.tool_format import ToolFormat
from turntree.envs.data.json_files import half_in
from turntree.rewards.reading.thoughts import Thought
from turntree.spec_tree import DialogueState

logger = logging.getLogger(__name__)


class Admission:
    """Limit how many turns are sampled or queued at once. Not thread-safe."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.in_use = 0
        self.closing = False

    @contextmanager
    def enter(self, turns: int) -> Iterator[None]:
        """Reserve slots for the turns of one request.

        Raises:
            ApiError: 400 if the request needs more slots than exist, 429 if too few are free, 503 during shutdown.
        """
        if self.closing:
            raise ApiError(503, "the server is shutting down; use another server", code="closing", retry_after=5)
        if turns > self.slots:
            raise ApiError(400, f"expected at most {self.slots} choices per request, got {turns}", param="n")
        if self.in_use + turns > self.slots:
            raise ApiError(429, f"{self.in_use} turns are being sampled already; try again", code="busy", retry_after=1)
        self.in_use += turns
        try:
            yield
        finally:
            self.in_use -= turns


_MAX_RESPONSES = 4096  #: responses that a client may name as previous
_LONG_BODY = 1 << 15  #: bytes; a longer body is tokenised in a thread so that the event loop stays free


@dataclass(frozen=True, slots=True, kw_only=True)
class _Dialogue:  # a request of one of the APIs with sessions, as a chat
    body: ChatRequest
    answer: Callable[[list[ChatChoice], int], Answer]  #: called with the choices and the number of prompt tokens
    thoughts: Thought | None = None  #: marks of thoughts, if the API has a field for thoughts
    ignored: Iterable[str] = ()  #: fields without effect, to be logged
    session_id: str | None = None  #: session to continue, unless the request names another one
    #: called with the session and each finished turn as a message
    keep: Callable[[Session, Mapping[str, Any]], object] = lambda session, replied: None


class Gateway:
    """Request handlers of all paths.

    Args:
        model_path: Model folder or id to record; ``None`` records the served model name.
    """

    def __init__(
        self, engine: Engine, renderer: Renderer, settings: GatewaySettings, *, model_path: str | None = None
    ) -> None:
        self.settings = settings
        self.admission = Admission(settings.max_requests)
        self.metrics = Metrics()
        self._renderer = renderer
        self._responses: OrderedDict[str, tuple[str, Dictionaries]] = OrderedDict()  #: id -> session, dialogue
        self._names = (settings.model, *settings.other_names)
        self._byte = byte_token(renderer.tokenizer)
        self._tools = ToolFormat(renderer, settings.tool_format)
        self._answering = Answering(engine=engine, metrics=self.metrics, seconds=settings.seconds)
        self._created = int(time.time())
        self.sessions = Sessions(
            most=settings.max_sessions,
            seconds=settings.session_seconds,
            ended=lambda session, why: self.paths.close(session, why),
            resembles=self._log_resemblance,
            clock=time.monotonic,
        )
        record = None
        if settings.record is not None:
            name = model_path or settings.model
            record = SessionRecord(settings.record, name, renderer.options, renderer.turn_text)
        self.paths = SessionPaths(self.sessions, renderer, settings, self.metrics, record)

    async def chat(self, http: Request) -> Response:
        raw = await self._body(http)
        body = read(ChatRequest, raw)

        def answer(choices: list[ChatChoice], prompt: int) -> Answer:
            return Choices("chat.completion", body.model, choices, **_streamed(body))

        return await self._answer(http, raw, _Dialogue(body=body, answer=answer))

    async def messages(self, http: Request) -> Response:
        raw = await self._body(http)
        body = read(MessagesRequest, raw)

        def answer(choices: list[ChatChoice], prompt: int) -> Answer:
            return MessageAnswer(body.model, choices[0], prompt=prompt, most=body.max_tokens, thinks=body.thinks)

        thoughts = self._renderer.template.thought
        dialogue = _Dialogue(body=body.chat(), answer=answer, thoughts=thoughts, ignored=body.ignored())
        return await self._answer(http, raw, dialogue)

    async def responses(self, http: Request) -> Response:
        raw = await self._body(http)
        body, name = read(ResponsesRequest, raw), f"resp_{uuid.uuid4().hex}"
        session_id, messages = None, body.messages()
        if body.previous_response_id is not None:
            session_id, before = self._previous(body.previous_response_id)
            messages = [*before, *messages]

        def answer(choices: list[ChatChoice], prompt: int) -> Answer:
            tokenizer = self._renderer.tokenizer if LOGPROBS in (body.include or ()) else None
            return ResponseAnswer(name, body, choices[0], tokenizer=tokenizer)

        def keep(session: Session, replied: Mapping[str, Any]) -> None:
            if body.store is not False:
                self._responses[name] = session.id, [*messages, dict(replied)]
                if len(self._responses) > _MAX_RESPONSES:
                    self._responses.popitem(last=False)

        dialogue = _Dialogue(
            body=body.chat(messages),
            answer=answer,
            thoughts=self._renderer.template.thought,
            ignored=body.ignored(),
            session_id=session_id,
            keep=keep,
        )
        return await self._answer(http, raw, dialogue)

    def _previous(self, name: str) -> tuple[str, Dictionaries]:
        if (known := self._responses.get(name)) is None:
            problem = f"unknown response {name!r:.80}; send the whole dialogue in input, without previous_response_id"
            raise ApiError(400, problem, param="previous_response_id", code="previous_response_not_found")
        return known

    async def count_tokens(self, http: Request) -> Response:
        raw = await self._body(http)
        body = read(CountRequest, raw).chat()
        self._check_model(body)
        position, tools = self._position(http, body)
        return Json({"input_tokens": len(await self._off_loop(raw, lambda: self._prompt(position, tools)))})

    def _position(
        self, http: Request, body: ChatRequest, session_id: str | None = None
    ) -> tuple[Position, Dictionaries]:
        messages, tools = to_dictionaries(body.messages, body.tools)
        session_id = self.settings.session or name_in_header(http, "X-Session-Id") or session_id
        task_id = self.settings.task_id or name_in_header(http, "X-Task-Id")
        return self.sessions.find(messages, tools, session_id=session_id, task_id=task_id), tools

    async def _answer(self, http: Request, raw: bytes, dialogue: _Dialogue) -> Response:
        body = dialogue.body
        self._check_model(body)
        self._check_wishes(body)
        with ExitStack() as held:
            held.enter_context(self.admission.enter(body.n))
            position, tools = self._position(http, body, dialogue.session_id)
            self._log_ignored(position.session, dialogue.ignored)
            held.enter_context(self.sessions.using(position))
            prompt = await self._off_loop(raw, lambda: self._prompt(position, tools))
            sampling = self._sampling(body, body.most, len(prompt), body.top_logprobs or 0, first=position.first_prompt)
            parses = bool(tools) and body.tool_choice != "none"
            choices = [
                ChatChoice(
                    index,
                    self._text(body, special_tokens=parses and self._tools.special_tokens),
                    calls=(self._tools.parser(tools), self._tools.openings(tools)) if parses else None,
                    opened=self._renderer.template.opened,
                    thoughts=dialogue.thoughts,
                    several=body.parallel_tool_calls is not False,
                    tokenizer=self._renderer.tokenizer if body.logprobs else None,
                )
                for index in range(body.n)
            ]
            plan = Plan(
                answer=dialogue.answer(choices, len(prompt)),
                requests=_turn_requests(prompt, sampling, body.n, _state(prompt, position, self.settings.env_id)),
                stream=bool(body.stream),
                on_turn=lambda index, turn: dialogue.keep(*self._keep(position, turn, choices[index].parsed(turn))),
                headers={"X-Session-Id": position.session.id},
            )
            return await self._answering.answer(http, plan, held.pop_all())

    def _keep(self, position: Position, turn: SampledTurn, parsed: ReadTurn) -> tuple[Session, Mapping[str, Any]]:
        content, thought, calls, ids = parsed
        node = self.sessions.add(position, turn, content, calls, ids, thought=thought)
        self.paths.keep(node.session)
        return node.session, node.replied

    def _check_wishes(self, body: ChatRequest) -> None:
        for field, problem in body.wishes():
            if field not in self.settings.wishes:
                hint = f"or start the server with --wish {field}, which accepts the field without obeying it"
                raise ApiError(400, f"{problem}; leave the field out, {hint}", param=field, code="unsupported_value")
            self.metrics.add("wishes_total", field=field)

    @staticmethod
    def _log_ignored(session: Session, fields: Iterable[str]) -> None:
        for field in fields:
            if field not in session.ignored:
                session.ignored.add(field)
                logger.warning("session %s: the field %s has no effect on this server", session.id, field)

    def _log_resemblance(self, new: str, old: str) -> None:
        self.metrics.add("sessions_resembling_total")
        logger.warning(
            "the new session %s resembles session %s, whose history its client may have changed; a reward for one of "
            "them does not reach the other; to keep them in one session, send the header X-Session-Id",
            new,
            old,
        )

    async def complete(self, http: Request) -> Response:
        raw = await self._body(http)
        body = read(CompletionRequest, raw)
        self._check_model(body)
        with ExitStack() as held:
            held.enter_context(self.admission.enter(body.n * len(body.prompts)))
            prompts = await self._off_loop(raw, lambda: [self._prompt_tokens(prompt) for prompt in body.prompts])
            requests: list[TurnRequest] = []
            for prompt in prompts:
                requests += _turn_requests(
                    prompt, self._sampling(body, body.max_tokens, len(prompt), body.logprobs or 0), body.n
                )
            tokenizer = self._renderer.tokenizer if body.logprobs is not None else None
            choices = [TextChoice(index, self._text(body), tokenizer) for index in range(len(requests))]
            answer = Choices("text_completion", body.model, choices, **_streamed(body))
            plan = Plan(answer=answer, requests=requests, stream=bool(body.stream))
            return await self._answering.answer(http, plan, held.pop_all())

    async def models(self, http: Request) -> Response:
        return Json({"object": "list", "data": [self._model(name) for name in self._names]})

    async def one_model(self, http: Request) -> Response:
        if (name := http.path_params["name"]) not in self._names:
            raise self._no_model(name)
        return Json(self._model(name))

    async def health(self, http: Request) -> Response:
        closing = self.admission.closing
        return Json({"status": "closing" if closing else "ok"}, status_code=503 if closing else 200)

    async def show_metrics(self, http: Request) -> Response:
        text = self.metrics.text(turns_running=self.admission.in_use, sessions=len(self.sessions.live))
        return Response(text, media_type="text/plain; version=0.0.4")

    async def _body(self, http: Request) -> bytes:
        return await read_body(http, most=self.settings.max_body, seconds=self.settings.read_seconds)

    def _check_model(self, body: SamplingFields) -> None:
        if body.model not in self._names:
            raise self._no_model(body.model)

    def _no_model(self, name: str) -> ApiError:
        problem = f"unknown model {name!r:.80}; this server's model is {self.settings.model!r}"
        hint = f"; to accept the name, start the server with another --name {name:.80}"
        return ApiError(404, problem + hint, param="model", code="model_not_found")

    def _model(self, name: str) -> dict[str, Any]:
        size = self.settings.max_context
        return {"id": name, "object": "model", "created": self._created, "owned_by": "turntree", "max_model_len": size}

    async def _off_loop(self, raw: bytes, work: Callable[[], Any]) -> Any:
        # Tokenising a long body would block every other request.
        return work() if len(raw) < _LONG_BODY else await asyncio.to_thread(work)

    def _prompt(self, position: Position, tools: Dictionaries) -> tuple[int, ...]:
        given = [dict(message) for message in position.given]
        try:
            if position.parent is None:
                messages, schemas = self._tools.rendered(given, tools)
                return self._renderer.initial(_checked(messages), schemas)
            before = position.parent.turn
            added = _checked(self._tools.added(given, tools))
            return self._renderer.extend(before.prompt_ids, before.completion.token_ids, added)
        except (RenderError, ValueError) as error:
            # ValueError: the tool call format cannot express a call of an earlier message.
            raise ApiError(400, str(error), param="messages", code="invalid_value") from error

    def _prompt_tokens(self, prompt: str | list[int]) -> tuple[int, ...]:
        if not isinstance(prompt, str):
            return tuple(prompt)
        tokens = tuple(self._renderer.tokenizer(prompt, add_special_tokens=True)["input_ids"])
        if not tokens:
            raise ApiError(400, "the prompt has no tokens; send some text", param="prompt")
        return tokens

    def _text(self, body: SamplingFields, *, special_tokens: bool = False) -> TurnText:
        # If tool call marks are special tokens, decoding shows them, so the end-of-turn token is removed here.
        ends = frozenset(self._renderer.stop_token_ids if special_tokens else ())

        def decode(tokens: Any) -> str:
            visible = [token for token in tokens if token not in ends] if ends else tokens
            return self._renderer.decode(visible, special_tokens=special_tokens)

        return TurnText(decode, body.stop or (), byte=self._byte)

    def _sampling(
        self, body: SamplingFields, most: int | None, prompt: int, top: int, *, first: int | None = None
    ) -> Sampling:
        token_limit = self.settings.max_context - prompt
        if self.settings.max_response is not None:
            # The response limit counts from the first prompt of the dialogue.
            token_limit = min(token_limit, (prompt if first is None else first) + self.settings.max_response - prompt)
        if token_limit < 1:
            raise ApiError(
                400,
                # Anthropic's clients look for the first words, OpenAI's for "maximum context length".
                f"prompt is too long: {prompt} tokens; the maximum context length is {self.settings.max_context} "
                "tokens; shorten the prompt",
                param="messages" if isinstance(body, ChatRequest) else "prompt",
                code=CONTEXT_FULL,
            )
        return body.sampling(stops=self._renderer.stop_token_ids, most=min(token_limit, most or token_limit), top=top)


def _streamed(body: SamplingFields) -> dict[str, Any]:
    options = body.stream_options
    usage = options is not None and options.include_usage is True
    return {"n": body.n, "stream": bool(body.stream), "usage": usage}


def _state(prompt: tuple[int, ...], position: Position, env_id: str) -> DialogueState:
    return dialogue_state(prompt, task_id=position.session.task_id, calls=position.calls, env_id=env_id)


def _turn_requests(
    prompt: tuple[int, ...], sampling: Sampling, n: int, state: DialogueState | None = None
) -> list[TurnRequest]:
    seeds = [sampling.seed if not i or sampling.seed is None else derive_seed(sampling.seed, i) for i in range(n)]
    return [TurnRequest(prompt, replace(sampling, seed=seed), state=state) for seed in seeds]


def _checked(messages: Dictionaries) -> Dictionaries:
    if problem := half_in(messages):
        raise ValueError(problem)
    return messages


def make_app(gateway: Gateway) -> Starlette:
    metrics = gateway.metrics

    def answered(path: str, status: int, seconds: float) -> None:
        metrics.add("requests_total", path=path, status=status)
        metrics.request_seconds.add(seconds)

    routes = Routes(gateway.settings, answered=answered, gone=metrics.add_gone)
    routes.add("/v1/chat/completions", gateway.chat, method="POST")
    routes.add("/v1/completions", gateway.complete, method="POST")
    routes.add("/v1/responses", gateway.responses, method="POST", dialect=RESPONSES)
    routes.add("/v1/messages", gateway.messages, method="POST", dialect=ANTHROPIC)
    routes.add("/v1/messages/count_tokens", gateway.count_tokens, method="POST", dialect=ANTHROPIC)
    routes.add("/v1/models", gateway.models, method="GET")
    routes.add("/v1/models/{name:path}", gateway.one_model, method="GET")
    routes.add("/health", gateway.health, method="GET", open_to_all=True)
    routes.add("/metrics", gateway.show_metrics, method="GET")
    # The creator of the single session ends it.
    if gateway.settings.session is not None:
        return routes.app()
    routes.add("/v1/sessions/{session:path}/reward", gateway.paths.reward, method="POST")
    routes.add("/v1/sessions/{session:path}", gateway.paths.show, method="GET")
    routes.add("/v1/sessions/{session:path}", gateway.paths.end, method="DELETE")
    return routes.app()
