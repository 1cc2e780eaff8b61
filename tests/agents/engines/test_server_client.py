import random
import socket

import pytest

from turntree.agents.engines.server_client import free_port


def test_a_port_in_use_is_not_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    free = free_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(random.SystemRandom, "sample", lambda *_: [port, free])
        assert free_port() == free
        monkeypatch.setattr(random.SystemRandom, "sample", lambda *_: [port])
        with pytest.raises(OSError, match="none of 100 ports between 20000 and 32000 was free"):
            free_port()
