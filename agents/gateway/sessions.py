"""Sessions: the dialogues of one program as a tree of turns whose tokens are never rendered again.

If a request continues a sampled turn, its prompt is that turn's tokens followed by the new messages only. If the client
changed earlier messages or repeats a request, the tree branches after the last unchanged turn. If a request could
continue several turns, the oldest turn that no request continues is chosen. Not thread-safe.
"""

from __future__ import annotations

import hashlib
import uuid
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import takewhile
from typing import Any

from turntree.agents.episodes.dialogue import canonical_call, canonical_json
from turntree.agents.gateway.http.errors import ApiError
from turntree.agents.gateway.turns import SampledTurn
from turntree.envs.failure import describe
from turntree.envs.message import ToolCall
from turntree.rewards.reading.thoughts import may_think, without_thoughts

_MAX_ENDED = 4096  #: ended sessions to remember; requests that name one of them are refused
CONTEXT_FULL = "context_length_exceeded"  #: error code if a prompt leaves no token for an answer
MOST_TURNS = 4096  #: turns in one session


class Origin(StrEnum):
    BEGAN = "began"  #: first turn of a dialogue
    CONTINUED = "continued"  #: the client answered the parent turn
    AGAIN = "sampled again"  #: the same messages were answered before
    CHANGED = "changed"  #: the client changed earlier messages, or wrote an assistant message itself


@dataclass(slots=True, kw_only=True, eq=False)
class Node:
    session: Session
    parent: Node | None  #: ``None`` if all messages before this turn were rendered as a prompt
    given: Sequence[Mapping[str, Any]]  #: messages between the parent's turn and this turn
    turn: SampledTurn
    replied: Mapping[str, Any]  #: the turn as a message, as a client sends it back
    calls: tuple[str, ...]  #: canonical tool calls of the dialogue, including this turn's
    origin: Origin
    key: bytes  #: key of the dialogue that ends with this turn
    children: int = 0  #: turns that continue this turn
    claims: int = 0  #: requests in progress that continue this turn


@dataclass(slots=True, kw_only=True, eq=False)
class Session:
    id: str
    task_id: str  #: key of the draft store: turns of the same task serve as drafts
    nodes: list[Node] = field(default_factory=list)  #: turns in the order in which they ended
    begins: str = ""  #: content of the first user message
    ignored: set[str] = field(default_factory=set)  #: request fields that the log has already named as ignored
    running: int = 0  #: requests in progress
    used: float = 0.0  #: time of the last request
    failure: str = ""  #: one line on why the last request failed; empty if it was answered


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:  # where in a session's tree a request's turn will be added
    session: Session
    parent: Node | None  #: turn that the request continues
    given: Sequence[Mapping[str, Any]]  #: messages after that turn; all messages without a parent
    key: bytes  #: key of all messages

    @property
    def calls(self) -> tuple[str, ...]:
        return self.parent.calls if self.parent is not None else ()

    @property
    def first_prompt(self) -> int | None:
        # None if the dialogue starts with this request.
        node = self.parent
        while node is not None and node.parent is not None:
            node = node.parent
        return None if node is None else len(node.turn.prompt_ids)


