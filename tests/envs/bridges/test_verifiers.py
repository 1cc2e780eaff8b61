from pathlib import Path
from typing import Any

import pytest
from bridge_results import require_result
from playing import call, play, use

from turntree.envs import make, require_conformance
from turntree.envs.bridges.verifiers import Verifiers
from turntree.envs.errors import DataError, SnapshotError

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def tasksets() -> dict[str, Any]:
    from verifiers_tasks import tasksets

    return tasksets()


def test_a_task_scores_as_in_verifiers_itself(tasksets: Any) -> None:
    env = Verifiers(tasksets["sums"])
    assert [play(env, [answer])[-1][1] for answer in ("4", "5", "not four")] == [2.5, 0.5, 0.0]
    env.reset(options={"index": 0})
    assert env.step("<think>5?</think>4")[4]["rewards"] == {"exact": 2.0, "short": 0.5, "turns": 1.0}


async def test_scores_that_are_coroutines_work_inside_a_running_loop(tasksets: Any) -> None:
    assert play(Verifiers(tasksets["sums"]), ["4"])[-1][1] == 2.5


def test_prompts_keep_their_system_message_and_their_parts(tasksets: Any) -> None:
    env = Verifiers(tasksets["sums"])
    shown = [[(m["role"], m["content"]) for m in env.reset(options={"index": at})[1]["messages"]] for at in (0, 1)]
    assert shown == [[("system", "Be brief."), ("user", "2+2?")], [("user", "3+\n3?")]]
    own = Verifiers(tasksets["sums"], system_prompt="Think.")
    assert own.reset(options={"index": 0})[1]["messages"][0]["content"] == "Think."
    assert len(own.messages) == 2


def test_tools_share_the_state_that_rewards_read(tasksets: Any) -> None:
    env = Verifiers(tasksets["words"], seconds=300)
    _, info = env.reset(options={"index": 1})
    (shown,) = info["tools"]
    assert (shown["function"]["name"], shown["function"]["description"]) == (
        "words_look",
        "Look at a letter of the word.",
    )
    assert [use(env, "words_look", index=index) for index in range(3)] == ["y", "e", "s"]
    assert env.step("yes")[1] == 1.0
    env.reset(options={"index": 0})
    assert use(env, "words_look", index=0) == "n"
    with pytest.raises(SnapshotError, match="server of their own"):
        env.snapshot()
    assert env.step("no")[1] == 1.0
    env.close()


def test_a_mistake_with_a_tool_is_told_and_counts_and_calls_are_written_as_the_parser_reads_them(tasksets: Any) -> None:
    env = Verifiers(tasksets["words"], seconds=300)
    env.reset(options={"index": 0})
    assert "the word ends before" in use(env, "words_look", index=7)
    assert "index" in use(env, "words_look")
    answer = env.step("no")
    assert (answer[1], answer[4]["failure"]) == (0.0, "")  # asked twice, told nothing
    env.close()
    env = Verifiers(tasksets["words"], seconds=300, tool_format="llama3_json")
    env.reset(options={"index": 0})
    env.step(call(env, "words_look", index=0))
    env.step(call(env, "words_look", index=1))
    assert env.step("no")[1] == 1.0
    env.close()


def test_what_the_bridge_cannot_play_is_refused_and_a_reward_that_raises_is_a_failure(tasksets: Any) -> None:
    with pytest.raises(DataError, match="file needs a runtime; it needs a container"):
        Verifiers(tasksets["boxed"])
    env = Verifiers(tasksets["broken"])
    env.reset(options={"index": 0})
    info = env.step("4")[4]
    assert "division by zero" in info["failure"]


def test_it_keeps_the_rules(tasksets: Any) -> None:
    require_conformance(lambda: Verifiers(tasksets["sums"]))
    require_result("verifiers", "prompts, rewards, metrics and tools work; tasks that need a runtime are refused")


def test_an_installed_task_set_is_made_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sums_v1.py").write_text("from verifiers_tasks import Sums\n__all__ = ['Sums']\n")
    monkeypatch.syspath_prepend(tmp_path)
    env = make("verifiers:sums-v1")
    assert (env.num_tasks, env.task(0).id) == (2, "sums-v1/0")
    assert play(env, ["4"])[-1][1] == 2.5
    with pytest.raises(DataError, match="verifiers:sums-v2 cannot be loaded"):
        make("verifiers:sums-v2")
    with pytest.raises(DataError, match="verifiers:sums-v1 cannot be loaded"):
        make("verifiers:sums-v1", config={"no_such_field": 1})
