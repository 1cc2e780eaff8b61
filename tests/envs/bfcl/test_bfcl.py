"""BFCL's multi-turn tasks: the user goes on, tools are withheld, turns are judged.

Each test plays a stand-in for the package, and the package too.
"""

import functools
import json
from pathlib import Path
from typing import Any

import pytest
from bfcl_paths import follow, path_of
from bfcl_stand_in import both, package  # noqa: F401
from playing import call, use
from small_bfcl import ROWS, write_bfcl
from tables import table

from turntree.envs import DataError, require_conformance
from turntree.envs.bfcl import tasks as task_files
from turntree.envs.bfcl.apis import all_api_tools
from turntree.envs.bfcl.env import BFCL

pytestmark = [both, pytest.mark.usefixtures("package")]


@pytest.fixture
def env(tmp_path: Path) -> BFCL:
    return BFCL(data=write_bfcl(tmp_path))


class TestADialogue:
    def test_the_user_goes_on_when_the_policy_stops_calling_tools(self, env: BFCL) -> None:
        opening, info = env.reset(options={"index": 0})
        assert opening.endswith("Make a directory plans and an empty file new.txt.")
        assert [tool["function"]["name"] for tool in info["tools"]] == [
            *(
                tool.name
                for api in ("MathAPI", "GorillaFileSystem")
                for tool in all_api_tools().values()
                if tool.api == api
            )
        ]
        assert use(env, "mkdir", dir_name="plans") == "None"
        assert "there is no tool 'post_tweet'" in use(env, "post_tweet", content="3")
        use(env, "touch", file_name="new.txt")
        assert env.step("It is there.")[0] == "How many words has todo.txt? Tell me the mean of that and 5."
        assert use(env, "wc", file_name="todo.txt", mode="w") == '{"count": 3, "type": "words"}'
        assert use(env, "mean", numbers=[3, 5]) == '{"result": 4.0}'
        _, reward, terminated, _, info = env.step("It is 4.")
        assert (reward, terminated, info["rewards"]) == (1.0, True, {"state": 1.0, "calls": 1.0})

    def test_a_missing_tool_is_offered_in_the_turn_that_the_data_name_or_by_when_a_path_needs_it(
        self, env: BFCL, tmp_path: Path
    ) -> None:
        def offered(info: dict[str, Any]) -> bool:
            return "rm" in [tool["function"]["name"] for tool in info["tools"]]

        assert not offered(env.reset(options={"index": 1})[1])
        use(env, "wc", file_name="todo.txt", mode="w")
        env.step("It has one.")
        assert "there is no tool 'rm'" in use(env, "rm", file_name="todo.txt")
        said, _, _, _, info = env.step("I cannot do that.")
        assert '"rm"' in said
        assert offered(info)
        assert "removed" in use(env, "rm", file_name="todo.txt")
        row = {**ROWS[1], "missed_function": {"3": ["rm", "mkdir", "wc"]}}
        write_bfcl(tmp_path).joinpath("multi_turn_base.jsonl").write_text(json.dumps(row))
        assert BFCL(data=tmp_path).task(0).metadata["later"] == {"rm": 2, "mkdir": 3, "wc": 0}

    def test_what_is_done_in_a_turn_for_which_something_is_missing_shows_in_the_next_and_a_last_turn_is_judged(
        self, env: BFCL
    ) -> None:
        early = path_of(env, 1)
        assert follow(env, 1, early).won
        early[1].append({"name": "touch", "arguments": {"file_name": "todo.txt"}})
        assert follow(env, 1, early).won  # it is refused
        early[1].append({"name": "touch", "arguments": {"file_name": "other.txt"}})
        assert follow(env, 1, early).lost
        path = path_of(env, 2)
        path[1].append({"name": "rm", "arguments": {"file_name": "mean.txt"}})
        assert follow(env, 2, path).lost

    def test_a_result_of_an_earlier_turn_counts_in_a_turn_with_a_call(self, tmp_path: Path) -> None:
        """As the benchmark has it: something must be called, and the result is there."""
        row = {**ROWS[2], "ground_truth": [["mean([3, 4])"], ["mean([3, 4])", "mean([3, 4])"]]}
        write_bfcl(tmp_path).joinpath("multi_turn_base.jsonl").write_text(json.dumps(row))
        env = BFCL(data=tmp_path)
        once = path_of(env, 0)[0]
        assert follow(env, 0, [[*once, *once], []]).lost
        assert follow(env, 0, [once, once]).won
        assert follow(env, 0, [[*once, *once], [{"name": "mean", "arguments": {"numbers": [1]}}]]).won
        assert follow(env, 0, [once, [{"name": "mean", "arguments": {"numbers": [1]}}]]).lost
        assert follow(env, 0, [[], [*once, *once]]).lost

    def test_undoing_and_doing_again_does_not_win(self, env: BFCL) -> None:
        """The result of a call counts only together with the state that it leaves."""
        paths = [path_of(env, 0) for _ in range(3)]
        paths[0][0] += [{"name": "rm", "arguments": {"file_name": "plans"}}]  # done and undone
        paths[1][1].insert(0, paths[1][0].pop())  # done one turn later
        paths[2][1] += [{"name": "touch", "arguments": {"file_name": "newer.txt"}}]  # and more
        assert [follow(env, 0, path).reward for path in paths] == [0.0] * 3

    def test_a_result_is_right_letter_for_letter(self, tmp_path: Path) -> None:
        """As in the benchmark, for which a 4 is no 4.0."""
        row = {**ROWS[2], "ground_truth": [["power(base=2.0, exponent=2)"], []]}
        write_bfcl(tmp_path).joinpath("multi_turn_base.jsonl").write_text(json.dumps(row))
        env = BFCL(data=tmp_path)
        assert follow(env, 0, path_of(env, 0)).won
        assert follow(env, 0, [[{"name": "power", "arguments": {"base": 2, "exponent": 2}}], []]).lost

    def test_it_keeps_the_rules(self, tmp_path: Path) -> None:
        env = BFCL(data=write_bfcl(tmp_path))
        calls = [
            call(env, "wc", file_name="todo.txt"),
            call(env, "mkdir", dir_name="x"),
            call(env, "mean", numbers=[1]),
        ]
        require_conformance(functools.partial(BFCL, data=tmp_path), [*calls, "Done.", "", *calls, "No."])


