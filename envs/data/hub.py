"""Notice at once that the Hugging Face hub cannot be reached, and read the cache instead.

Without this module, the hub's client would retry six times per file (about 25 seconds) and warn at each retry.
"""

from __future__ import annotations

import importlib
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

_PATIENCE = 5.0  #: seconds to resolve the hub's host name and connect
_PORTS = {"http": 80, "https": 443}


@contextmanager
def hub_asked_once() -> Iterator[str | None]:
    """Try one connection to the hub; if it fails, the hub's client reads only its cache inside ``with``.

    Yields:
        The reason why only the cache is read; ``None`` if the hub can be reached.
    """
    constants: Any = importlib.import_module("huggingface_hub.constants")
    if constants.HF_HUB_OFFLINE:
        yield "the Hugging Face hub is not asked, as HF_HUB_OFFLINE is set"
        return
    why = _unreachable(constants.ENDPOINT)
    if why is None:
        yield None
        return
    clients: list[Any] = [constants, *(sys.modules[name] for name in ("datasets.config",) if name in sys.modules)]
    for client in clients:
        client.HF_HUB_OFFLINE = True
    try:
        yield f"the Hugging Face hub cannot be reached ({why})"
    finally:
        for client in clients:
            client.HF_HUB_OFFLINE = False


def _unreachable(endpoint: str) -> str | None:
    parts = urlsplit(endpoint)
    proxy = getproxies().get(parts.scheme)
    if proxy and not proxy_bypass(parts.hostname or ""):
        parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    host = parts.hostname or ""
    found = [f"no answer in {_PATIENCE:.0f} seconds"]

    def connect() -> None:
        try:
            socket.create_connection((host, parts.port or _PORTS.get(parts.scheme, 443)), _PATIENCE).close()
            found.append("")
        except OSError as error:
            found.append(error.strerror or str(error) or type(error).__name__)

    asking = Thread(target=connect, daemon=True)  # a thread, because resolving a host name has no timeout
    asking.start()
    asking.join(_PATIENCE)
    return f"{host}: {found[-1]}" if found[-1] else None
