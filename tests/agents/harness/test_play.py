import asyncio
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import hiding
import programs
import pytest
import stealing
from gateways import SpokenEngine
from machine_speed import eventually, patience, soon

from turntree.agents.engines.local import LocalEngine, LocalEngineConfig
from turntree.agents.engines.protocol import Sampling, TurnRequest
from turntree.agents.episodes.dialogue import dialogue_states
from turntree.agents.episodes.episode import Episode, StopReason
from turntree.agents.episodes.failures import PROGRAM_ERROR, program_error
from turntree.agents.episodes.record import episode_from_dict, episode_to_dict
from turntree.agents.episodes.token_view import TokenView
from turntree.agents.harness import supervisor
from turntree.agents.harness.env import HarnessEnv
from turntree.agents.harness.play import PROGRAM_ANSWER
from turntree.agents.harness.program import Assignment, CommandProgram
from turntree.agents.loop.renderer import Renderer
from turntree.agents.loop.rollout import rollout
from turntree.agents.verl.episodes.output import to_output
from turntree.envs import Limits
from turntree.envs.failure import FailureKind

COMMAND = [sys.executable, str(Path(programs.__file__))]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    programs.RELEASED.clear()
    programs.ANSWERS.clear()
    yield
    programs.RELEASED.set()


@pytest.fixture
def engine(chatml: Any) -> SpokenEngine:
    return SpokenEngine(chatml, say=lambda prompt: gold() if "sure" in prompt or "say" in prompt else "let me see")


def gold(index: int = 3) -> str:
    return f"#### {env('checks_twice').task(index).answer}"


def env(program: str = "", **fields: Any) -> HarnessEnv:
    named = {"program": f"programs:{program}"} if program else {}
    limits = {"limits": Limits(max_turns=8, max_context_tokens=2000), "seconds": patience(60)}
    return HarnessEnv(env="turntree/Arithmetic-v0", **{**limits, **named, **fields})


async def play(engine: Any, renderer: Renderer, program: str = "", **fields: Any) -> Episode:
    sampling = fields.pop("sampling", Sampling(seed=5))
    return await rollout(env(program, **fields), engine, renderer, index=3, seed=7, sampling=sampling)


@pytest.mark.parametrize("program", [{"program": "checks_twice"}, {"program": "awaits"}, {"command": COMMAND}])
async def test_a_program_is_an_episode_with_the_tokens_as_sampled(engine, renderer, program):
    episode = await play(engine, renderer, **program)
    assert (episode.stop_reason, episode.failure, episode.reward) == (StopReason.DONE, "", 1.0)
    assert [str(message.role) for message in episode.messages] == ["user", "assistant"] * 2
    assert [turn.text for turn in episode.turns] == ["let me see", gold()]
    assert [turn.reward for turn in episode.turns] == [0.0, 1.0]
    assert episode.rewards["correct"] == 1.0
    assert (episode.env_id, episode.task.id, episode.seed) == ("HarnessEnv", "arithmetic/train/3", 7)
    assert episode.task.metadata[PROGRAM_ANSWER] == gold()
    asked = [request.prompt_ids for request in engine.asked]
    assert asked == [turn.prompt_ids for turn in episode.turns]
    sampled = episode.turns[0].completion.token_ids
    assert asked[1][: len(asked[0]) + len(sampled)] == asked[0] + sampled
    assert [request.state for request in engine.asked] == dialogue_states(episode)
    assert sum(TokenView.of(episode).mask) == sum(len(turn.completion.token_ids) for turn in episode.turns)


async def test_the_trainers_sampling_is_the_programs_whatever_it_asks_for(engine, renderer):
    sampling = Sampling(temperature=0.7, top_p=0.9, top_k=5, seed=5)
    limits = Limits(max_turn_tokens=6, max_context_tokens=2000)
    first = await play(engine, renderer, "checks_twice", sampling=sampling, limits=limits)
    drawn = [request.sampling for request in engine.asked]
    assert {(one.temperature, one.top_p, one.top_k, one.max_tokens) for one in drawn} == {(0.7, 0.9, 5, 6)}
    assert len({one.seed for one in drawn}) == len(drawn) == 2
    engine.asked.clear()
    await play(engine, renderer, "checks_twice", sampling=sampling, limits=limits)
    assert [request.sampling for request in engine.asked] == drawn, "the same seed, the same noise"
    engine.asked.clear()
    await play(engine, renderer, "checks_twice", sampling=Sampling(seed=6), limits=limits)
    assert {request.sampling.seed for request in engine.asked}.isdisjoint(one.seed for one in drawn)
    assert len(first.turns) == 2