class TestTheData:
    def test_a_document_is_the_schema_of_its_tool_with_types_of_json(self, env: BFCL) -> None:
        tools = {tool["function"]["name"]: tool["function"] for tool in env.reset(options={"index": 2})[1]["tools"]}
        parameters = tools["power"]["parameters"]
        assert tools["power"]["description"]
        assert (parameters["type"], parameters["required"]) == ("object", ["base", "exponent"])
        assert {kind["type"] for kind in parameters["properties"].values()} == {"number"}

    @pytest.mark.parametrize(("change", "complaint"), table(__file__, "malformed_rows"))
    def test_rows_that_do_not_fit_are_named(self, tmp_path: Path, change: dict[str, Any], complaint: str) -> None:
        write_bfcl(tmp_path).joinpath("multi_turn_base.jsonl").write_text(json.dumps({**ROWS[0], **change}))
        with pytest.raises(DataError, match=rf"multi_turn_base.jsonl:1: .*{complaint}"):
            BFCL(data=tmp_path)

    def test_missing_files_are_named(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="expected data=FOLDER with BFCL's multi_turn_base"):
            BFCL(data=tmp_path / "none")
        with pytest.raises(DataError, match=r"has neither multi_turn_miss_func.jsonl nor BFCL_v4_multi_turn_miss_func"):
            BFCL(data=tmp_path, split="miss_func")
        (tmp_path / "BFCL_v4_multi_turn_base.json").write_text("{}")
        with pytest.raises(DataError, match=r"expected .*possible_answer/BFCL_v4_multi_turn_base.json"):
            BFCL(data=tmp_path)

    def test_the_published_layout_is_read_too_and_that_of_the_package_is_the_default(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = "BFCL_v4_multi_turn_base.json"
        (tmp_path / "possible_answer").mkdir()
        tasks = [{key: value for key, value in row.items() if key != "ground_truth"} for row in ROWS]
        paths = [{"id": row["id"], "ground_truth": row["ground_truth"]} for row in reversed(ROWS)]
        (tmp_path / file).write_text("\n".join(map(json.dumps, tasks)))
        (tmp_path / "possible_answer" / file).write_text("\n".join(map(json.dumps, paths)))
        write_bfcl(ours := tmp_path / "ours")
        assert [BFCL(data=tmp_path).task(n) for n in range(3)] == [BFCL(data=ours).task(n) for n in range(3)]
        monkeypatch.setattr(task_files, "package_data", lambda: tmp_path)
        assert BFCL().task(0) == BFCL(data=ours).task(0)
