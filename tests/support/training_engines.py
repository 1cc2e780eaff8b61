"""Options of ``turntree train`` that name an engine which runs on this machine."""

_VERLS = ("dtype", "max_running_requests", "skip_server_warmup", "log_level")
"""Arguments of SGLang that verl gives itself."""


def engine_options(engine: str) -> list[str]:
    """Overrides for ``local``, ``vllm`` or ``sglang`` on the CPU; SGLang needs ``cpu_sglang.prepare`` before."""
    if engine == "local":
        return ["engine=local"]
    if engine == "vllm":
        return ["engine=vllm_cpu"]
    from cpu_sglang import beside

    own = beside(*_VERLS) | {"enable_memory_saver": False}
    given = ", ".join(f"{name}: {value}" for name, value in own.items())
    # There is no option for SGLang on the CPU, as it has no kernels there: vLLM's, with another engine in it.
    return [
        *("engine=vllm_cpu", "actor_rollout_ref.rollout.name=sglang"),
        f"actor_rollout_ref.rollout.engine_kwargs.sglang={{{given}}}",
    ]
