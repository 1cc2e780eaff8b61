"""Bounds and names of a gateway."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from turntree.agents.errors import UsageError
from turntree.envs.parsers import get_parser

NEEDS_KEY = "can be reached from other machines, so that --api-key is needed; without a key listen at 127.0.0.1"
"""What is wrong with an address where no key is asked for."""
ENV_ID = "gateway"
"""The environment of all sessions: whatever program talks to the gateway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """What a gateway serves, to whom, and how much at once."""

    model: str
    """Name of the model, as requests give it."""
    max_context: int
    """Most tokens of prompt and response together, as the engine has it."""
    host: str = "127.0.0.1"
    """Address to listen at; any but this machine's own needs a key."""
    port: int = 8000
    """Port; 0 takes a free one."""
    allowed_hosts: tuple[str, ...] = ()
    """Further names that the header Host may give a server at this machine's own address, ``*`` any: a name that it
    does not have may be one that DNS was made to lead a browser here by."""
    allowed_origins: tuple[str, ...] = ()
    """Origins of pages that may ask from a browser, ``https://NAME[:PORT]``, beside the server's own; ``*`` any."""
    api_key: str | None = None
    """The bearer token that requests must bring; ``None`` asks for none."""
    max_requests: int = 64
    """Turns that are sampled or wait for the engine at the same time; a further one is answered 429."""
    max_body: int = 1 << 20
    """Largest body of a request, bytes."""
    seconds: float = 600.0
    """Time limit of an answer."""
    read_seconds: float = 20.0
    """Time in which a request must have arrived, and in which a client must take what is sent to it."""
    grace_seconds: float = 10.0
    """Time that running answers are given when the server ends."""
    tool_format: str | None = None
    """How the policy writes tool calls, a name of ``get_parser``; ``None`` follows the model's chat template."""
    record: Path | None = None
    """Folder of the run in which sessions are recorded as episodes; ``None`` records none."""
    max_sessions: int = 1024
    """Sessions held at once; the one that was idle longest ends for a further one."""
    session_seconds: float = 3600.0
    """Time after which an idle session ends."""
    session: str | None = None
    """The one session of all requests, which none of them ends; ``None`` tells sessions apart."""
    task_id: str | None = None
    """The task of all requests; ``None`` takes each session's own."""
    env_id: str = ENV_ID
    """The environment that drafts are keyed by."""
    max_response: int | None = None
    """Most tokens of a dialogue after its first prompt; ``None`` bounds prompt and response together alone."""

    def __post_init__(self) -> None:
        for name in ("max_context", "max_requests", "max_body", "max_sessions"):
            if getattr(self, name) < 1:
                raise ValueError(f"GatewaySettings.{name} must be at least 1, got {getattr(self, name)}")
        for name in ("seconds", "read_seconds", "session_seconds"):
            if not getattr(self, name) > 0:
                raise ValueError(f"GatewaySettings.{name} must be positive, got {getattr(self, name)}")
        if self.tool_format is not None:
            get_parser(self.tool_format)
        if self.api_key is None and not is_own(self.host):
            raise UsageError(f"--host {self.host} {NEEDS_KEY}")
        if self.api_key is not None and not (self.api_key.isascii() and self.api_key.strip()):
            raise UsageError("--api-key must be printable ASCII, and not empty")


def is_own(host: str) -> bool:
    """Whether an address is this machine's alone."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
