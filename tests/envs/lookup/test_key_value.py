import json

from playing import call, use

from turntree.envs import make, require_conformance
from turntree.envs.lookup.key_value import KeyValue


def test_doing_nothing_or_something_besides_loses() -> None:
    env = make("turntree/KeyValue-v0")
    for index in range(200):
        env.reset(options={"index": index})
        assert env.step("Done.")[1:4] == (0.0, True, False)
    env.reset(options={"index": 0})
    for key, value in env.current_task.metadata["expected"].items():
        use(env, "set", key=key, value=value)
    for key in set(env.current_task.metadata["store"]) - set(env.current_task.metadata["expected"]):
        use(env, "delete", key=key)
    use(env, "set", key="extra", value=1)
    assert env.step("Done.")[1:3] == (0.0, True)


def test_the_operations_in_words_are_those_that_are_expected() -> None:
    env = KeyValue(max_operations=8)
    for index in range(60):
        task = env.task(index)
        store = dict(task.metadata["store"])
        for line in task.prompt.splitlines()[1:]:
            words = line.rstrip(".").split()[1:]
            if words[0] == "Copy":
                store[words[-1]] = store[words[4]]
            elif words[0] == "Add":
                store[words[-1]] += store[words[4]]
            elif words[0] == "Swap":
                store[words[4]], store[words[6]] = store[words[6]], store[words[4]]
            else:
                del store[words[-1]]
        assert store == task.metadata["expected"]
        assert len(task.prompt.splitlines()) - 1 == task.metadata["operations"]


def test_the_numbers_have_to_be_looked_up() -> None:
    env = make("turntree/KeyValue-v0")
    opening, _ = env.reset(options={"index": 3})
    numbers = set(map(str, env.current_task.metadata["store"].values()))
    assert not numbers & set(opening.replace(".", " ").replace(",", " ").split())


def test_a_missing_key_is_named_with_those_there_are() -> None:
    env = make("turntree/KeyValue-v0")
    env.reset(options={"index": 0})
    for name in ("get", "delete"):
        said = use(env, name, key="nothing")
        assert "there is no key 'nothing'" in said
        assert sorted(env.current_task.metadata["store"])[0] in said
    store = env.current_task.metadata["store"]
    assert use(env, "list_keys") == json.dumps(sorted(store))
    assert [use(env, "get", key=key) for key in store] == [str(value) for value in store.values()]


def test_the_rules_are_kept_while_the_store_changes() -> None:
    env = KeyValue()
    turns = [call(env, "set", key="apple", value=5), call(env, "list_keys"), call(env, "delete", key="apple"), "Done."]
    require_conformance(KeyValue, turns)
