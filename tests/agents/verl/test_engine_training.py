"""Real trainings by an unmodified verl on the CPU, with its own servers of vLLM and SGLang.

SGLang has no CPU kernels: ``cpu_kernels`` stands in for them and for the pickling of the trainer's weights.
"""

import json
import shutil
from collections import Counter
from statistics import fmean
from typing import Any

import pytest
from engine_training import VERSIONS, played, policy_for, stored, train_engine
from interpreter import python
from omegaconf import OmegaConf
from real_training import PROMPTS, SAMPLES, Training, read_lines
from tables import table

from turntree.agents.engines.sglang.settings import VARIABLE
from turntree.agents.verl.config.compose import compose
from turntree.agents.verl.records.recording import RunFolder

pytestmark = pytest.mark.slow

STEPS = 2


OTHER_USES = ("reuse=rejection_sampling", "reuse=spec_rl", "speculation=[tree,run_ahead]")


def trainings() -> list[Any]:
    # Only the first use runs before a release.
    return [
        pytest.param(
            (engine, use), marks=[getattr(pytest.mark, engine), *marks], id=f"{engine}-{use.partition('=')[2]}"
        )
        for engine in VERSIONS
        for use, marks in (
            ("reuse=same_seed", []),
            *((way, [pytest.mark.release, pytest.mark.once]) for way in OTHER_USES),
        )
    ]


@pytest.fixture(scope="module", params=trainings())
def trained(request: pytest.FixtureRequest, chatml: Any, tmp_path_factory: pytest.TempPathFactory) -> Training:
    engine, use = request.param
    policy = policy_for(engine, chatml, tmp_path_factory)
    rewards = r"turntree.rewards={environment: 1.0, trained_envs\:first: 0.25}"
    return train_engine(tmp_path_factory.mktemp("training"), policy, engine, use, rewards, steps=STEPS)


def test_verl_trains_to_the_end(trained: Training) -> None:
    assert trained.status == 0, trained.log[-3000:]
    assert trained.steps == [*range(1, STEPS + 1)]
    assert all(row["actor/grad_norm"] > 0 for row in trained.metrics)


def test_the_engine_samples_with_the_trainers_weights(trained: Training) -> None:
    # The policy moves by far more than this in a step: weights that stayed behind would show.
    for row in trained.metrics:
        assert row["training/rollout_probs_diff_max"] < 1e-4


def test_the_policy_moves_from_step_to_step(trained: Training) -> None:
    # Control: the first and last policies' probabilities of the same tokens differ by more.
    said: list[dict[tuple[int, ...], float]] = []
    for step in (1, STEPS):
        turns = [record.episode.turns[0] for record in trained.records(step).values()]
        said.append({(*t.prompt_ids, t.completion.token_ids[0]): t.completion.logprobs[0] for t in turns})
    both = said[0].keys() & said[1].keys()
    assert both
    assert max(abs(said[0][tokens] - said[1][tokens]) for tokens in both) > 1e-2


def test_dialogues_of_several_turns_go_through_the_engine(trained: Training) -> None:
    for step in range(1, STEPS + 1):
        records = trained.records(step).values()
        assert len(records) == PROMPTS * SAMPLES
        assert not any(record.episode.masked for record in records)
        assert all(len(record.episode.turns) == 3 for record in records)
    for step in range(1, STEPS + 1):
        turns = (turn for record in trained.records(step).values() for turn in record.episode.turns)
        assert {turn.completion.weights_version for turn in turns} == {step - 1}


def test_the_samples_of_a_task_are_scored_together(trained: Training) -> None:
    for step, row in enumerate(trained.metrics, start=1):
        episodes = [record.episode for record in trained.records(step).values()]
        assert sorted(episode.rewards["first"] for episode in episodes) == [0] * PROMPTS * (SAMPLES - 1) + [1] * PROMPTS
        assert row["critic/score/mean"] == pytest.approx(fmean(episode.reward for episode in episodes), rel=1e-4)


def test_drafts_are_made_and_verl_logs_what_they_saved(trained: Training) -> None:
    turns = [turn.completion for r in trained.records(STEPS).values() for turn in r.episode.turns]
    assert all(0 < turn.draft.verify_steps <= len(turn.token_ids) for turn in turns)
    assert sum(turn.draft.accepted for turn in turns) > 0
    tokens, steps = sum(len(turn.token_ids) for turn in turns), sum(turn.draft.verify_steps for turn in turns)
    assert trained.metrics[-1]["turntree/tokens_per_forward_pass"] == pytest.approx(tokens / steps)
    assert tokens / steps > 1.05


def test_turns_of_the_last_epoch_are_used_again(trained: Training, request: pytest.FixtureRequest) -> None:
    # Each step is an epoch of the same tasks.
    assert trained.levels(1) == {"A"}
    assert all(_level(request) in trained.levels(step) for step in range(2, STEPS + 1))
    ahead = "run_ahead" in _use(request)
    used, offered = ("run_ahead_promoted", "run_ahead_offered") if ahead else ("reuse_reused", "reuse_offered")
    for row in trained.metrics[1:]:
        assert 0 < row[f"turntree/{used}"] <= row[f"turntree/{offered}"]
        assert ahead or row["turntree/reuse_drafted_turns"] <= PROMPTS * SAMPLES * 3
    counted = {row["step"]: row["tokens_per_forward_pass"] for row in read_lines(trained.folder.engine)}
    logged = {step: row["turntree/tokens_per_forward_pass"] for step, row in enumerate(trained.metrics, start=1)}
    assert counted == pytest.approx({step: logged[step] for step in counted})