async def test_sub_agents_are_side_dialogues_of_the_one_that_ended_last(engine, renderer):
    episode = await play(engine, renderer, "delegates")
    assert (len(episode.turns), episode.reward) == (2, 1.0)
    assert sorted(other.messages[0].content for other in episode.extra_dialogues) == ["part a", "part b"]
    for other in episode.extra_dialogues:
        assert (len(other.turns), other.shared_turns, other.masked) == (1, 0, False)
        assert other.task == env("delegates").task(3)
    assert episode_from_dict(episode_to_dict(episode)) == episode


async def test_a_branch_shares_its_first_turns(engine: SpokenEngine, renderer: Renderer) -> None:
    episode = await play(engine, renderer, "forgets")
    (other,) = episode.extra_dialogues
    assert (len(episode.turns), len(other.turns), other.shared_turns, episode.shared_turns) == (2, 2, 1, 0)
    assert other.turns[0].completion == episode.turns[0].completion
    assert other.messages[2].content == "Are you sure?"


async def test_a_command_that_cannot_be_run_is_a_failure_and_no_reward(engine, renderer):
    episode = await play(engine, renderer, command="/nowhere/agent {prompt}")
    assert (episode.stop_reason, episode.failure_kind) == (StopReason.FAILURE, FailureKind.ENVIRONMENT)
    assert "'/nowhere/agent' cannot be run: No such file" in episode.failure
    assert episode.masked


def shell(script: str) -> list[str]:
    return ["sh", "-c", script]


BY_ITSELF = [
    ({"program": "crashes"}, StopReason.DONE, 1, "RuntimeError: the disk is full"),
    ({"program": "exits"}, StopReason.DONE, 1, "the program raised SystemExit: 0"),
    ({"program": "silent"}, StopReason.DONE, 0, "without asking the policy"),
    ({"program": "asks_many", "limits": Limits(max_turns=3)}, StopReason.MAX_TURNS, 0, "400"),
    ({"program": "begins_too_long"}, StopReason.MAX_TOKENS, 0, "400"),
    ({"program": "ends_itself"}, StopReason.DONE, 1, "it is over"),
    ({"command": [*COMMAND, "--fail"]}, StopReason.DONE, 2, "status 1: arithmetic/train/3 has no answer"),
    ({"command": shell("exit 1")}, StopReason.DONE, 0, "status 1: it printed nothing"),
    ({"command": shell("kill -9 $$")}, StopReason.DONE, 0, "status -9"),
    ({"command": shell("kill -9 0")}, StopReason.DONE, 0, "status -9"),
    ({"command": shell("kill -9 1; kill -9 $PPID; sleep 1; exit 3")}, StopReason.DONE, 0, "status"),
]


@pytest.mark.parametrize(("fields", "stop", "turns", "expected"), BY_ITSELF)
async def test_what_a_program_causes_by_itself_is_0_and_never_masked(engine, renderer, fields, stop, turns, expected):
    episode = await play(engine, renderer, **fields)
    assert (episode.stop_reason, episode.reward, episode.masked) == (stop, 0.0, False)
    assert len(episode.turns) == turns
    assert expected in episode.task.metadata[PROGRAM_ERROR]
    assert expected in program_error(episode)
    assert all(status in (404, 405) for status in programs.ANSWERS)
    output = to_output(episode, weights_version=0, filler_id=0)
    assert (output.reward_score, output.masked) == (0.0, False)
    assert output.extra_fields["reward_extra_info"]["program_error"] == 1.0


async def test_what_the_engine_refuses_is_the_programs_fault(engine: SpokenEngine, renderer: Renderer) -> None:
    engine.error = ValueError("the prompt holds token -1")
    episode = await play(engine, renderer, "checks_twice")
    assert (episode.stop_reason, episode.reward, episode.masked) == (StopReason.DONE, 0.0, False)


@pytest.mark.parametrize("prompt", ["a\0b", "long " * 40_000])
def test_a_prompt_that_no_argument_can_be_goes_by_standard_input(prompt: str) -> None:
    given = Assignment(prompt=prompt, task_id="t", seed=1, base_url="http://x/v1", api_key="k", model="m")
    counts = [sys.executable, "-c", "import sys; print(len(sys.stdin.read()), sys.argv[1:])", "{prompt}", "{task_id}"]
    answer = asyncio.run(CommandProgram(counts).run(given, in_thread=None))  # type: ignore[arg-type]
    assert answer == f"{len(prompt)} ['-', 't']"
    assert "TASK_PROMPT" not in given.variables
    assert "TASK_PROMPT" in replace(given, prompt="long " * 20_000).variables


