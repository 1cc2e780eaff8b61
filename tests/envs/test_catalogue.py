"""Every environment of the catalogue keeps the rules; where it needs data, with rows made up here."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from small_shop import write_shop

from turntree.envs import Env, list_envs, make, require_conformance
from turntree.envs.catalogue import CATALOGUE, Entry, find_entry
from turntree.envs.script import play, script_for

ROWS = [{"question": f"{n} and {n}?", "answer": f"It is {2 * n}.\n#### {2 * n}"} for n in range(1, 5)]
CHOICES = [{"question": "?", "choices": ["a", "b", "c", "d"], "answer": "C"}] * 3


def jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def arguments(tmp_path: Path) -> Callable[[Entry], dict[str, Any]]:
    """What an entry needs to be made."""

    def find(entry: Entry) -> dict[str, Any]:
        if not entry.needs_data:
            return {}
        if "Retail" in entry.id:
            return {"data": write_shop(tmp_path)}
        return {"data": jsonl(tmp_path / "rows.jsonl", CHOICES if "MMLU" in entry.id else ROWS)}

    return find


@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.id)
def test_every_environment_keeps_the_rules(entry: Entry, arguments: Callable[[Entry], dict[str, Any]]) -> None:
    require_conformance(functools.partial(make, entry.id, **arguments(entry)))


@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.id)
def test_gymnasium_makes_every_environment_alone_and_in_a_vector(
    entry: Entry, arguments: Callable[[Entry], dict[str, Any]]
) -> None:
    given = arguments(entry)
    env = gymnasium.make(entry.id, **given)
    assert isinstance(env.unwrapped, Env)
    env.reset(seed=0)
    vector = gymnasium.make_vec(entry.id, num_envs=2, vectorization_mode="sync", **given)
    observations, infos = vector.reset(seed=0)
    assert len(observations) == 2
    assert infos["task_id"].shape == (2,)
    vector.close()


def test_a_vector_of_processes_plays_without_shared_memory() -> None:
    vector = gymnasium.make_vec(
        "turntree/Arithmetic-v0",
        num_envs=2,
        vectorization_mode="async",
        vector_kwargs={"shared_memory": False},
        tool_format="compact",
    )
    try:
        vector.reset(seed=3)
        observations, _, terminated, _, infos = vector.step(("calculator(1+1)", "#### 3"))
        assert observations == ("2", "")
        assert terminated.tolist() == [False, True]
        assert infos["stop_reason"].tolist() == ["", "done"]
    finally:
        vector.close()


def transcripts() -> str:
    """A digest of what every environment that needs no data says to a script."""
    played = []
    for entry in CATALOGUE:
        if not entry.needs_data:
            env = make(entry.id)
            played += [(step.observation, step.reward, step.info) for step in play(env, script_for(env), seed=11)]
    return hashlib.sha256(json.dumps(played).encode()).hexdigest()


def test_another_process_says_the_same() -> None:
    code = (
        "import importlib.util\n"
        f"spec = importlib.util.spec_from_file_location('t', {__file__!r})\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "print(module.transcripts())"
    )
    given = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": str(Path(__file__).parents[1] / "support")}
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=given)
    assert shown.stdout.strip() == transcripts()


def test_ids_are_unique_and_listed_with_a_line() -> None:
    ids = [entry.id for entry in CATALOGUE]
    assert len(set(ids)) == len(ids)
    assert set(ids) <= set(list_envs())
    assert all(entry.summary.endswith(".") and len(entry.summary) < 100 for entry in CATALOGUE)
    assert find_entry("turntree/Arithmetic-v0") is CATALOGUE[0]
    assert find_entry("someone/Else-v0") is None
