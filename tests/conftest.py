"""In an environment with SGLang its stand-ins must be found before anything looks for torchvision."""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("sglang") is not None:
    from cpu_sglang import prepare

    prepare()
