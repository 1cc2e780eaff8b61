"""Compares the episodes of a coupled validation with the last validation."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
from numpy.typing import NDArray

from turntree.agents.episodes.episode import Episode


class LastEpisodes:
    """The tokens of each validation episode that this process played last."""

    def __init__(self) -> None:
        self._tokens: dict[Hashable, NDArray[np.int32]] = {}

    def compare(self, key: Hashable, episode: Episode) -> dict[str, float]:
        """Compare an episode with the last one of the same key, then keep it; empty for the first one."""
        sampled = [token for turn in episode.turns for token in turn.completion.token_ids]
        last, new = self._tokens.get(key), np.asarray(sampled, np.int32)
        self._tokens[key] = new
        if last is None:
            return {}
        both, most = min(len(last), len(new)), max(len(last), len(new))
        differs = np.flatnonzero(last[:both] != new[:both])
        same = int(differs[0]) if len(differs) else both
        return {
            "coupled_unchanged": float(same == most),
            "coupled_same_tokens": float(same),  # before the first difference
            "coupled_same_share": same / most if most else 1.0,  # of the longer episode
        }
