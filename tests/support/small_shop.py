"""A made-up shop in the layout of tau-bench's retail data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ADDRESS = {"address1": "1 High St", "address2": "", "city": "Town", "country": "USA", "state": "CA", "zip": "90001"}
USERS = {
    "ann_lee_1": {
        "name": {"first_name": "Ann", "last_name": "Lee"},
        "address": ADDRESS,
        "email": "ann@example.com",
        "payment_methods": {
            "gift_card_1": {"source": "gift_card", "balance": 30.0, "id": "gift_card_1"},
            "credit_card_1": {"source": "credit_card", "brand": "visa", "last_four": "1234", "id": "credit_card_1"},
            "paypal_1": {"source": "paypal", "id": "paypal_1"},
        },
        "orders": ["#W1", "#W2", "#W3"],
    }
}
PRODUCTS = {
    "p1": {
        "name": "Mug",
        "product_id": "p1",
        "variants": {
            "i1": {"item_id": "i1", "options": {"color": "red"}, "available": True, "price": 10.0},
            "i2": {"item_id": "i2", "options": {"color": "blue"}, "available": True, "price": 12.5},
            "i3": {"item_id": "i3", "options": {"color": "gold"}, "available": True, "price": 99.0},
            "i4": {"item_id": "i4", "options": {"color": "grey"}, "available": False, "price": 10.0},
        },
    },
    "p2": {
        "name": "Bowl",
        "product_id": "p2",
        "variants": {"b1": {"item_id": "b1", "options": {}, "available": True, "price": 5.0}},
    },
}


def order(number: int, status: str, method: str = "gift_card_1") -> dict[str, Any]:
    """An order of a mug and a bowl."""
    return {
        "order_id": f"#W{number}",
        "user_id": "ann_lee_1",
        "address": ADDRESS,
        "items": [
            {"name": "Mug", "product_id": "p1", "item_id": "i1", "price": 10.0, "options": {"color": "red"}},
            {"name": "Bowl", "product_id": "p2", "item_id": "b1", "price": 5.0, "options": {}},
        ],
        "fulfillments": [],
        "status": status,
        "payment_history": [{"transaction_type": "payment", "amount": 15.0, "payment_method_id": method}],
    }


ORDERS = {"#W1": order(1, "pending"), "#W2": order(2, "delivered", "credit_card_1"), "#W3": order(3, "processed")}
TASKS = [
    {
        "id": "shop/cancel",
        "instruction": "You are Ann Lee in 90001. You want to cancel #W1 and to know how much comes back.",
        "actions": [
            {"name": "get_order_details", "kwargs": {"order_id": "#W1"}},
            {"name": "cancel_pending_order", "kwargs": {"order_id": "#W1", "reason": "no longer needed"}},
        ],
        "outputs": ["15.0"],
    },
    {
        "instruction": "You are Ann Lee in 90001. You want to return the mug of #W2.",
        "actions": [
            {
                "name": "return_delivered_order_items",
                "kwargs": {"order_id": "#W2", "item_ids": ["i1"], "payment_method_id": "credit_card_1"},
            }
        ],
        "outputs": [],
    },
]


def write_shop(folder: Path) -> Path:
    """Write the shop's files."""
    for table, records in {"users": USERS, "orders": ORDERS, "products": PRODUCTS}.items():
        lines = [json.dumps({"key": key, "value": record}) for key, record in records.items()]
        (folder / f"db_retail_{table}.jsonl").write_text("\n".join(lines))
    (folder / "retail_test_tasks.jsonl").write_text("\n".join(map(json.dumps, TASKS)))
    (folder / "retail_policy.md").write_text("Be kind.")
    return folder
