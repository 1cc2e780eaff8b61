import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from forest_checks import turns_in
from machine_speed import patience
from tables import table
from vllm_runner import CONTEXT, END, VOCABULARY, ScriptedRunner, vllm_config

from turntree.agents.engines.request_wire import DRAFT, KEY, to_wire
from turntree.agents.engines.vllm.drafter import ForestDrafter
from turntree.agents.engines.vllm.settings import DrafterSettings
from turntree.spec_tree import DialogueState, ForestConfig, SpecForest

PROMPT = [5, 6, 7]
TURN = [11, 12, 13, 14, 15, 16, 17, END]


@pytest.fixture
def runner() -> ScriptedRunner:
    return ScriptedRunner()


@pytest.mark.parametrize(
    ("extra", "key", "said"),
    [
        ({KEY: to_wire(DialogueState(exact=9, task="x"))}, DialogueState(exact=9, task="x"), ""),
        (None, DialogueState.from_tokens(PROMPT), ""),
        ({KEY: {"exact": "no number"}}, DialogueState.from_tokens(PROMPT), "cannot be read"),
    ],
    ids=["the wire's state", "without one the prompt's tokens", "and where it cannot be read"],
)
def test_the_key_of_a_turn(runner, extra, key, said, caplog):
    others = {DialogueState(exact=9, task="x"), DialogueState(exact=8), DialogueState.from_tokens(PROMPT)} - {key}
    runner.say("a", PROMPT, TURN, extra_args=extra)
    assert runner.drafter.forest.finished([key, *others]) == [1, 0, 0]
    assert said in caplog.text


