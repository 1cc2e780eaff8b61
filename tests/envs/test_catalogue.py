"""Every environment of the catalogue keeps the rules; where it needs data, with rows made up here."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from playing import arguments_of

from turntree.envs import Env, list_envs, make, require_conformance
from turntree.envs.catalogue import CATALOGUE, Entry, find_entry
from turntree.envs.script import play, script_for

every_entry = pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.id)


@every_entry
def test_every_environment_keeps_the_rules(entry: Entry, tmp_path: Path) -> None:
    require_conformance(functools.partial(make, entry.id, **arguments_of(entry, tmp_path)))


@every_entry
def test_gymnasium_makes_every_environment_alone_and_in_a_vector(entry: Entry, tmp_path: Path) -> None:
    given = arguments_of(entry, tmp_path)
    env = gymnasium.make(entry.id, **given)
    assert isinstance(env.unwrapped, Env)
    env.reset(seed=0)
    vector = gymnasium.make_vec(entry.id, num_envs=2, vectorization_mode="sync", **given)
    observations, infos = vector.reset(seed=0)
    assert len(observations) == 2
    assert infos["task_id"].shape == (2,)
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
    code = f"import runpy; print(runpy.run_path({__file__!r})['transcripts']())"
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


@pytest.mark.parametrize(
    ("name", "arguments", "complaint"),
    [
        ("Arithmetic", {"min_numbers": 0}, "min_numbers=0"),
        ("Arithmetic", {"min_numbers": 6}, "min_numbers=6, max_numbers=5"),
        ("Arithmetic", {"max_value": 0}, "max_value must lie in 1..999, got 0"),
        ("Arithmetic", {"operators": "+/"}, "got '\\+/'"),
        ("Arithmetic", {"operators": ""}, "got ''"),
        ("Arithmetic", {"min_numbers": 5, "operators": "*", "max_value": 900}, "use fewer or smaller numbers"),
        ("Countdown", {"count": 2, "max_number": 2, "target": 1000}, "had no solution"),
        ("Countdown", {"count": 7}, r"count must lie in 2\.\.6"),
        ("Countdown", {"attempts": 0}, "attempts must be at least 1"),
        ("Equations", {"max_level": 5}, "max_level <= 4"),
        ("NumberGuessing", {"max_number": 0}, "max_number >= 1"),
        ("UnitConversion", {"kinds": ("money",)}, "kinds must be some of length, mass"),
        ("Adventure", {"min_rooms": 5, "max_rooms": 4}, "min_rooms <= max_rooms"),
        ("KeyValue", {"keys": 2}, r"keys must lie in 3\.\.12"),
        ("KeyValue", {"min_operations": 3, "max_operations": 2}, "min_operations <= max_operations"),
        ("MATH", {"attempts": 0}, "attempts must be at least 1"),
        ("MATH", {"discount": 1.5}, "discount must lie in"),
        ("MATH", {"use": ["calcualtor"]}, "use takes names of tools"),
    ],
)
def test_settings_that_make_no_sense_are_refused_in_words(name: str, arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        make(f"turntree/{name}-v0", **arguments).task(0)
