import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from bridge_results import require_result
from chat_tokenizers import chatml_tokenizer
from playing import Shop, call

from turntree.agents.engines.scripted import ScriptedEngine
from turntree.agents.episodes.record import episode_to_dict
from turntree.agents.evaluation.evaluate import evaluate
from turntree.agents.loop.renderer import Renderer
from turntree.envs import make
from turntree.envs.bridges.inspect_ai import inspect_task, write_inspect_log

pytestmark = pytest.mark.interop
arithmetic = partial(make, "turntree/Arithmetic-v0")


@pytest.fixture(scope="module")
def outputs() -> Callable[..., list[Any]]:
    # Outputs of Inspect's mock model: texts, and calls as pairs of a name and arguments.
    from inspect_ai.model import ModelOutput, ModelUsage

    def said(*turns: Any) -> list[Any]:
        found = [
            ModelOutput.from_content("mockllm", turn)
            if isinstance(turn, str)
            else ModelOutput.for_tool_call("mockllm", *turn)
            for turn in turns
        ]
        for output in found:  # counted by Inspect itself, they would need a download
            output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
        return found

    return said


def run(task: Any, turns: list[Any], folder: Path) -> Any:
    import inspect_ai
    from inspect_ai.model import get_model

    model = get_model("mockllm/model", custom_outputs=turns)
    (log,) = inspect_ai.eval(task, model=model, log_dir=str(folder), display="none", max_samples=1)
    return log


def test_a_task_of_theirs_calls_our_tools_and_scores_our_rewards(outputs: Any, tmp_path: Path) -> None:
    gold = arithmetic().task(3).answer
    turns = outputs(("calculator", {"expression": "6*7"}), f"#### {gold}", "#### nothing")
    log = run(inspect_task(arithmetic, [3, 4]), turns, tmp_path)
    assert (log.status, log.results.scores[0].metrics["mean"].value) == ("success", 0.5)
    first = log.samples[0]
    assert [(m.role, m.text) for m in first.messages[-3:]] == [
        ("assistant", "tool call for tool calculator"),
        ("tool", "42"),
        ("assistant", f"#### {gold}"),
    ]
    assert first.messages[-2].tool_call_id == first.messages[-3].tool_calls[0].id
    assert (first.scores["reward"].value, first.target) == (1.0, gold)


def test_a_wrong_call_is_told_to_their_model_and_a_failure_is_an_error_and_no_score(
    outputs: Any, tmp_path: Path
) -> None:
    turns = outputs(("calculator", {}), ("calcul", {"expression": "1"}), "#### nothing")
    log = run(inspect_task(arithmetic, [3]), turns, tmp_path)
    told = [message.text for message in log.samples[0].messages if message.role == "tool"]
    assert ["needs the argument" in told[0], "no tool" in told[1]] == [True, True]
    log = run(inspect_task(Shop, [0]), outputs(("price", {"item": "bomb"})), tmp_path)
    assert log.status == "error"
    assert "OSError: gone" in log.samples[0].error.message
    assert not log.samples[0].scores


async def results() -> list[dict[str, Any]]:
    # Rows as an evaluation writes them: one solved task, one unsolved, one failed.
    tokenizer = chatml_tokenizer()
    gold = arithmetic().task(0).answer
    engine = ScriptedEngine(lambda prompt: f"#### {gold}", tokenizer)
    episodes = await evaluate(arithmetic, engine, Renderer(tokenizer), [0, 1], concurrency=1)
    bomb = call(Shop(), "price", item="bomb")
    lost = await evaluate(Shop, ScriptedEngine(lambda prompt: bomb, tokenizer), Renderer(tokenizer), [2])
    rows = [{"index": at, "sample": 0, "episode": episode_to_dict(e)} for at, e in enumerate([*episodes, *lost])]
    return [json.loads(json.dumps(row)) for row in rows]


async def test_results_of_ours_are_read_as_a_log_and_served_by_the_viewer(tmp_path: Path) -> None:
    from inspect_ai._view.fastapi_server import view_server_app
    from inspect_ai.log import read_eval_log
    from starlette.testclient import TestClient

    path = write_inspect_log(await results(), tmp_path / "ours.eval", task="Arithmetic", model="tiny")
    log = read_eval_log(str(path))
    assert (log.status, log.results.total_samples, log.results.completed_samples) == ("success", 3, 2)
    solved, missed, lost = sorted(log.samples, key=lambda sample: sample.metadata["index"])
    assert [solved.scores["reward"].value, missed.scores["reward"].value, lost.scores] == [1.0, 0.0, None]
    assert "OSError: gone" in lost.error.message
    assert log.results.scores[0].metrics["mean"].value == 0.5
    assert [message.role for message in solved.messages] == ["system", "user", "assistant"]
    viewer = TestClient(view_server_app(default_dir=str(tmp_path)))
    assert "ours.eval" in viewer.get("/log-files").text
    shown = viewer.get(f"/logs/{path}").json()
    assert (shown["eval"]["task"], len(shown["samples"])) == ("Arithmetic", 3)
    found = "ours run as their tasks: tools, rewards, failures as errors; Inspect reads and serves our results as logs"
    require_result("inspect-ai", found)


def test_a_log_that_the_viewer_would_not_list_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must end with \.eval"):
        write_inspect_log([], tmp_path / "ours.json", task="Arithmetic", model="tiny")
