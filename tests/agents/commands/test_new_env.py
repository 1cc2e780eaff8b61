import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from example_files import module_at

from turntree.agents.commands.new_env import NameTaken, write_env
from turntree.envs import make, registry


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for id in [id for id in registry.list_envs() if id.startswith("local/")]:
        registry.unregister(id)
    for name in ("word_game", "test_word_game"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", ["WordGame", "word_game", "Word_Game"])
def test_what_is_written_runs_and_its_tests_pass(folder: Path, name: str) -> None:
    written = write_env(name, folder)
    assert [path.name for path in written[:2]] == ["word_game.py", "test_word_game.py"]
    tests = [
        value for key, value in vars(module_at(written.test, written.test.stem)).items() if key.startswith("test_")
    ]
    assert len(tests) == 3
    for test in tests:
        test()
    assert written.id == "local/WordGame-v0"
    assert make(f"word_game:{written.id}").num_tasks == 4
    assert len([line for line in written.environment.read_text().splitlines() if line.strip()]) <= 15


def test_a_broken_environment_fails_the_test_that_was_written_and_is_not_overwritten(folder: Path) -> None:
    written = write_env("WordGame", folder)
    text = written.environment.read_text()
    written.environment.write_text(text.replace("reward=float(", "reward=1.0 - float("))
    with pytest.raises(AssertionError):
        module_at(written.test, written.test.stem).test_the_right_answer_wins()
    with pytest.raises(NameTaken, match=r"word_game.py exists already"):
        write_env("word_game", folder)


@pytest.mark.parametrize("name", ["", "2game", "my game", "../x", "a-b"])
def test_what_is_no_name_is_refused(folder: Path, name: str) -> None:
    with pytest.raises(NameTaken, match="expected a name like WordGame"):
        write_env(name, folder)
    assert list(folder.iterdir()) == []


def test_the_readme_shows_what_is_written() -> None:
    from turntree.agents.commands.new_env import ENVIRONMENT

    readme = (Path(__file__).parents[3] / "envs" / "README.md").read_text()
    code = ENVIRONMENT.substitute(name="Backwards", module="backwards", id="local/Backwards-v0")
    assert code.strip() in readme
