"""Every environment of the catalogue keeps the rules; where it needs data, with rows made up here."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

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
