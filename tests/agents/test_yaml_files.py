from pathlib import Path

import pytest

from turntree.agents.errors import UsageError
from turntree.agents.yaml_files import parse_yaml, read_yaml

BOMB = "".join(f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join([f'*{chr(97 + n)}'] * 9)}]\n" for n in range(9))
MERGES = "".join(f"{chr(98 + n)}: &{chr(98 + n)} {{<<: [{', '.join([f'*{chr(97 + n)}'] * 9)}]}}\n" for n in range(9))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: &a [1]\n" + BOMB, r"line \d: .*more than 50,000 values"),
        ("a: &a {x: 1}\n" + MERGES, r"line \d: .*more than 50,000 values"),
        ("a: 1\nb: &b [*b]", "line 2: .*an alias inside its own anchor"),
        ("a: 1\nb: *c", "line 2: .*alias"),
        ("a: 1\nb: " + "[" * 10_000, "line 2: .*nested deeper than 100"),
        ("a: 1\n" + "- " * 10_000, "line 2: "),
        ("a: 1\nb: " + "9" * 5000, "line 2: .*a number with too many digits"),
        ("a: 1\nb: " + "1:" * 5000 + "1", "line 2: .*a number with too many digits"),
        ("a: 1\na: 2", "line 2: .*duplicate key"),
        ("a: 1\nb: [", "line "),
        ("a: !!python/object:os.system x", "line 1: "),
        ("a: !!int x", "expected YAML"),
        ("a: !!timestamp x", "expected YAML"),
        ("a: \0", "expected YAML"),
        ("a: 1\n" * 300_000, "more than 1,048,576 bytes"),
    ],
)
def test_yaml_beyond_the_limits_is_one_line_with_its_position(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises((UsageError, OSError), match=rf"^[^\n]*config\.yaml[^\n]*{expected}[^\n]{{,200}}$"):
        read_yaml(path)


def test_what_is_within_them_is_read_as_omegaconf_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("a: &a {b: 1e-3, c: [on, 012]}\nd: *a\ne: ${a.b}\nf: {<<: *a, b: 2}\n", encoding="utf-16")
    inner = {"b": 0.001, "c": [True, 10]}
    assert read_yaml(path) == {"a": inner, "d": inner, "e": "${a.b}", "f": {**inner, "b": 2}}
    assert parse_yaml("", "x") is None
    deepest = "[" * 100 + "]" * 100
    assert parse_yaml(deepest, "x")
    with pytest.raises(UsageError):  # the control: one more
        parse_yaml(f"[{deepest}]", "x")
