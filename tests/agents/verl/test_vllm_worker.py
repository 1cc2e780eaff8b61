"""Why vLLM's CPU workers take verl's weights in a way of their own; ``test_engine_training`` shows that they do."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

pytestmark = pytest.mark.vllm


def upstream(path: str) -> str:
    """Source of a vLLM module; vLLM itself is not imported."""
    spec = importlib.util.find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    return (Path(spec.origin).parent / path).read_text(encoding="utf-8")


def test_upstream_still_empties_the_weights_of_linear_layers_on_the_cpu() -> None:
    assert "dispatch_cpu_unquantized_gemm(layer, remove_weight=True)" in upstream("model_executor/layers/linear.py")
    source = upstream("model_executor/layers/utils.py").partition("def dispatch_cpu_unquantized_gemm")[2]
    assert "torch.empty(0" in source.partition("if remove_weight:")[2]


def test_upstream_still_loads_again_in_place_from_an_iterator() -> None:
    source = upstream("v1/worker/gpu_model_runner.py").partition("def reload_weights(")[2]
    assert "weights_iterator" in source.partition("-> None")[0]
