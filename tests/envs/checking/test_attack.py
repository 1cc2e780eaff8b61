"""What an attack finds: planted faults nearly all of them, and nothing where nothing is wrong."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from planted_faults import QUESTIONS, SOUND, Graded, planted
from playing import arguments_of

from turntree.envs import make
from turntree.envs.catalogue import find_entry
from turntree.envs.checking.attack import attack

TABLE: dict[str, Any] = tomllib.loads(Path(__file__).with_name("faults.toml").read_text(encoding="utf-8"))
GRADERS = [(kind, grader) for kind, graders in TABLE["graders"].items() for grader in graders]


@pytest.mark.parametrize("kind", QUESTIONS)
def test_a_sound_grader_has_no_finding(kind: str) -> None:
    report = attack(Graded(kind, SOUND))
    assert report.findings() == {}
    assert report.tasks == len(QUESTIONS[kind])
    assert report.nothing == {"reward": 0.0}

SOURCES = [tuple(row) for row in TABLE["environments"]["faults"]]
FOUND = 0.95
"""Share of the faults that an attack must find."""
_COUNT = 12


def finds(kind: str, grader: str) -> bool:
    return bool(attack(Graded(kind, grader)).findings())


def finds_in_source(folder: Path, name: str, file: str, old: str, new: str) -> bool:
    """Whether a fault gives a finding that there is not without it."""
    entry = find_entry(f"turntree/{name}-v0")
    assert entry is not None
    with planted(f"envs/{file}", old, new):
        env = make(entry.id, **arguments_of(entry, folder))
        found = attack(env, count=_COUNT).findings()
        env.close()
    return bool(found.keys() - without_a_fault(name, folder))


@cache
def without_a_fault(name: str, folder: Path) -> frozenset[str]:
    entry = find_entry(f"turntree/{name}-v0")
    assert entry is not None
    env = make(entry.id, **arguments_of(entry, folder))
    found = attack(env, count=_COUNT).findings()
    env.close()
    return frozenset(found)
