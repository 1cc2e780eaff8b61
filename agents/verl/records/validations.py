"""Compare a coupled validation (all validations use the same noise) with the validation before."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
from numpy.typing import NDArray

from turntree.agents.episodes.episode import Episode


class LastEpisodes:
    """The tokens of each validation episode from the last validation in this process."""

    def __init__(self) -> None:
        self._tokens: dict[Hashable, NDArray[np.int32]] = {}

    def compare(self, key: Hashable, episode: Episode) -> dict[str, float]:
        """Compare an episode with the key's last episode, then store the new one; empty for a key's first episode."""
        sampled = [token for turn in episode.turns for token in turn.completion.token_ids]
        last, new = self._tokens.get(key), np.asarray(sampled, np.int32)
        self._tokens[key] = new
        if last is None:
            return {}
        shorter, longer = min(len(last), len(new)), max(len(last), len(new))
        differences = np.flatnonzero(last[:shorter] != new[:shorter])
        equal = int(differences[0]) if len(differences) else shorter
        return {
            "coupled_unchanged": float(equal == longer),
            "coupled_same_tokens": float(equal),  # before the first difference
            "coupled_same_share": equal / longer if longer else 1.0,  # of the longer episode
        }
