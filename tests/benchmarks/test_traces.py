from pathlib import Path

import numpy as np
import pytest
from benchmark_modules import benchmark_module

from turntree.spec_tree import DialogueState

traces = benchmark_module("drafting.traces")

END = 99


@pytest.fixture
def path(tmp_path: Path) -> Path:
    # Two samples of states 0, 2, 4 and 6; each has two turns with a tool's answer between.
    dialogues = [
        [(1, [state, sample, 7]), (0, [50, 51]), (1, [8, END])] for sample in range(2) for state in (0, 2, 4, 6)
    ]
    tokens = [token for dialogue in dialogues for _, said in dialogue for token in said]
    mask = [by for dialogue in dialogues for by, said in dialogue for _ in said]
    file = tmp_path / "small.npz"
    np.savez(
        file,
        tokens=np.array(tokens, np.int32),
        mask=np.array(mask, np.uint8),
        offsets=np.arange(0, 7 * 8 + 1, 7),
        state=np.array([0, 2, 4, 6] * 2, np.int32),
        sample=np.repeat([0, 1], 4).astype(np.int32),
        epoch=np.zeros(8, np.int32),
        prompt_tokens=np.arange(100, 114, dtype=np.int32),
        prompt_offsets=np.arange(0, 15, 2),
        vocab=200,
    )
    return file


def test_only_what_the_policy_said_is_a_turn_and_its_prompt_is_everything_before_it(path: Path) -> None:
    trace = traces.load(path, states=4)
    assert [(turn.sample, turn.start) for turn in trace.turns[::2]] == [(i, s) for i in range(2) for s in (0, 2, 4, 6)]
    assert [turn.tokens.tolist() for turn in trace.turns[:2]] == [[0, 0, 7], [8, END]]
    assert trace.tokens == 8 * 5
    assert not any({50, 51} & set(turn.tokens.tolist()) for turn in trace.turns)
    assert (trace.end_tokens, trace.vocab) == ({END}, 200)  # the token that ends every sequence
    turns = traces.load(path, states=4).turns
    assert turns[0].prompt.tolist() == [100, 101]
    assert turns[1].prompt.tolist() == [100, 101, 0, 0, 7, 50, 51]
    assert turns[1].state.exact == DialogueState.from_tokens(turns[1].prompt.tolist()).exact
    assert (turns[1].state.task, turns[1].state.env, turns[0].state.tools) == ("0", "small", "")
    assert turns[1].state.tools != turns[3].state.tools


def test_an_epoch_has_its_tries_at_a_state_side_by_side(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(traces.EPOCHS, "small", (0, 1, 2))
    first, second = traces.epochs(path)
    assert [(turn.start, turn.sample) for turn in second.turns[::2]] == [(state, 1) for state in (0, 2, 4, 6)]
    monkeypatch.setitem(traces.EPOCHS, "small", (0, 2, 2))
    both, none = traces.epochs(path)
    assert [turn.sample for turn in both.turns] == [0, 0, 1, 1] * 4
    assert not none.turns
    assert len(both.turns) == len(first.turns) + len(second.turns)


def test_the_halves_share_no_state_and_leave_none_out(path: Path) -> None:
    select, report, whole = (
        {turn.start for turn in traces.load(path, states=3, half=half).turns} for half in ("select", "report", "all")
    )
    assert (select, report) == ({0, 4}, {2})
    assert select | report == whole


def test_a_missing_folder_is_named_and_a_trace_of_others_is_looked_for_in_the_data(tmp_path: Path) -> None:
    with pytest.raises(traces.NoTraces, match="--data"):
        traces.folder(tmp_path)
    (tmp_path / "traces").mkdir()
    assert traces.find("synthetic_rl", tmp_path) == tmp_path / "traces" / "synthetic_rl.npz"
    assert traces.find("demo", tmp_path).is_file()
    trace = traces.generated(steps=1, states=3, samples=2)
    assert len(trace.turns) == 6
    assert all(turn.tokens[-1] == 31 and 31 not in turn.tokens[:-1] for turn in trace.turns)


@pytest.mark.parametrize("name", ["demo", "smollm2"])
def test_the_traces_of_the_repository_are_successive_epochs_of_a_training(name: str) -> None:
    path = traces.find(name)
    with np.load(path) as file:
        data = {key: file[key] for key in file.files}
    assert path.stat().st_size < 2_500_000
    visits = {int(state): set(data["epoch"][data["state"] == state]) for state in np.unique(data["state"])}
    assert all(len(seen) >= 5 and seen == set(range(len(seen))) for seen in visits.values())
    said = data["mask"] == 1
    assert (data["logprobs"][said] <= 0).all()
    assert data["logprobs"][said].min() < -0.5  # sampled, not the most probable token each time
    assert not data["logprobs"][~said].any()
    assert len(np.unique(data["reward"])) > 1
    trace = traces.load(path, states=traces.RECORDED[name])
    assert len({turn.start for turn in trace.turns}) == traces.RECORDED[name]
    assert max(int(turn.tokens.max()) for turn in trace.turns) < trace.vocab
