import json
from typing import Any

import pytest
from benchmark_modules import benchmark_module


@pytest.fixture(scope="module")
def rows() -> dict[str, Any]:
    replicas = benchmark_module("replicas")
    sizes = {"replicas": 2, "tasks": 2, "samples": 2, "steps": 4, "seed": 0}
    return {way.name: replicas.simulate(way, **sizes) for way in replicas.WAYS}


def test_a_task_is_known_at_home_a_broker_brings_what_routing_has_not_and_the_bound_on_load_holds(rows):
    home = rows["owner replica, no sharing"]
    assert home.known == 1.0
    assert home.given_mb == home.fetched_mb == home.broker_ms == 0.0
    assert rows["by task, no sharing"].load <= 1.5 <= rows["owner replica, no sharing"].load + 0.5
    for with_broker, without in (
        ("random, sharing with all", "random, no sharing"),
        ("one down: by task, sharing with 2 replicas", "one down: by task, no sharing"),
    ):
        assert rows[with_broker].known > rows[without].known
        assert rows[with_broker].given_mb > 0
        assert rows[with_broker].fetched_mb > 0
        assert rows[without].given_mb == 0
    for row in rows.values():
        if row.given_mb:
            assert 0 < row.broker_mb <= 4 * row.given_mb * 1.1
            assert row.missed == 0


def test_a_run_goes_on_in_a_file_of_its_own_machine_alone(monkeypatch, tmp_path, capsys) -> None:
    replicas, out = benchmark_module("replicas"), tmp_path / "out.json"
    words = ["--tasks", "2", "--samples", "2", "--steps", "2", "--replicas", "1", "--out", str(out)]
    replicas.main(words)
    first = out.read_text()
    monkeypatch.setattr(replicas, "simulate", lambda *given, **named: pytest.fail("it was measured before"))
    replicas.main(words)
    out.write_text(json.dumps({**json.loads(first), "machine": "another"}))
    with pytest.raises(SystemExit, match=r"other machine \(another\)"):
        replicas.main(words)
