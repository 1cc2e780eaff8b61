"""The exactness report says no where a claim or its control fails."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def claims(proof):
    return proof("claims")


@pytest.mark.parametrize(
    ("of_rule", "of_control", "holds"), [(1e-15, 0.1, True), (1e-9, 0.1, False), (1e-15, 0.001, False)]
)
def test_a_row_holds_if_the_rule_is_exact_and_its_control_is_noticed(claims, of_rule, of_control, holds):
    row = claims.enumerated("rule", "A", lambda seed: of_rule, "control", lambda seed: of_control)
    assert row.holds is holds


def test_one_bad_policy_is_enough(claims):
    bad = max(claims.SEEDS)
    assert not claims.enumerated("rule", "A", lambda seed: float(seed == bad), "control", lambda seed: 1.0).holds
    assert not claims.enumerated("rule", "A", lambda seed: 0.0, "control", lambda seed: float(seed != bad)).holds


@pytest.mark.slow
def test_every_row_of_the_rules_holds(proof, tmp_path, monkeypatch):
    report = tmp_path / "exactness.json"
    monkeypatch.setattr("sys.argv", ["exactness.py", "--json", str(report)])
    assert proof("exactness").main() == 0
    assert report.read_text().count('"holds": true') > 20
