from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from turntree.agents.errors import UsageError
from turntree.envs.parsers import get_parser

NEEDS_KEY = "can be reached from other machines and needs --api-key; without a key, listen on 127.0.0.1"
WISHES = ("tool_choice", "response_format")  #: fields that constrain what is sampled
ENV_ID = "gateway"  #: environment id of all sessions


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """The model that a gateway serves, who may send requests, and the limits."""

    model: str
    """Model name in requests and answers."""
    other_names: tuple[str, ...] = ()
    """Further names under which clients may request the model, such as those of an agent's smaller models."""
    wishes: tuple[str, ...] = ()
    """Fields of ``WISHES`` that are accepted and counted, but not obeyed; otherwise such a request gets status 400."""
    max_context: int
    """Most tokens of prompt and response together."""
    host: str = "127.0.0.1"
    """Address to listen on; any address but loopback needs an API key."""
    port: int = 8000
    """Port; 0 picks a free port."""
    allowed_hosts: tuple[str, ...] = ()
    """Extra values of the Host header on a loopback address (DNS rebinding); ``*`` allows any."""
    allowed_origins: tuple[str, ...] = ()
    """Origins of browser pages that may send requests, ``https://NAME[:PORT]``; ``*`` allows any."""
    api_key: str | None = None
    """Bearer token that requests must carry; ``None`` disables the check."""
    max_requests: int = 64
    """Turns that are sampled or queued at once; further requests get status 429."""
    max_body: int = 1 << 20
    """Largest request body in bytes."""
    seconds: float = 600.0
    """Time limit of a response."""
    read_seconds: float = 20.0
    """Time limit for a client to send its request, and to read the response."""
    grace_seconds: float = 10.0
    """Time that running responses have during shutdown."""
    tool_format: str | None = None
    """Tool call format, a name of ``get_parser``; ``None`` follows the chat template."""
    record: Path | None = None
    """Run folder in which sessions are recorded as episodes; ``None`` records nothing."""
    max_sessions: int = 1024
    """Sessions held at once; a further session ends the session that was idle longest."""
    session_seconds: float = 3600.0
    """Time after which an idle session ends."""
    session: str | None = None
    """Single session of all requests, which no request can end; ``None`` allows several sessions."""
    task_id: str | None = None
    """Task of all requests; ``None`` takes each session's own task."""
    env_id: str = ENV_ID
    """Environment id that drafts are keyed by."""
    max_response: int | None = None
    """Most tokens of a dialogue after its first prompt; ``None`` applies only ``max_context``."""

    def __post_init__(self) -> None:
        for name in ("max_context", "max_requests", "max_body", "max_sessions"):
            if getattr(self, name) < 1:
                raise ValueError(f"GatewaySettings.{name} must be at least 1, got {getattr(self, name)}")
        for name in ("seconds", "read_seconds", "session_seconds"):
            if not getattr(self, name) > 0:
                raise ValueError(f"GatewaySettings.{name} must be positive, got {getattr(self, name)}")
        if unknown := [wish for wish in self.wishes if wish not in WISHES]:
            raise UsageError(f"--wish takes {' and '.join(WISHES)}, got {', '.join(unknown)!r:.80}")
        if self.tool_format is not None:
            get_parser(self.tool_format)
        if self.api_key is None and not is_own(self.host):
            raise UsageError(f"--host {self.host} {NEEDS_KEY}")
        if self.api_key is not None and not (self.api_key.isascii() and self.api_key.strip()):
            raise UsageError("--api-key must be printable ASCII, and not empty")


def is_own(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