@pytest.mark.parametrize(("given", "drafted"), [({}, []), ({"stop": ["\n"]}, TURN[1:3])], ids=["aborted", "text"])
def test_a_turn_that_goes_early_is_kept_out_unless_text_may_have_ended_it(runner, given, drafted):
    runner.add("a", PROMPT, TURN, **given)
    for _ in range(3):
        runner.step()
    runner.remove("a")
    runner.add("b", PROMPT, TURN)
    assert runner.step()["b"] == drafted
    assert runner.drafter.forest.finished([DialogueState.from_tokens(PROMPT)]) == [len(drafted) // 2]
    assert runner.drafter.take_stats("a") == (3, 0, 0)
    assert runner.drafter.take_stats("a") is None


@pytest.mark.parametrize(("said", "asked", "drafted"), table(__file__, "ends_of_requests"))
def test_nothing_is_drafted_past_where_a_request_must_end(said: Any, asked: Any, drafted: list[int]) -> None:
    runner = ScriptedRunner(depth=8)
    runner.say("a", PROMPT, **said)
    runner.add("b", PROMPT, **asked)
    assert runner.step()["b"] == drafted


def test_drafts_of_one_length_are_filled_up_or_cut_and_counted_as_they_were_drafted(runner: ScriptedRunner) -> None:
    runner.drafter.lengths = [2, 3]
    runner.say("a", PROMPT, TURN)
    runner.add("b", PROMPT, TURN)
    runner.add("c", [9, 9], [3, 0, 0, END])
    assert runner.step() == {"b": TURN[1:4], "c": [0] * 3}
    assert runner.step() == {"b": TURN[5:8], "c": [0] * 3}
    assert runner.drafter.take_stats("b") == (2, 3, 3)
    assert runner.drafter.take_stats("c")[1:] == (0, 0)


def test_siblings_profit_from_a_turn_that_is_not_over(runner: ScriptedRunner) -> None:
    runner.add("a", PROMPT, TURN)
    for _ in range(5):
        runner.step()
    runner.add("b", PROMPT, TURN)
    assert runner.step()["b"] == TURN[1:5]


def test_a_store_of_another_run_drafts_from_the_first_turn_on(tmp_path: Path) -> None:
    past = SpecForest()
    past.insert(DialogueState.from_tokens(PROMPT), TURN)
    past.save(tmp_path / "past.npz")
    passes = {}
    for given in (str(tmp_path / "past.npz"), ""):
        runner = ScriptedRunner(
            DrafterSettings(adaptive=False, min_probability=0.0, forest=ForestConfig(import_turns=given))
        )
        passes[given] = runner.say("a", PROMPT, TURN)
        assert runner.drafter.stats().get("imported_turns", 0) == bool(given)
    assert passes[str(tmp_path / "past.npz")] < passes[""] == len(TURN)


def test_the_same_id_given_anew_is_another_turn(runner: ScriptedRunner) -> None:
    runner.say("a", PROMPT, TURN)
    runner.add("a", PROMPT, TURN)
    assert runner.step()["a"] == TURN[1:5]
    assert runner.drafter.take_stats("a") == (1, 0, 0)


def test_nothing_is_drafted_past_the_longest_context() -> None:
    long = list(range(100, 100 + CONTEXT - 3))
    runner = ScriptedRunner(depth=8)
    runner.say("a", long, [11, 12, 13], max_tokens=50)
    assert runner.drafter.forest.finished([DialogueState.from_tokens(long)]) == [1]
    runner.add("b", long, [11, 12, 13], max_tokens=50)
    assert runner.step()["b"] == [12]
    assert runner.effective_drafter_max_model_len > CONTEXT + 8


def test_tokens_of_steps_that_asked_for_no_drafts_are_caught_up_with(runner: ScriptedRunner) -> None:
    runner.add("a", PROMPT, TURN)
    runner.step()
    for _ in range(3):
        runner.step(ask=False)
    runner.play("a")
    assert runner.say("b", PROMPT, TURN) == 3


def test_requests_that_read_their_prompts_are_left_alone(runner: ScriptedRunner) -> None:
    runner.add("a", PROMPT, TURN)
    runner.add("b", [9, 9, 9], TURN)
    assert runner.step(reading=["b"])["b"] == []
    assert runner.drafter.take_stats("b") is None


def test_drafts_from_before_a_pause_are_not_counted_as_verified(runner: ScriptedRunner) -> None:
    runner.say("a", PROMPT, TURN)
    runner.add("b", PROMPT, TURN)
    assert runner.step()["b"]
    runner.step(reading=["b"])  # preempted: it reads its tokens again
    runner.drafts["b"] = []
    runner.step()
    assert (runner.drafter.take_stats("b") or ())[1] == 0


def test_the_caller_s_draft_is_drafted_while_it_comes_true(runner: ScriptedRunner) -> None:
    runner.add("a", PROMPT, TURN, extra_args={DRAFT: [*TURN[:4], 50, 51, 52]})
    assert runner.step()["a"] == [12, 13, 14, 50]
    assert runner.step()["a"] == []
    assert runner.drafter.take_stats("a") == (2, 4, 3)


def test_a_draft_beyond_the_vocabulary_is_never_drafted(runner: ScriptedRunner) -> None:
    runner.say("a", PROMPT, TURN)
    runner.add("b", PROMPT, TURN, extra_args={DRAFT: [TURN[0], TURN[1], VOCABULARY, 50]})
    runner.add("c", PROMPT, TURN, extra_args={DRAFT: "[1e999]"})
    drafted = [token for _ in TURN for draft in runner.step().values() for token in draft]
    assert drafted
    assert all(0 <= token < VOCABULARY for token in drafted)
    assert runner.drafter.forest.finished([DialogueState.from_tokens(PROMPT)]) == [3]


def test_a_turn_that_is_said_again_takes_fewer_steps_unless_the_drafter_is_off_which_learns_all_the_same(runner):
    runner.drafter.settings = replace(runner.drafter.settings, enabled=False)
    assert [runner.say(name, PROMPT, TURN) for name in "ab"] == [len(TURN)] * 2
    runner.drafter.settings = replace(runner.drafter.settings, enabled=True)
    assert runner.say("c", PROMPT, TURN) == 3  # the first token, then twice four drafts and at most one more
    runner.step()
    assert runner.drafter.take_stats("c") == (3, 6, 5)


def test_rows_that_change_places_keep_their_turns(runner: ScriptedRunner) -> None:
    turns = {name: [first, *TURN] for name, first in zip("abc", (21, 22, 23), strict=True)}
    for name, turn in turns.items():
        runner.add(name, [30, ord(name)], turn)
    for _ in range(4):
        runner.step()
    runner.remove("a")
    for name in "cb":
        runner.play(name)
    for name in "bc":
        tree = runner.drafter.forest.tree(DialogueState.from_tokens([30, ord(name)]))
        assert [child.token for child in tree.children] == [turns[name][0]]


def test_without_the_plugin_the_drafter_says_what_is_missing() -> None:
    drafter = ForestDrafter(vllm_config(DrafterSettings(), 4))
    with pytest.raises(RuntimeError, match="VLLM_PLUGINS"):
        drafter.load_model()


def test_its_own_end_tokens_stand_above_the_model_s() -> None:
    settings = DrafterSettings(forest=ForestConfig(end_tokens=frozenset({40})))
    assert ForestDrafter(vllm_config(settings, 4)).forest.config.end_tokens == {40}
    assert ForestDrafter(vllm_config(DrafterSettings(), 4)).forest.config.end_tokens == {END}


def test_live_turns_do_not_pile_up(runner: ScriptedRunner) -> None:
    for turn in range(40):
        name = f"r{turn}"
        runner.add(name, [turn + 100], TURN)
        for _ in range(turn % 4):
            runner.step()
        runner.remove(name)
    runner.step()
    assert runner.drafter.forest.stats().live == 0
    assert runner.drafter.stats()["steps"] == sum(turn % 4 for turn in range(40)) + 1


def test_no_step_waits_for_a_kernel_to_be_compiled() -> None:
    support = str(Path(__file__).parents[3] / "support")
    done = subprocess.run(
        [sys.executable, "-c", table(__file__, "compiles_late"), support], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_a_turn_whose_end_was_drafted_is_kept_without_what_was_sampled_behind_it(runner: ScriptedRunner) -> None:
    state = DialogueState.from_tokens(PROMPT)
    for name in "abc":
        runner.say(name, PROMPT, TURN)
    assert runner.proposed[-2]["c"][-1] == END, "the end is drafted"
    runner.add("d", PROMPT, [1, END])
    runner.step()
    assert runner.drafter.forest.finished([state]) == [3]
    assert turns_in(runner.drafter.forest.tree(state)) == {tuple(TURN): 3, (1,): 1}


def test_drafts_are_made_while_vllm_goes_on_and_are_there_when_it_takes_them(runner, monkeypatch):
    for name in "ab":
        runner.say(name, PROMPT, TURN)
    runner.add("c", PROMPT, TURN)
    returned, draft = threading.Event(), runner.drafter.forest.advance

    def late(*args: Any, **kwargs: Any) -> Any:
        assert returned.wait(patience(30)), "vLLM waited for the drafts"
        return draft(*args, **kwargs)

    monkeypatch.setattr(runner.drafter.forest, "advance", late)
    propose = runner.drafter.propose

    def proposed(*args: Any) -> list[list[int]]:
        drafts = propose(*args)
        assert drafts == [[]]
        returned.set()
        return drafts

    monkeypatch.setattr(runner.drafter, "propose", proposed)
    assert runner.step()["c"] == TURN[1:5]


def test_while_the_budget_rests_no_other_thread_is_asked_and_turns_are_kept_all_the_same(monkeypatch):
    runner = ScriptedRunner(DrafterSettings())
    asked, submit = [], runner.drafter._thread.submit
    monkeypatch.setattr(runner.drafter._thread, "submit", lambda *given: (asked.append(given), submit(*given))[1])
    turns = [[100 * number + position for position in range(18)] for number in range(1, 11)]
    for number, turn in enumerate(turns):
        runner.say(f"r{number}", PROMPT, turn, max_tokens=18)
    assert runner.drafter.counts.steps == 180
    assert 10 < len(asked) < 100
    assert turns_in(runner.drafter.forest.tree(DialogueState.from_tokens(PROMPT))) == {tuple(turn): 1 for turn in turns}


def test_an_error_of_the_store_is_the_engines(runner: ScriptedRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise OSError("the store is gone")

    runner.add("a", PROMPT, TURN)
    monkeypatch.setattr(runner.drafter.forest, "begin", broken)
    with pytest.raises(OSError, match="the store is gone"):
        runner.step()
