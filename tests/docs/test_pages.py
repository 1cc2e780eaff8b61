"""The Python blocks of the documentation run, page by page, each page in one process."""

import json
import os
import re
import shlex
import sys
from pathlib import Path

import pytest
from chat_tokenizers import chatml_tokenizer
from interpreter import python
from omegaconf import OmegaConf
from pages import PAGES, README, ROOT, blocks, commands, python_blocks
from tables import table
from tiny_llama import save_chat_llama
from typer.core import TyperGroup
from typer.exceptions import TyperException
from typer.main import get_command

from turntree.agents.commands.app import app
from turntree.agents.evaluation.suite import read_suite
from turntree.agents.verl.config.compose import compose
from turntree.agents.verl.config.sections import ConfigError

#: needs the bridged libraries: runs in ``make test-interop``, Harbor's block with Harbor's tests
BRIDGES = ROOT / "docs/howto/bridges.md"
COMMAND = get_command(app)
END = "--- a block ends here"
RUN = [page for page in PAGES if page != BRIDGES and python_blocks(page)]
#: language -> tests that run its blocks; shell blocks run in ``test_commands.py``
RUN_BY = {
    "python": {"test_the_blocks_of_a_page_run_and_print_what_it_shows", "test_the_blocks_of_the_bridges_run"},
    "text": {"test_the_blocks_of_a_page_run_and_print_what_it_shows"},
    "json": {"test_the_rows_shown_for_score_are_scored"},
    "yaml": {"test_the_yaml_of_the_pages_is_read"},
}


