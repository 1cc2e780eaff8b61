import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from forest_checks import turns_in
from machine_speed import patience
from vllm_runner import CONTEXT, END, parameters, vllm_config

from turntree.agents.engines.request_wire import request_entries
from turntree.agents.engines.vllm.overlap import drafter as overlapped
from turntree.agents.engines.vllm.overlap import ngram_interface
from turntree.agents.engines.vllm.overlap.drafter import OverlappedDrafter
from turntree.agents.engines.vllm.settings import DrafterSettings
from turntree.spec_tree import DialogueState

PROMPT = [5, 6, 7]
TURN = [11, 12, 13, 14, 15, 16, 17, END]
DEPTH = 4


class Copy:
    def __init__(self, *, passed: bool) -> None:
        self.waits = 0
        self._passed = threading.Event()
        if passed:
            self.passes()

    def passes(self) -> None:
        self._passed.set()

    def query(self) -> bool:
        return self._passed.is_set()

    def synchronize(self) -> None:
        self.waits += 1
        assert self._passed.wait(patience(30)), "waited for a step that does not end"


class Arriving(Copy):
    """Its tokens arrive when a later step is waited for, as one stream copies the steps in their order."""

    def __init__(self, token: int, earlier: Sequence["Arriving"]) -> None:
        super().__init__(passed=False)
        self.tokens = torch.zeros((1, 1), dtype=torch.int32)
        self._token, self._earlier = token, earlier

    def passes(self) -> None:
        super().passes()
        self.tokens[:] = self._token

    def synchronize(self) -> None:
        for copied in (*self._earlier, self):
            copied.passes()


