"""Messages of a workspace. Whoever is logged in is the sender; the inbox keeps every message with its receiver."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from turntree.envs.bfcl.simulated.simulator import Simulator
from turntree.envs.errors import ToolError
from turntree.envs.tools.tool import tool


class Messages(Simulator):
    """A workspace of users who write to each other."""

    initial = {
        "user_count": 4,
        "user_map": {"Alice": "USR001", "Bob": "USR002", "Catherine": "USR003", "Daniel": "USR004"},
        "inbox": [],
        "message_count": 0,
        "current_user": None,
    }

    @tool
    def list_users(self) -> dict[str, list[str]]:
        """List the users."""
        return {"user_list": list(self.state["user_map"])}

    @tool
    def get_user_id(self, user: str) -> dict[str, str]:
        """Find a user's id.

        Args:
            user: Name of the user
        """
        if user not in self.state["user_map"]:
            raise ToolError(f"there is no user {user}")
        return {"user_id": self.state["user_map"][user]}

    @tool
    def message_login(self, user_id: str) -> dict[str, Any]:
        """Log a user in.

        Args:
            user_id: Id of the user
        """
        self._known(user_id)
        self.state["current_user"] = user_id
        return {"login_status": True, "message": f"{user_id} is logged in"}

    @tool
    def message_get_login_status(self) -> dict[str, bool]:
        """Whether somebody is logged in."""
        return {"login_status": bool(self.state["current_user"])}

    @tool
    def send_message(self, receiver_id: str, message: str) -> dict[str, Any]:
        """Send a message.

        Args:
            receiver_id: Id of the receiver
            message: What it says
        """
        self._sender()
        self._known(receiver_id)
        self.state["inbox"].append({receiver_id: message})
        self.state["message_count"] += 1
        return {"sent_status": True, "message_id": self.state["message_count"], "message": f"sent to {receiver_id}"}

    @tool
    def delete_message(self, receiver_id: str) -> dict[str, Any]:
        """Delete the latest message to a receiver.

        Args:
            receiver_id: Id of the receiver
        """
        self._sender()
        inbox = self.state["inbox"]
        for place in reversed(range(len(inbox))):
            if receiver_id in inbox[place]:
                del inbox[place]
                return {"deleted_status": True, "receiver_id": receiver_id, "message": "the latest message is deleted"}
        raise ToolError(f"there is no message to {receiver_id}")

    @tool
    def view_messages_sent(self) -> dict[str, Any]:
        """Show all messages by their receivers."""
        self._sender()
        sent: dict[str, list[Any]] = {}
        for receiver, text in self._texts():
            sent.setdefault(receiver, []).append(text)
        return {"messages": sent}

    @tool
    def search_messages(self, keyword: str) -> dict[str, list[dict[str, str]]]:
        """Find the messages that contain a word.

        Args:
            keyword: The word
        """
        self._sender()
        hits = [(receiver, text) for receiver, text in self._texts() if keyword.lower() in str(text).lower()]
        return {"results": [{"receiver_id": receiver, "message": text} for receiver, text in hits]}

    @tool
    def get_message_stats(self) -> dict[str, dict[str, int]]:
        """Count the user's received messages and the users written to."""
        user = self._sender()
        receivers = [receiver for receiver, _ in self._texts()]
        return {"stats": {"received_count": receivers.count(user), "total_contacts": len(set(receivers) - {user})}}

    @tool
    def add_contact(self, user_name: str) -> dict[str, Any]:
        """Add a user to the workspace.

        Args:
            user_name: Name of the user
        """
        self._sender()
        if user_name in self.state["user_map"]:
            raise ToolError(f"there is a user {user_name} already")
        self.state["user_count"] += 1
        user_id = f"USR{self.state['user_count']:03d}"
        self.state["user_map"][user_name] = user_id
        return {"added_status": True, "user_id": user_id, "message": f"{user_name} is added"}

    def _sender(self) -> str:
        if not self.state["current_user"]:
            raise ToolError("nobody is logged in")
        return str(self.state["current_user"])

    def _known(self, user_id: str) -> None:
        if user_id not in self.state["user_map"].values():
            raise ToolError(f"there is no user with the id {user_id}")

    def _texts(self) -> Iterator[tuple[str, Any]]:
        """Receiver and text of every message; a task's inbox may hold several texts in one entry."""
        for entry in self.state["inbox"]:
            for receiver, texts in entry.items():
                for text in texts if isinstance(texts, list) else [texts]:
                    yield receiver, text
