from dataclasses import replace
from typing import Any

import pytest
from omegaconf import OmegaConf
from ray.exceptions import ActorUnavailableError
from verl.experimental.agent_loop.agent_loop import DictConfigWrap, _agent_loop_registry
from verl.trainer.ppo.v1 import agent_loop_tq
from verl.workers.rollout.replica import TokenOutput

from turntree.agents.engines.protocol import Completion, DraftStats, Engine, FinishReason, Sampling, TurnRequest
from turntree.agents.engines.request_wire import seed_of, state_of
from turntree.agents.errors import EngineLost
from turntree.agents.verl.episodes.output import EpisodeOutput
from turntree.agents.verl.playing.agent_loop import EnvAgentLoop
from turntree.agents.verl.playing.backends import server_call
from turntree.agents.verl.playing.engine import VerlEngine
from turntree.agents.verl.serving.verl_types import to_request, to_token_output
from turntree.rewards import reward
from turntree.spec_tree import DialogueState

SAMPLING = Sampling(temperature=0.5, max_tokens=3, stop_token_ids=(9,), seed=4)
VERLS = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}
STATE = DialogueState.from_tokens((5,), task="t")
ASKED = TurnRequest((5,), SAMPLING, state=STATE, sample=3)


class Servers:
    """Stands in for verl's client: gives its outputs in order, the last one from then on."""

    def __init__(self, *outputs: TokenOutput | Exception) -> None:
        self.outputs = outputs
        self.asked: list[dict[str, Any]] = []

    async def generate(self, **request: Any) -> TokenOutput:
        self.asked.append(request)
        output = self.outputs[min(len(self.asked), len(self.outputs)) - 1]
        if isinstance(output, Exception):
            raise output
        return output


def output(*tokens: int, **fields: Any) -> TokenOutput:
    return TokenOutput(token_ids=list(tokens), log_probs=[-1.0] * len(tokens), **fields)


async def test_all_turns_of_an_episode_go_to_one_server() -> None:
    servers = Servers(output(1, 9))
    engine = VerlEngine(servers, backend="trtllm")
    assert isinstance(engine, Engine)
    await engine.generate(TurnRequest((5,), SAMPLING))
    await engine.generate(TurnRequest((5, 1, 9), SAMPLING))
    await VerlEngine(servers, backend="trtllm").generate(TurnRequest((5,), SAMPLING))
    first, second, other = (request["request_id"] for request in servers.asked)
    assert first == second != other


async def test_sampling_and_state_reach_the_server() -> None:
    servers = Servers(output(1, 9))
    await VerlEngine(servers, backend="turntree").generate(ASKED)
    (request,) = servers.asked
    assert request["prompt_ids"] == [5]
    assert request["state"] is STATE
    assert request["sampling_params"] == server_call("turntree", ASKED).parameters


@pytest.mark.parametrize("backend", ["turntree", "vllm", "trtllm"])
def test_how_to_draw_reaches_every_backend_under_shared_names(backend: str) -> None:
    parameters, _ = server_call(backend, ASKED)
    assert (parameters["temperature"], parameters["max_tokens"], parameters["stop_token_ids"]) == (0.5, 3, [9])
    assert parameters["logprobs"] is True


def test_vllm_takes_state_and_seed_in_extra_args_and_no_other_end_of_a_turn() -> None:
    parameters, arguments = server_call("vllm", ASKED)
    assert arguments == {}
    assert state_of(parameters["extra_args"]) == STATE
    assert seed_of(parameters["extra_args"]) == 4
    assert "seed" not in parameters  # vLLM's own seeds depend on how drafts went
    assert parameters["ignore_eos"] is True


@pytest.mark.parametrize(
    ("backend", "given"), [("turntree", {"state": STATE, "reuse": True, "sample": 3}), ("trtllm", {})]
)
def test_a_backend_that_is_not_known_is_given_the_seed_and_no_state(backend: str, given: dict[str, Any]) -> None:
    parameters, arguments = server_call(backend, ASKED)
    assert (parameters["seed"], arguments) == (4, given)
    assert "extra_args" not in parameters


