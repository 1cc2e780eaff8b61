"""BFCL's multi-turn tasks: the paths win, words do not, and neither do paths that are not quite those."""

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from catalogue_policies import LOSERS, WINNERS, Played, play_as
from odd_arguments import odd_arguments
from playing import another, call, published, use
from small_bfcl import ROWS, write_bfcl
from tables import table

from turntree.envs import DataError, Env, Limits, make, require_conformance
from turntree.envs.bfcl.apis import APIS, TOOLS
from turntree.envs.bfcl.env import BFCL, SPLITS
from turntree.envs.bfcl.long_context import lengthened, padding_of
from turntree.envs.bfcl.scoring import expected

Path_ = list[list[dict[str, Any]]]
FREE = {tuple(pair) for pair in table(__file__, "free_arguments")}
"""Tool and argument on which neither state nor result needs to depend."""
ALL_TURNS = Limits(max_turns=256)


@pytest.fixture
def env(tmp_path: Path) -> BFCL:
    return BFCL(data=write_bfcl(tmp_path))


def follow(env: Env, index: int, path: Path_) -> Played:
    """A policy that makes the calls of a path, those of one turn at once, and then a few words."""

    def turns(env: Env) -> Iterator[str]:
        for calls in path:
            if calls:
                yield "\n".join(call(env, one["name"], **one["arguments"]) for one in calls)
            yield "Done."

    return play_as(env, turns, index)


def path_of(env: Env, index: int) -> Path_:
    return [list(calls) for calls in env.task(index).metadata["path"]]


def left_out(path: Path_) -> Iterator[Path_]:
    """A path without each of its calls."""
    for turn, calls in enumerate(path):
        for number in range(len(calls)):
            yield [*path[:turn], calls[:number] + calls[number + 1 :], *path[turn + 1 :]]


def changed(path: Path_) -> Iterator[tuple[Path_, str, str]]:
    """A path with each of its arguments changed, the tool and the argument; free ones are left alone."""
    for turn, calls in enumerate(path):
        for number, one in enumerate(calls):
            for name, value in one["arguments"].items():
                if (one["name"], name) not in FREE and value not in ([], {}):
                    other = {**one, "arguments": {**one["arguments"], name: another(value)}}
                    instead = [*calls[:number], other, *calls[number + 1 :]]
                    yield [*path[:turn], instead, *path[turn + 1 :]], one["name"], name


