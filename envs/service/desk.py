from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from turntree.envs.errors import ToolError
from turntree.envs.math.expression import evaluate, format_number
from turntree.envs.service.database import Database, Record
from turntree.envs.tools.tool import tool
from turntree.envs.tools.toolset import Toolset


class Desk(Toolset):
    """Base of all desks. A desk is the toolset with which an agent serves customers; it has the episode's records."""

    #: name of the table of customers, and the field in other tables' records that holds a customer's id
    people: ClassVar[tuple[str, str]] = ("users", "user_id")
    limited: ClassVar[tuple[str, ...]] = ("gift_card",)  #: sources of payment that have a balance

    def __init__(self, database: Database) -> None:
        self.database = database
        self.transferred = False
        self.looked = False  # whether the agent has looked up a record that exists

    def fresh(self) -> Self:
        return type(self)(self.database.fresh())

    @tool
    def calculate(self, expression: str) -> str:
        """Evaluate an arithmetic expression.

        Args:
            expression: Numbers, + - * / and parentheses
        """
        return format_number(round(evaluate(expression), 2))

    @tool
    def think(self, thought: str) -> str:
        """Write a thought down; nothing else happens.

        Args:
            thought: The thought
        """
        return ""

    @tool
    def transfer_to_human_agents(self, summary: str) -> str:
        """Hand the customer over to a person.

        Args:
            summary: What the customer wants
        """
        self.transferred = True
        return "Transfer successful"

    def _find(self, table: str, key: str) -> Record:
        record = self.database.read(table, key)
        if record is None:
            raise ToolError(f"{table.removesuffix('s')} not found")
        self.looked = True
        return record

    def _id_by_email(self, email: str) -> str:
        table, _ = self.people
        for key, person in self.database.rows(table):
            if person["email"].lower() == email.lower():
                return key
        raise ToolError(f"{table.removesuffix('s')} not found")

    def _method(self, record: Record, method_id: str) -> Record:
        # Returns the payment methods of the customer to whom the record belongs.
        table, field = self.people
        methods: dict[str, Record] = self._find(table, record[field])["payment_methods"]
        if method_id not in methods:
            raise ToolError("payment method not found")
        return methods[method_id]

    def _check_funds(self, record: Record, method_id: str, amount: float) -> None:
        method = self._method(record, method_id)
        if method["source"] in self.limited and method["balance"] < amount:
            raise ToolError(f"insufficient {method['source'].replace('_', ' ')} balance")

    def _pay(self, record: Record, method_id: str, amount: float) -> None:
        # A negative amount is a refund. Balances change at once.
        kind = "payment" if amount > 0 else "refund"
        entry = {"transaction_type": kind, "amount": abs(amount), "payment_method_id": method_id}
        record["payment_history"].append(entry)
        if self._method(record, method_id)["source"] in self.limited:
            table, field = self.people
            purse = self.database.edit(table, record[field])["payment_methods"][method_id]
            # Cents: without rounding, equal databases would differ by floating-point errors.
            purse["balance"] = round(purse["balance"] - amount, 2)


def desk_after(desk: Desk, actions: Sequence[Mapping[str, Any]]) -> Desk:
    """Return a new desk on which a task's own actions have been run; actions that the tools refuse change nothing.

    Args:
        desk: Any desk over the same records; it stays unchanged.
        actions: ``{"name": tool, "kwargs": arguments}`` in order.
    """
    own = desk.fresh()
    by_name = {tool.name: tool for tool in own.tools}
    for action in actions:
        try:
            by_name[action["name"]].run(action["kwargs"], owner=own)
        except ToolError:
            continue
    return own
