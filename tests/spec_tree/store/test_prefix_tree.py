import json

from turntree.spec_tree import TreeNode

TURNS = [[1, 2, 3], [1, 2, 4], [1, 2, 4], [5]]


def test_turns_merge_into_counts_most_frequent_first() -> None:
    tree = TreeNode.from_turns(TURNS)
    assert (tree.token, tree.count) == (-1, 4)
    assert [(child.token, child.count) for child in tree.children] == [(1, 3), (5, 1)]
    two = tree.children[0].children[0]
    assert [(child.token, child.count) for child in two.children] == [(4, 2), (3, 1)]


def test_dictionaries_are_json() -> None:
    tree = json.loads(json.dumps(TreeNode.from_turns([[1, 2]]).to_dict()))
    assert tree["children"][0] == {"token": 1, "count": 1, "children": [{"token": 2, "count": 1, "children": []}]}


def test_long_turns_do_not_recurse() -> None:
    tree = TreeNode.from_turns([list(range(5000))])
    assert tree.to_dict()["count"] == 1
