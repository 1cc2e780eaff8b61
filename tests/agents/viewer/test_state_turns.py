from turntree.agents.viewer.state_turns import branches
from turntree.spec_tree import TreeNode


def letter(token: int) -> str:
    return chr(ord("a") + token)


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
