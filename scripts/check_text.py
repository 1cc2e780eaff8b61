"""Check the language of the repository: words that are no longer used, and how much of the product is docstrings.

python scripts/check_text.py          # part of `make lint`; lists each line with a word of scripts/words.toml
python scripts/check_text.py --counts # how often each word occurs
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layout_figures import PRODUCT, files

MOST_DOCSTRINGS = 0.16
TABLE = Path("scripts/words.toml")
FOLDERS = (*PRODUCT, "tests", "docs", "configs", "examples", "benchmarks", "scripts")
SUFFIXES = {".py", ".md", ".toml", ".yaml", ".sh", ".txt"}


@dataclass(frozen=True, kw_only=True)
class Word:
    """A word that is no longer used."""

    pattern: re.Pattern[str]
    say: str
    paths: re.Pattern[str]
    names: bool

    def lines(self, path: str, text: str) -> Iterator[int]:
        """Yield the number of each line of ``text`` with the word."""
        if not self.paths.search(path):
            return
        if not self.names:
            yield from (number for number, line in enumerate(text.splitlines(), 1) if self.pattern.search(line))
        elif path.endswith(".py"):
            tokens = tokenize.generate_tokens(io.StringIO(text).readline)
            yield from (t.start[0] for t in tokens if t.type == tokenize.NAME and self.pattern.fullmatch(t.string))


def words(table: dict[str, Any]) -> list[Word]:
    """Read the words of a table."""
    return [
        Word(
            pattern=re.compile(row["pattern"], re.IGNORECASE),
            say=row["say"],
            paths=re.compile(row.get("paths", "")),
            names=row.get("names", False),
        )
        for row in table["word"]
    ]


def uses(root: Path, table: dict[str, Any]) -> Iterator[tuple[Word, str, int, str]]:
    """Yield each use of a word: the word, the path, the line number and the line."""
    known = words(table)
    allowed = [(re.compile(row["word"]), re.compile(row["paths"])) for row in table.get("allowed", ())]
    paths = [path for folder in FOLDERS for path in sorted((root / folder).rglob("*")) if path.suffix in SUFFIXES]
    for path in (*sorted(root.glob("*.md")), root / "Makefile", *paths):
        name = path.relative_to(root).as_posix()
        if path.is_symlink() or name == TABLE.as_posix() or "/results/" in name or not path.is_file():
            continue
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        for word in known:
            for number in word.lines(name, text):
                line = lines[number - 1]
                if not any(where.search(name) and which.search(line) for which, where in allowed):
                    yield word, name, number, line.strip()


def docstring_lines(text: str) -> int:
    """Return the lines of all docstrings of a module, those of fields included."""
    bodies = (node.body for node in ast.walk(ast.parse(text)) if isinstance(getattr(node, "body", None), list))
    texts = (
        one for body in bodies for one in body if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)
    )
    return sum((one.end_lineno or one.lineno) - one.lineno + 1 for one in texts if isinstance(one.value.value, str))


def main() -> int:
    """Print what breaks the rules; return 1 if anything does."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", action="store_true")
    options = parser.parse_args()
    root = Path(__file__).parents[1]
    found = list(uses(root, tomllib.loads((root / TABLE).read_text(encoding="utf-8"))))
    if options.counts:
        for pattern, count in Counter(word.pattern.pattern for word, *_ in found).most_common():
            print(f"{count:6} {pattern}")
    else:
        for word, path, number, line in found:
            print(f"{path}:{number}: say {word.say}: {line:.120}")
    product = [path.read_text(encoding="utf-8") for path in files(root, *PRODUCT)]
    lines, docstrings = sum(len(text.splitlines()) for text in product), sum(map(docstring_lines, product))
    share = docstrings / lines
    print(f"{len(found)} words of {TABLE}; docstrings: {docstrings:,} of {lines:,} lines, {share:.1%}")
    return int(bool(found) or share > MOST_DOCSTRINGS)


if __name__ == "__main__":
    sys.exit(main())
