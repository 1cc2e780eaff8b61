from __future__ import annotations

import pytest
from cores import tiny_llama
from hypothesis import given
from hypothesis import strategies as st

from turntree.agents.engines.local import LocalEngineConfig, Speculation
from turntree.agents.engines.local.admission import leaders_first
from turntree.agents.engines.local.core import EngineCore
from turntree.agents.engines.local.model import Policy
from turntree.agents.engines.local.request import Request
from turntree.agents.engines.protocol import Sampling
from turntree.spec_tree import DialogueState, SpecForest

STATES = st.sampled_from("abcd")


def test_one_of_each_new_state_goes_ahead_of_its_siblings():
    assert leaders_first(list("aaabbb"), running=set(), known=set()) == [0, 3, 1, 2, 4, 5]


def test_siblings_of_a_running_leader_let_others_pass():
    assert leaders_first(list("aab"), running={"a"}, known=set()) == [2, 0, 1]


def test_nobody_waits_at_a_state_where_a_turn_has_finished():
    assert leaders_first(list("aabba"), running={"a", "b"}, known={"a", "b"}) == [0, 1, 2, 3, 4]


def test_without_a_running_leader_the_next_sibling_leads():
    assert leaders_first(list("aa"), running=set(), known=set())[0] == 0


@given(st.lists(STATES, max_size=12), st.sets(STATES), st.sets(STATES))
def test_everybody_is_admitted_in_the_end_and_arrival_decides_among_equals(waiting, running, known):
    order = leaders_first(waiting, running=running, known=known)
    assert sorted(order) == list(range(len(waiting)))
    for state in set(waiting):
        own = [index for index in order if waiting[index] == state]
        assert own == sorted(own)


def play(*, leader_first, groups=4, samples=8, slots=8):
    """Groups of samples of a peaked policy, group by group over few slots: turns and counters."""
    speculation = Speculation(leader_first=leader_first, adaptive=False, min_probability=0.2)
    config = LocalEngineConfig(max_batch=slots, max_context=64, speculation=speculation)
    core = EngineCore(Policy(tiny_llama(sharpness=3.5)), config, SpecForest())
    turns = {}
    for number in range(groups * samples):
        prompt = [1 + number // samples, 7, 3]
        core.add(
            Request(
                prompt=prompt,
                sampling=Sampling(temperature=0.05, max_tokens=16),
                state=DialogueState.from_tokens(prompt),
                seed=number,
                deliver=lambda request, number=number: turns.__setitem__(number, request.completion().token_ids),
            )
        )
    while core.busy:
        core.step()
    return turns, core.stats


@pytest.fixture(scope="module")
def plain():
    return play(leader_first=False)


@pytest.fixture(scope="module")
def led():
    return play(leader_first=True)


def test_the_order_does_not_change_what_is_said(plain, led):
    assert led[0] == plain[0]


def test_groups_of_a_peaked_policy_need_fewer_steps_with_leaders_first(plain, led):
    assert led[1].verify_steps < 0.9 * plain[1].verify_steps
    assert led[1].forward_passes < 0.9 * plain[1].forward_passes


def test_no_slot_stays_empty_for_a_leader():
    """A group that is alone fills the slots at once, as it does without leaders."""
    alone = [play(leader_first=first, groups=1)[1] for first in (True, False)]
    assert alone[0].verify_steps == alone[1].verify_steps
    assert alone[0].forward_passes == alone[1].forward_passes


def test_a_state_that_the_store_knows_needs_no_leader():
    forest, state = SpecForest(), DialogueState.from_tokens([1])
    assert forest.finished([state]) == [0]
    handle = forest.begin([state])
    assert forest.finished([state]) == [0], "a turn that goes on is not finished"
    forest.commit(handle, [[5, 6]])
    forest.end(handle)
    assert forest.finished([state, DialogueState.from_tokens([2])]) == [1, 0]
