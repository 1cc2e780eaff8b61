from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from vllm_runner import CONTEXT, END, ScriptedRunner, vllm_config

from turntree.agents.engines.request_wire import DRAFT
from turntree.agents.engines.state_wire import KEY, to_wire
from turntree.agents.engines.vllm.drafter import ForestDrafter
from turntree.agents.engines.vllm.settings import DrafterSettings
from turntree.spec_tree import DialogueState, ForestConfig, TreeNode

PROMPT = [5, 6, 7]
TURN = [11, 12, 13, 14, 15, 16, 17, END]


def test_a_turn_that_is_said_again_takes_fewer_steps() -> None:
    runner = ScriptedRunner()
    runner.add("a", PROMPT, TURN)
    assert runner.play("a") == len(TURN)
    runner.add("b", PROMPT, TURN)
    assert runner.play("b") == 3  # the first token, then twice four drafts and at most one more


def test_the_wire_s_state_is_the_key_and_not_the_prompt() -> None:
    runner = ScriptedRunner()
    here, there = DialogueState(exact=9, task="x"), DialogueState(exact=8, task="y")
    runner.add("a", PROMPT, TURN, extra_args={KEY: to_wire(here)})
    runner.play("a")
    assert runner.drafter.forest.finished([here, there, DialogueState.from_tokens(PROMPT)]) == [1, 0, 0]


def test_without_a_state_the_prompt_s_tokens_are_the_key() -> None:
    runner = ScriptedRunner()
    runner.add("a", PROMPT, TURN)
    runner.play("a")
    assert runner.drafter.forest.finished([DialogueState.from_tokens(PROMPT)]) == [1]


def test_a_state_that_cannot_be_read_costs_the_key_and_not_the_engine(caplog: pytest.LogCaptureFixture) -> None:
    runner = ScriptedRunner()
    runner.add("a", PROMPT, TURN, extra_args={KEY: {"exact": "no number"}})
    runner.play("a")
    assert runner.drafter.forest.finished([DialogueState.from_tokens(PROMPT)]) == [1]
    assert "not to be read" in caplog.text


def test_siblings_profit_from_a_turn_that_is_not_over() -> None:
    runner = ScriptedRunner()
    runner.add("a", PROMPT, TURN)
    for _ in range(5):
        runner.step()
    runner.add("b", PROMPT, TURN)
    assert runner.step()["b"] == TURN[1:5]


def test_an_aborted_turn_is_kept_out_and_its_counters_are_kept() -> None:
    runner = ScriptedRunner()
    runner.add("a", PROMPT, TURN)
    for _ in range(3):
        runner.step()
    runner.remove("a")
    runner.add("b", PROMPT, TURN)
    assert runner.step()["b"] == []
    assert runner.drafter.forest.finished([DialogueState.from_tokens(PROMPT)]) == [0]
    assert runner.drafter.take_stats("a") == (3, 0, 0)
    assert runner.drafter.take_stats("a") is None


def test_a_turn_that_text_may_end_is_kept_when_it_goes() -> None:
    runner = ScriptedRunner()
    runner.add("a", PROMPT, TURN, stop=["\n"])
    for _ in range(3):
        runner.step()
    runner.remove("a")
    runner.add("b", PROMPT, TURN)
    assert runner.step()["b"] == TURN[1:3]


def test_the_same_id_given_anew_is_another_turn() -> None:
    runner = ScriptedRunner()
    runner.add("a", PROMPT, TURN)
    runner.play("a")
    runner.add("a", PROMPT, TURN)
    assert runner.step()["a"] == TURN[1:5]
    assert runner.drafter.take_stats("a") == (1, 0, 0)


def test_counters_of_a_request_tell_steps_drafts_and_acceptance() -> None:
    runner = ScriptedRunner()
    runner.add("a", PROMPT, TURN)
    runner.play("a")
    runner.add("b", PROMPT, [*TURN[:3], 40, 41, END])
    steps = runner.play("b")
    runner.step()
    verified, drafted, accepted = runner.drafter.take_stats("b") or (0, 0, 0)
    assert verified == steps
    assert accepted == 6 - steps
    assert drafted > accepted