@pytest.fixture
def mark() -> Iterator[str]:
    mark = f"{time.time_ns()}"
    yield mark
    for pid in hiding.alive(mark):
        os.kill(pid, signal.SIGKILL)


def below(monkeypatch: pytest.MonkeyPatch, supervised: str) -> None:
    # Supervised as the kernel allows, or only by adopting orphans.
    if supervised == "adopting":
        alone = "from turntree.agents.harness import supervisor; supervisor._run_apart = lambda *_: False; main()"
        monkeypatch.setattr(supervisor, "_BOOT", supervisor._BOOT.replace("main()", alone))


@pytest.mark.parametrize("then", ["answers", "waits"])
@pytest.mark.parametrize("supervised", ["apart", "adopting"])
async def test_nothing_that_a_program_began_is_left_however_it_hides(
    engine: SpokenEngine, renderer: Renderer, mark: str, monkeypatch: pytest.MonkeyPatch, supervised: str, then: str
) -> None:
    below(monkeypatch, supervised)
    command = [sys.executable, hiding.__file__, mark, then]
    playing = asyncio.create_task(
        play(engine, renderer, command=command, seconds=patience(3 if then == "waits" else 60))
    )
    await soon(lambda: len(hiding.alive(mark)) >= 12 or playing.done(), 30)
    episode = await playing
    assert hiding.alive(mark) == []
    stop = StopReason.FAILURE if then == "waits" else StopReason.DONE
    assert (episode.stop_reason, episode.failure_kind) == (stop, FailureKind.TIMEOUT if then == "waits" else None)


async def keys_of_others(engine: SpokenEngine, renderer: Renderer, folder: Path) -> tuple[list[str], set[str]]:
    # Number of other programs' keys that each of two programs finds, and their PID namespaces.
    command = [sys.executable, stealing.__file__, str(folder)]
    plays = (play(engine, renderer, command=command, sampling=Sampling(seed=seed)) for seed in range(2))
    answers = [episode.task.metadata[PROGRAM_ANSWER].split() for episode in await asyncio.gather(*plays)]
    return [found for found, _ in answers], {where for _, where in answers}


async def test_no_program_reads_the_key_of_another_where_the_kernel_gives_it_processes_of_its_own(
    engine: SpokenEngine, renderer: Renderer, tmp_path: Path
) -> None:
    found, where = await keys_of_others(engine, renderer, tmp_path)
    if os.readlink("/proc/self/ns/pid") in where:
        pytest.skip("the kernel allows no process ids of its own here")
    assert found == ["0", "0"]


async def test_below_a_supervisor_that_adopts_alone_each_would_find_the_others(engine, renderer, tmp_path, monkeypatch):
    below(monkeypatch, "adopting")
    assert "0" not in (await keys_of_others(engine, renderer, tmp_path))[0]


async def test_a_callable_that_never_returns_ends_with_its_episode(engine: SpokenEngine, renderer: Renderer) -> None:
    episode = await play(engine, renderer, "spins", seconds=2.0)
    assert (episode.stop_reason, episode.failure_kind) == (StopReason.FAILURE, FailureKind.TIMEOUT)
    await soon(lambda: len(programs.ANSWERS) == 4)
    await soon(lambda: not _spinning())


def _spinning() -> bool:
    frames = sys._current_frames().values()
    return any(frame.f_code is programs.spins.__code__ for frame in frames)


async def test_a_failed_turn_is_a_failure_although_the_program_continued(
    engine: SpokenEngine, renderer: Renderer
) -> None:
    class Dying:
        async def generate(self, request: TurnRequest) -> Any:
            if len(engine.asked) == 1:
                engine.error = OSError("the replica is gone")
            return await engine.generate(request)

    episode = await play(Dying(), renderer, "shrugs")
    assert programs.ANSWERS == [500]
    assert (episode.stop_reason, episode.failure_kind) == (StopReason.FAILURE, FailureKind.ENGINE)
    assert episode.failure == "OSError: the replica is gone"


async def test_a_failed_turn_that_was_sampled_again_is_no_failure(engine: SpokenEngine, renderer: Renderer) -> None:
    class Stumbling:
        async def generate(self, request: TurnRequest) -> Any:
            engine.error = None if engine.asked else OSError("once")
            return await engine.generate(request)

    episode = await play(Stumbling(), renderer, "repeats")
    assert programs.ANSWERS == [500]
    assert (episode.stop_reason, len(episode.turns)) == (StopReason.DONE, 1)


