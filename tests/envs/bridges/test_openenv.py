import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from bridge_results import require_result
from machine_speed import patience
from playing import play

from turntree.envs.bridges.openenv import OpenEnv

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def kinds() -> tuple[Any, Any, Any]:
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import Action, Observation, State

    class Say(Action):  # type: ignore[misc]
        text: str

    class Heard(Observation):  # type: ignore[misc]
        text: str

    class Echo(Environment):  # type: ignore[misc]
        SUPPORTS_CONCURRENT_SESSIONS = True

        def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Any:
            return Heard(text=f"seed {seed}")

        def step(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Any:
            over = action.text == "end"
            return Heard(text=f"heard {action.text}", done=over, reward=1.0 if over else 0.0)

        @property
        def state(self) -> Any:
            return State()

    return Say, Heard, Echo


@pytest.fixture(scope="module")
def address(kinds: Any) -> Iterator[str]:
    import uvicorn
    from openenv.core.env_server.http_server import create_fastapi_app

    action, observation, environment = kinds
    app = create_fastapi_app(environment, action, observation)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        time.sleep(0.05)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(patience(30))


def test_an_environment_in_this_process(kinds: Any) -> None:
    say, _, environment = kinds

    def make() -> OpenEnv:
        return OpenEnv(environment, to_action=lambda text: say(text=text), to_text=lambda heard: str(heard.text))

    steps = play(make(), ["hi", "end"], 3)
    assert [step[:3] for step in steps] == [("heard hi", 0.0, False), ("heard end", 1.0, True)]
    assert make().reset(options={"index": 3})[0] == "seed 3"


def test_an_environment_behind_their_server(address: str) -> None:
    from openenv.core.generic_client import GenericEnvClient

    env = OpenEnv(
        lambda: GenericEnvClient(base_url=address).sync(),
        to_action=lambda text: {"text": text},
        to_text=lambda heard: str(heard["text"]),
    )
    assert env.reset(options={"index": 5})[0] == "seed 5"
    assert [env.step(text)[:3] for text in ("hi", "end")] == [("heard hi", 0.0, False), ("heard end", 1.0, True)]
    env.close()
    require_result("openenv", "rewards, ends and seeds equal theirs, in this process and with their server")


def test_a_server_that_is_gone_is_a_failure_and_no_reward() -> None:
    from openenv.core.generic_client import GenericEnvClient

    class Lost:
        def __init__(self) -> None:
            self.client = GenericEnvClient(base_url="http://127.0.0.1:9", connect_timeout_s=1).sync()

        def reset(self, seed: int) -> Any:
            return {"text": "hello"}

        def step(self, action: Any) -> Any:
            return self.client.step(action)

    env = OpenEnv(Lost, to_action=lambda text: {"text": text}, to_text=lambda heard: str(heard["text"]))
    assert play(env, ["hi"])[0][4]["stop_reason"] == "failure"
