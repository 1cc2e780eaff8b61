import json
from pathlib import Path
from typing import Any

_SHOP: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
ADDRESS, PRODUCTS, TASKS = _SHOP["address"], _SHOP["products"], _SHOP["tasks"]
USERS = {name: {**user, "address": ADDRESS} for name, user in _SHOP["users"].items()}


def order(number: int, status: str, method: str = "gift_card_1") -> dict[str, Any]:
    paid = [{**_SHOP["order"]["payment_history"][0], "payment_method_id": method}]
    return {**_SHOP["order"], "order_id": f"#W{number}", "address": ADDRESS, "status": status, "payment_history": paid}


ORDERS = {"#W1": order(1, "pending"), "#W2": order(2, "delivered", "credit_card_1"), "#W3": order(3, "processed")}


def write_shop(folder: Path) -> Path:
    for table, records in {"users": USERS, "orders": ORDERS, "products": PRODUCTS}.items():
        lines = [json.dumps({"key": key, "value": record}) for key, record in records.items()]
        (folder / f"db_retail_{table}.jsonl").write_text("\n".join(lines))
    (folder / "retail_test_tasks.jsonl").write_text("\n".join(map(json.dumps, TASKS)))
    (folder / "retail_policy.md").write_text("Be kind.")
    return folder
