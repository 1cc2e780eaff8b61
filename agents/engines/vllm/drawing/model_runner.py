"""Seeds and vLLM's two model runners.

Newer versions choose the second runner (V2) by themselves, on accelerators and by
the model's architecture: 0.24 for six, later ones for more. It has no sampler that
turntree's seeds could be given to, and no custom drafters. Who promises seeded turns
asks for the first runner before vLLM starts, and checks afterwards; and a request
with a seed that reaches an engine of the second runner, or of a version that was not
checked, for example one of ``vllm serve``, is refused, since it would silently draw
fresh noise.

One place of vLLM is changed: ``InputProcessor._validate_params``, by which its front
end refuses requests. Checked with ``compat.CHECKED`` and 0.33.
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
VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"
"""vLLM's environment variable that chooses the runner: 0 is the first one."""


def unchecked() -> str:
    """What an unchecked version of vLLM does."""
    return (
        f"turntree's seeds were checked with vLLM {' and '.join(compat.CHECKED)}, and {compat.installed_version()} is "
        "installed: it drafts turns and verifies them by its own rule, and refuses requests with a seed of turntree's"
    )


def choose_first() -> None:
    """Let engines that this process starts have the first runner, unless the caller's environment says otherwise."""
    os.environ.setdefault(VARIABLE, "0")


def check_seeded(by_rank: Sequence[bool]) -> None:
    """Check that all workers of an engine draw by turntree's seeds.

    Args:
        by_rank: Answers of ``WorkerExtension.turntree_draws_by_seed``.

    Raises:
        RuntimeError: If one does not.
    """
    if not all(by_rank):
        raise RuntimeError(
            unchecked()
            if not compat.is_checked()
            else "vLLM's workers would ignore turntree's seeds; the entry point vllm.general_plugins:turntree must be "
            f"installed beside vLLM and not be left out by VLLM_PLUGINS, and {VARIABLE} must be 0, got "
            f"{os.environ.get(VARIABLE)}"
        )


def refuse_seeds() -> None:
    """Let vLLM's front end refuse seeded requests where the second runner serves. Calling it again changes nothing."""
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
                "a request has a seed of turntree's, which vLLM's second model runner would ignore; start vLLM with "
                f"{VARIABLE}=0, or send no seed"
            )
        return original(self, params, *args, **kwargs)

    setattr(validate, _MARK, True)
    front._validate_params = validate
