import re
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
#: all pages but README, whose commands run in a clone of their own
PAGES = [ROOT / "envs/README.md", *sorted((ROOT / "docs").rglob("*.md"))]


class Block(NamedTuple):
    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    found = re.findall(r"^```([^\n]*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [Block(*one) for one in found]


def commands(page: Path) -> list[str]:
    """Return each shell command of a page's blocks, without comments and printed output."""
    shell = [block.text.replace("\\\n", "") for block in blocks(page) if block.language in ("", "bash")]
    lines = [line.split("  #")[0].strip() for text in shell for line in text.splitlines()]
    return [line for line in lines if line and not line.startswith(("#", "turntree: "))]


def inline_commands(page: Path) -> list[str]:
    """Return each ``turntree`` command in a page's text, except a bare command name."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    lines = [" ".join(words.split()) for words in re.findall(r"`(turntree [^`]+)`", text)]
    return [line for line in lines if line.count(" ") > 1]


def python_blocks(page: Path) -> list[tuple[str, str]]:
    """Return a page's Python blocks, each with its expected output: the text block below it, or ""."""
    here = [block for block in blocks(page) if block.language in ("python", "text")]
    pairs = pairwise([*here, Block("", "")])
    return [(one.text, below.text * (below.language == "text")) for one, below in pairs if one.language == "python"]


CODE = re.compile(r"^```(\w*)\n(.*?)^```|`([^`\n]+(?:\n[^`\n]+)?)`", re.MULTILINE | re.DOTALL)
VERBS = ("turntree ", "python ", "pip ", "make ", "export ", "import ")


def readme_commands() -> list[str]:
    """Return everything in README that can be run, in page order, as bash commands without comments."""
    found = []
    for language, block, inline in CODE.findall(README.read_text(encoding="utf-8")):
        if language == "text":  # what the block before it prints
            continue
        if language == "python":
            to_be_saved = "class Doubling" in block
            name = "doubling.py" if to_be_saved else "twelve_lines.py"
            found.append(f"cat > {name} <<'END'\n{block}END\n" + ("" if to_be_saved else f"python {name}"))
        elif block:
            found += [line.split(" #")[0].strip() for line in block.replace("\\\n", "").splitlines()]
        elif inline.startswith(VERBS):
            line = inline.replace("\n", " ")
            found.append(f"python -c '{line}'" if line.startswith("import ") else line)
    return sorted(found, key=lambda line: not line.startswith("cat > doubling.py"))  # "save this as" stands above it
