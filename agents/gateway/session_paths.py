from __future__ import annotations

import logging
import re
from contextlib import suppress
from dataclasses import replace

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from turntree.agents.episodes.episode import Episode, StopReason
from turntree.agents.errors import explain_os_error
from turntree.agents.gateway.http.errors import ApiError
from turntree.agents.gateway.http.requests import read_body
from turntree.agents.gateway.http.routes import Json
from turntree.agents.gateway.http.settings import GatewaySettings
from turntree.agents.gateway.http.wire import Figure, Strict, read
from turntree.agents.gateway.metrics import Metrics
from turntree.agents.gateway.session_episodes import SessionRecord, dialogues, episode_of, with_reward
from turntree.agents.gateway.sessions import Session, Sessions
from turntree.agents.loop.renderer import Renderer
from turntree.agents.scoring.judging import judge_episodes
from turntree.agents.scoring.scorer import ANSWER, Scorer
from turntree.envs.failure import FailureKind
from turntree.rewards import RewardError

logger = logging.getLogger(__name__)
_NAME = re.compile(r"[\w.:/@+-]{1,200}", re.ASCII)


class RewardRequest(Strict):
    """Body of ``/v1/sessions/ID/reward``: a number, rewards by name, or a failure of the program."""

    reward: Figure | None = None
    parts: dict[str, Figure] = Field(default_factory=dict, max_length=64)
    by: dict[str, Figure] | None = Field(default=None, min_length=1, max_length=64)
    answer: str = ""
    answer_format: str | None = None
    failure: str | None = Field(default=None, min_length=1, max_length=2000)


class SessionPaths:
    """Handlers of the paths below ``/v1/sessions``.

    Args:
        record: Where ended sessions are recorded; ``None`` drops them.
    """

    def __init__(
        self,
        sessions: Sessions,
        renderer: Renderer,
        settings: GatewaySettings,
        metrics: Metrics,
        record: SessionRecord | None,
    ) -> None:
        self._sessions, self._renderer, self._settings = sessions, renderer, settings
        self._metrics, self._record = metrics, record

    async def show(self, http: Request) -> Response:
        name = http.path_params["session"]
        session = self._sessions.live.get(name)
        if session is None:
            raise ApiError(404, f"no live session {name!r:.80}", code="session_not_found")
        branches = [{**dialogue.labels, "turns": len(dialogue.nodes)} for dialogue in dialogues(session)]
        body = {"id": session.id, "task_id": session.task_id, "turns": len(session.nodes), "branches": branches}
        return Json(body | {"running": session.running})

    async def end(self, http: Request) -> Response:
        with self._sessions.ending(http.path_params["session"]) as session:
            return Json({"id": session.id, "episodes": self.close(session, "deleted")})

    async def reward(self, http: Request) -> Response:
        settings = self._settings
        body = read(RewardRequest, await read_body(http, most=settings.max_body, seconds=settings.read_seconds))
        if sum(verdict is not None for verdict in (body.reward, body.by, body.failure)) != 1:
            raise ApiError(400, "expected exactly one of reward, by and failure", param="reward")
        scorer = _scorer(body)
        with self._sessions.ending(http.path_params["session"]) as session:
            episodes = self._episodes(session, body)
            if body.reward is not None:
                episodes = [with_reward(episode, body.reward, body.parts) for episode in episodes]
            elif scorer is not None:
                episodes = await judge_episodes(episodes, scorer)
            self._write(session, episodes, "scored")
        last = episodes[-1]
        answer = {"id": session.id, "episodes": len(episodes), "reward": None if last.masked else last.reward}
        return Json(answer | {"rewards": dict(last.rewards), "failure": last.failure})

    def close(self, session: Session, why: str) -> int:
        """Record a session that ended without a reward, and return its number of episodes.

        Raises:
            ApiError: 507 if the session cannot be recorded.
        """
        if self._record is None:
            # Without a record, only count the dialogues for the metrics.
            self._count(why, count := len(dialogues(session)))
            return count
        episodes = self._episodes(session, RewardRequest())
        self._write(session, episodes, why)
        return len(episodes)

    def keep(self, session: Session) -> None:
        if self._record is not None:
            self._record.keep(session)

    def close_all(self) -> None:
        # Sessions that cannot be recorded stay in the journal, and the next server records them.
        for session in self._sessions.take_all():
            # ``_write`` has already logged the failure.
            with suppress(ApiError):
                self.close(session, "closing")
        if self._record is not None:
            self._record.close()

    def _episodes(self, session: Session, body: RewardRequest) -> list[Episode]:
        episodes = [
            episode_of(dialogue, self._renderer.turn_text, answer=body.answer, data_source=body.answer_format or "")
            for dialogue in dialogues(session)
        ]
        if body.failure is None:
            return episodes
        why, kind = " ".join(body.failure.split()), FailureKind.ENVIRONMENT
        return [
            replace(episode, stop_reason=StopReason.FAILURE, failure=why, failure_kind=kind, ungraded=())
            for episode in episodes
        ]

    def _write(self, session: Session, episodes: list[Episode], why: str) -> None:
        if self._record is not None:
            try:
                self._record.write(session, episodes)
            except OSError as error:
                problem = f"session {session.id} cannot be recorded and stays live: {explain_os_error(error)}"
                logger.error("%s", problem)
                raise ApiError(507, f"{problem}; fix this and repeat the request", code="not_recorded") from error
        self._count(why, len(episodes))

    def _count(self, why: str, episodes: int) -> None:
        self._metrics.add("sessions_ended_total", how=why)
        self._metrics.add("episodes_total", episodes)


def _scorer(body: RewardRequest) -> Scorer | None:
    if body.by is None:
        return None
    if ANSWER in body.by and body.answer_format is None:
        raise ApiError(400, "the answer reward needs an answer_format, the name of a data set", param="answer_format")
    try:
        return Scorer(body.by, answer_format=body.answer_format, imports=False)
    except RewardError as error:
        raise ApiError(400, str(error), param="by", code="invalid_value") from error


def name_in_header(http: Request, header: str) -> str | None:
    """Return the name in a header.

    Raises:
        ApiError: 400 if the name has other characters or is too long.
    """
    name = http.headers.get(header)
    if name is not None and not _NAME.fullmatch(name):
        expected = f"expected at most 200 characters of A-Z a-z 0-9 _ . : / @ + - in {header}"
        raise ApiError(400, f"{expected}, got {name!r:.80}", param=header)
    return name
