from pathlib import Path

import pytest

from turntree.agents.cli import main
from turntree.agents.engines.protocol import Completion
from turntree.agents.episodes.record import read_episodes

TOKENS = 12  #: per turn, at most


def evaluated(engine: str, url: str, model: Path, out: Path) -> list[Completion]:
    """Run ``turntree eval`` for two samples of three tasks and check that no episode failed."""
    asked = ("eval", "turntree/Arithmetic-v0", "--engine", engine, "--base-url", url, "--model", model)
    with pytest.raises(SystemExit) as stopped:
        main([str(word) for word in (*asked, "-n", 3, "--samples", 2, "--max-tokens", TOKENS, "--out", out)])
    assert stopped.value.code == 0
    episodes = list(read_episodes(out))
    assert len(episodes) == 6
    assert not any(episode.masked for episode in episodes)
    turns = [turn.completion for episode in episodes for turn in episode.turns]
    assert all(0 < len(turn.token_ids) <= TOKENS for turn in turns)
    return turns
