"""Scores a recorded run's episodes with different rewards.

Invariant: the recorded files stay unchanged. The new rewards are written to a new file of episodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isclose, nan
from pathlib import Path
from typing import NamedTuple

from turntree.agents.episodes.episode import Episode, StopReason
from turntree.agents.episodes.record import EpisodeWriter, Record, episode_files, read_records
from turntree.agents.errors import RecordError
from turntree.agents.files import whole_file
from turntree.agents.scoring.judging import graded_episode
from turntree.agents.scoring.policy_sample import policy_sample
from turntree.agents.scoring.scorer import Scorer

_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    episodes: int
    compared: int  #: episodes with a reward both before and now
    old: float  #: mean recorded reward of the compared episodes; NaN without any
    new: float  #: mean new reward of the compared episodes
    raised: int  #: episodes whose reward is higher now
    lowered: int  #: episodes whose reward is lower now
    newly_scored: int  #: episodes that were ungraded and have a reward now
    ungraded: int  #: episodes that could not be graded now
    failures: int  #: episodes that failed; copied unchanged


class _Pair(NamedTuple):
    old: Episode
    new: Episode


def rescore(run: Path, out: Path, scorer: Scorer) -> dict[str, Change]:
    """Score a run again; write its episodes with their new rewards to ``out``, with the extra label ``old_reward``.

    Episodes of one task in one file form a group of samples.

    Returns:
        The changes, by file name without suffix.

    Raises:
        RecordError: If there are no episodes, a line is damaged, or ``out`` exists.
    """
    files = episode_files(run)
    if out.exists():
        raise RecordError(f"{out} already exists; choose another file with --out")
    changes = {}
    with whole_file(out) as partial, EpisodeWriter(partial) as writer:
        for path in files:
            records = list(read_records(path))
            pairs = list(_graded(records, scorer))
            for record, pair in zip(records, pairs, strict=True):
                writer.write(pair.new, **{**record.labels, "old_reward": pair.old.reward})
            changes[path.stem] = _change(pairs)
        if not any(change.episodes for change in changes.values()):
            raise RecordError(f"{run} is empty: it contains no episodes")
    return changes


def _graded(records: Sequence[Record], scorer: Scorer) -> Iterator[_Pair]:
    finished = [record.episode for record in records if record.episode.stop_reason is not StopReason.FAILURE]
    scored = iter(scorer.score([policy_sample(episode) for episode in finished]))
    for record in records:
        failed = record.episode.stop_reason is StopReason.FAILURE
        yield _Pair(record.episode, record.episode if failed else graded_episode(record.episode, next(scored)))


def _change(pairs: Sequence[_Pair]) -> Change:
    both = [pair for pair in pairs if not pair.old.masked and not pair.new.masked]
    changes = [new.reward - old.reward for old, new in both if not isclose(old.reward, new.reward, abs_tol=_TOLERANCE)]
    return Change(
        episodes=len(pairs),
        compared=len(both),
        old=sum(pair.old.reward for pair in both) / len(both) if both else nan,
        new=sum(pair.new.reward for pair in both) / len(both) if both else nan,
        raised=sum(change > 0 for change in changes),
        lowered=sum(change < 0 for change in changes),
        newly_scored=sum(pair.old.masked and not pair.new.masked for pair in pairs),
        ungraded=sum(bool(pair.new.ungraded) for pair in pairs),
        failures=sum(pair.old.stop_reason is StopReason.FAILURE for pair in pairs),
    )