class TestADialogue:
    def test_the_user_goes_on_when_the_policy_stops_calling_tools(self, env: BFCL) -> None:
        opening, info = env.reset(options={"index": 0})
        assert opening.endswith("Make a directory plans and move todo.txt into it.")
        assert "cp" not in [tool["function"]["name"] for tool in info["tools"]]
        assert len(info["tools"]) == len(APIS["GorillaFileSystem"].tools) - 1 + len(APIS["TwitterAPI"].tools)
        assert use(env, "mkdir", dir_name="plans") == "{}"
        assert "there is no tool 'cp'" in use(env, "cp", source="todo.txt", destination="plans")
        use(env, "mv", source="todo.txt", destination="plans")
        assert env.step("It is there.")[0] == "How many words has todo.txt? Post just the number."
        use(env, "cd", folder="plans")
        assert json.loads(use(env, "wc", file_name="todo.txt", mode="w")) == {"count": 3, "type": "words"}
        assert json.loads(use(env, "post_tweet", content="3"))["id"] == 7
        _, reward, terminated, _, info = env.step("It has three.")
        assert (reward, terminated, info["rewards"]) == (1.0, True, {"state": 1.0, "calls": 1.0})

    def test_a_missing_tool_is_offered_in_the_turn_that_the_data_name_or_by_when_a_path_needs_it(
        self, env: BFCL, tmp_path: Path
    ) -> None:
        def offered(info: dict[str, Any]) -> bool:
            return "place_order" in [tool["function"]["name"] for tool in info["tools"]]

        order = {"order_type": "Buy", "symbol": "ABC", "price": 9.5, "amount": 5}
        assert not offered(env.reset(options={"index": 1})[1])
        use(env, "get_stock_info", symbol="ABC")
        env.step("It costs 9.5 dollars.")
        assert "there is no tool 'place_order'" in use(env, "place_order", **order)
        said, _, _, _, info = env.step("I cannot do that.")
        assert '"place_order"' in said
        assert offered(info)
        assert json.loads(use(env, "place_order", **order))["status"] == "Pending"
        row = {**ROWS[1], "missed_function": {"3": ["send_message", "get_stock_info"]}}
        write_bfcl(tmp_path).joinpath("multi_turn_base.jsonl").write_text(json.dumps(row))
        assert BFCL(data=tmp_path).task(0).metadata["later"] == {"send_message": 3, "get_stock_info": 0}

    def test_what_is_done_in_a_turn_for_which_something_is_missing_shows_in_the_next_and_a_last_turn_is_judged(
        self, env: BFCL
    ) -> None:
        early = path_of(env, 1)
        assert follow(env, 1, early).won
        early[1].append({"name": "cancel_order", "arguments": {"order_id": 1}})
        assert follow(env, 1, early).won  # it is refused
        early[1].append({"name": "add_to_watchlist", "arguments": {"stock": "ABC"}})
        assert follow(env, 1, early).lost
        path = path_of(env, 3)
        path[1].append({"name": "close_ticket", "arguments": {"ticket_id": 1}})
        assert follow(env, 3, path).lost

    def test_a_result_of_an_earlier_turn_counts_in_a_turn_with_a_call(self, tmp_path: Path) -> None:
        """As the benchmark has it: something must be called, and the result is there."""
        row = {**ROWS[3], "ground_truth": [["mean([3, 4])"], ["mean([3, 4])", "mean([3, 4])"]]}
        write_bfcl(tmp_path).joinpath("multi_turn_base.jsonl").write_text(json.dumps(row))
        env = BFCL(data=tmp_path)
        once = path_of(env, 0)[0]
        assert follow(env, 0, [[*once, *once], []]).lost
        assert follow(env, 0, [once, once]).won
        assert follow(env, 0, [[*once, *once], [{"name": "add", "arguments": {"a": 1, "b": 1}}]]).won
        assert follow(env, 0, [once, [{"name": "add", "arguments": {"a": 1, "b": 1}}]]).lost
        assert follow(env, 0, [[], [*once, *once]]).lost

    def test_undoing_and_doing_again_does_not_win(self, env: BFCL) -> None:
        """The result of a call counts only together with the state that it leaves."""
        paths = [path_of(env, 0) for _ in range(3)]
        moved = {"name": "mv", "arguments": {"source": "todo.txt", "destination": "plans"}}
        paths[0][0] += [{"name": "rm", "arguments": {"file_name": "plans"}}]  # done and undone
        paths[1][0] = [{"name": "mkdir", "arguments": {"dir_name": "plans"}}]  # done one turn later
        paths[1][1].insert(0, moved)
        paths[2][1] += [{"name": "post_tweet", "arguments": {"content": "3"}}]  # done twice
        assert [follow(env, 0, path).reward for path in paths] == [0.0] * 3

    def test_it_keeps_the_rules(self, tmp_path: Path) -> None:
        env = BFCL(data=write_bfcl(tmp_path))
        calls = [
            call(env, "get_stock_info", symbol="ABC"),
            call(env, "mkdir", dir_name="x"),
            call(env, "mean", numbers=[1]),
        ]
        require_conformance(functools.partial(BFCL, data=tmp_path), [*calls, "Done.", "", *calls, "No."])


