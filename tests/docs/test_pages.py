"""The blocks of Python in the documentation run, page by page, each page in one go."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import sys
from pathlib import Path

import pytest
from benchmark_modules import benchmark_module
from interpreter import python
from omegaconf import OmegaConf
from tables import table
from typer.core import TyperGroup
from typer.exceptions import TyperException
from typer.main import get_command

from turntree.agents.commands.app import app
from turntree.agents.evaluation.suite import read_suite
from turntree.agents.verl.config.compose import compose
from turntree.agents.verl.config.sections import ConfigError

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:```text\n(.*?)^```)?", re.MULTILINE | re.DOTALL)
"""Python, and what it prints where that stands below it."""
NOT_ALONE = {
    "docs/howto/vllm.md": "needs vLLM",
    "docs/howto/sglang.md": "needs SGLang",
    "README.md": "needs a model",
}
"""Pages whose blocks cannot run by themselves, and why."""
COMMAND = get_command(app)
END = "--- a block ends here"
COMMANDS = re.compile(r"^```(?:bash)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = {
    str(path.relative_to(ROOT)): BLOCK.findall(path.read_text(encoding="utf-8"))
    for path in [ROOT / "README.md", ROOT / "envs/README.md", *sorted((ROOT / "docs").rglob("*.md"))]
}


def test_there_are_pages_to_run() -> None:
    assert len(PAGES["docs/tutorial.md"]) >= 8


@pytest.mark.parametrize("page", [page for page, blocks in PAGES.items() if blocks and page not in NOT_ALONE])
def test_the_blocks_of_a_page_run_and_print_what_it_shows(page: str, tmp_path: Path) -> None:
    (tmp_path / "page.py").write_text(f"print({END!r})\n".join(code for code, _ in PAGES[page]), encoding="utf-8")
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = python("page.py", cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split(f"{END}\n") == [output for _, output in PAGES[page]]


@pytest.mark.parametrize("page", [page for page in NOT_ALONE if page in PAGES])
def test_the_blocks_of_every_other_page_are_python(page: str) -> None:
    for code, _ in PAGES[page]:
        ast.parse(code)


def block_after(page: str, heading: str) -> str:
    """The first block behind a line of a page."""
    _, found, rest = (ROOT / page).read_text(encoding="utf-8").partition(heading)
    assert found, heading
    return rest.split("```")[1].partition("\n")[2]


def test_the_rows_shown_for_score_are_scored(tmp_path: Path) -> None:
    (tmp_path / "answers.jsonl").write_text(block_after("docs/rewards.md", "## Texts of a file"))
    done = python("-m", "turntree.agents.cli", "score", "answers.jsonl", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = map(json.loads, (tmp_path / "answers.scored.jsonl").read_text().splitlines())
    assert [row["scored"]["correct"] for row in rows] == [True, True, False]


@pytest.mark.parametrize(("place", "words"), enumerate(table(__file__, "refused")))
def test_refusals_are_shown_as_they_are_said(place: int, words: list[str]) -> None:
    pytest.importorskip("verl", reason="a training is composed with verl")
    shown = block_after("docs/training.md", "refused by name:").splitlines()[place]
    with pytest.raises(ConfigError) as said:
        compose(None, words)
    assert shown == f"turntree: {said.value}"


def test_what_is_said_to_be_left_out_is_the_default() -> None:
    pytest.importorskip("verl", reason="a training is composed with verl")
    choice = compose(None, ["actor_rollout_ref.model.path=some/model"]).choice
    said = f"`engine={choice.engine} size={choice.size} env={choice.env} algorithm={choice.algorithm} "
    assert (
        f"{said}mode={choice.mode} speculation=[{','.join(choice.speculation)}]`"
        in (ROOT / "docs/training.md").read_text()
    )


def test_the_command_is_where_the_pages_put_it_on_the_path() -> None:
    for page in ("README.md", "docs/index.md"):
        assert 'export PATH="$(scripts/venv.sh cpu)/bin:$PATH"' in (ROOT / page).read_text()
    assert Path(sys.executable).with_name("turntree").exists()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_picture_of_the_readme_shows_the_recorded_trainings(scheme: str) -> None:
    runs = json.loads((ROOT / "benchmarks/results/algorithms.json").read_text(encoding="utf-8"))["runs"]
    drawn, shown = re.compile("<title>(.*?)</title>"), (ROOT / f"docs/passes_{scheme}.svg").read_text(encoding="utf-8")
    assert drawn.findall(shown) == drawn.findall(benchmark_module("picture").picture(runs, scheme))
    assert f"docs/passes_{scheme}.svg" in (ROOT / "README.md").read_text(encoding="utf-8")


def lines_of_pages() -> dict[str, str]:
    """Each command of the blocks without a language, and its page; README's run word for word in their own test."""
    found = {}
    for path in [ROOT / "envs/README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for block in COMMANDS.findall(path.read_text(encoding="utf-8")):
            for line in block.replace("\\\n", " ").splitlines():
                found[line.partition("  #")[0].strip()] = str(path.relative_to(ROOT))
    return {line: page for line, page in found.items() if re.match(r"([A-Z_]+=\S+ )?(turntree|make|python) ", line)}


def refusal(line: str) -> str | None:
    """Why a command of a page could not begin; ``None`` where its words are understood."""
    program, *words = (word for word in shlex.split(line) if not re.fullmatch(r"[A-Z_]+=\S*", word))
    if program == "make":
        target = next(word for word in words if "=" not in word)
        known = re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
        return None if known else f"no target {target}"
    if program == "python":
        return None if (ROOT / words[0]).exists() else f"no file {words[0]}"
    command = COMMAND
    try:
        while isinstance(command, TyperGroup):
            command = command.commands[words.pop(0)]
        command.make_context(line, words)
    except (TyperException, KeyError) as error:
        return repr(error)
    return None


def test_every_command_of_the_pages_is_one_with_its_options() -> None:
    lines = lines_of_pages()
    assert len(lines) > 40
    assert {line: (page, why) for line, page in lines.items() if (why := refusal(line))} == {}
    assert all(map(refusal, ("turntree eval ENV --modle DIR", "turntree evaluate", "make nothing", "python none.py")))


def test_the_yaml_of_the_pages_is_read(tmp_path: Path) -> None:
    pytest.importorskip("verl", reason="a training is composed with verl")
    (tmp_path / "suite.yaml").write_text(block_after("docs/howto/evaluate.md", "Of your own:"))
    assert [task.name for task in read_suite(tmp_path / "suite.yaml")] == ["sums", "AIME24"]
    (tmp_path / "mine.yaml").write_text(block_after("docs/training.md", "## A file of one's own"))
    # In place of what the page leaves to the reader.
    environment = ["turntree.env=turntree/Arithmetic-v0", "actor_rollout_ref.model.path=some/model"]
    choice = compose(str(tmp_path / "mine.yaml"), environment).choice
    assert (choice.size, choice.algorithm, choice.speculation) == ("small", "dapo", ("tree", "replay"))
    shaping = block_after("docs/training.md", "add small rewards to that of the answer:")
    weights = dict(OmegaConf.create(shaping).turntree.rewards)
    named = [f"turntree.rewards.{name}={weight}" for name, weight in weights.items()]
    assert dict(compose(None, [*environment, *named]).settings.rewards) == weights
