from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import playing
import pytest
from playing import call, made_up

from turntree.envs import Env, Message, Reply, ResultMemo, Task, tool
from turntree.envs.errors import ToolError

RUNS: Counter[str] = Counter()


class Notes(Env):
    def task(self, index: int) -> Task:
        return Task(id=f"notes/{index}", prompt="Take notes.")

    def start(self, task: Task) -> list[Message]:
        self.notes: list[str] = []
        return list(super().start(task))

    @made_up
    def write(self, text: str) -> str:
        RUNS["write"] += 1
        self.notes.append(text)
        return f"{len(self.notes)} notes"

    @tool(deterministic=True)
    def read(self) -> str:
        """Read all notes."""
        RUNS["read"] += 1
        return ", ".join(self.notes)

    @tool(deterministic=True)
    def find(self, text: str) -> str:
        """Find a note.

        Args:
            text: The note.
        """
        RUNS["find"] += 1
        if text not in self.notes:
            raise ToolError("no such note")
        return text

    def reply(self, message: Message) -> Reply:
        self.notes.append(f"said {message.content}")
        return Reply()


@pytest.fixture(autouse=True)
def _no_runs() -> None:
    RUNS.clear()


@pytest.fixture
def memo() -> ResultMemo:
    return ResultMemo(10)


NOTES = Notes()


def play(memo: ResultMemo | None, *turns: str, index: int = 0) -> list[str]:
    env = Notes()
    env.memo = memo
    return [step[0] for step in playing.play(env, turns, index)]


def test_the_same_call_at_the_same_point_is_answered_from_memory(memo: ResultMemo) -> None:
    turns = call(NOTES, "write", text="a"), call(NOTES, "read")
    assert play(memo, *turns) == play(memo, *turns) == ["1 notes", "a"]
    assert (RUNS["write"], RUNS["read"]) == (2, 1)


def test_what_happened_before_is_part_of_the_point(memo: ResultMemo) -> None:
    assert play(memo, call(NOTES, "write", text="a"), call(NOTES, "read"))[-1] == "a"
    assert play(memo, call(NOTES, "write", text="b"), call(NOTES, "read"))[-1] == "b"
    assert play(memo, call(NOTES, "write", text="a"), call(NOTES, "write", text="a"), call(NOTES, "read"))[-1] == "a, a"
    assert play(memo, "hello", call(NOTES, "read"))[-1] == "said hello"
    assert play(memo, call(NOTES, "write", text="a"), call(NOTES, "read"), index=1)[-1] == "a"
    assert RUNS["read"] == 5


def test_errors_are_not_remembered_nor_is_anything_without_a_memo(memo: ResultMemo) -> None:
    for _ in range(3):
        play(None, call(NOTES, "read"))
    assert RUNS["read"] == 3
    for _ in range(2):
        assert play(memo, call(NOTES, "find", text="x")) == ["Error: no such note"]
    assert RUNS["find"] == 2


def test_a_restored_episode_remembers_at_its_own_point(memo: ResultMemo) -> None:
    env = Notes()
    env.memo = memo
    env.reset(options={"index": 0})
    env.step(call(NOTES, "write", text="a"))
    state = env.snapshot()
    env.step(call(NOTES, "write", text="b"))
    assert env.step(call(NOTES, "read"))[0] == "a, b"
    env.restore(state)
    assert env.memo is memo
    assert env.step(call(NOTES, "read"))[0] == "a"


def test_the_oldest_results_go_first_also_where_threads_share_a_memo() -> None:
    memo = ResultMemo(2)
    memo.put("a", "1")
    memo.put("b", "2")
    assert memo.get("a") == "1"
    memo.put("c", "3")
    assert [memo.get(key) for key in "bac"] == [None, "1", "3"]
    with pytest.raises(ValueError, match="max_results must be at least 1, got 0"):
        ResultMemo(0)
    memo = ResultMemo(5)

    def work(_: int) -> None:
        for n in range(300):
            memo.put(str(n % 7), str(n % 7))
            assert memo.get(str(n % 7)) in (None, str(n % 7))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    assert sum(memo.get(str(n)) is not None for n in range(7)) == 5
