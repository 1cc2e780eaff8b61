import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
TABLE: dict[str, Any] = {
    "word": [
        {"pattern": "guess", "say": "draft"},
        {"pattern": "places?", "say": "position", "names": True, "paths": "^agents/"},
    ],
    "allowed": [{"word": "guess", "paths": "^envs/", "reason": "a game"}],
}


@pytest.fixture
def check_text(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import check_text

    yield check_text
    sys.modules.pop("check_text")


def test_each_use_of_a_word_is_found_except_where_it_means_something_else(check_text: Any, tmp_path: Path) -> None:
    texts = {
        "agents/a.py": '"""In place of it: a Guess."""\nplace = 1\nplaced = 2\n',
        "envs/game.py": "guess = place = 1\n",
        "docs/page.md": "a place\nguessing\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    found = {(name, number) for _, name, number, _ in check_text.uses(tmp_path, TABLE)}
    assert found == {("agents/a.py", 1), ("agents/a.py", 2), ("docs/page.md", 2)}


def test_docstrings_of_modules_classes_functions_and_fields_are_counted(check_text: Any) -> None:
    text = '"""One."""\nX = 1\n"""Two,\nthree."""\ndef f():\n    """Four."""\n    return "none"\n'
    assert check_text.docstring_lines(text) == 4
