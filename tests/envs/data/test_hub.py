import logging
import socket
from collections.abc import Iterator
from threading import Event

import pytest

from turntree.envs import DataError
from turntree.envs.data import hub
from turntree.envs.data.hub import hub_asked_once
from turntree.envs.data.rows import find_rows

constants = pytest.importorskip("huggingface_hub.constants", reason="the hub needs the extra turntree[data]")


@pytest.fixture(autouse=True)
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def address(of: socket.socket) -> str:
    return f"http://127.0.0.1:{of.getsockname()[1]}"


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub that nobody listens for."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        monkeypatch.setattr(constants, "ENDPOINT", address(listening))


def test_a_hub_that_answers_is_asked(server: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", address(server))
    with hub_asked_once() as alone:
        assert alone is None
        assert not constants.HF_HUB_OFFLINE


def test_while_the_hub_cannot_be_reached_its_client_keeps_to_the_cache(closed: None) -> None:
    with hub_asked_once() as alone:
        assert alone is not None
        assert "cannot be reached (127.0.0.1: Connection refused)" in alone
        assert constants.HF_HUB_OFFLINE
    assert not constants.HF_HUB_OFFLINE, "another time it may be there again"


def test_a_client_that_was_told_to_stay_off_line_is_left_so(closed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with hub_asked_once() as alone:
        assert "HF_HUB_OFFLINE is set" in str(alone)
    assert constants.HF_HUB_OFFLINE


def test_behind_a_proxy_the_proxy_is_what_must_answer(closed: None, server: socket.socket, monkeypatch) -> None:
    monkeypatch.setenv("http_proxy", address(server))
    monkeypatch.setattr(constants, "ENDPOINT", "http://hub.invalid")
    with hub_asked_once() as alone:
        assert alone is None


def test_a_name_that_is_searched_for_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = Event()

    def search(*_: object) -> None:
        ended.wait()
        raise OSError

    monkeypatch.setattr(hub, "_PATIENCE", 0.1)
    monkeypatch.setattr(hub.socket, "create_connection", search)
    with hub_asked_once() as alone:
        assert "no answer in" in str(alone)
    ended.set()


def test_a_data_set_of_a_hub_off_line_is_refused_in_one_line_at_once(closed: None, caplog) -> None:
    pytest.importorskip("datasets", reason="the hub needs the extra turntree[data]")
    said = r"cannot be reached .* not in the cache; to read a file instead"
    with caplog.at_level(logging.WARNING), pytest.raises(DataError, match=said) as it:
        list(find_rows("nobody/nothing", split="test").read())
    assert "\n" not in str(it.value)
    assert "Retrying" not in caplog.text, "the control: the client's own six tries"