class Runner:
    """The parts of vLLM's model runner that the drafter uses."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.device = SimpleNamespace(type="cuda")
        self.max_model_len = self.effective_drafter_max_model_len = CONTEXT
        self.max_num_reqs = 8
        self.requests: dict[str, Any] = {}
        self.execute_model = self.sample_tokens = self._prepare_input_ids = self.take_draft_token_ids = print
        module = SimpleNamespace()
        monkeypatch.setattr(ngram_interface, "_module", lambda: module)
        config = vllm_config(DrafterSettings(adaptive=False, min_probability=0.0), DEPTH)
        config.scheduler_config.max_num_seqs = self.max_num_reqs
        self.drafter = OverlappedDrafter(config, torch.device("cpu"))
        self.drafter.bind(self)
        self.drafter.load_model()

    def add(self, name: str, prompt: Sequence[int] = PROMPT, **given: Any) -> None:
        self.requests[name] = SimpleNamespace(
            prompt_token_ids=list(prompt),
            sampling_params=parameters(**given),
            output_token_ids=[],
            num_computed_tokens=0,
        )

    def step(
        self, sampled: dict[str, list[int]], *, width: int = 0, passed: bool = True, reading: Sequence[int] = ()
    ) -> Copy:
        most = max(map(len, sampled.values()))
        rows = [[*tokens, *[-1] * (most - len(tokens))] for tokens in sampled.values()]
        copied = Copy(passed=passed)
        self._record(sampled, torch.tensor(rows, dtype=torch.int32), copied, width, reading)
        return copied

    def step_that_arrives_late(self, name: str, token: int, earlier: Sequence[Arriving], *, width: int = 0) -> Arriving:
        copied = Arriving(token, earlier)
        self._record({name: [token]}, copied.tokens, copied, width)
        return copied

    def _record(
        self,
        sampled: dict[str, list[int]],
        tokens: torch.Tensor,
        copied: Copy,
        width: int,
        reading: Sequence[int] = (),
    ) -> None:
        output = SimpleNamespace(
            _model_runner_output=SimpleNamespace(req_ids=list(sampled)),
            sampled_token_ids_cpu=tokens,
            async_copy_ready_event=copied,
            _invalid_req_indices=list(reading),
        )
        self.drafter.record(output, width, 0)
        for name, new in sampled.items():
            self.requests[name].output_token_ids += new

    def trim(self, **planned: int) -> Any:
        step = SimpleNamespace(
            scheduled_spec_decode_tokens={name: [-1] * count for name, count in planned.items() if count},
            num_scheduled_tokens={name: 1 + count for name, count in planned.items()},
            total_num_scheduled_tokens=len(planned) + sum(planned.values()),
        )
        self.drafter.trim(step)
        self.drafter.upload()
        assert step.total_num_scheduled_tokens == sum(step.num_scheduled_tokens.values())
        return step

    def play(self, name: str, turn: Sequence[int] = TURN, **given: Any) -> None:
        self.add(name, **given)
        for token in turn:
            self.step({name: [token]})
        del self.requests[name]

    def turns(self, state: DialogueState | None = None) -> dict[tuple[int, ...], int]:
        return dict(turns_in(self.drafter.forest.tree(state or DialogueState.from_tokens(PROMPT))))


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> Runner:
    return Runner(monkeypatch)


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlapped, "FREE", 0)


@pytest.mark.usefixtures("exact")
def test_places_that_no_draft_fills_are_given_back_and_no_others(runner: Runner) -> None:
    runner.play("a")
    runner.add("b")
    runner.add("c", [9, 9])
    runner.add("d")
    runner.step({"b": [11, 12, 13, 14, 15, 16], "c": [3], "d": [11]}, width=DEPTH)
    step = runner.trim(b=DEPTH, c=DEPTH, d=DEPTH)
    assert step.scheduled_spec_decode_tokens == {"b": [-1] * 2, "d": [-1] * DEPTH}  # two tokens are left of a turn
    assert step.num_scheduled_tokens == {"b": 3, "c": 1, "d": 1 + DEPTH}
    drafts = runner.drafter.propose(None, None, None, None, torch.zeros(3))[0]
    assert drafts[0, :2].tolist() == [17, END]
    assert drafts[2].tolist() == TURN[1:5]


@pytest.mark.usefixtures("exact")
def test_fewer_places_than_drafts_and_requests_without_places_stay_as_they_are(runner: Runner) -> None:
    runner.play("a")
    for name in "bc":
        runner.add(name)
    runner.step({"b": [11], "c": [11]}, width=DEPTH)
    step = runner.trim(b=1, c=0)
    assert step.scheduled_spec_decode_tokens == {"b": [-1]}
    assert step.num_scheduled_tokens == {"b": 2, "c": 1}


@pytest.mark.usefixtures("exact")
def test_drafts_of_one_length_fill_all_places_and_are_counted_as_they_were_drafted(runner: Runner) -> None:
    runner.drafter.lengths = [2, 3]
    runner.play("a")
    runner.add("b")
    runner.add("c", [9, 9])
    runner.step({"b": [11, 12, 13, 14, 15, 16], "c": [3]}, width=DEPTH)
    step = runner.trim(b=DEPTH, c=DEPTH)  # two tokens are left of a turn, and nothing is known of the other
    assert step.scheduled_spec_decode_tokens == {"b": [-1] * 2, "c": [-1] * 2}
    drafts = runner.drafter.propose(None, None, None, None, torch.zeros(2))[0]
    assert drafts[:, :2].tolist() == [[17, END], [0, 0]]
    runner.step({"b": [17, END], "c": [0, 0, 4]}, width=DEPTH)
    runner.drafter.settle()
    assert runner.drafter.take_stats("b") == (2, 2, 1)
    assert runner.drafter.take_stats("c") == (2, 0, 0)


def test_where_places_cost_nothing_only_those_beyond_the_one_length_are_given_back(runner: Runner) -> None:
    runner.drafter.lengths = [2, 3]
    runner.play("a")
    runner.add("b")
    runner.add("c", [9, 9])
    runner.step({"b": [11], "c": [3]}, width=DEPTH)
    assert runner.trim(b=DEPTH, c=DEPTH).num_scheduled_tokens == {"b": 4, "c": 4}
    runner.step({"b": TURN[1:5], "c": [3]}, width=DEPTH)  # the fourth token is the policy's own
    runner.drafter.settle()
    assert runner.drafter.take_stats("b") == (2, 3, 3)


def test_where_places_cost_nothing_all_are_kept_and_the_drafts_come_late(runner: Runner) -> None:
    runner.play("a")
    runner.add("b")
    runner.add("c", [9, 9])
    copied = runner.step({"b": [11], "c": [3]}, width=DEPTH, passed=False)
    step = SimpleNamespace(
        scheduled_spec_decode_tokens={name: [-1] * DEPTH for name in "bc"},
        num_scheduled_tokens=dict.fromkeys("bc", 1 + DEPTH),
        total_num_scheduled_tokens=2 + 2 * DEPTH,
    )
    runner.drafter.trim(step)  # returns although the step goes on
    assert step.total_num_scheduled_tokens == 2 + 2 * DEPTH
    copied.passes()
    runner.drafter.upload()
    drafts = runner.drafter.propose(None, None, None, None, torch.zeros(2))[0]
    assert drafts.tolist() == [TURN[1:5], [0] * DEPTH]  # 0 is a token of each model, -1 of none


def test_steps_without_drafts_are_kept_unread_and_then_read_in_their_order(runner: Runner) -> None:
    runner.add("a")
    copies = [runner.step({"a": [token]}, passed=False) for token in TURN[:5]]
    assert runner.drafter.counts.steps == 0
    assert [copied.waits for copied in copies] == [0] * 5
    for copied in copies:
        copied.passes()
    runner.step({"a": TURN[5:7]}, width=DEPTH)
    runner.trim(a=DEPTH)
    assert [copied.waits for copied in copies] == [0] * 5, "they end in their order: the last one is waited for"
    assert runner.drafter.counts.steps == 6
    runner.step({"a": [END]})
    del runner.requests["a"]
    runner.play("b", [1, END])
    runner.drafter.take_stats("b")
    assert runner.turns() == {tuple(TURN): 1, (1, END): 1}


def test_no_token_is_read_before_its_copy_has_arrived(runner: Runner) -> None:
    runner.add("a")
    copies: list[Arriving] = []
    for token in TURN[:4]:
        copies.append(runner.step_that_arrives_late("a", token, list(copies)))
    copies[0].passes()
    runner.step_that_arrives_late("a", TURN[4], copies, width=DEPTH)
    runner.trim(a=DEPTH)
    for token in TURN[5:]:
        runner.step({"a": [token]})
    del runner.requests["a"]
    runner.play("b", [1, END])
    runner.drafter.take_stats("b")
    assert runner.turns() == {tuple(TURN): 1, (1, END): 1}


def test_of_many_steps_without_drafts_those_that_have_ended_are_read(runner: Runner) -> None:
    runner.add("a", max_tokens=50)
    for number in range(overlapped._MAX_BUFFERED - 1):  # the first is read at once, as its request is new
        runner.step({"a": [20 + number % 9]})
    running = [runner.step({"a": [40]}, passed=False) for _ in range(2)]
    assert runner.drafter.counts.steps == overlapped._MAX_BUFFERED - 1
    assert [copied.waits for copied in running] == [0, 0]


def test_the_counters_of_a_request_are_given_while_a_step_runs(runner: Runner) -> None:
    runner.play("a")
    runner.add("b")
    runner.step({"b": [11]})
    copied = runner.step({"b": [12]}, passed=False)
    assert runner.drafter.take_stats("b") == (1, 0, 0)
    assert copied.waits == 0
    copied.passes()
    copied = runner.step({"b": [13]}, width=DEPTH, passed=False)  # a thread waits for it
    assert runner.drafter.take_stats("b") in {(1, 0, 0), (2, 0, 0)}
    copied.passes()
    runner.drafter.settle()
    assert runner.drafter.take_stats("b") == (3, 0, 0)


def test_accepted_drafts_are_counted(runner: Runner) -> None:
    runner.play("a")
    runner.add("b")
    runner.step({"b": [11]}, width=DEPTH)
    runner.trim(b=DEPTH)
    runner.step({"b": [12, 13, 99]}, width=DEPTH)
    runner.drafter.settle()
    assert runner.drafter.take_stats("b") == (2, DEPTH, 2)


def test_what_is_sampled_in_the_middle_of_a_prompt_is_no_token(runner: Runner) -> None:
    runner.add("a")
    runner.add("b")
    runner.step({"a": [11], "b": [77]}, reading=[1])
    for token in TURN[1:]:
        runner.step({"a": [token], "b": [token]})
    runner.requests.clear()
    runner.play("c", [1, END])
    runner.drafter.take_stats("c")
    assert runner.turns() == {tuple(TURN): 1, tuple(TURN[1:]): 1, (1, END): 1}


@pytest.mark.parametrize(
    ("kept", "turn"), [(3, [11, 12, 13, 21, END]), (2, [11, 12, 21, END])], ids=["all of it", "without the last token"]
)
def test_a_turn_goes_on_after_a_pause_from_the_tokens_that_vllm_kept(
    runner: Runner, kept: int, turn: list[int]
) -> None:
    runner.add("a")
    runner.add("b", [9])
    for token in TURN[:3]:
        runner.step({"a": [token], "b": [3]})
    runner.step({"b": [3]})  # preempted
    del runner.requests["a"].output_token_ids[kept:]
    runner.step({"b": [3], "a": [21]})
    runner.step({"b": [3], "a": [END]})
    del runner.requests["a"]
    runner.step({"b": [3]})
    runner.drafter.take_stats("a")
    assert runner.turns() == {tuple(turn): 1}


def test_given_tokens_are_the_first_of_a_turn(runner: Runner) -> None:
    state = DialogueState(exact=3)
    for name in "ab":
        entries = request_entries(state=state, given=2)
        runner.add(name, [*PROMPT, *TURN[:2]], extra_args=entries)
        for token in TURN[2:]:
            runner.step({name: [token]})
        del runner.requests[name]
    runner.add("c", extra_args=request_entries(state=state))
    runner.step({"c": [11]}, width=DEPTH)
    runner.drafter.settle()
    assert runner.turns(state)[tuple(TURN)] == 2
    assert runner.drafter._drafts[0].tolist() == TURN[1:5]


def test_the_last_token_of_each_request_and_how_many_it_sampled(runner: Runner) -> None:
    sampled = torch.tensor([[5, 6, -1], [7, -1, -1], [8, 9, 10]], dtype=torch.int32)
    reading = torch.tensor([False, True, False, False])
    last, counts, kept = runner.drafter.update_token_ids_ngram(sampled, None, None, None, reading)
    assert last[[0, 2]].tolist() == [6, 10]
    assert counts.tolist() == [2, 0, 3]
    assert kept.tolist() == [[5, 6, -1], [-1] * 3, [8, 9, 10]]


def test_an_error_of_the_store_is_the_engines(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise OSError("the store is gone")

    runner.add("a")
    monkeypatch.setattr(runner.drafter.forest, "begin", broken)
    runner.step({"a": [11]}, width=DEPTH)
    with pytest.raises(OSError, match="the store is gone"):
        runner.trim(a=DEPTH)
