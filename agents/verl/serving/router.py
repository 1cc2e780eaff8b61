"""A router of requests to vLLM or SGLang replicas under verl's own agent loops, one store for all samples of a task.

Selected by ``actor_rollout_ref.rollout.router_config_path``, a YAML file with
``router_class: turntree.agents.verl.serving.router.TaskRouter``; a training that names
no file gets ``turntree.configs/routers/task.yaml``. A request without a dialogue state is
routed by its own id. Servers are polled from time to time, and those that are lost are
avoided until they serve again, that is, until they have the trainer's weights.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError

from turntree.agents.engines.routing import TaskRoutes, route_key
from turntree.agents.engines.state_wire import KEY, from_wire
from turntree.agents.verl.config.sections import from_mapping
from turntree.spec_tree import DialogueState

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSettings:
    """Keys of the router's file beside ``router_class``."""

    slack: float = 1.25
    """A server that plays this many times its share takes no new tasks; at least 1."""
    remembered: int = 100_000
    """Most dialogues whose server is remembered."""
    look_seconds: float = 2.0
    """Seconds between two polls of the servers; 0 never polls."""


class _Route(NamedTuple):
    server: str
    key: str


class TaskRouter:
    """verl's ``RequestLoadBalancer``; verl runs it as an actor.

    Args:
        config: The router's YAML file.
    """

    def __init__(self, servers: Mapping[str, Any], config: Mapping[str, Any] | None = None) -> None:
        values = {name: value for name, value in (config or {}).items() if name != "router_class"}
        self._settings = from_mapping(RouterSettings, values, "the router's file")
        self._servers: dict[str, Any] = {}
        self._routes: TaskRoutes[str] | None = None
        self._placed: OrderedDict[str, _Route] = OrderedDict()
        self._running: Counter[str] = Counter()
        self._asked: dict[Any, str] = {}
        self._looked = 0.0
        self.add_servers(servers)

    def require_acquire_fields(self) -> list[str]:
        """Arguments of ``generate`` that may hold the state."""
        return ["sampling_params", "state"]

    def require_release_fields(self) -> list[str]:
        """Arguments of a release: the request's id identifies its task."""
        return ["request_id"]

    def acquire_server(
        self, request_id: str, sampling_params: Mapping[str, Any] | None = None, state: DialogueState | None = None
    ) -> tuple[str, Any]:
        """A server for one turn.

        Args:
            request_id: The same for all turns of a dialogue.
            sampling_params: May hold the state, as vLLM's ``extra_args`` or SGLang's ``custom_params`` do.
            state: The state itself, for turntree's own servers.

        Raises:
            RuntimeError: If there is no server.
        """
        if self._routes is None:
            raise RuntimeError("No available servers in load balancer")  # verl matches this text
        self._look()
        before = self._placed.pop(request_id, None)
        if before is not None and self._routes.hold(before.key, before.server):
            route = before
        else:
            state = state or _state_in(sampling_params or {})
            key = before.key if before else route_key(state) if state else f"request#{request_id}"
            route = _Route(self._routes.acquire(key), key)
        self._placed[request_id] = route
        self._running[route.server] += 1
        if len(self._placed) > self._settings.remembered:
            self._placed.popitem(last=False)
        return route.server, self._servers[route.server]

    def release_server(self, server_id: str, request_id: str | None = None) -> None:
        """Record that a turn has ended."""
        if self._running[server_id]:
            self._running[server_id] -= 1
        route = self._placed.get(request_id or "")
        if self._routes is not None and route is not None:
            self._routes.release(route.key, server_id)

    def add_servers(self, servers: Mapping[str, Any]) -> None:
        """Add servers."""
        for name, handle in dict(servers).items():
            self._servers[name] = handle
            if self._routes is None:
                self._routes = TaskRoutes([name], slack=self._settings.slack)
            else:
                self._routes.add(name)

    def remove_servers(self, server_ids: Sequence[str]) -> None:
        """Remove servers."""
        for name in server_ids:
            self._servers.pop(name, None)
            self._running.pop(name, None)
            if self._routes is not None:
                self._routes.remove(name)
        if not self._servers:
            self._routes = None

    def get_all_servers(self) -> list[str]:
        """Ids of the servers that requests are routed to."""
        return self._routes.alive if self._routes is not None else []

    def get_total_inflight(self) -> int:
        """Number of running turns."""
        return self._running.total()

    def clear_sticky_cache(self) -> dict[str, Any]:
        """Forget the servers of dialogues, so that each is routed anew."""
        cleared = len(self._placed)
        self._placed.clear()
        self._routes = None
        self.add_servers(self._servers)
        return {"cleared_entries": cleared, "server_loads": self.get_status()["servers"]}

    def get_status(self) -> dict[str, Any]:
        """verl's description of the state."""
        return {
            "servers": {name: self._running[name] for name in self._servers},
            "total_inflight": self.get_total_inflight(),
            "active_servers": len(self.get_all_servers()),
            "registered_handles": list(self._servers),
        }

    def _look(self) -> None:
        """Process the answers of polled servers, and poll again from time to time; never waits."""
        now, every = time.monotonic(), self._settings.look_seconds
        if not every or now < self._looked + every:
            return
        self._looked = now
        if self._asked:
            answered, _ = ray.wait(list(self._asked), num_returns=len(self._asked), timeout=0)
            for answer in answered:
                self._note_life(self._asked.pop(answer), answer)
        waiting = set(self._asked.values())
        self._asked |= {handle.serving.remote(): name for name, handle in self._servers.items() if name not in waiting}

    def _note_life(self, name: str, answer: Any) -> None:
        if self._routes is None or name not in self._servers:
            return
        try:
            ray.get(answer)
        except RayError as error:
            if name in self._routes.alive and len(self._routes.alive) > 1:
                logger.warning("rollout server %s is lost, %d others go on: %s", name, len(self._servers) - 1, error)
                self._routes.lose(name)
        else:
            self._routes.restore(name)


def _state_in(parameters: Mapping[str, Any]) -> DialogueState | None:
    """The state in an engine's private parameters."""
    for place in ("extra_args", "custom_params"):
        values = (parameters.get(place) or {}).get(KEY)
        if values is not None:
            return from_wire(values)
    return None
