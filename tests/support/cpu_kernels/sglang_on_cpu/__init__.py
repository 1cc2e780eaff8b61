"""Repairs that let SGLang run without an accelerator: an SGLang plugin, for tests.

SGLang finds it in each of its processes by the entry point next to this package, if their folder is on ``sys.path``.
Not covered: CUDA graphs, masks of compiled attention kernels, several ranks.
"""


def register() -> None:
    from sglang_on_cpu.repairs import repair

    repair()
