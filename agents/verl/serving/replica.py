"""The rollout backend ``rollout.name=turntree``: starts the server of each replica as a Ray actor."""

from __future__ import annotations

import ray
from verl.workers.rollout.replica import RolloutReplica

from turntree.agents.verl.config.sections import ConfigError
from turntree.agents.verl.names import server_name
from turntree.agents.verl.serving.hub import SharingReplica
from turntree.agents.verl.serving.server import TurntreeServer

_RESTARTS = 8
"""Times that Ray restarts a server."""


class TurntreeReplica(SharingReplica, RolloutReplica):
    """Starts the server actor of one replica, on the node of its trainer; Ray restarts it if it dies."""

    async def launch_servers(self) -> None:
        """Start the actor and wait for its model.

        Raises:
            ConfigError: If the replica is to span several devices.
        """
        if self.world_size != 1:
            raise ConfigError(
                f"a turntree replica runs on one device, the configuration asks for {self.world_size}; set "
                "rollout.tensor_model_parallel_size, data_parallel_size and pipeline_model_parallel_size to 1"
            )
        node = await self.workers[0].__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id())
        strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node_id=node, soft=False)
        name = server_name(self.replica_rank, self.name_suffix)
        trainer = self.workers[0] if self._replicas == 1 else None
        server = (
            ray.remote(TurntreeServer)
            .options(
                name=name,
                num_cpus=0,
                max_concurrency=self.max_concurrency,
                max_restarts=_RESTARTS,
                scheduling_strategy=strategy,
            )
            .remote(self.config, self.model_config, self.replica_rank, trainer, self.join_hub())
        )
        await server.ready.remote()
        self.servers = [server]
        self._server_handle = server
        self._server_address = name
