import os
from pathlib import Path

from interpreter import python
from tables import table

CONFTEST = "from log_tails import pytest_runtest_makereport, where_logs_lie\n"
TESTS = table(__file__, "logging_tests")


def test_the_logs_of_a_failed_tests_processes_end_its_report(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(TESTS)
    support = Path(__file__).parent / "support"

    def said(*which: str) -> str:
        words = ["-m", "pytest", "-p", "no:cacheprovider", "-c", "/dev/null", "-o", f"pythonpath={support}", *which]
        words += ["--rootdir", str(tmp_path), "--basetemp", str(tmp_path / "base")]
        return python(*words, cwd=tmp_path, env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}).stdout

    failed = said("test_it.py")
    assert "1 failed, 1 passed" in failed
    assert f"the end of {(tmp_path / 'base').resolve()}/run0/train.log" in failed
    assert "line 60.\nline 61." in failed
    assert "the worker died" in failed
    assert "line 59." not in failed
    assert "no log" not in failed.replace(TESTS, "")
    assert "line 99" not in said("test_it.py::test_good")
