import json
from pathlib import Path
from typing import Any

AIRLINE: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))


def write_airline(folder: Path) -> Path:
    for table in ("users", "flights", "reservations"):
        lines = [json.dumps({"key": key, "value": record}) for key, record in AIRLINE[table].items()]
        (folder / f"db_airline_{table}.jsonl").write_text("\n".join(lines))
    (folder / "airline_test_tasks.jsonl").write_text("\n".join(map(json.dumps, AIRLINE["tasks"])))
    (folder / "airline_policy.md").write_text("Be punctual.")
    return folder
