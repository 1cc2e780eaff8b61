import json
import subprocess
import sys
from pathlib import Path

import pytest
from client_results import require_result
from machine_speed import patience
from spoken_server import MODEL, gold, question, spoken_server

from turntree.agents.episodes.record import read_episodes

pytestmark = pytest.mark.interop
AGENT = '''
import asyncio, json, sys
from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

set_tracing_disabled(True)


@function_tool
def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


@function_tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


MODELS = {"chat": OpenAIChatCompletionsModel, "responses": OpenAIResponsesModel}


async def main(url, model, api, questions):
    client = AsyncOpenAI(base_url=url, api_key="none")
    agent = Agent(
        name="sums",
        instructions="Use the tools.",
        tools=[multiply, add],
        model=MODELS[api](model=model, openai_client=client),
    )
    said = []
    for number, question in enumerate(questions):
        if number % 2:
            run = Runner.run_streamed(agent, question)
            async for _ in run.stream_events():
                pass
        else:
            run = await Runner.run(agent, question)
        said.append(run.final_output)
    print(json.dumps(said))


url, model, api, questions = sys.argv[1:]
asyncio.run(main(url, model, api, json.loads(questions)))
'''


def play(url: str, api: str, numbers: list[int], folder: Path) -> list[str]:
    program = folder / "agent.py"
    program.write_text(AGENT)
    command = [sys.executable, str(program), url, MODEL, api, json.dumps([question(one) for one in numbers])]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=patience(120), check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return list(json.loads(ran.stdout.splitlines()[-1]))


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_an_agent_with_two_tools_is_one_session_and_one_episode_a_dialogue(api: str, tmp_path: Path) -> None:
    with spoken_server(tmp_path) as server:
        result = play(server.url, api, [0, 1, 2, 3], tmp_path)
        server.end()
    assert [text.rsplit("#### ", 1)[1] for text in result] == [str(gold(number)) for number in range(4)]
    (path,) = (server.record / "episodes").iterdir()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    episodes = list(read_episodes(path))
    assert len(episodes) == len({line["session_id"] for line in lines}) == 4
    assert [line["origin"] for line in lines] == ["began"] * 4
    for episode, text in zip(episodes, result, strict=True):
        assert [message.role for message in episode.messages] == (
            ["system", "user", "assistant", "tool", "assistant", "tool", "assistant"]
        )
        assert episode.turns[-1].text == text
        for before, after in zip(episode.turns, episode.turns[1:], strict=False):  # nothing is rendered again
            sampled = (*before.prompt_ids, *before.completion.token_ids)
            assert tuple(after.prompt_ids[: len(sampled)]) == sampled
    require_result(
        "openai-agents", f"{len(episodes)} of 4 dialogues are one session and one episode each, token ids as sampled"
    )