@pytest.mark.parametrize("backend", ["vllm", "sglang"])
@pytest.mark.parametrize("reuse", [True, False])
def test_an_external_server_reads_the_turn_that_was_asked_for(backend: str, reuse: bool) -> None:
    asked = replace(ASKED, reuse=reuse)
    parameters = server_call(backend, asked).parameters
    assert to_request(asked.prompt_ids, parameters, default_max_tokens=99) == asked
    entries = {"extra_args", "custom_params"}
    others = {name: value for name, value in parameters.items() if name not in entries}
    assert to_request(asked.prompt_ids, others, default_max_tokens=99) is None, "a request of verl's own agent loops"


async def test_a_turn_of_our_server_crosses_verl_with_its_counters() -> None:
    completion = Completion(
        token_ids=(1, 2),
        logprobs=(-1.0, -2.0),
        finish_reason=FinishReason.LENGTH,
        draft=DraftStats(verify_steps=1, drafted=3, accepted=2),
        accepted=(True, False),
        cached_tokens=5,
        levels="CA",
        behaviour_logprobs=(-1.5, -2.5),
        weights_version=7,
    )
    crossing = to_token_output(completion, 7)
    assert (crossing.token_ids, crossing.log_probs, crossing.stop_reason) == ([1, 2], [-1.0, -2.0], "length")
    counts = {"spec_num_draft_tokens": 3, "spec_num_accepted_tokens": 2, "spec_num_verify_steps": 1}
    tokens = {"accepted": [True, False], "levels": "CA", "behaviour_logprobs": [-1.5, -2.5]}
    assert crossing.extra_fields == {"global_steps": 7, "num_cached_tokens": 5, **counts, **tokens}
    assert await VerlEngine(Servers(crossing), backend="trtllm").generate(TurnRequest((5,), SAMPLING)) == completion


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (output(1, 9), FinishReason.STOP),
        (output(1, 2, 3), FinishReason.LENGTH),
        (output(1, stop_reason="aborted"), FinishReason.ABORT),
    ],
)
async def test_why_a_turn_ended_is_read_from_its_tokens(answer: TokenOutput, reason: FinishReason) -> None:
    completion = await VerlEngine(Servers(answer), backend="trtllm").generate(TurnRequest((5,), SAMPLING))
    assert completion.finish_reason is reason


async def test_a_server_without_log_probabilities_is_an_error() -> None:
    servers = Servers(TokenOutput(token_ids=[1], log_probs=None))
    with pytest.raises(RuntimeError, match="calculate_log_probs=True"):
        await VerlEngine(servers, backend="trtllm").generate(TurnRequest((5,), SAMPLING))


async def loop(config: Any, row: dict[str, Any], tokenizer: Any, *outputs: Any) -> tuple[Any, Servers]:
    servers = Servers(*outputs)
    whole = DictConfigWrap(OmegaConf.create({"actor_rollout_ref": {"rollout": config}}))
    made = EnvAgentLoop(trainer_config=whole, server_manager=servers, tokenizer=tokenizer, tools=None)
    return await made.run(VERLS, **row), servers


def test_verl_finds_the_loop_by_its_name() -> None:
    assert _agent_loop_registry["turntree_env"]["_target_"].endswith(".EnvAgentLoop")


@pytest.mark.parametrize(("backend", "given"), [("turntree", True), ("vllm", False)])
async def test_only_our_backend_is_given_the_dialogue_state(rollout_config, chatml, row, backend, given):
    said = chatml("#### 5<|im_end|>", add_special_tokens=False)["input_ids"]
    rollout_config.name = backend
    played, servers = await loop(rollout_config, row, chatml, output(*said, extra_fields={"global_steps": 4}))
    assert ("state" in servers.asked[0]) is given
    assert sum(played.response_mask) == len(said)
    assert played.extra_fields["max_global_steps"] == 4


