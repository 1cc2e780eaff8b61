from __future__ import annotations

from typing import Any, ClassVar

from turntree.envs.limits import Limits
from turntree.envs.message import ToolCall
from turntree.envs.service.airline import AirlineDesk
from turntree.envs.service.airline_policy import AIRLINE_POLICY
from turntree.envs.service.airline_tasks import airline_task
from turntree.envs.service.airline_world import airline
from turntree.envs.service.database import Database
from turntree.envs.service.service import Service
from turntree.envs.service.simulated_user import SimulatedUser
from turntree.envs.task import Task


class AirlineService(Service):
    """Serve a customer of a fictional airline with fourteen tools over its flights, customers and bookings.

    The airline is generated: no files are needed, and the number of tasks is unlimited.
    """

    step_inline = True
    forkable = True
    static_attributes: ClassVar[frozenset[str]] = Service.static_attributes | {"split"}
    example_call = ToolCall(name="get_booking", arguments={"booking_id": "B1001"})
    default_limits = Limits(max_turns=24)

    def __init__(self, *, split: str = "train", simulated_user: SimulatedUser | None = None, **kwargs: Any) -> None:
        """Set up the desk.

        Args:
            split: Name under which tasks are drawn; another name gives other tasks.
            simulated_user: The customer that talks to the agent; ``None`` uses ``ScriptedUser``.
            **kwargs: Arguments of ``Env``.
        """
        desk = AirlineDesk(Database(airline()))
        super().__init__(desk, policy=AIRLINE_POLICY, simulated_user=simulated_user, **kwargs)
        self.split = split

    def task(self, index: int) -> Task:
        return airline_task(self.split, index)