def test_nothing_is_drafted_past_a_stop_token_of_the_request() -> None:
    runner = ScriptedRunner(depth=8)
    runner.add("a", PROMPT, TURN)
    runner.play("a")
    runner.add("b", PROMPT, TURN[:3], stop_token_ids=[13])
    assert runner.step()["b"] == [12, 13]


def test_nothing_is_drafted_past_the_end_token_of_the_model() -> None:
    runner = ScriptedRunner(depth=8)
    runner.add("a", PROMPT, [11, END, 12, 13, 14, 15], ignore_eos=True, max_tokens=6)
    runner.play("a")
    runner.add("b", PROMPT, [11, END])
    assert runner.step()["b"] == [END]


@pytest.mark.parametrize("most", [1, 2, 3])
def test_nothing_is_drafted_past_the_tokens_that_a_request_may_say(most: int) -> None:
    runner = ScriptedRunner(depth=8)
    runner.add("a", PROMPT, TURN)
    runner.play("a")
    runner.add("b", PROMPT, TURN[:most], max_tokens=most)
    assert len(runner.step()["b"]) == max(0, most - 2)


def test_nothing_is_drafted_past_the_longest_context() -> None:
    long = list(range(100, 100 + CONTEXT - 3))
    runner = ScriptedRunner(depth=8)
    runner.add("a", long, [11, 12, 13], max_tokens=50)
    runner.play("a")
    assert runner.drafter.forest.finished([DialogueState.from_tokens(long)]) == [1]
    runner.add("b", long, [11, 12, 13], max_tokens=50)
    assert runner.step()["b"] == [12]
    assert runner.effective_drafter_max_model_len > CONTEXT + 8


def test_tokens_of_steps_that_asked_for_no_drafts_are_caught_up_with() -> None:
    runner = ScriptedRunner()
    runner.add("a", PROMPT, TURN)
    runner.step()
    for _ in range(3):
        runner.step(ask=False)
    runner.play("a")
    runner.add("b", PROMPT, TURN)
    assert runner.play("b") == 3


def test_requests_that_read_their_prompts_are_left_alone() -> None:
    runner = ScriptedRunner()
    runner.add("a", PROMPT, TURN)
    runner.add("b", [9, 9, 9], TURN)
    assert runner.step(reading=["b"])["b"] == []
    assert runner.drafter.take_stats("b") is None


def test_drafts_from_before_a_pause_are_not_counted_as_verified() -> None:
    runner = ScriptedRunner()
    runner.add("a", PROMPT, TURN)
    runner.play("a")
    runner.add("b", PROMPT, TURN)
    assert runner.step()["b"]
    runner.step(reading=["b"])  # preempted: it reads its tokens again
    runner.drafts["b"] = []
    runner.step()
    assert (runner.drafter.take_stats("b") or ())[1] == 0


def test_the_caller_s_guess_is_drafted_while_it_comes_true() -> None:
    runner = ScriptedRunner()
    runner.add("a", PROMPT, TURN, extra_args={DRAFT: [*TURN[:4], 50, 51, 52]})
    assert runner.step()["a"] == [12, 13, 14, 50]
    assert runner.step()["a"] == []
    assert runner.drafter.take_stats("a") == (2, 4, 3)


def test_a_drafter_that_is_switched_off_learns_and_says_nothing() -> None:
    runner = ScriptedRunner()
    runner.drafter.settings = replace(runner.drafter.settings, enabled=False)
    for name in "ab":
        runner.add(name, PROMPT, TURN)
        assert runner.play(name) == len(TURN)
    runner.drafter.settings = replace(runner.drafter.settings, enabled=True)
    runner.add("c", PROMPT, TURN)
    assert runner.play("c") == 3


