"""``turntree eval`` on a few tasks of arithmetic, as a command does it: for engines."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import run_command

from turntree.agents.engines.protocol import Completion
from turntree.agents.record import read_episodes

TOKENS = 12
"""Of a turn at most."""


def evaluated(engine: str, model: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> list[Completion]:
    """The turns of two samples of three tasks; no episode was lost.

    Args:
        engine: Its name.
        model: Folder of the model.
        out: File of the episodes.
        capsys: pytest's.
    """
    asked = ("eval", "turntree/Arithmetic-v0", "--engine", engine, "--model", model, "-n", 3, "--samples", 2)
    said = run_command(capsys, *asked, "--max-tokens", TOKENS, "--out", out)
    assert said.status == 0, said.err[-3000:]
    assert "Arithmetic-v0" in said.out
    episodes = list(read_episodes(out))
    assert len(episodes) == 6
    assert not any(episode.masked for episode in episodes)
    turns = [turn.completion for episode in episodes for turn in episode.turns]
    assert all(0 < len(turn.token_ids) <= TOKENS for turn in turns)
    return turns
