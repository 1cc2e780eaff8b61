"""Choice of vLLM's first model runner, and refusal of seeds that vLLM would ignore.

On accelerators, newer versions of vLLM use their second model runner (V2) for some model architectures: six in 0.24,
more in later versions. V2 supports neither turntree's seeds nor custom drafters. ``VllmEngine`` therefore requests the
first runner before vLLM starts, and checks afterwards that its workers sample with turntree's seeds. A request with a
seed that reaches V2 or an unchecked version of vLLM (for example under ``vllm serve``) is refused, because vLLM would
silently draw fresh noise.

Patches ``InputProcessor._validate_params``, which rejects requests in vLLM's front end. Checked with
``compat.CHECKED`` and 0.33; tests: ``test_model_runner.py``.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Sequence
from typing import Any

from turntree.agents.engines.request_wire import seed_of
from turntree.agents.engines.vllm import compat

_MARK = "turntree_refuses_seeds"
VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"  #: vLLM's environment variable that chooses the runner: 0 is the first runner.


def unchecked() -> str:
    return (
        f"turntree's seeds are checked only with vLLM {' and '.join(compat.CHECKED)}, but {compat.installed_version()} "
        "is installed: vLLM verifies drafts by its own rule, and turntree refuses requests with a turntree seed"
    )


def choose_first() -> None:
    """Make engines started by this process use the first runner, unless the environment variable is set already."""
    os.environ.setdefault(VARIABLE, "0")


def check_seeded(by_rank: Sequence[bool]) -> None:
    """Raise ``RuntimeError`` unless all workers of an engine sample with turntree's seeds."""
    if not all(by_rank):
        raise RuntimeError(
            unchecked()
            if not compat.is_checked()
            else "vLLM's workers would ignore turntree's seeds; the entry point vllm.general_plugins:turntree must be "
            f"installed beside vLLM and not excluded by VLLM_PLUGINS, and {VARIABLE} must be 0, got "
            f"{os.environ.get(VARIABLE)}"
        )


def refuse_seeds() -> None:
    front: Any = importlib.import_module("vllm.v1.engine.input_processor").InputProcessor
    original = front._validate_params
    if getattr(original, _MARK, False):
        return

    @functools.wraps(original)
    def validate(self: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
        seeded = seed_of(getattr(params, "extra_args", None)) is not None
        if seeded and not compat.is_checked():
            raise ValueError(unchecked())
        if seeded and self.vllm_config.use_v2_model_runner:
            raise ValueError(
                "a request has a turntree seed, which vLLM's second model runner would ignore; start vLLM with "
                f"{VARIABLE}=0, or send no seed"
            )
        return original(self, params, *args, **kwargs)

    setattr(validate, _MARK, True)
    front._validate_params = validate
