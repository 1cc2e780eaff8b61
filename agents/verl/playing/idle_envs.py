"""A pool of idle environments, one per process: creating an environment is slow if it reads a data set."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from turntree.agents.verl.episodes.dataset import make_env
from turntree.envs import Env, ResultMemo
from turntree.envs.running.containment import contain

EnvKind = tuple[str, str]  #: id and JSON settings; environments of one kind are interchangeable


def kind_of_env(row: Mapping[str, Any]) -> EnvKind:
    return row["env_id"], row.get("env_kwargs") or "{}"


class IdleEnvs:
    """Idle environments by kind; environments of one kind share a cache of up to ``memo_results`` tool results."""

    def __init__(self, memo_results: int) -> None:
        self._memo_results = memo_results
        self._memos: dict[EnvKind, ResultMemo] = {}
        self._idle: dict[EnvKind, list[Env]] = defaultdict(list)

    def take(self, kind: EnvKind) -> Env:
        return self._idle[kind].pop() if self._idle[kind] else self.make(kind)

    def give_back(self, kind: EnvKind, env: Env) -> None:
        """Return an environment to the pool; do not return an environment that an episode has left broken."""
        self._idle[kind].append(env)

    def make(self, kind: EnvKind) -> Env:
        env_id, settings = kind
        env = contain(lambda: make_env(env_id, json.loads(settings)))
        if self._memo_results:
            env.memo = self._memos.setdefault(kind, ResultMemo(self._memo_results))
        return env