async def test_a_program_that_hangs_is_a_failure_and_can_ask_no_more(engine: SpokenEngine, renderer: Renderer) -> None:
    episode = await play(engine, renderer, "hangs", seconds=2.0)
    assert (episode.stop_reason, episode.failure_kind) == (StopReason.FAILURE, FailureKind.TIMEOUT)
    assert "did not answer within 2 s" in episode.failure
    asked = len(engine.asked)
    programs.RELEASED.set()
    await asyncio.to_thread(eventually, lambda: bool(programs.ANSWERS), 20)
    assert programs.ANSWERS[0] in (0, 401, 503)
    assert len(engine.asked) == asked


async def test_the_tasks_own_time_is_a_verdict(engine: SpokenEngine, renderer: Renderer) -> None:
    limits = Limits(max_seconds=2.0, max_context_tokens=2000)
    episode = await play(engine, renderer, "hangs", limits=limits)
    assert (episode.stop_reason, episode.reward, episode.masked) == (StopReason.MAX_SECONDS, 0.0, False)


@pytest.mark.parametrize(
    ("limits", "turns", "stop"),
    [
        ({"max_turns": 3, "max_context_tokens": 4000}, 3, StopReason.MAX_TURNS),
        ({"max_turns": None, "max_context_tokens": 100}, None, StopReason.MAX_TOKENS),
        ({"max_turns": None, "max_context_tokens": 4000, "max_episode_tokens": 60}, None, StopReason.MAX_TOKENS),
    ],
)
async def test_limits_are_the_policys_to_answer_for(engine, renderer, limits, turns, stop):
    episode = await play(engine, renderer, "talks", limits=Limits(**limits))
    assert program_error(episode) == "", "the program is not to blame"
    assert (episode.stop_reason, episode.reward, episode.masked) == (stop, 0.0, False)
    view = TokenView.of(episode)
    assert turns is None or len(episode.turns) == turns
    assert len(view.response_ids) <= (limits.get("max_episode_tokens") or 4000)
    assert len(view.prompt_ids) + len(view.response_ids) <= limits["max_context_tokens"]


async def test_rewards_by_name_judge_the_programs_answer(engine: SpokenEngine, renderer: Renderer) -> None:
    episode = await play(engine, renderer, "checks_twice", rewards={"answer": 2.0}, answer_format="gsm8k")
    assert episode.reward == 2.0
    assert episode.rewards["correct"] == 1.0


async def test_episodes_of_one_loop_share_a_server_and_nothing_else(engine: SpokenEngine, renderer: Renderer) -> None:
    plays = (rollout(env("checks_twice"), engine, renderer, index=index, seed=index) for index in range(12))
    episodes = await asyncio.gather(*plays)
    for index, episode in enumerate(episodes):
        assert episode.task.id == f"arithmetic/train/{index}"
        assert [message.content for message in episode.messages if message.role == "user"] == [
            env("checks_twice").task(index).prompt,
            "Are you sure?",
        ]
    again = await play(engine, renderer, "checks_twice")
    assert again.reward == 1.0, "the server has ended, and begins again"


async def test_a_real_engine_plays_the_same_program_twice_alike(tiny_model: Path, renderer: Renderer) -> None:
    limits = Limits(max_turn_tokens=8, max_context_tokens=200)
    config = LocalEngineConfig(max_batch=4, max_context=256, threads=1)
    with LocalEngine.from_pretrained(tiny_model, config=config) as engine:
        episodes = [await play(engine, renderer, "delegates", limits=limits) for _ in range(2)]
        other = await play(engine, renderer, "delegates", limits=limits, sampling=Sampling(seed=6))
    first, second = ([turn.completion.token_ids for turn in episode.turns] for episode in episodes)
    assert first == second != [turn.completion.token_ids for turn in other.turns]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "expected either program=MODULE:NAME or command"),
        ({"program": "gone"}, "got 'programs:gone'"),
        ({"program": "user"}, "has the parameters text"),
        ({"program": "silent", "seconds": 0}, "seconds must be positive"),
        ({"command": ""}, "command is empty"),
    ],
)
def test_bad_input_is_refused_in_one_line(fields: dict[str, Any], expected: str) -> None:
    with pytest.raises(Exception, match=expected) as error:
        env(**{"seconds": 60, **fields})
    assert "\n" not in str(error.value)
