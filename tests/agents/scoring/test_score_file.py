import json
import math
from pathlib import Path
from typing import Any

import pytest
from tables import table

from turntree.agents.errors import AgentError
from turntree.agents.scoring.score_file import Fields, RowError, score_file
from turntree.agents.scoring.scorer import Scorer
from turntree.rewards import MissingQuestion

ANSWER = Scorer({"answer": 1}, answer_format="math")


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def scored(path: Path) -> list[Any]:
    return [json.loads(line)["scored"] for line in path.read_text().splitlines()]


def test_rows_come_back_with_their_scores_and_sums_by_data_set(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    source = write(
        tmp_path / "rows.jsonl",
        {"prediction": "\\boxed{5}", "gold": "5", "data_source": "math", "kept": [1]},
        "",
        {"prediction": "#### 6", "gold": 5, "data_source": "gsm8k"},
        {"prediction": "it is 5", "gold": "\\frac{", "data_source": "math"},
        {"prediction": "\\boxed{\\phantom{5}}", "gold": "5", "data_source": "math"},
    )
    tallies = score_file(source, out, ANSWER)
    assert list(tallies) == ["math", "gsm8k"]
    math_tally = tallies["math"]
    assert (math_tally.samples, math_tally.right, math_tally.wrong, math_tally.ungraded) == (3, 1, 1, 1)
    assert (math_tally.reward, math_tally.suspects) == (0.5, 1)
    first, wrong, open_one, _ = scored(out)
    assert (first["reward"], first["correct"], first["status"], first["answer"]) == (1.0, True, "ok", "5")
    assert (wrong["reward"], wrong["correct"]) == (0.0, False)
    assert (open_one["reward"], open_one["correct"], open_one["ungraded"]) == (None, None, ["answer"])
    assert json.loads(out.read_text().splitlines()[0])["kept"] == [1]


def test_only_the_assistants_last_words_in_messages_count(tmp_path: Path) -> None:
    said = {"role": "assistant", "content": "I do not know"}
    calling = {"role": "assistant", "content": "calculator(5)", "tool_calls": [{"function": {"name": "calculator"}}]}
    told = [{"role": role, "content": "\\boxed{5} #### 5"} for role in ("user", "tool", "system")]
    source = write(
        tmp_path / "rows.jsonl",
        {"messages": [*told, said, *told], "gold": "5"},
        {"messages": [*told, {**said, "content": "#### 5"}], "gold": "5"},
        {"turns": ["#### 5", "#### 6"], "gold": "5"},
        {"messages": [calling], "gold": "5"},
        {"messages": [{"role": "assistant", "content": "5"}, {"role": "tool", "content": "5"}], "gold": "5"},
    )
    score_file(source, tmp_path / "out.jsonl", ANSWER)
    assert [one["reward"] for one in scored(tmp_path / "out.jsonl")] == [0.0, 1.0, 0.0, 0.0, 0.0]


ASKED, COPY = "Compute $2^5$.", r"\boxed{2^5}"
SPOKEN = [{"role": "user", "content": ASKED}, {"role": "assistant", "content": COPY}]


@pytest.mark.parametrize("row", [{"prediction": COPY, "question": ASKED}, {"messages": SPOKEN}])
def test_the_question_given_back_is_not_paid(tmp_path: Path, row: Any) -> None:
    out = tmp_path / "out.jsonl"
    score_file(write(tmp_path / "rows.jsonl", {**row, "gold": "32"}), out, ANSWER)
    assert [(one["correct"], one["flags"]) for one in scored(out)] == [(False, ["restated_question"])]


def test_rows_without_the_question_that_their_answer_format_needs_are_counted(tmp_path: Path, turntree: Any) -> None:
    rows = [{"prediction": COPY, "gold": "32"}, {"prediction": COPY, "gold": "32", "question": ASKED}]
    source = write(tmp_path / "rows.jsonl", *rows, {"prediction": "#### 5", "gold": "5", "data_source": "aime"})
    tallies = score_file(source, tmp_path / "out.jsonl", ANSWER)
    assert {name: tally.without_question for name, tally in tallies.items()} == {"": 1, "aime": 0}
    with pytest.warns(MissingQuestion, match="the answer format 'math' needs the question"):
        score_file(source, tmp_path / "out.jsonl", ANSWER)
    said = turntree("score", source, "--answer-format", "math")
    assert said.status == 0
    assert "1 rows have no question" in said.err
    assert "MissingQuestion" not in said.err
    assert "no question" not in turntree("score", write(source, rows[1]), "--answer-format", "math").err


def test_fields_may_have_other_names(tmp_path: Path) -> None:
    source = write(tmp_path / "rows.jsonl", {"response": "5", "target": "5"})
    tallies = score_file(source, tmp_path / "out.jsonl", ANSWER, Fields(prediction="response", gold="target"))
    assert tallies[""].right == 1


def test_an_empty_file_is_refused_and_a_data_set_without_a_verdict_has_no_mean(tmp_path: Path) -> None:
    with pytest.raises(RowError, match=r"rows\.jsonl has no rows; expected JSON Lines"):
        score_file(write(tmp_path / "rows.jsonl"), tmp_path / "out.jsonl", ANSWER)
    assert not (tmp_path / "out.jsonl").exists()
    source = write(tmp_path / "rows.jsonl", {"prediction": "5", "gold": "\\frac{"})
    assert math.isnan(score_file(source, tmp_path / "out.jsonl", ANSWER)[""].reward)


GOOD = {"prediction": "5", "gold": "5"}


@pytest.mark.parametrize(("row", "message"), table(__file__, "unscorable_rows"))
def test_a_row_that_cannot_be_scored_is_named_by_line_and_field(tmp_path: Path, row: Any, message: str) -> None:
    source = write(tmp_path / "rows.jsonl", GOOD, row)
    with pytest.raises(RowError, match=message):
        score_file(source, tmp_path / "out.jsonl", ANSWER)
    assert not (tmp_path / "out.jsonl").exists()


def test_a_data_set_without_rules_is_named_by_line_and_field(tmp_path: Path) -> None:
    source = write(tmp_path / "rows.jsonl", {**GOOD, "data_source": "math"}, {**GOOD, "data_source": "mine"})
    with pytest.raises(RowError, match=r"line 2: field 'data_source': the data set 'mine' has no answer format"):
        score_file(source, tmp_path / "out.jsonl", Scorer({"answer": 1}))
    score_file(source, tmp_path / "out.jsonl", Scorer({"finished": 1}))
    source = write(tmp_path / "rows.jsonl", GOOD)
    with pytest.raises(AgentError, match="is an input and would be overwritten"):
        score_file(source, tmp_path / "." / "rows.jsonl", ANSWER)
    assert source.read_text() == json.dumps(GOOD) + "\n"