class Sessions:
    """All live sessions.

    Args:
        most: Maximum number of live sessions; a further session ends the session that was idle longest.
        seconds: Time after which an idle session ends.
        ended: Called with a session that was idle too long, or that ends to make room for another one, and the reason.
            If the call raises ``ApiError``, the session stays live.
        resembles: Called with the ids of a new session and of the live session whose history its client seems to have
            changed.
    """

    def __init__(
        self,
        *,
        most: int,
        seconds: float,
        ended: Callable[[Session, str], object],
        resembles: Callable[[str, str], object],
        clock: Callable[[], float],
    ) -> None:
        self.live: OrderedDict[str, Session] = OrderedDict()  #: sessions by name; the longest idle session is first
        self.full = False  #: whether a request was refused because its dialogue had no token left
        self._max_sessions, self._seconds, self._report, self._clock = most, seconds, ended, clock
        self._resembles = resembles
        self._by_key: defaultdict[bytes, list[Node]] = defaultdict(list)
        self._ended: OrderedDict[str, None] = OrderedDict()

    def find(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        *,
        session_id: str | None,
        task_id: str | None,
    ) -> Position:
        """Return the position of a request, in a session that it continues or in a new session.

        Raises:
            ApiError: 409 if the named session has ended, 400 if it has another task, 507 if no session can be freed.
        """
        self._end_idle()
        keys = chain(messages, tools)
        session = None if session_id is None else self._named(session_id, task_id)
        # Continue after the longest prefix that ends with a turn sampled here.
        for end in range(len(messages), 0, -1):
            if messages[end - 1]["role"] != "assistant":
                continue
            node = self._continued_node(keys[end], messages[:end], session_id, task_id)
            if node is not None:
                return Position(session=node.session, parent=node, given=messages[end:], key=keys[-1])
        if session is None:
            self._free_session()
            name = session_id or f"session-{uuid.uuid4().hex}"
            begins = first_message(messages)
            session = Session(id=name, task_id=task_id or f"prompt/{keys[-1].hex()[:16]}", begins=begins)
            if session_id is None and any(message["role"] == "assistant" for message in messages):
                resembled = [other.id for other in self.live.values() if other.begins == begins and other.nodes]
                if resembled:
                    self._resembles(session.id, resembled[-1])
        return Position(session=session, parent=None, given=messages, key=keys[-1])

    @contextmanager
    def using(self, position: Position) -> Iterator[None]:
        """Mark a position as in use while its request is answered; afterwards drop the session if it has no turns."""
        session = self.live.setdefault(position.session.id, position.session)
        self._touch(session)
        session.running += 1
        if position.parent is not None:
            position.parent.claims += 1
        try:
            yield
            session.failure = ""
        except Exception as error:
            if not isinstance(error, ApiError) or error.status >= 500:
                session.failure = describe(error)
            elif error.code == CONTEXT_FULL:
                self.full = True
            raise
        finally:
            session.running -= 1
            if position.parent is not None:
                position.parent.claims -= 1
            self._touch(session)
            if not session.nodes and not session.running:
                self.live.pop(session.id, None)

    def add(
        self,
        position: Position,
        turn: SampledTurn,
        content: str,
        calls: Sequence[ToolCall],
        ids: Sequence[str],
        *,
        thought: str = "",
    ) -> Node:
        """Add a turn sampled at a position that ``using`` holds."""
        session = self.live[position.session.id]
        entries = [{**call.to_openai(), "id": name} for call, name in zip(calls, ids, strict=True)]
        replied: dict[str, Any] = {"role": "assistant", "content": content}
        replied |= {"reasoning_content": thought} if thought else {}
        replied |= {"tool_calls": entries} if entries else {}
        node = Node(
            session=session,
            parent=position.parent,
            given=position.given,
            turn=turn,
            replied=replied,
            calls=(*position.calls, *map(canonical_call, entries)),
            origin=self._origin(session, position),
            key=next_key(position.key, replied),
        )
        session.nodes.append(node)
        self._by_key[node.key].append(node)
        if position.parent is not None:
            position.parent.children += 1
        return node

    @contextmanager
    def ending(self, session_id: str) -> Iterator[Session]:
        """End a session and yield it; if the block raises, the session stays live.

        Raises:
            ApiError: 404 if there is no such session, 409 if it has ended or a turn is being sampled in it.
        """
        self._refuse_ended(session_id)
        if (session := self.live.get(session_id)) is None or not session.nodes:
            raise ApiError(404, f"no live session {session_id!r:.80} with a turn", code="session_not_found")
        if session.running:
            raise ApiError(409, f"a turn of session {session_id!r:.80} is being sampled; wait for it", code="running")
        with self._removed(session):
            yield session

    def take_all(self) -> list[Session]:
        sessions = [session for session in self.live.values() if session.nodes]
        for session in sessions:
            self._forget(session)
        return sessions

    def _named(self, session_id: str, task_id: str | None) -> Session | None:
        self._refuse_ended(session_id)
        session = self.live.get(session_id)
        if session is not None and len(session.nodes) >= MOST_TURNS:
            problem = f"session {session_id!r:.80} has reached {MOST_TURNS} turns; end it"
            raise ApiError(400, problem, param="X-Session-Id")
        if session is not None and task_id is not None and task_id != session.task_id:
            problem = f"session {session_id!r:.80} has the task {session.task_id!r:.80}, got {task_id!r:.80}"
            raise ApiError(400, f"{problem}; start another session", param="X-Task-Id")
        return session

    def _refuse_ended(self, session_id: str) -> None:
        if session_id in self._ended:
            raise ApiError(409, f"session {session_id!r:.80} has ended; start another session", code="session_ended")

    def _continued_node(
        self, key: bytes, messages: Sequence[Mapping[str, Any]], session_id: str | None, task_id: str | None
    ) -> Node | None:
        matching = self._by_key.get(key, [])
        if matching and any(map(thought_in, messages)):
            matching = [node for node in matching if _keeps_thoughts(node, messages)]
        if session_id is not None:
            matching = [node for node in matching if node.session.id == session_id]
        elif task_id is not None:
            matching = [node for node in matching if node.session.task_id == task_id]
        # Prefer the turn with the same call ids: equal dialogues of parallel clients differ only in the ids.
        nodes = [node for node in matching if ids_of(node.replied) == ids_of(messages[-1])] or matching
        unused = (node for node in nodes if not node.children and not node.claims)
        return next(unused, nodes[-1] if nodes else None)

    def _origin(self, session: Session, position: Position) -> Origin:
        siblings = [node.given for node in session.nodes if node.parent is position.parent]
        if position.given in siblings:
            return Origin.AGAIN
        # An assistant message that was not sampled here means that the client rewrote history.
        if any(message["role"] == "assistant" for message in position.given) or (
            siblings and position.parent is not None
        ):
            return Origin.CHANGED
        return Origin.BEGAN if position.parent is None else Origin.CONTINUED

    def _touch(self, session: Session) -> None:
        session.used = self._clock()
        if session.id in self.live:
            self.live.move_to_end(session.id)

    def _end_idle(self) -> None:
        deadline = self._clock() - self._seconds
        for session in list(takewhile(lambda session: session.used <= deadline, self.live.values())):
            if not session.running:
                # The failure has been logged already.
                with suppress(ApiError), self._removed(session):
                    self._report(session, "idle")

    def _free_session(self) -> None:
        idle = [session for session in self.live.values() if not session.running]
        # Free enough sessions for one more.
        for session in idle[: max(0, len(self.live) + 1 - self._max_sessions)]:
            try:
                with self._removed(session):
                    self._report(session, "capacity")
            except ApiError as error:
                raise ApiError(507, f"no session can be started: {error}", code="not_recorded") from error

    @contextmanager
    def _removed(self, session: Session) -> Iterator[None]:
        self._forget(session)
        try:
            yield
        except BaseException:
            self._ended.pop(session.id, None)
            self.live[session.id] = session
            self._touch(session)
            for node in session.nodes:
                self._by_key[node.key].append(node)
            raise

    def _forget(self, session: Session) -> None:
        self.live.pop(session.id, None)
        # Remember the name, so that a late request does not silently start a second session with it.
        self._ended[session.id] = None
        if len(self._ended) > _MAX_ENDED:
            self._ended.popitem(last=False)
        for node in session.nodes:
            self._by_key[node.key].remove(node)
            if not self._by_key[node.key]:
                del self._by_key[node.key]