class TestTheData:
    def test_the_published_documents_are_shown_if_they_fit_our_tools(self, tmp_path: Path) -> None:
        write_bfcl(tmp_path)
        document = {
            "api": "math_api",
            "name": "mean",
            "description": "As published.",
            "parameters": {
                "type": "dict",
                "properties": {"numbers": {"type": "array", "items": {"type": "float"}, "description": "Some."}},
                "required": ["numbers"],
            },
        }
        file = tmp_path / "func_doc.jsonl"
        file.write_text(json.dumps(document))
        tools = {
            tool["function"]["name"]: tool["function"]
            for tool in BFCL(data=tmp_path).reset(options={"index": 3})[1]["tools"]
        }
        assert tools["mean"]["description"] == "As published."
        assert tools["mean"]["parameters"]["type"] == "object"
        assert tools["mean"]["parameters"]["properties"]["numbers"]["items"] == {"type": "number"}
        file.write_text(json.dumps({**document, "parameters": {**document["parameters"], "required": []}}))
        with pytest.raises(DataError, match=r"func_doc.jsonl:1: the tool 'mean' is not one of ours, or takes other"):
            BFCL(data=tmp_path)

    @pytest.mark.parametrize(("change", "complaint"), table(__file__, "malformed_rows"))
    def test_rows_that_do_not_fit_are_named(self, tmp_path: Path, change: dict[str, Any], complaint: str) -> None:
        write_bfcl(tmp_path).joinpath("multi_turn_base.jsonl").write_text(json.dumps({**ROWS[0], **change}))
        with pytest.raises(DataError, match=rf"multi_turn_base.jsonl:1: .*{complaint}"):
            BFCL(data=tmp_path)

    def test_missing_files_are_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("TURNTREE_DATA", raising=False)
        with pytest.raises(DataError, match="expected data=FOLDER with BFCL's multi_turn_base"):
            BFCL()
        with pytest.raises(DataError, match=r"has neither multi_turn_miss_func.jsonl nor BFCL_v4_multi_turn_miss_func"):
            BFCL(data=tmp_path, split="miss_func")
        (tmp_path / "BFCL_v4_multi_turn_base.json").write_text("{}")
        with pytest.raises(DataError, match=r"expected .*possible_answer/BFCL_v4_multi_turn_base.json"):
            BFCL(data=tmp_path)

    def test_the_published_layout_is_read_too(self, tmp_path: Path) -> None:
        file = "BFCL_v4_multi_turn_base.json"
        (tmp_path / "possible_answer").mkdir()
        tasks = [{key: value for key, value in row.items() if key != "ground_truth"} for row in ROWS]
        paths = [{"id": row["id"], "ground_truth": row["ground_truth"]} for row in reversed(ROWS)]
        (tmp_path / file).write_text("\n".join(map(json.dumps, tasks)))
        (tmp_path / "possible_answer" / file).write_text("\n".join(map(json.dumps, paths)))
        write_bfcl(ours := tmp_path / "ours")
        assert [BFCL(data=tmp_path).task(n) for n in range(4)] == [BFCL(data=ours).task(n) for n in range(4)]

    def test_long_worlds_have_what_their_paths_quote_and_more(self) -> None:
        world = {"GorillaFileSystem": ROWS[0]["initial_config"]["GorillaFileSystem"], "TradingBot": {"stocks": {}}}
        arguments = ["buy new shoes" + " and socks" * 200, "image_12.jpg"]
        padding = padding_of([(world, arguments)])
        assert padding.text == " and socks" * 200
        larger = lengthened(world, ["image_12.jpg"], padding)
        home = larger["GorillaFileSystem"]["root"]["home"]["contents"]
        assert list(home) == ["todo.txt", "image_12.jpg"]
        assert home["todo.txt"]["content"] == arguments[0]
        assert len(larger["TradingBot"]["stocks"]) > 50
        assert world["TradingBot"] == {"stocks": {}}


EACH = [pytest.param(split, 1, marks=pytest.mark.release) for split in SPLITS]
"""Every task of every split."""


def test_no_arguments_lead_to_a_failure(env: BFCL) -> None:
    """An exception would be a failure of the infrastructure, which a policy could bring about."""
    for tool in TOOLS.values():
        index = next(n for n, row in enumerate(ROWS) if any(tool in APIS[api].tools for api in row["involved_classes"]))
        env.reset(options={"index": index})
        for arguments in odd_arguments(tool):
            info = env.step(call(env, tool.name, **arguments))[4]
            assert not info["stop_reason"], (tool.name, arguments, info["failure"])


@pytest.mark.parametrize(("split", "every"), [*((split, 3) for split in SPLITS), *EACH])
def test_every_path_wins_its_task_and_words_win_none(split: str, every: int) -> None:
    env = make("turntree/BFCL-v0", data=published("bfcl_multi_turn"), split=split, limits=ALL_TURNS)
    assert env.num_tasks == 200
    for index in range(0, 200, every):
        assert play_as(env, WINNERS["turntree/BFCL-v0"], index).won, index
        assert play_as(env, LOSERS["sorry"], index).lost, index


def nearly_right_paths_lose(split: str, indices: range) -> None:
    """A path without one call loses if no other call has the same result, and so does one with an argument changed."""
    env = BFCL(data=published("bfcl_multi_turn"), split=split, limits=ALL_TURNS)
    for index in indices:
        path = path_of(env, index)
        results = [result for turn in expected(env.task(index), env.executor) for result in turn.results]
        for number, shorter in enumerate(left_out(path)):
            assert results.count(results[number]) > 1 or follow(env, index, shorter).lost, (index, number)
        for other, name, argument in changed(path):
            assert follow(env, index, other).lost, (index, name, argument)


@pytest.mark.parametrize(("split", "every"), [*((split, 20) for split in SPLITS), *EACH])
def test_a_path_with_one_call_less_or_one_other_argument_loses(split: str, every: int) -> None:
    nearly_right_paths_lose(split, range(SPLITS.index(split) % every, 200, every))
