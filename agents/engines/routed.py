"""Several replicas of an engine as one: each task is played on one of them.

The turns of a dialogue and the samples of its task meet in one replica, whose
cache has their keys and values and whose store has what their siblings said.
New tasks go where ``TaskRoutes`` puts them; a task stays where it is until it is
forgotten, or its replica is lost.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from turntree.agents.engines.protocol import Completion, Sampling, Scores, ScoringEngine
from turntree.agents.errors import EngineLost
from turntree.agents.routing import TaskRoutes, route_key
from turntree.spec_tree import DialogueState

T = TypeVar("T")


class RoutedEngine:
    """A ``ScoringEngine`` over replicas. A turn whose replica is lost is asked of another one.

    Args:
        replicas: Engines by name.
        tasks: Tasks and prompts whose replica is remembered.
        slack: As in ``TaskRoutes``.

    Raises:
        ValueError: If there is no replica.
    """

    def __init__(self, replicas: Mapping[str, ScoringEngine], *, tasks: int = 4096, slack: float = 1.25) -> None:
        self._replicas = dict(replicas)
        self._routes = TaskRoutes(list(replicas), slack=slack)
        self._most = tasks
        self._home: OrderedDict[str, str] = OrderedDict()
        self._task_of: OrderedDict[int, str] = OrderedDict()

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        *,
        state: DialogueState | None = None,
        draft: Sequence[int] = (),
    ) -> Completion:
        """Sample one turn on the replica of its task; without a state the prompt is the task.

        Raises:
            NoReplicas: If all are lost.
        """
        here = DialogueState.from_tokens(prompt_ids)
        key = route_key(state or here)
        self._task_of[here.exact] = key
        while len(self._task_of) > self._most:
            self._task_of.popitem(last=False)
        prompt = tuple(prompt_ids)
        return await self._on(key, lambda engine: engine.generate(prompt, sampling, state=state, draft=draft))

    async def score(
        self, prompt_ids: Sequence[int], token_ids: Sequence[int], sampling: Sampling, *, top: int = 0
    ) -> Scores:
        """Score given tokens on the replica that sampled after this prompt.

        Raises:
            NoReplicas: If all are lost.
        """
        here = DialogueState.from_tokens(prompt_ids)
        key = self._task_of.get(here.exact) or route_key(here)
        prompt = tuple(prompt_ids)
        return await self._on(key, lambda engine: engine.score(prompt, token_ids, sampling, top=top))

    def replica_of(self, state: DialogueState) -> str | None:
        """Name of the replica that plays a state's task; ``None`` where it has not begun."""
        return self._home.get(route_key(state))

    async def _on(self, key: str, ask: Callable[[ScoringEngine], Coroutine[Any, Any, T]]) -> T:
        while True:
            name = self._placed(key)
            try:
                return await ask(self._replicas[name])
            except EngineLost:
                self._lose(name)

    def _placed(self, key: str) -> str:
        name = self._home.get(key)
        if name is None:
            name = self._home[key] = self._routes.acquire(key)
        self._home.move_to_end(key)
        while len(self._home) > self._most:
            self._routes.release(*self._home.popitem(last=False))
        return name

    def _lose(self, name: str) -> None:
        self._routes.lose(name)
        for key in [key for key, home in self._home.items() if home == name]:
            del self._home[key]
            self._routes.release(key, name)
