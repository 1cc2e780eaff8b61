"""In-process gateways that answer real HTTP, and an engine whose turns a test writes and holds back."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import httpx
from machine_speed import eventually, patience

from turntree.agents.engines.protocol import Completion, DraftStats, FinishReason, TurnRequest
from turntree.agents.gateway.app import Gateway, make_app
from turntree.agents.gateway.http.server import listen, run
from turntree.agents.gateway.http.settings import GatewaySettings
from turntree.agents.loop.renderer import Renderer


@dataclass
class SpokenEngine:
    """Sample ``say(prompt)``, several tokens per step."""

    tokenizer: Any
    say: Callable[[str], str] = lambda prompt: "four"
    held: bool = False  #: turns stop before their last token until this is false or they are cancelled
    steps: Sequence[int] = (1,)  #: tokens per step, one entry per turn in order
    watched: bool = True  #: shows tokens as they come, as the local engine does; servers of other engines do not
    live: int = 0
    asked: list[TurnRequest] = field(default_factory=list)
    error: Exception | None = None

    async def generate(self, request: TurnRequest) -> Completion:
        self.asked.append(request)
        self.live += 1
        try:
            return await self._turn(request)
        finally:
            self.live -= 1

    async def _turn(self, request: TurnRequest) -> Completion:
        if self.error is not None:
            raise self.error
        text = self.say(self.tokenizer.decode(list(request.prompt_ids)))
        tokens = [*self.tokenizer(text, add_special_tokens=False)["input_ids"], *request.sampling.stop_token_ids[:1]]
        said: list[int] = []
        reason = FinishReason.STOP
        step = self.steps[len(self.asked) % len(self.steps)]
        most = request.sampling.max_tokens
        if most < len(tokens):
            tokens, reason = tokens[:most], FinishReason.LENGTH
        while len(said) < len(tokens):
            while self.held and len(said) + step >= len(tokens):
                await asyncio.sleep(0.005)
            new = tokens[len(said) : len(said) + step]
            said += new
            if self.watched and request.watch is not None and request.watch(new):
                reason = FinishReason.STOP
                break
            await asyncio.sleep(0)
        stats = DraftStats(verify_steps=len(said), drafted=2, accepted=1)
        return Completion(
            token_ids=tuple(said),
            logprobs=(-0.5,) * len(said),
            finish_reason=reason,
            draft=stats,
            accepted=(False,) * len(said),
            cached_tokens=3,
        )


class Served(NamedTuple):
    url: str
    gateway: Gateway
    client: httpx.Client

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    def chat(self, *messages: Any, **fields: Any) -> httpx.Response:
        # A text becomes a user's message.
        said = [{"role": "user", "content": one} if isinstance(one, str) else one for one in messages]
        headers = fields.pop("headers", {})
        return self.client.post(
            "/v1/chat/completions", json={"model": "tiny", "messages": said, **fields}, headers=headers
        )

    def idle(self, seconds: float = 3.0) -> None:
        eventually(lambda: self.gateway.admission.in_use == 0, seconds)


@contextmanager
def gateway_at(engine: Any, renderer: Renderer, **fields: Any) -> Iterator[Served]:
    settings = GatewaySettings(**{"model": "tiny", "max_context": 256, "port": 0, "grace_seconds": 1.0, **fields})
    gateway = Gateway(engine, renderer, settings)
    ready, ended = threading.Event(), threading.Event()
    with listen(settings) as at:
        port = at.getsockname()[1]
        serving = run(make_app(gateway), settings, at, closing=ended.set, ready=ready.set, until=ended.is_set)
        thread = threading.Thread(target=asyncio.run, args=(serving,), daemon=True)
        thread.start()
        try:
            assert ready.wait(patience(20)), "the gateway does not answer"
            url = f"http://127.0.0.1:{port}"
            with httpx.Client(base_url=url, timeout=patience(30)) as client:
                yield Served(url, gateway, client)
        finally:
            ended.set()
            thread.join(patience(20))
            assert not thread.is_alive(), "the gateway does not end"
            gateway.paths.close_all()


def events(stream: str) -> list[dict[str, Any]]:
    lines = stream.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


def named_events(stream: str) -> list[dict[str, Any]]:
    """Return the events of a stream whose events have names."""
    found = []
    for block in stream.strip().split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        found.append(event)
    return found


def streamed(stream: str) -> str:
    deltas = [choice["delta"] for event in events(stream) for choice in event["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(answer: httpx.Response, index: int = 0) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    message: dict[str, Any] = answer.json()["choices"][index]["message"]
    return message
