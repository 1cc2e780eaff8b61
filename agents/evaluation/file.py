"""The episode file of an evaluation: episodes are written as they end, so that a killed run can resume.

Each line carries a digest of its settings and data; episodes of other settings are refused, never mixed in. One
process writes at a time, and failed episodes are played again.
"""

from __future__ import annotations

import hashlib
import json
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from turntree.agents.episodes.episode import Episode
from turntree.agents.episodes.record import EpisodeWriter, episode_from_dict
from turntree.agents.errors import RecordError, UsageError
from turntree.agents.files import OneWriter, is_special, write_whole
from turntree.envs.data.json_files import parse_json

TaskSample = tuple[int, int]  #: (task, sample)

#: settings repeated in each line because a reader of the tokens needs them
RENDERING = ("template_options", "max_thinking_tokens")


class _Line(NamedTuple):
    episode: Episode
    written: bytes  #: the line as it stands in the file


class EvalFile:
    """The episode file of one evaluation. Nothing is written before ``begin``.

    Args:
        path: JSON lines; an existing file is continued.
        settings: Everything that the episodes depend on, as JSON values, except the number of tasks and samples.
        whole: Samples per task if only complete tasks count; 0 if every episode counts.

    Raises:
        UsageError: If the file holds episodes of other settings or data, or anything else; if another process is
            writing it; if it is not a regular file.
        RecordError: If a line before the last is damaged.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any], *, whole: int = 0, restart: bool = False) -> None:
        if is_special(path):
            raise UsageError(
                f"{path} is not a regular file, so a killed run could not resume from it; name a regular file"
            )
        # If the path is a symbolic link, write to its target, so that the link is kept.
        self.path = path = path.resolve()
        self._lock = OneWriter(path)
        try:
            self._open(settings, whole, restart)
        except BaseException:
            self._lock.close()
            raise

    def _open(self, settings: Mapping[str, Any], whole: int, restart: bool) -> None:
        path = self.path
        self._rendering = {name: settings[name] for name in RENDERING if name in settings}
        text = json.dumps(settings, sort_keys=True, default=str)
        self._settings = json.loads(text)
        self._digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        lines = {} if restart or not path.exists() else self._read()
        lines = {key: line for key, line in lines.items() if not line.episode.failure}
        if whole:
            counts = Counter(index for index, _ in lines)
            lines = {key: line for key, line in lines.items() if counts[key[0]] == whole}
        #: episodes that are not played again
        self.done: dict[TaskSample, Episode] = {key: line.episode for key, line in lines.items()}
        self._kept_lines = b"".join(line.written + b"\n" for line in lines.values())
        self._writer: EpisodeWriter | None = None

    def begin(self) -> None:
        """Rewrite the file with the episodes to keep, and open it for appending."""
        # This drops lines of failed episodes, of incomplete tasks (with ``whole``), and a damaged last line.
        write_whole(self.path, self._kept_lines)
        self._writer = EpisodeWriter(self.path)

    def write(self, index: int, sample: int, episode: Episode) -> None:
        """Append an episode; call ``begin`` first.

        Raises:
            OSError: If the episode cannot be written; the file stays unchanged.
        """
        assert self._writer is not None, "begun"
        self._writer.write(
            episode, run=self._digest, index=index, sample=sample, settings=self._settings, **self._rendering
        )

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._lock.close()

    def _read(self) -> dict[TaskSample, _Line]:
        lines_by_key: dict[TaskSample, _Line] = {}
        lines = self.path.read_bytes().removeprefix(BOM_UTF8).split(b"\n")
        # If there is text after the last newline, the process was killed while writing the line; skip this text.
        for number, line in enumerate(lines[:-1], start=1):
            try:
                row = parse_json(line.decode("utf-8", "surrogatepass"))
                key = (int(row["index"]), int(row["sample"]))
                differs = row["run"] != self._digest
                episode_row: Any = None if differs else row["episode"]
            except (ValueError, KeyError, TypeError, OverflowError) as error:
                raise RecordError(f"{self.path}, line {number}: not an episode of an evaluation; {_ADVICE}") from error
            if differs:
                raise UsageError(
                    f"{self.path} contains episodes of other settings or data"
                    f"{_differences(row.get('settings'), self._settings)}; {_ADVICE}"
                )
            try:
                lines_by_key[key] = _Line(episode_from_dict(episode_row), line)
            except RecordError as error:
                raise RecordError(f"{self.path}, line {number}: {error}; {_ADVICE}") from error
        if not lines_by_key and any(lines):
            raise UsageError(f"{self.path} contains no episodes of an evaluation; {_ADVICE}")
        return lines_by_key


def _differences(saved: Any, current: Mapping[str, Any]) -> str:
    if not isinstance(saved, dict):
        return ""
    names = [name for name in {**saved, **current} if saved.get(name) != current.get(name)]
    return ": " + ", ".join(
        f"{name} {saved.get(name)!r:.60} in the file, {current.get(name)!r:.60} now" for name in names
    )


_ADVICE = "name another file, or overwrite it with --restart"
