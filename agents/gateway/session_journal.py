"""Journal of unfinished sessions, from which the next server recovers the turns of a killed server.

Each session has a file in the run's folder ``unfinished``. A turn is appended to the file when the turn ends, and the
file is removed once the session is recorded. If a file's server is not running, the server was killed.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from turntree.agents.episodes.episode import Turn
from turntree.agents.episodes.record import UNFINISHED, turn_from_dict, turn_to_dict
from turntree.agents.errors import RecordError, UsageError
from turntree.agents.files import OneWriter, append_lines
from turntree.agents.gateway.sessions import Node, Origin, Session
from turntree.agents.gateway.turns import SampledTurn
from turntree.envs.data.json_files import json_lines

logger = logging.getLogger(__name__)
STOPPED = "the server ended before the session did"  #: failure of a session that a killed server left unfinished
Decode = Callable[[Sequence[int]], str]


@dataclass(slots=True, kw_only=True, eq=False)
class _JournalFile:
    path: Path
    numbers: dict[int, int] = field(default_factory=dict)  #: id(node) -> row of the turn in the file


class SessionJournal:
    """Write and recover the files of unfinished sessions.

    Args:
        start: Name of this start of the server; this start's episode file has the same name.
        decode: Returns the whole text of a turn.
    """

    def __init__(self, folder: Path, start: str, decode: Decode) -> None:
        self._folder, self._start, self._decode = folder / UNFINISHED, start, decode
        self._lock = OneWriter(self._folder / start)
        self._files: dict[str, _JournalFile] = {}

    def keep(self, session: Session) -> None:
        """Append the turns of a session that are not in its file yet.

        Raises:
            OSError: If the turns cannot be written; the next call tries again.
        """
        name = f"{self._start}.{uuid.uuid4().hex}.turns"
        journal_file = self._files.setdefault(session.id, _JournalFile(path=self._folder / name))
        numbers, rows = dict(journal_file.numbers), []
        for node in session.nodes[len(numbers) :]:
            parent = None if node.parent is None else numbers[id(node.parent)]
            numbers[id(node)] = len(numbers)
            rows.append(self._row(node, parent))
        with journal_file.path.open("ab", buffering=0) as file:
            append_lines(file, rows)
        journal_file.numbers = numbers

    def drop(self, session: Session) -> None:
        if (journal_file := self._files.pop(session.id, None)) is not None:
            # The session is already recorded, so it does no harm if its file stays.
            with suppress(OSError):
                journal_file.path.unlink()

    def close(self) -> None:
        self._lock.close()
        # The folder may hold sessions that could not be recorded, or another server's sessions.
        with suppress(OSError):
            self._folder.rmdir()

    def recover(self, episodes: Path, write: Callable[[Session, Decode], None]) -> int:
        """Write the sessions that killed servers left, and return their number.

        Args:
            episodes: Folder with one episode file per start of a server.
            write: Called with a session and the decoder of its turns; the session's file is removed afterwards.

        Raises:
            OSError: From ``write``; that session and all later sessions stay on disk.
        """
        recovered = 0
        for start in sorted({path.name.partition(".")[0] for path in self._folder.glob("*.turns")}):
            with ExitStack() as locks:
                if start != self._start:
                    try:
                        locks.callback(OneWriter(self._folder / start).close)
                    except UsageError:
                        # The file is locked, so the server that wrote it is still running.
                        continue
                recorded = _last_recorded(episodes / f"{start}.jsonl")
                # Recover in the order in which the sessions were last used.
                for path in sorted(self._folder.glob(f"{start}.*"), key=lambda path: path.stat().st_mtime_ns):
                    recovered += self._recover(path, recorded, write)
        return recovered

    def _recover(self, path: Path, recorded: str | None, write: Callable[[Session, Decode], None]) -> bool:
        try:
            session = _read(path)
        except RecordError as error:
            logger.warning("an unfinished session of a killed server cannot be read; its file is kept: %s", error)
            return False
        # Rename first: if this server is killed before the unlink, its episode file shows that the session is recorded.
        path = path.rename(path.with_name(f"{self._start}.{path.name.partition('.')[2]}"))
        if unrecorded := session is not None and session.id != recorded:
            texts = {node.turn.completion.token_ids: node.turn.text for node in session.nodes}
            write(session, lambda tokens: texts[tuple(tokens)])
        path.unlink()
        return unrecorded

    def _row(self, node: Node, parent: int | None) -> dict[str, Any]:
        turn = node.turn
        text = self._decode(turn.completion.token_ids)
        whole = Turn(prompt_ids=turn.prompt_ids, completion=turn.completion, text=text)
        return {
            "session_id": node.session.id,
            "task_id": node.session.task_id,
            "parent": parent,
            "origin": str(node.origin),
            "given": list(node.given),
            "replied": node.replied,
            "turn": turn_to_dict(whole, _context(node.parent)),
        }


def _last_recorded(path: Path) -> str | None:
    # A kill between recording and unlinking leaves the file of the session recorded last.
    with suppress(OSError, ValueError), path.open("rb") as file:
        # The last line may be incomplete.
        for line in reversed(deque(file, 2)):
            if line.endswith(b"\n"):
                name: str | None = json.loads(line).get("session_id")
                return name
    return None


def _read(path: Path) -> Session | None:
    # Returns the session up to the last complete line.
    session: Session | None = None

    def refuse(number: int, problem: str) -> RecordError:
        return RecordError(f"{path}, line {number}: {problem}")

    for number, row in json_lines(path, refuse, growing=True):
        try:
            session = session or Session(id=row["session_id"], task_id=row["task_id"], failure=STOPPED)
            parent = None if row["parent"] is None else session.nodes[row["parent"]]
            turn = turn_from_dict(row["turn"], _context(parent))
            node = Node(
                session=session,
                parent=parent,
                given=row["given"],
                turn=SampledTurn(prompt_ids=turn.prompt_ids, completion=turn.completion, text=turn.text),
                replied=row["replied"],
                calls=(),
                origin=Origin(row["origin"]),
                # Recovered sessions are never continued.
                key=b"",
            )
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise refuse(number, f"not a turn of a session: {error!r:.200}") from error
        session.nodes.append(node)
        if parent is not None:
            parent.children += 1
    return session


def _context(parent: Node | None) -> tuple[int, ...]:
    return () if parent is None else parent.turn.prompt_ids + parent.turn.completion.token_ids
