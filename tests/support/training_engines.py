_VERLS = ("dtype", "max_running_requests", "skip_server_warmup", "log_level")  #: SGLang arguments that verl sets itself


def engine_options(engine: str) -> list[str]:
    """Return overrides for ``local``, ``vllm`` or ``sglang`` on the CPU; call ``cpu_sglang.prepare`` before SGLang."""
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