def test_a_turn_is_replayed_whole_and_the_ratio_rule_keeps_a_beginning(trained, request):
    records = (record for step in range(2, STEPS + 1) for record in trained.records(step).values())
    kinds = {"".join(sorted(set(turn.completion.levels))) for record in records for turn in record.episode.turns}
    assert (f"A{_level(request)}" in kinds) == (_use(request) in OTHER_USES[:2])


def _level(request: pytest.FixtureRequest) -> str:
    return {"reuse=spec_rl": "D", "speculation=[tree,run_ahead]": "B"}.get(_use(request), "C")


def _use(request: pytest.FixtureRequest) -> str:
    use: str = request.node.callspec.params["trained"][1]
    return use


LAST = 3  #: the last step with two replicas
#: two replicas and a broker
TOGETHER = (
    *("trainer.n_gpus_per_node=2", "ray_kwargs.ray_init.num_gpus=2"),
    *("trainer.save_freq=2", "trainer.resume_mode=auto"),
    "actor_rollout_ref.rollout.engine_kwargs.turntree.sharing.replicas_per_task=0",  # each replica has all turns
    "+actor_rollout_ref.rollout.engine_kwargs.turntree.forest.rollouts_per_state=1000",
)


def bare(turns: Counter[tuple[int, ...]]) -> Counter[tuple[int, ...]]:
    # Without the turns' states.
    found: Counter[tuple[int, ...]] = Counter()
    for turn, count in turns.items():
        found[turn[1:]] += count
    return found


@pytest.fixture(scope="module", params=[pytest.param(name, marks=getattr(pytest.mark, name)) for name in VERSIONS])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def together(engine: str, chatml: Any, tmp_path_factory: pytest.TempPathFactory) -> Training:
    policy = policy_for(engine, chatml, tmp_path_factory)
    return train_engine(tmp_path_factory.mktemp("together"), policy, engine, "tree", *TOGETHER)


@pytest.fixture(scope="module")
def resumed(together: Training, engine: str, chatml: Any, tmp_path_factory: pytest.TempPathFactory) -> Training:
    # Resumes the other training after two steps, without its third.
    root = tmp_path_factory.mktemp("resumed")
    shutil.copytree(together.folder.root, root / "run")
    checkpoints = RunFolder(root / "run").checkpoints
    shutil.rmtree(checkpoints / f"global_step_{LAST}")
    (checkpoints / "latest_checkpointed_iteration.txt").write_text("2")
    return train_engine(root, policy_for(engine, chatml, tmp_path_factory), engine, "tree", *TOGETHER)


@pytest.mark.release
@pytest.mark.once
def test_two_replicas_have_each_others_turns(together: Training) -> None:
    assert together.status == 0, together.log[-3000:]
    # They are given once the step's rollouts are done, when its counters are read already.
    each = [(row["turntree/sharing_sent"], row["turntree/sharing_received"]) for row in together.metrics]
    assert each == [(0, 0), *[(PROMPTS * SAMPLES * 3,) * 2] * 2]
    stores = [stored(together, LAST, rank) for rank in range(2)]
    assert bare(stores[0]) == bare(stores[1]) == played(together, 1, 2, 3)
    assert stored(together, 2, 0) != stores[0], "the control: at the last checkpoint they were others"


@pytest.mark.release
@pytest.mark.once
def test_a_resumed_run_of_two_replicas_goes_on_as_the_unbroken_one(together: Training, resumed: Training) -> None:
    assert resumed.status == 0, resumed.log[-3000:]
    assert resumed.steps == [LAST]
    assert played(resumed, LAST) == played(together, LAST) != played(together, 2)
    for rank in range(2):
        assert stored(resumed, LAST, rank) == stored(together, LAST, rank)


@pytest.mark.sglang
@pytest.mark.release
def test_sglang_takes_a_gpus_arguments_and_makes_turntrees_worker_of_them(request, chatml, tmp_path_factory):
    policy_for("sglang", chatml, tmp_path_factory)  # or it is skipped
    config = compose(None, ["engine=sglang", "size=1.5b", "env=gsm8k"]).verl
    given = json.dumps(OmegaConf.to_container(config.actor_rollout_ref.rollout.engine_kwargs.sglang))
    support = str(request.config.rootpath / "tests" / "support")
    variable = config.ray_kwargs.ray_init.runtime_env.env_vars[VARIABLE]
    done = python("-c", table(__file__, "sglang_server").format(support=support), given, variable)
    assert "WORKER turntree.agents.engines.sglang.worker.worker TurntreeWorker" in done.stdout, done.stderr[-3000:]