def test_every_block_of_every_page_is_of_a_kind_that_a_test_runs() -> None:
    kinds = {block.language for page in PAGES for block in blocks(page)}
    of_sphinx = {kind for kind in kinds if kind.startswith("{")}
    assert kinds - of_sphinx == {*RUN_BY, "", "bash"}
    assert set().union(*RUN_BY.values()) <= {*globals()}
    assert sum(len(python_blocks(page)) for page in RUN) > 15


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.stem)
def test_the_blocks_of_a_page_run_and_print_what_it_shows(page: Path, tmp_path: Path) -> None:
    shown = python_blocks(page)
    assert sum(output != "" for _, output in shown) == [block.language for block in blocks(page)].count("text")
    (tmp_path / "page.py").write_text(f"print({END!r})\n".join(code for code, _ in shown), encoding="utf-8")
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = python("page.py", cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split(f"{END}\n") == [output for _, output in shown]


@pytest.mark.interop
def test_the_blocks_of_the_bridges_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trl.chat_template_utils import qwen3_chat_template

    monkeypatch.chdir(tmp_path)
    tokenizer = chatml_tokenizer()
    tokenizer.chat_template, tokenizer.pad_token = qwen3_chat_template, tokenizer.eos_token
    save_chat_llama(tmp_path / "DIR", tokenizer)
    server = tmp_path / "my-server"
    server.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{ROOT}/tests/support/mcp_stdio_server.py"\n')
    server.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    words = "eval turntree/Arithmetic-v0 --model DIR -n 2 --max-tokens 8 --out arithmetic.jsonl"
    assert python("-m", "turntree.agents.cli", *words.split()).returncode == 0
    for code, _ in python_blocks(BRIDGES):
        if "Harbor(" not in code:
            exec(compile(code, BRIDGES, "exec"), {"__name__": "page"})
    assert (tmp_path / "logs/arithmetic.eval").stat().st_size > 0


def block_after(page: str, heading: str) -> str:
    _, found, rest = (ROOT / page).read_text(encoding="utf-8").partition(heading)
    assert found, heading
    return rest.split("```")[1].partition("\n")[2]


def test_the_rows_shown_for_score_are_scored(tmp_path: Path) -> None:
    (tmp_path / "answers.jsonl").write_text(block_after("docs/rewards.md", "## Texts of a file"))
    done = python("-m", "turntree.agents.cli", "score", "answers.jsonl", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = map(json.loads, (tmp_path / "answers.scored.jsonl").read_text().splitlines())
    assert [row["scored"]["correct"] for row in rows] == [True, True, False]


@pytest.mark.parametrize(("number", "words"), enumerate(table(__file__, "refused")))
def test_refusals_are_shown_as_they_are_said(number: int, words: list[str]) -> None:
    pytest.importorskip("verl", reason="a training is composed with verl")
    lines = ("incompatible options and names them:", "lists what becomes of each:")
    shown = [line for one in lines for line in block_after("docs/training.md", one).splitlines()][number]
    with pytest.raises(ConfigError) as said:
        compose(None, words)
    assert shown == f"turntree: {said.value}"


def test_what_is_said_to_be_left_out_is_the_default() -> None:
    pytest.importorskip("verl", reason="a training is composed with verl")
    choice = compose(None, ["actor_rollout_ref.model.path=some/model"]).choice
    said = f"`engine={choice.engine} size={choice.size} env={choice.env} algorithm={choice.algorithm} "
    assert (
        f"{said}mode={choice.mode} reuse={choice.reuse} speculation=[{','.join(choice.speculation)}]`"
        in (ROOT / "docs/training.md").read_text()
    )


def test_the_command_is_where_the_pages_put_it_on_the_path() -> None:
    for page in ("README.md", "docs/index.md"):
        assert 'export PATH="$(scripts/venv.sh cpu)/bin:$PATH"' in (ROOT / page).read_text()
    assert Path(sys.executable).with_name("turntree").exists()


def test_a_picture_is_shown_in_its_light_and_its_dark_version() -> None:
    shown = {}
    for page in (README, *PAGES):
        found = re.findall(r"(\w+)_(light|dark)\.(?:svg|png)", page.read_text(encoding="utf-8"))
        shown[page] = {scheme: {name for name, of in found if of == scheme} for scheme in ("light", "dark")}
        assert shown[page]["light"] == shown[page]["dark"], page
    assert "passes" in shown[README]["light"]


def lines_of_pages() -> dict[str, Path]:
    # README's commands have a test of their own.
    found = {}
    for page in PAGES:
        text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        in_text = [" ".join(words.split()) for words in re.findall(r"`(turntree [^`]+)`", text)]
        found |= dict.fromkeys(
            commands(page) + [line for line in in_text if not re.search(r" [|\[]|\.\.\.", line)], page
        )
    return {line: page for line, page in found.items() if re.match(r"([A-Z_]+=\S+ )?(turntree|make|python) ", line)}


def refusal(line: str) -> str | None:
    """Return why a command's arguments are invalid, ``None`` if they are valid."""
    program, *words = (word for word in shlex.split(line) if not re.fullmatch(r"[A-Z_]+=\S*", word))
    if program == "make":
        target = next(word for word in words if "=" not in word)
        known = re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
        return None if known else f"no target {target}"
    if program == "python":
        of_readme = f"`{words[0]}`" in README.read_text(encoding="utf-8")  # a file that it says to save
        return None if of_readme or (ROOT / words[0]).exists() else f"no file {words[0]}"
    command = COMMAND
    try:
        while isinstance(command, TyperGroup):
            command = command.commands[words.pop(0)]
        command.make_context(line, words)
    except (TyperException, KeyError) as error:
        named_alone = type(error).__name__ in (
            "MissingParameter",
            "BadOptionUsage",
        )  # the text names what takes a value
        return None if named_alone else repr(error)
    return None


def test_every_command_of_the_pages_is_one_with_its_options() -> None:
    lines = lines_of_pages()
    assert len(lines) > 100
    assert {line: (page.name, why) for line, page in lines.items() if (why := refusal(line))} == {}
    wrong = ["turntree eval ENV --modle DIR", "turntree train --engine vllm x", "turntree evaluate", "make nothing"]
    assert all(map(refusal, [*wrong, "python none.py"]))


def test_the_yaml_of_the_pages_is_read(tmp_path: Path) -> None:
    pytest.importorskip("verl", reason="a training is composed with verl")
    (tmp_path / "suite.yaml").write_text(block_after("docs/howto/evaluate.md", "Your own suite:"))
    assert [task.name for task in read_suite(tmp_path / "suite.yaml")] == ["sums", "AIME24"]
    (tmp_path / "mine.yaml").write_text(block_after("docs/training.md", "## Your own configuration file"))
    # In number of what the page leaves to the reader.
    environment = ["turntree.env=turntree/Arithmetic-v0", "actor_rollout_ref.model.path=some/model"]
    choice = compose(str(tmp_path / "mine.yaml"), environment).choice
    assert (choice.size, choice.algorithm, choice.speculation) == ("small", "dapo", ("tree",))
    assert choice.reuse == "same_seed"
    shaping = block_after("docs/training.md", "add small rewards to the reward for the answer:")
    weights = dict(OmegaConf.create(shaping).turntree.rewards)
    named = [f"turntree.rewards.{name}={weight}" for name, weight in weights.items()]
    assert dict(compose(None, [*environment, *named]).settings.rewards) == weights
    (tmp_path / "judged.yaml").write_text(
        block_after("docs/howto/reward.md", "`turntree.agents.scoring.judge_settings`")
    )
    assert compose(str(tmp_path / "judged.yaml"), environment).settings.rewards["judge"]["weight"] == 0.2