def test_rows_that_change_places_keep_their_turns() -> None:
    runner = ScriptedRunner()
    turns = {name: [first, *TURN] for name, first in zip("abc", (21, 22, 23), strict=True)}
    for name, turn in turns.items():
        runner.add(name, [30, ord(name)], turn)
    for _ in range(4):
        runner.step()
    runner.remove("a")
    for name in "cb":
        runner.play(name)
    for name in "bc":
        state = DialogueState.from_tokens([30, ord(name)])
        children = runner.drafter.forest.tree(state)
        assert [child.token for child in children.children] == [turns[name][0]]


def test_without_the_plugin_the_drafter_says_what_is_missing() -> None:
    drafter = ForestDrafter(vllm_config(DrafterSettings(), 4))
    with pytest.raises(RuntimeError, match="VLLM_PLUGINS"):
        drafter.load_model()


def test_its_own_end_tokens_stand_above_the_model_s() -> None:
    settings = DrafterSettings(forest=ForestConfig(end_tokens=frozenset({40})))
    assert ForestDrafter(vllm_config(settings, 4)).forest.config.end_tokens == {40}
    assert ForestDrafter(vllm_config(DrafterSettings(), 4)).forest.config.end_tokens == {END}


def test_live_turns_do_not_pile_up() -> None:
    runner = ScriptedRunner()
    for turn in range(40):
        name = f"r{turn}"
        runner.add(name, [turn + 100], TURN)
        for _ in range(turn % 4):
            runner.step()
        runner.remove(name)
    runner.step()
    assert runner.drafter.forest.stats().live == 0
    assert runner.drafter.stats()["steps"] == sum(turn % 4 for turn in range(40)) + 1


LATE = """
import sys
from numba.core.dispatcher import Dispatcher
compiled, asked = [], Dispatcher.compile
Dispatcher.compile = lambda self, signature: (compiled.append(self.py_func.__name__), asked(self, signature))[1]
sys.path[:0] = sys.argv[1].split(":")
from vllm_runner import ScriptedRunner
from turntree.agents.engines.vllm.settings import DrafterSettings
from turntree.spec_tree import DialogueState, ForestConfig
runner = ScriptedRunner(DrafterSettings(forest=ForestConfig(rollouts_per_state=2)))
early = len(compiled)
assert early > 5
for turn in range(30):
    for place in range(2):
        runner.add(f"{turn}.{place}", list(range(3, 40)), [11, 12, 13 + turn % 3, 14, 15, 16, 2])
    while runner.input_batch.req_ids:
        runner.step()
        for name in list(runner.input_batch.req_ids):
            if len(runner.requests[name].output_token_ids) == 7:
                runner.remove(name)
assert runner.drafter.forest.stats().evicted_rollouts > 0
assert runner.drafter.counts.drafted > 0
for number in range(3):
    runner.drafter.forest.insert(DialogueState(exact=number), range(70_000))  # more than the log begins with
print(compiled[early:])
"""


def test_no_step_waits_for_a_kernel_to_be_compiled() -> None:
    support = str(Path(__file__).parents[3] / "support")
    done = subprocess.run([sys.executable, "-c", LATE, support], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_a_turn_whose_end_was_drafted_is_kept_without_what_was_sampled_behind_it() -> None:
    runner = ScriptedRunner()
    state = DialogueState.from_tokens(PROMPT)
    for name in ("a", "b", "c"):
        runner.add(name, PROMPT, TURN)
        runner.play(name)
    assert runner.proposed[-2]["c"][-1] == END, "the end is drafted"
    runner.add("d", PROMPT, [1, END])
    runner.step()
    assert runner.drafter.forest.finished([state]) == [3]
    assert [list(path) for path in paths(runner.drafter.forest.tree(state))] == [TURN, [1]]


def paths(node: TreeNode) -> Iterator[tuple[int, ...]]:
    """The turns of a tree from its root on."""
    for child in node.children:
        if not child.children:
            yield (child.token,)
        for rest in paths(child):
            yield (child.token, *rest)
