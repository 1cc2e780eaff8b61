"""The agent's tools at the desk of tau-bench's shop. A desk is the toolset with which an agent serves customers.

Names, arguments and effects equal those of tau-bench's retail domain, so tau-bench's schemas and tasks can be used. The
tools do not enforce all rules: for example, the agent itself must ask the customer before a change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

from turntree.envs.errors import ToolError
from turntree.envs.service.database import Record
from turntree.envs.service.desk import Desk
from turntree.envs.tools.tool import tool

TABLES = ("users", "orders", "products")


class RetailDesk(Desk):
    @tool
    def find_user_id_by_email(self, email: str) -> str:
        """Find a customer by email.

        Args:
            email: Email address of the customer
        """
        return self._id_by_email(email)

    @tool
    def find_user_id_by_name_zip(self, first_name: str, last_name: str, zip: str) -> str:
        """Find a customer by name and zip code.

        Args:
            first_name: First name of the customer
            last_name: Last name of the customer
            zip: Zip code of the customer
        """
        wanted = (first_name.lower(), last_name.lower(), zip)
        for user_id, user in self.database.rows("users"):
            name = user["name"]
            if (name["first_name"].lower(), name["last_name"].lower(), user["address"]["zip"]) == wanted:
                return user_id
        raise ToolError("user not found")

    @tool
    def get_user_details(self, user_id: str) -> dict[str, Any]:
        """Show a customer's profile and orders.

        Args:
            user_id: Id of the customer
        """
        return self._find("users", user_id)

    @tool
    def get_order_details(self, order_id: str) -> dict[str, Any]:
        """Show an order.

        Args:
            order_id: Id of the order, with the # in front
        """
        return self._find("orders", order_id)

    @tool
    def get_product_details(self, product_id: str) -> dict[str, Any]:
        """Show a product with all its items.

        Args:
            product_id: Id of the product, which is not the id of an item
        """
        return self._find("products", product_id)

    @tool
    def list_all_product_types(self) -> dict[str, str]:
        """List the products of the shop: name and product id."""
        return dict(sorted((product["name"], product_id) for product_id, product in self.database.rows("products")))

    @tool
    def cancel_pending_order(
        self, order_id: str, reason: Literal["no longer needed", "ordered by mistake"]
    ) -> dict[str, Any]:
        """Cancel an order that is pending, and refund it.

        Args:
            order_id: Id of the order, with the # in front
            reason: Why it is cancelled
        """
        order = self._order(order_id, "pending")
        for payment in list(order["payment_history"]):
            self._pay(order, payment["payment_method_id"], -payment["amount"])
        order["status"] = "cancelled"
        order["cancel_reason"] = reason
        return order

    @tool
    def modify_pending_order_address(
        self, order_id: str, address1: str, address2: str, city: str, state: str, country: str, zip: str
    ) -> dict[str, Any]:
        """Send an order that is pending to another address.

        Args:
            order_id: Id of the order, with the # in front
            address1: Street and number
            address2: Flat or suite, may be empty
            city: City
            state: State, for example CA
            country: Country, for example USA
            zip: Zip code
        """
        order = self._order(order_id, "pending", exactly=False)
        order["address"] = _address(address1, address2, city, state, country, zip)
        return order

    @tool
    def modify_user_address(
        self, user_id: str, address1: str, address2: str, city: str, state: str, country: str, zip: str
    ) -> dict[str, Any]:
        """Change the default address of a customer.

        Args:
            user_id: Id of the customer
            address1: Street and number
            address2: Flat or suite, may be empty
            city: City
            state: State, for example CA
            country: Country, for example USA
            zip: Zip code
        """
        self._find("users", user_id)
        user = self.database.edit("users", user_id)
        user["address"] = _address(address1, address2, city, state, country, zip)
        return user

    @tool
    def modify_pending_order_payment(self, order_id: str, payment_method_id: str) -> dict[str, Any]:
        """Pay an order that is pending by another method.

        Args:
            order_id: Id of the order, with the # in front
            payment_method_id: Id of the new method, one of the customer's
        """
        order = self._order(order_id, "pending", exactly=False)
        payments = order["payment_history"]
        if len(payments) != 1 or payments[0]["transaction_type"] != "payment":
            raise ToolError("there should be exactly one payment for a pending order")
        old, amount = payments[0]["payment_method_id"], payments[0]["amount"]
        if old == payment_method_id:
            raise ToolError("the new payment method should be different from the current one")
        self._check_funds(order, payment_method_id, amount)
        # The order is tau-bench's: in the payment history, the new payment comes before the refund.
        self._pay(order, payment_method_id, amount)
        self._pay(order, old, -amount)
        return order

    @tool
    def modify_pending_order_items(
        self, order_id: str, item_ids: list[str], new_item_ids: list[str], payment_method_id: str
    ) -> dict[str, Any]:
        """Swap items of an order that is pending for others of the same product; only once an order.

        Args:
            order_id: Id of the order, with the # in front
            item_ids: Ids of the items to be replaced
            new_item_ids: Ids of the items to replace them, in the same order
            payment_method_id: Method that pays or receives the difference
        """
        order, swaps, difference = self._agreed(order_id, "pending", item_ids, new_item_ids, payment_method_id)
        if difference:
            self._pay(order, payment_method_id, difference)
        for old, new in swaps:
            item = next(item for item in order["items"] if item["item_id"] == old["item_id"])
            item.update(item_id=new["item_id"], price=new["price"], options=new["options"])
        order["status"] = "pending (item modified)"
        return order

    @tool
    def exchange_delivered_order_items(
        self, order_id: str, item_ids: list[str], new_item_ids: list[str], payment_method_id: str
    ) -> dict[str, Any]:
        """Exchange delivered items for others of the same product; only once an order.

        Args:
            order_id: Id of the order, with the # in front
            item_ids: Ids of the items to be exchanged
            new_item_ids: Ids of the items to come instead, in the same order
            payment_method_id: Method that pays or receives the difference
        """
        order, _, difference = self._agreed(order_id, "delivered", item_ids, new_item_ids, payment_method_id)
        order["status"] = "exchange requested"
        order["exchange_items"] = sorted(item_ids)
        order["exchange_new_items"] = sorted(new_item_ids)
        order["exchange_payment_method_id"] = payment_method_id
        order["exchange_price_difference"] = difference
        return order

    @tool
    def return_delivered_order_items(
        self, order_id: str, item_ids: list[str], payment_method_id: str
    ) -> dict[str, Any]:
        """Take delivered items back.

        Args:
            order_id: Id of the order, with the # in front
            item_ids: Ids of the items that come back
            payment_method_id: The method that paid, or a gift card
        """
        order = self._order(order_id, "delivered", edit=False)
        method = self._method(order, payment_method_id)
        if method["source"] != "gift_card" and payment_method_id != order["payment_history"][0]["payment_method_id"]:
            raise ToolError("the refund must go to the original payment method or a gift card")
        _check_held(order, item_ids)
        order = self._order(order_id, "delivered")
        order["status"] = "return requested"
        # As in tau-bench, the return is only requested here: the refund comes later and is not part of the task.
        order["return_items"] = sorted(item_ids)
        order["return_payment_method_id"] = payment_method_id
        return order

    def _order(self, order_id: str, status: str, *, exactly: bool = True, edit: bool = True) -> Record:
        order = self._find("orders", order_id)
        if order["status"] != status if exactly else status not in order["status"]:
            raise ToolError(f"the order is {order['status']}; this can only be done while it is {status}")
        return self.database.edit("orders", order_id) if edit else order

    def _agreed(
        self, order_id: str, status: str, item_ids: Sequence[str], new_item_ids: Sequence[str], method_id: str
    ) -> tuple[Record, list[tuple[Record, Record]], float]:
        # Checks everything, then returns the order to change, pairs of (old item, new item), and the price difference.
        order = self._order(order_id, status, edit=False)
        swaps = self._swaps(order, item_ids, new_item_ids)
        difference = float(round(sum(new["price"] - old["price"] for old, new in swaps), 2))
        self._check_funds(order, method_id, difference)
        return self._order(order_id, status), swaps, difference

    def _swaps(
        self, order: Record, item_ids: Sequence[str], new_item_ids: Sequence[str]
    ) -> list[tuple[Record, Record]]:
        if len(item_ids) != len(new_item_ids):
            raise ToolError("the number of items and of new items should be the same")
        _check_held(order, item_ids)
        swaps = []
        for item_id, new_id in zip(item_ids, new_item_ids, strict=True):
            held = next(item for item in order["items"] if item["item_id"] == item_id)
            variant = self._find("products", held["product_id"])["variants"].get(new_id)
            if variant is None or not variant["available"]:
                raise ToolError(f"new item {new_id} not found or available")
            swaps.append((held, variant))
        return swaps


def _check_held(order: Record, item_ids: Sequence[str]) -> None:
    missing = Counter(item_ids) - Counter(item["item_id"] for item in order["items"])
    if missing or not item_ids:
        raise ToolError(f"items not found in the order: {', '.join(missing) or 'none were named'}")


def _address(address1: str, address2: str, city: str, state: str, country: str, zip: str) -> dict[str, str]:
    return {"address1": address1, "address2": address2, "city": city, "state": state, "country": country, "zip": zip}
