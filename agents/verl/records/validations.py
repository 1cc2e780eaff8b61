"""Comparison of a coupled validation with the last one, episode by episode."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
from numpy.typing import NDArray

from turntree.agents.episodes.episode import Episode


class LastEpisodes:
    """The tokens of each episode of validation that this process played last."""

    def __init__(self) -> None:
        self._tokens: dict[Hashable, NDArray[np.int32]] = {}

    def compare(self, place: Hashable, episode: Episode) -> dict[str, float]:
        """Compare an episode with the last one of its place, and keep it as the last one.

        Args:
            place: What tells the episode from others of the same validation.

        Returns:
            Figures for verl's log: whether no sampled token changed (``coupled_unchanged``, 0 or 1), the tokens
            sampled before the first that differs (``coupled_same_tokens``, all of them where none does), and their
            share of the tokens of the longer one (``coupled_same_share``). Empty for the first episode of a place.
        """
        sampled = [token for turn in episode.turns for token in turn.completion.token_ids]
        last, new = self._tokens.get(place), np.asarray(sampled, np.int32)
        self._tokens[place] = new
        if last is None:
            return {}
        both, most = min(len(last), len(new)), max(len(last), len(new))
        differs = np.flatnonzero(last[:both] != new[:both])
        same = int(differs[0]) if len(differs) else both
        return {
            "coupled_unchanged": float(same == most),
            "coupled_same_tokens": float(same),
            "coupled_same_share": same / most if most else 1.0,
        }
