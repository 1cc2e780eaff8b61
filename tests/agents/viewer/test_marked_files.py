import json
from pathlib import Path

import pytest

from turntree.agents.evaluation.file import EvalFile
from turntree.agents.evaluation.suite import read_suite
from turntree.agents.scoring.rescore import rescore
from turntree.agents.scoring.score_file import score_file
from turntree.agents.scoring.scorer import Scorer
from turntree.agents.viewer.source import Source


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_run_with_marks_is_read_as_without(run: Path, tmp_path: Path, encoding: str) -> None:
    before = Source.open(run)
    episodes = [record.episode for record in before.records()]
    changes = rescore(run, tmp_path / "before.jsonl", Scorer({"environment": 1}))
    for file in [*run.rglob("*.jsonl")]:
        file.write_bytes(file.read_text(encoding="utf-8").encode(encoding))
    after = Source.open(run)
    assert [record.episode for record in after.records()] == episodes
    assert (after.metrics, after.engine) == (before.metrics, before.engine)
    assert rescore(run, tmp_path / "after.jsonl", Scorer({"environment": 1})) == changes
    rows = tmp_path / "rows.jsonl"
    rows.write_bytes(json.dumps({"prediction": "#### 5", "gold": "5"}).encode(encoding))
    (tally,) = score_file(rows, tmp_path / "scored.jsonl", Scorer({"answer": 1}, answer_format="gsm8k")).values()
    assert tally.right == 1


def test_an_evaluation_with_a_byte_order_mark_resumes_and_a_suite_is_read(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    file = EvalFile(path, {}, restart=True)
    file.begin()
    file.close()
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert EvalFile(path, {}).done == {}
    suite = tmp_path / "suite.yaml"
    suite.write_text("suite: [{env: turntree/Adder-v0}]\n", encoding="utf-8-sig")
    assert [task.env for task in read_suite(suite)] == ["turntree/Adder-v0"]
