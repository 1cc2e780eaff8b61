import json
from pathlib import Path
from typing import Any

import pytest
from recorded_run import write_run

from turntree.agents.commands.rewards import parse_rewards
from turntree.agents.episodes.record import read_episodes, read_records
from turntree.agents.errors import AgentError


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    texts = [("\\boxed{5}", "math"), ("\\boxed{6}", "math"), ("#### 5", "gsm8k")]
    path.write_text(
        "".join(json.dumps({"prediction": text, "gold": "5", "data_source": name}) + "\n" for text, name in texts)
    )
    return path


def cells(out: str) -> list[list[str]]:
    return [line.split() for line in out.splitlines()[1:] if not line.startswith(("written to", "compared"))]


def test_score_prints_a_table_by_data_set_or_json_and_writes_the_rows(turntree, rows, tmp_path):
    result = turntree("score", rows, "--reward", "answer")
    assert cells(result.out) == [
        ["math", "2", "0.5000", "1", "1", "0", "0", "2"],
        ["gsm8k", "1", "1.0000", "1", "0", "0", "0", "1"],
    ]
    written = [json.loads(line)["scored"]["reward"] for line in rows.with_name("rows.scored.jsonl").open()]
    assert written == [1.0, 0.0, 1.0]
    out = tmp_path / "new.jsonl"
    rubric = ("--reward", "answer", "--reward", "answer_format=0.25")
    table = turntree("score", rows, *rubric, "--json", "--out", out).json
    assert table["rows"]["math"]["reward"] == 0.75
    assert table["out"] == str(out)
    assert json.loads(out.read_text().splitlines()[0])["scored"]["parts"] == {"answer": 1.0, "answer_format": 1.0}


def test_rescore_prints_old_against_new(turntree: Any, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=2, tokenizer=False)
    status, out, err = turntree("rescore", run, "--reward", "few_turns")
    assert status == 0, err
    (first, second) = cells(out)
    assert (first[:4], second[0]) == (["step_000001", "3", "3", "0.6667"], "step_000002")
    assert out.splitlines()[-1] == "compared 6 of 6 episodes; 0 episodes had no reward before and have one now"
    assert len(list(read_records(run / "rescored.jsonl"))) == 6


def test_eval_scores_the_samples_of_a_task_by_named_rewards(turntree: Any, tiny_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "episodes.jsonl"
    status, result, err = turntree(
        *("eval", "turntree/Arithmetic-v0", "--model", tiny_model, "-n", 2, "--samples", 2, "--temperature", 1),
        *("--max-tokens", 8, "--reward", "answer", "--reward", "finished=0.5", "--answer-format", "math", "--out", out),
    )
    assert status == 0, err
    episodes = list(read_episodes(out))
    assert len(episodes) == 4
    assert all({"answer", "finished", "correct"} <= set(episode.rewards) for episode in episodes)
    first, second = [episode for episode in episodes if episode.task is not None and episode.task.id.endswith("/0")]
    assert first.messages[1] == second.messages[1]
    assert first.turns[0].text != second.turns[0].text
    assert "ungraded (left out)" in result


def test_a_reward_is_named_once() -> None:
    weights = {"answer": 1.0, "few_turns": 0.5, "finished": 0.0}
    assert parse_rewards(["answer", "few_turns=0.5", "finished=0"]) == weights
    with pytest.raises(AgentError, match="given twice"):
        parse_rewards(["answer", "answer=2"])
