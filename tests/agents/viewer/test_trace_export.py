from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from adder import play
from benchmark_modules import benchmark_module
from typer.testing import CliRunner

from turntree.agents.commands.app import app
from turntree.agents.episodes.episode import Episode, StopReason
from turntree.agents.episodes.record import EpisodeWriter
from turntree.agents.episodes.token_view import TokenView
from turntree.agents.errors import RecordError
from turntree.agents.loop.renderer import Renderer
from turntree.agents.viewer.trace_export import export_trace

Said = dict[tuple[int, int, int], Episode]


@pytest.fixture
async def said(renderer: Renderer) -> Said:
    episodes = {}
    for step in range(1, 5):
        index = (step + 1) % 2
        for session in range(2):
            texts = ["call 4", f"call {step}{session}", "5"]
            episode, _ = await play(renderer, *texts, index=index, seed=index)
            episodes[step, index, session] = episode
    return episodes


def record(run: Path, episodes: Said) -> Path:
    for (step, index, session), episode in episodes.items():
        with EpisodeWriter(run / "episodes" / f"step_{step:06d}.jsonl") as writer:
            writer.write(episode, step=step, index=index, session=session, seed=7)
    return run


async def test_the_benchmarks_reader_gets_every_turn_back(said: Said, tmp_path: Path) -> None:
    export_trace(record(tmp_path, said), vocab=5000).trace.save(tmp_path / "run.npz")
    read = benchmark_module("drafting.traces").load(tmp_path / "run.npz", states=2)
    order = sorted(said, key=lambda label: ((label[0] - 1) // 2, label[2], label[1]))  # epoch, sample, state
    expected = [turn for label in order for turn in said[label].turns]
    assert len(read.turns) == len(expected) == 3 * 8
    for turn, was in zip(read.turns, expected, strict=True):
        assert turn.tokens.tolist() == list(was.completion.token_ids)
        assert turn.prompt.tolist() == list(was.prompt_ids)
    assert read.vocab == 5000
    assert len({turn.start for turn in read.turns}) == 2


async def test_rewards_log_probabilities_and_levels_align_with_the_tokens(said: Said, tmp_path: Path) -> None:
    said = {label: _changed(episode, step=label[0]) for label, episode in said.items()}
    trace = export_trace(record(tmp_path, said)).trace
    assert trace.epoch.tolist() == [0] * 4 + [1] * 4
    assert trace.step.tolist() == [1, 1, 2, 2, 3, 3, 4, 4]
    assert (trace.state.tolist(), trace.sample.tolist()) == ([0, 0, 1, 1] * 2, [0, 1] * 4)
    for position, label in enumerate(sorted(said)):
        view = TokenView.of(said[label])
        part = slice(trace.offsets[position], trace.offsets[position + 1])
        assert trace.tokens[part].tolist() == list(view.response_ids)
        assert trace.mask[part].tolist() == list(view.mask)
        assert trace.levels[part].tolist() == list(view.levels)
        assert trace.logprobs[part].tolist() == pytest.approx(view.logprobs)
        assert trace.reward[position] == pytest.approx(said[label].reward)
    assert {3} < set(trace.levels.tolist())
    assert export_trace(tmp_path, steps=2).trace.epoch.tolist() == [0] * 4, "cut after some steps"


def _changed(episode: Episode, *, step: int) -> Episode:
    turns = []
    for turn in episode.turns:
        count = len(turn.completion.token_ids)
        completion = replace(turn.completion, logprobs=(-0.1 * step,) * count, levels="C" * count)
        turns.append(replace(turn, completion=completion))
    return replace(episode, turns=tuple(turns))


async def test_failed_episodes_are_left_out_and_the_later_of_two_stays(said: Said, tmp_path: Path) -> None:
    lost = replace(said[1, 0, 0], stop_reason=StopReason.FAILURE, failure="gone")
    record(tmp_path, {(1, 0, 0): lost, (1, 0, 1): said[3, 0, 1]})
    exported = export_trace(record(tmp_path, {(1, 0, 1): said[1, 0, 1]}))
    assert (exported.episodes, exported.left_out) == (1, 1)
    assert exported.trace.tokens.tolist() == list(TokenView.of(said[1, 0, 1]).response_ids)


async def test_what_is_no_recorded_training_is_refused(said: Said, tmp_path: Path) -> None:
    with EpisodeWriter(tmp_path / "evaluation.jsonl") as writer:
        writer.write(said[1, 0, 0], index=0)
    with pytest.raises(RecordError, match="expected an episode of a training run"):
        export_trace(tmp_path / "evaluation.jsonl")
    with pytest.raises(ValueError, match="vocab must be larger"):
        export_trace(record(tmp_path, said), vocab=3)


async def test_the_command_writes_the_trace_into_the_runs_folder(said: Said, tmp_path: Path) -> None:
    shown = CliRunner().invoke(app, ["export", str(record(tmp_path, said))])
    assert shown.exit_code == 0, shown.output
    assert "8 episodes of 2 states in 2 epochs" in shown.output
    kept = ("tokens", "offsets", "mask", "state", "sample", "epoch", "prompt_tokens", "prompt_offsets", "vocab")
    with np.load(tmp_path / "trace.npz") as file:
        assert set(kept) <= set(file.files)
