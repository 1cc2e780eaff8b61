import json

from turntree.spec_tree import TreeNode


def test_turns_merge_into_counts_most_frequent_first_and_become_json_without_recursion() -> None:
    tree = TreeNode.from_turns([[1, 2, 3], [1, 2, 4], [1, 2, 4], [5]])
    assert (tree.token, tree.count) == (-1, 4)
    assert [(child.token, child.count) for child in tree.children] == [(1, 3), (5, 1)]
    two = tree.children[0].children[0]
    assert [(child.token, child.count) for child in two.children] == [(4, 2), (3, 1)]
    tree = json.loads(json.dumps(TreeNode.from_turns([[1, 2]]).to_dict()))
    assert tree["children"][0] == {"token": 1, "count": 1, "children": [{"token": 2, "count": 1, "children": []}]}
    tree = TreeNode.from_turns([list(range(5000))])
    assert tree.to_dict()["count"] == 1
