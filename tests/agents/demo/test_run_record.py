import pytest
from recorded_run import write_run
from tables import table

from turntree.agents.demo.run_record import read_run
from turntree.agents.errors import RecordError
from turntree.agents.verl.records.recording import RunFolder


@pytest.fixture
def folder(tmp_path):
    """A run of three steps."""
    return RunFolder(write_run(tmp_path))


def test_metrics_and_counters_meet_by_step(folder):
    read = [(point.step, point.success, point.tokens_per_step) for point in read_run(folder.root).points]
    assert read == [(1, 0.25, 2.0), (2, 0.5, 3.0), (3, 0.75, 4.0)]
    folder.engine.unlink()
    assert {point.tokens_per_step for point in read_run(folder.root).points} == {None}


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"metrics.jsonl is missing"):
        read_run(tmp_path)


@pytest.mark.parametrize(("lines", "says"), table(__file__, "unreadable_metrics"))
def test_metrics_that_cannot_be_read_are_refused(folder, lines, says):
    folder.metrics.write_text(lines)
    with pytest.raises(RecordError, match=says):
        read_run(folder.root)