async def test_servers_that_are_gone_mask_the_episode(rollout_config: Any, chatml: Any, row: dict[str, Any]) -> None:
    played, _ = await loop(rollout_config, row, chatml, ConnectionError("no such actor"))
    assert (sum(played.response_mask), played.extra_fields["reward_extra_info"]["failure"]) == (0, 1.0)


GONE = ActorUnavailableError("killed", None)


async def test_a_first_turn_waits_so_long_for_a_lost_server_and_a_later_one_is_lost_with_it() -> None:
    servers = Servers(GONE, EngineLost("it has no weights yet"), output(1, 9), GONE)
    engine = VerlEngine(servers, backend="trtllm", look_seconds=0)
    assert (await engine.generate(TurnRequest((5,), SAMPLING))).token_ids == (1, 9)
    assert [asked["prompt_ids"] for asked in servers.asked] == [[5]] * 3
    with pytest.raises(EngineLost, match="is gone"):
        await engine.generate(TurnRequest((5, 1, 9), SAMPLING))
    with pytest.raises(EngineLost, match="is gone"):
        await VerlEngine(Servers(GONE), backend="trtllm", patience=0, look_seconds=0).generate(
            TurnRequest((5,), SAMPLING)
        )


async def test_an_episode_whose_server_is_lost_is_played_again(rollout_config, chatml, row):
    calls, said = (
        chatml(text + "<|im_end|>", add_special_tokens=False)["input_ids"] for text in ("calculator(1+1)", "#### 5")
    )
    played, servers = await loop(rollout_config, row, chatml, output(*calls), GONE, output(*said))
    assert servers.asked[0]["request_id"] == servers.asked[1]["request_id"] != servers.asked[2]["request_id"]
    assert servers.asked[0]["prompt_ids"] == servers.asked[2]["prompt_ids"]
    assert sum(played.response_mask) == len(said)


class Sessions(agent_loop_tq.AgentLoopWorkerTQ.__ray_actor_class__):  # type: ignore[misc, name-defined]
    """verl's own worker, whose episodes stay here."""

    def __init__(self, config: Any, tokenizer: Any, client: Servers) -> None:
        self.config, self.tokenizer, self.llm_client = config, tokenizer, client
        self.processor = self.hf_model_type = self.dataset_cls = None
        self.tools: list[Any] = []
        self.outputs: list[EpisodeOutput] = []

    async def _agent_loop_postprocess(self, output: EpisodeOutput, validate: bool, **row: Any) -> None:
        self.outputs.append(output)


async def test_verls_own_worker_scores_the_samples_of_a_task_together(
    rollout_config: Any, chatml: Any, row: dict[str, Any], own_rewards: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of three samples is lost with its server, at both attempts: it takes the mean of the others."""
    reward("pair", group=True)(lambda samples: [float(len(samples) == 2)] * len(samples))
    rollout_config.custom.turntree.rewards = {"answer": 1, "pair": 0.25}
    said = [output(*chatml(f"{answer}<|im_end|>", add_special_tokens=False)["input_ids"]) for answer in (5, 4)]
    gone = ConnectionError("no such actor")
    statuses: list[str] = []

    async def put(*, key: str, partition_id: str, tag: dict[str, str]) -> None:
        statuses.append(tag["status"])

    monkeypatch.setattr(agent_loop_tq.tq, "async_kv_put", put)
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": {**rollout_config, "n": 3}}, "data": {}})
    worker = Sessions(config, chatml, Servers(said[0], gone, said[1], gone))
    del row["session_id"]
    prompt = {**row, "agent_name": "turntree_env", "env_id": "fragile_env:Fragile", "env_kwargs": "{}"}
    await worker._run_prompt(prompt, VERLS, {"step": 5, "sample_index": 3, "rollout_n": 0, "validate": False})
    assert statuses == ["running", "finished"]
    assert [played.reward_score for played in worker.outputs] == [1.25, 0.75, 0.25]
    assert [played.masked for played in worker.outputs] == [False, True, False]