def key_of(*parts: bytes | str) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        raw = part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass")
        digest.update(len(raw).to_bytes(8, "little") + raw)
    return digest.digest()


def chain(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[bytes]:
    """Return a key for every prefix of a dialogue, shape (messages + 1,).

    Two prefixes share a key if their messages and tools are equal. The key ignores what some clients rewrite or leave
    out: tool call ids, fields of their own, thoughts (see ``_keeps_thoughts``), and white space around an answer.
    """
    keys = [key_of(canonical_json(list(tools)))]
    for message in messages:
        keys.append(next_key(keys[-1], message))
    return keys


def next_key(key: bytes, message: Mapping[str, Any]) -> bytes:
    calls = [canonical_call(call) for call in message.get("tool_calls", ())]
    content = str(message["content"])
    if message["role"] == "assistant":
        content = (without_thoughts(content)[0] if may_think(content) else content).strip()
    return key_of(key, str(message["role"]), content, *calls)


def thought_in(message: Mapping[str, Any]) -> str:
    """Return the thought of an assistant's message, from its own field or from the content."""
    if message["role"] != "assistant":
        return ""
    thought, content = message.get("reasoning_content") or "", str(message["content"])
    return str(thought or (without_thoughts(content)[1] if may_think(content) else "")).strip()


def _keeps_thoughts(node: Node, messages: Sequence[Mapping[str, Any]]) -> bool:
    # A client may leave a thought out, but a changed thought is a changed history.
    sampled: list[Mapping[str, Any]] = []
    at: Node | None = node
    while at is not None:
        sampled += [at.replied, *reversed(at.given)]
        at = at.parent
    pairs = zip(messages, reversed(sampled), strict=True)
    return all(thought_in(sent) in ("", thought_in(own)) for sent, own in pairs)


def first_message(messages: Sequence[Mapping[str, Any]]) -> str:
    return next((str(message["content"]) for message in messages if message["role"] == "user"), "")


def ids_of(message: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(call.get("id", "") for call in message.get("tool_calls", ()))
