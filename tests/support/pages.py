"""The pages of the documentation, and the blocks that stand in them."""

import re
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "envs/README.md", *sorted((ROOT / "docs").rglob("*.md"))]
"""Every page but README, whose commands run in a clone of their own."""


class Block(NamedTuple):
    """What stands between two fences."""

    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    """The blocks of a page, in order."""
    found = re.findall(r"^```([^\n]*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [Block(*one) for one in found]


def commands(page: Path) -> list[str]:
    """Each command of the blocks of a shell, without its comment and without what commands print."""
    shell = [block.text.replace("\\\n", "") for block in blocks(page) if block.language in ("", "bash")]
    lines = [line.split("  #")[0].strip() for text in shell for line in text.splitlines()]
    return [line for line in lines if line and not line.startswith(("#", "turntree: "))]


def python_blocks(page: Path) -> list[tuple[str, str]]:
    """The blocks of Python of a page, each with what it prints: the text below it, or nothing."""
    here = [block for block in blocks(page) if block.language in ("python", "text")]
    pairs = pairwise([*here, Block("", "")])
    return [(one.text, below.text * (below.language == "text")) for one, below in pairs if one.language == "python"]
