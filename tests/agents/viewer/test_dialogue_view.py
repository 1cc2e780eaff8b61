import math

from recording_engine import a_turn

from turntree.agents.engines.protocol import DraftStats
from turntree.agents.episodes.episode import Episode, StopReason, Turn
from turntree.agents.viewer.dialogue_view import branches, bubbles
from turntree.envs import Message, Role
from turntree.spec_tree import TreeNode


def letter(token: int) -> str:
    return chr(ord("a") + token)


def an_episode(accepted: tuple[bool, ...] = (True, False)) -> Episode:
    draft = DraftStats(verify_steps=1, drafted=1, accepted=1)
    said = a_turn(0, 1, logprobs=(0.0, math.log(0.5)), draft=draft, accepted=accepted)
    turn = Turn(prompt_ids=(9,), completion=said, text="ab")
    messages = (
        Message(role=Role.USER, content="q"),
        Message(role=Role.ASSISTANT, content="an example of the environment's"),
        Message(role=Role.USER, content="now you"),
        Message(role=Role.ASSISTANT, content="ab"),
    )
    return Episode(env_id="e", task=None, seed=None, messages=messages, turns=(turn,), stop_reason=StopReason.DONE)


def test_the_policys_tokens_carry_whether_they_were_drafted_and_how_likely_they_were():
    *shown, said = bubbles(an_episode(), letter)
    assert [(p.text, p.accepted, p.probability) for p in said.pieces] == [("a", True, 1.0), ("b", False, 0.5)]
    assert (said.accepted, said.verify_steps) == (1, 1)
    assert not any(bubble.pieces for bubble in shown), "an example in the opening is not taken for the policy's"
    assert [bubble.text for bubble in shown] == ["q", "an example of the environment's", "now you"]
    assert bubbles(an_episode(accepted=()), letter)[-1].accepted == 0, "an engine that cannot tell marks nothing"


def test_paths_without_forks_are_joined_shares_refer_to_the_fork_and_wide_ones_are_cut():
    top = branches(TreeNode.from_turns([(0, 1, 2), (0, 1, 2), (0, 1, 2), (0, 3)]), letter)
    assert (top.text, top.count) == ("a", 4)
    assert [(b.text, b.count, b.share) for b in top.children] == [("bc", 3, 0.75), ("d", 1, 0.25)]
    top = branches(TreeNode.from_turns([(0, 1), (0,)]), letter)
    assert (top.text, top.count) == ("a", 2), "a turn that ends inside another one is not joined away"
    assert [(b.text, b.count) for b in top.children] == [("b", 1)]
    top = branches(TreeNode.from_turns([(n,) for n in range(5)]), letter, widest=3)
    assert (len(top.children), top.hidden) == (3, 2)
    assert branches(TreeNode(token=-1), letter).children == ()
