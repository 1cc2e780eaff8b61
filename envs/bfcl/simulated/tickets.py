"""Support tickets of a company: a queue that users add to, edit, resolve and close."""

from __future__ import annotations

from typing import Any

from turntree.envs.bfcl.simulated.simulator import Simulator
from turntree.envs.errors import ToolError
from turntree.envs.tools.tool import tool

Ticket = dict[str, Any]
_FIELDS = ("title", "description", "status", "priority")


class Tickets(Simulator):
    """The queue and whoever is logged in."""

    initial = {"ticket_queue": [], "ticket_counter": 1, "current_user": None}

    @tool
    def ticket_login(self, username: str, password: str) -> dict[str, bool]:
        """Log in.

        Args:
            username: Name of the user
            password: Password of the user
        """
        if not username or not password:
            return {"success": False}
        self.state["current_user"] = username
        return {"success": True}

    @tool
    def ticket_get_login_status(self) -> dict[str, bool]:
        """Whether somebody is logged in."""
        return {"login_status": bool(self.state["current_user"])}

    @tool
    def logout(self) -> dict[str, bool]:
        """Log out."""
        was, self.state["current_user"] = self.state["current_user"], None
        return {"success": bool(was)}

    @tool
    def create_ticket(self, title: str, description: str = "", priority: int = 1) -> Ticket:
        """Add a ticket to the queue.

        Args:
            title: Its title
            description: What it is about
            priority: From 1 to 5, the highest
        """
        user = self._user()
        _check_priority(priority)
        ticket = {"id": self.state["ticket_counter"], "title": title, "description": description}
        ticket |= {"status": "Open", "priority": priority, "created_by": user}
        self.state["ticket_queue"].append(ticket)
        self.state["ticket_counter"] += 1
        return ticket

    @tool
    def get_ticket(self, ticket_id: int) -> Ticket:
        """Show a ticket.

        Args:
            ticket_id: Id of the ticket
        """
        return self._ticket(ticket_id)

    @tool
    def get_user_tickets(self, status: str | None = None) -> list[Ticket]:
        """Show the user's own tickets.

        Args:
            status: Only those with this status; all without it
        """
        user = self._user()
        own = [ticket for ticket in self.state["ticket_queue"] if ticket.get("created_by") == user]
        return [ticket for ticket in own if not status or str(ticket.get("status")).lower() == status.lower()]

    @tool
    def edit_ticket(self, ticket_id: int, updates: dict[str, Any]) -> dict[str, str]:
        """Change fields of a ticket.

        Args:
            ticket_id: Id of the ticket
            updates: New values of title, description, status or priority
        """
        ticket = self._ticket(ticket_id)
        unknown = sorted(set(updates) - set(_FIELDS))
        if unknown:
            raise ToolError(f"a ticket has no field {unknown[0]!r} to change; it has {', '.join(_FIELDS)}")
        _check_priority(updates.get("priority", 1))
        ticket.update(updates)
        return {"status": f"ticket {ticket_id} is changed"}

    @tool
    def resolve_ticket(self, ticket_id: int, resolution: str) -> dict[str, str]:
        """Resolve a ticket.

        Args:
            ticket_id: Id of the ticket
            resolution: How
        """
        ticket = self._ticket(ticket_id)
        if ticket.get("status") == "Resolved":
            raise ToolError(f"ticket {ticket_id} is resolved already")
        ticket.update(status="Resolved", resolution=resolution)
        return {"status": f"ticket {ticket_id} is resolved"}

    @tool
    def close_ticket(self, ticket_id: int) -> dict[str, str]:
        """Close a ticket.

        Args:
            ticket_id: Id of the ticket
        """
        ticket = self._ticket(ticket_id)
        if ticket.get("status") == "Closed":
            raise ToolError(f"ticket {ticket_id} is closed already")
        ticket["status"] = "Closed"
        return {"status": f"ticket {ticket_id} is closed"}

    def _user(self) -> str:
        if not self.state["current_user"]:
            raise ToolError("nobody is logged in")
        return str(self.state["current_user"])

    def _ticket(self, ticket_id: int) -> Ticket:
        queue: list[Ticket] = self.state["ticket_queue"]
        for ticket in queue:
            if ticket.get("id") == ticket_id:
                return ticket  # the record itself, to be changed
        raise ToolError(f"there is no ticket {ticket_id}")


def _check_priority(priority: object) -> None:
    if priority not in (1, 2, 3, 4, 5):
        raise ToolError(f"the priority is from 1 to 5, got {priority!r}")
