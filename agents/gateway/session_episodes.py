"""Records sessions as episodes: one episode per leaf of a session's tree of turns (see ``gateway/sessions.py``).

Invariant: an episode is one token sequence with a mask, as from ``rollout``. If an earlier episode begins with the same
turns, the labels name that episode. A session without a reward is ungraded (masked in training), never scored 0.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from turntree.agents.engines.protocol import FinishReason
from turntree.agents.episodes.episode import Episode, StopReason, Turn
from turntree.agents.episodes.record import EpisodeWriter, Record
from turntree.agents.errors import explain_os_error
from turntree.agents.files import write_whole
from turntree.agents.gateway.http.settings import ENV_ID
from turntree.agents.gateway.session_journal import Decode, SessionJournal
from turntree.agents.gateway.sessions import Node, Session
from turntree.envs.failure import FailureKind
from turntree.envs.message import Message
from turntree.envs.task import Task

logger = logging.getLogger(__name__)
NO_REWARD = "session"  #: entry in ``Episode.ungraded`` if no request has sent a reward


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialogue:
    nodes: tuple[Node, ...]
    labels: Mapping[str, Any]  #: position in the session's tree, JSON values


def dialogues(session: Session) -> list[Dialogue]:
    """Return the dialogues of a session: the path to each leaf, in the order in which they ended."""
    ended: list[Dialogue] = []
    first_in: dict[int, int] = {}
    for leaf in session.nodes:
        if leaf.children:
            continue
        path: list[Node] = [leaf]
        while (parent := path[-1].parent) is not None:
            path.append(parent)
        path.reverse()
        # Count the turns that an earlier dialogue already contains.
        shared = sum(id(node) in first_in for node in path)
        number = len(ended)
        labels = {
            "branch": number,
            "branch_of": first_in[id(path[shared - 1])] if shared else None,
            "shared_turns": shared,
            "origin": str(path[shared].origin),
        }
        for node in path:
            first_in.setdefault(id(node), number)
        ended.append(Dialogue(nodes=tuple(path), labels=labels))
    return ended


def episode_of(dialogue: Dialogue, decode: Decode, *, answer: str = "", data_source: str = "") -> Episode:
    """Return a dialogue as an ungraded episode; ``answer`` is the gold answer of its task."""
    nodes, session = dialogue.nodes, dialogue.nodes[0].session
    messages = [Message.from_openai(message) for message in nodes[0].given]
    turns = []
    for node, after in zip(nodes, (*nodes[1:], None), strict=True):
        text = decode(node.turn.completion.token_ids)
        replied = Message.from_openai({**node.replied, "content": text})
        observation = () if after is None else tuple(map(Message.from_openai, after.given))
        turns.append(
            Turn(prompt_ids=node.turn.prompt_ids, completion=node.turn.completion, text=text, observation=observation)
        )
        messages += [replied, *observation]
    user_messages = [message for message in nodes[0].given if message["role"] == "user"]
    cut = nodes[-1].turn.completion.finish_reason is FinishReason.LENGTH
    stop_reason = StopReason.MAX_TOKENS if cut else StopReason.DONE
    return Episode(
        env_id=ENV_ID,
        task=Task(
            id=session.task_id,
            prompt=user_messages[-1]["content"] if user_messages else "",
            answer=answer,
            data_source=data_source,
        ),
        seed=None,
        messages=tuple(messages),
        turns=tuple(turns),
        stop_reason=StopReason.FAILURE if session.failure else stop_reason,
        failure=session.failure,
        failure_kind=FailureKind.ENGINE if session.failure else None,
        ungraded=() if session.failure else (NO_REWARD,),
    )


def with_reward(episode: Episode, reward: float, parts: Mapping[str, float]) -> Episode:
    """Return the episode with a reward on its last turn; a failed episode stays unchanged."""
    if episode.stop_reason is StopReason.FAILURE:
        return episode
    turns = (*episode.turns[:-1], replace(episode.turns[-1], reward=reward))
    return replace(episode, turns=turns, rewards=dict(parts), ungraded=())


class SessionRecord:
    """Append sessions to a run folder, with one episode file per start of the server.

    Unfinished sessions of a killed server are recorded at once, as failures.

    Args:
        model: Model folder or id, from which the viewer loads the tokenizer.
        rendering: Options of the renderer, JSON values.
        decode: Returns the whole text of a turn.
    """

    def __init__(self, folder: Path, model: str, rendering: Mapping[str, Any], decode: Decode) -> None:
        self._numbers: dict[str, int] = {}
        self._samples: dict[str, int] = {}
        episodes = folder / "episodes"
        episodes.mkdir(parents=True, exist_ok=True)
        if not (folder / "config.yaml").exists():
            text = json.dumps({"actor_rollout_ref": {"model": {"path": model}}, "turntree": dict(rendering)})
            write_whole(folder / "config.yaml", text + "\n")
        self.step = 1
        while True:
            path = episodes / f"step_{self.step:06d}.jsonl"
            try:
                # Creating the file claims the step, even if two servers start at once.
                path.touch(exist_ok=False)
                break
            except FileExistsError:
                self.step += 1
        self._writer = EpisodeWriter(path)
        with ExitStack() as undo:
            undo.callback(self._close_file)
            self._journal = SessionJournal(folder, path.stem, decode)
            undo.callback(self._journal.close)
            if recovered := self._journal.recover(
                episodes,
                lambda session, decode: self._append(
                    session, [episode_of(dialogue, decode) for dialogue in dialogues(session)]
                ),
            ):
                logger.warning(
                    "%d unfinished sessions of a killed server were recorded as failures in %s", recovered, path
                )
            undo.pop_all()

    def keep(self, session: Session) -> None:
        """Append the session's new turns to the journal, in case the server is killed."""
        try:
            self._journal.keep(session)
        except OSError as error:
            # The session continues in memory; after its next turn, writing is tried again.
            logger.error(
                "turns of session %s would be lost if the server were killed: %s", session.id, explain_os_error(error)
            )

    def write(self, session: Session, episodes: Sequence[Episode]) -> None:
        """Append the episodes of a session, one per dialogue.

        Raises:
            OSError: If the episodes cannot be written; the record stays unchanged.
        """
        self._append(session, episodes)
        self._journal.drop(session)

    def close(self) -> None:
        self._journal.close()
        self._close_file()

    def _append(self, session: Session, episodes: Sequence[Episode]) -> None:
        task = session.task_id
        number, sample = self._numbers.get(task, len(self._numbers)), self._samples.get(task, 0)
        rows = [
            Record(
                {"step": self.step, "index": number, "session": index, "session_id": session.id, **dialogue.labels},
                episode,
            )
            for index, (episode, dialogue) in enumerate(zip(episodes, dialogues(session), strict=True), start=sample)
        ]
        self._writer.write_all(rows)
        self._numbers[task], self._samples[task] = number, sample + len(rows)

    def _close_file(self) -> None:
        self._writer.close()
        # If this server recorded no episode, remove its empty file.
        if not self._writer.path.stat().st_size:
            self._writer.path.unlink()
