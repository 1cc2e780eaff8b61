"""Fits SGLang to a machine without an accelerator: a plugin of SGLang's own kind, for tests.

SGLang finds it in each of its processes by the entry point beside this package, wherever the folder of both is on
``sys.path``. The library itself has no such repairs. Not covered: what a stand-in cannot show, such as graphs, masks
of compiled attention kernels, and several ranks.
"""


def register() -> None:
    """Apply the repairs."""
    from sglang_on_cpu.repairs import repair

    repair()
