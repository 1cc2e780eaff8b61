from collections.abc import Iterator
from typing import Any

import pytest
from bridge_results import require_result
from playing import Shop, call

from turntree.envs import make
from turntree.envs.bridges.libraries import EpisodeFailure
from turntree.envs.bridges.skyrl import skyrl_environment

pytestmark = pytest.mark.interop


@pytest.fixture
def registry() -> Iterator[Any]:
    from skyrl_gym.envs import registration

    yield registration
    registration.registry.pop("ours", None)


def test_an_episode_of_the_catalogue_from_their_registry(registry: Any) -> None:
    registry.register("ours", entry_point=skyrl_environment(lambda: make("turntree/Arithmetic-v0")))
    own = make("turntree/Arithmetic-v0")
    own.reset(options={"index": 4})
    env = registry.make("ours", env_config=None, extras={"extra_info": {"index": 4}})
    prompt, _ = env.init([{"role": "user", "content": "replaced"}])
    assert prompt == [message.to_openai() for message in own.messages]
    last = env.step(f"#### {own.current_task.answer}")
    assert (last["reward"], last["done"], last["observations"]) == (1.0, True, [])
    assert env.get_metrics() == {}
    env.close()


def test_tools_answer_mistakes_are_told_and_a_failure_is_raised(registry: Any) -> None:
    env = skyrl_environment(Shop)(extras={"index": 3})
    _, described = env.init([])
    assert described["tools"][0]["function"]["name"] == "price"
    heard = [env.step(call(Shop(), "price", item=item)) for item in ("pens", "air")]
    assert [step["observations"][0]["content"] for step in heard] == ["4", "Error: not for sale"]
    assert [step["done"] for step in heard] == [False, False]
    require_result("skyrl-gym", "ours work in their registry: prompts, tools, rewards are equal, failures are raised")
    env = skyrl_environment(Shop)(extras={"index": 3})
    env.init([])
    with pytest.raises(EpisodeFailure, match="OSError: gone"):
        env.step(call(Shop(), "price", item="bomb"))
