"""Convert turntree's engine section to SGLang's arguments under verl.

Drafts are configured in one place for all engines, ``engine_kwargs.turntree.speculation`` and ``.forest``. The
arguments name SGLang's built-in algorithm ``NGRAM``, because verl's server builds the arguments before SGLang loads
plugins. An environment variable, set for all of Ray's processes, carries turntree's settings. If the variable is set,
turntree's plugin replaces the worker of ``NGRAM``.

Tested on the CPU in training steps: verl's path through its SGLang server, with stand-ins for SGLang's kernels. Not
tested, because CUDA is needed: the kernels, and verl's weight transfer by handles of device memory.
"""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig, OmegaConf

from turntree.agents.engines.sglang.config import KEPT, SglangEngineConfig
from turntree.agents.engines.sglang.dialect import PRIORITIES
from turntree.agents.engines.sglang.settings import VARIABLE, SglangSettings, graph_sizes
from turntree.agents.verl.config.engine_section import ROLLOUT, check_priority, drafts_of, fit_context, two_drafters
from turntree.agents.verl.config.sections import ConfigError
from turntree.agents.verl.config.settings import EngineSettings, PlaySettings

_VARIABLES = "ray_kwargs.ray_init.runtime_env.env_vars"  #: environment variables of all of Ray's processes
_DRAFTS = ("speculative_algorithm", "speculative_num_draft_tokens")


def fit_sglang(config: DictConfig, run: PlaySettings) -> None:
    """Put turntree's worker into SGLang's arguments; other engines are left unchanged."""
    if OmegaConf.select(config, f"{ROLLOUT}.name") != "sglang":
        return
    own = f"{ROLLOUT}.engine_kwargs.sglang.context_length"  # verl checks max_model_len but does not pass it to SGLang
    context = fit_context(config, kept=KEPT, given=OmegaConf.select(config, own))
    OmegaConf.update(config, own, context, force_add=True)
    settings = drafts_of(config, "sglang", "SGLang", run)
    if run.run_ahead.enabled:
        for key, value in PRIORITIES.items():
            check_priority(config, f"{ROLLOUT}.engine_kwargs.sglang.{key}", value)
            OmegaConf.update(config, f"{ROLLOUT}.engine_kwargs.sglang.{key}", value, force_add=True)
    if settings is None:
        return
    _check_adapters(config)
    for key in _DRAFTS:
        if OmegaConf.select(config, f"{ROLLOUT}.engine_kwargs.sglang.{key}") is not None:
            raise two_drafters(f"{ROLLOUT}.engine_kwargs.sglang.{key}", "SGLang")
    drafts = _drafts(settings)
    _fit_graphs(config)
    for key, value in _arguments(drafts).items():
        OmegaConf.update(config, f"{ROLLOUT}.engine_kwargs.sglang.{key}", value, force_add=True)
    OmegaConf.update(config, f"{_VARIABLES}.{VARIABLE}", drafts.to_variable(), force_add=True)


def _check_adapters(config: DictConfig) -> None:
    # SGLang's captured graphs serve LoRA adapters at one width (tokens per request and pass); drafts need two widths.
    model, rollout = config.actor_rollout_ref.model, config.actor_rollout_ref.rollout
    adapters = (model.lora_rank or model.lora.rank) and not model.lora.get("merge")
    if adapters and not rollout.enforce_eager:
        raise ConfigError(
            "SGLang serves an adapter (actor_rollout_ref.model.lora_rank) by graphs of one width, and turntree's "
            "drafts need two widths; set actor_rollout_ref.model.lora.merge=true, speculation=none or "
            f"{ROLLOUT}.enforce_eager=true"
        )


def _fit_graphs(config: DictConfig) -> None:
    # Capture the few batch sizes that turntree's plugin captures outside verl; SGLang's default has more of them.
    own, rollout = f"{ROLLOUT}.engine_kwargs.sglang", config.actor_rollout_ref.rollout
    if config.trainer.device != "cpu" and OmegaConf.select(config, f"{own}.cuda_graph_bs") is None:
        most = OmegaConf.select(config, f"{own}.cuda_graph_max_bs") or rollout.max_num_seqs
        OmegaConf.update(config, f"{own}.cuda_graph_bs", graph_sizes(most), force_add=True)


def _drafts(settings: EngineSettings) -> SglangEngineConfig:
    speculation = settings.speculation
    assert speculation is not None
    if speculation.chain:
        raise ConfigError("speculation.chain needs turntree's own engine; SGLang verifies trees")
    return SglangEngineConfig(
        draft_tokens=speculation.max_nodes + 1,
        speculation=SglangSettings(
            max_depth=speculation.max_depth,
            min_probability=speculation.min_probability,
            adaptive=speculation.adaptive,
            max_step_tokens=speculation.max_step_nodes,
            replace_ngram=True,
            forest=settings.forest,
        ),
    )


def _arguments(drafts: SglangEngineConfig) -> dict[str, Any]:
    arguments = drafts.to_engine_args("")
    # SGLang uses FA3's tree mask only if the breadth of its own search is above 1; turntree's drafts are trees.
    breadth = {"speculative_ngram_max_bfs_breadth": max(2, drafts.draft_tokens - 1)}
    steps = {"speculative_num_steps": drafts.draft_tokens - 1}
    return {**{key: arguments[key] for key in _DRAFTS}, **steps, **breadth, "page_size": 1}
