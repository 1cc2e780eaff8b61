"""The rollout backend ``rollout.name=turntree``: starts the server of each replica as a Ray actor."""

from __future__ import annotations

from typing import Any

import ray
from verl.plugin.platform import get_platform
from verl.workers.rollout.replica import RolloutMode, RolloutReplica

from turntree.agents.verl.config.sections import ConfigError
from turntree.agents.verl.names import REPLICA_SIZES, server_name
from turntree.agents.verl.serving.restarts import RESTARTS, held
from turntree.agents.verl.serving.server import TurntreeServer
from turntree.agents.verl.serving.turn_broker import SharingReplica


class TurntreeReplica(SharingReplica, RolloutReplica):
    """Starts the server actor of one replica, on the node and the device of its trainer; Ray restarts it if it dies."""

    async def launch_servers(self) -> None:
        """Start the actor and wait for its model.

        Raises:
            ConfigError: If the replica is to span several devices.
        """
        if self.world_size != 1:
            raise ConfigError(
                f"a turntree replica runs on one device, the configuration asks for {self.world_size}; set "
                f"rollout.{', '.join(REPLICA_SIZES[:-1])} and {REPLICA_SIZES[-1]} to 1"
            )
        node, devices = await self.workers[0].__ray_call__.remote(_place)
        strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node_id=node, soft=False)
        name = server_name(self.replica_rank, self.name_suffix)
        trainer = self.workers[0] if self._replicas == 1 or self.rollout_mode is RolloutMode.STANDALONE else None
        self.model_config = held(self.model_config)
        server = (
            ray.remote(TurntreeServer)
            .options(
                name=name,
                num_cpus=0,
                max_concurrency=self.max_concurrency,
                max_restarts=RESTARTS,
                scheduling_strategy=strategy,
                runtime_env=_sharing(devices),
            )
            .remote(self.config, self.model_config, self.replica_rank, trainer, self.join_broker())
        )
        await server.ready.remote()
        self.servers = [server]
        self._server_handle = server
        self._server_address = name


def _place(worker: Any) -> tuple[str, list[str]]:
    """In an actor: its node, and its accelerators by Ray's ids."""
    context = ray.get_runtime_context()
    return context.get_node_id(), context.get_accelerator_ids().get(get_platform().ray_resource_name(), [])


def _sharing(devices: list[str]) -> dict[str, Any] | None:
    """The runtime environment of an actor that uses accelerators which another one holds.

    Ray hides all accelerators from an actor that holds none, unless a variable of verl's platform keeps it from it;
    the CPU's platform has none.
    """
    platform = get_platform()
    kept = dict.fromkeys(platform.ray_noset_envvars(), "1")
    return {"env_vars": {**kept, platform.visible_devices_envvar(): ",".join(devices)}} if kept else None
