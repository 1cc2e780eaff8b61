"""Real trainings, in which processes are killed with SIGKILL while episodes are played."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch
from machine_speed import patience
from safetensors.torch import load_file

from turntree.agents.record import Record, read_records
from turntree.agents.verl.launch import StepReport, train
from turntree.agents.verl.recording import RunFolder

pytestmark = pytest.mark.slow

PROMPTS, SAMPLES = 4, 2

DEADLY = '''
import os
import signal
import time
from pathlib import Path

from turntree.envs import Env, Message, Reply, Task
from turntree.envs.sandbox import PythonSandbox
from turntree.rewards import default_judge, score_batch

ROOT = Path(os.environ["DEADLY"])


def once(name):
    """Whether this is the first call for ``name`` in all processes."""
    try:
        os.close(os.open(ROOT / name, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    (ROOT / name).write_text(str(time.time()))
    return True


def processes(parent, name=""):
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_text()
            state = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(state[1]) == parent and state[0] != "Z" and name in command:
            yield int(folder.name)


def kill(pids):
    pids = list(pids)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    return pids


def actors(name):
    """Ray's actors of this session are children of one raylet."""
    return sorted(processes(os.getppid(), "ray::" + name))


class Deadly(Env):
    """The task decides who dies when its first answer is heard. Each dialogue has two turns."""

    def task(self, index):
        return Task(id=f"deadly/{index}", prompt=f"say {index % 4}", answer="x+1", data_source="math")

    def reply(self, message):
        index = int(self.current_task.id.split("/")[1])
        if self._progress.turn < 2:
            victim = os.environ["VICTIMS"].split(",")[index]
            if victim and once(f"{index}_{victim}"):
                getattr(self, victim)()
            return Reply(messages=(Message(role="user", content="again"),))
        return Reply(reward=1.0 / (1 + len(message.content)), done=True)

    def tool(self):
        before = set(processes(os.getpid()))
        with PythonSandbox(session=True) as sandbox:
            sandbox.run("x = 1")
            assert kill(set(processes(os.getpid())) - before)
            sandbox.run("x")

    def reward(self):
        judge = default_judge()
        assert score_batch(["the answer is $(x+2)^2$"], ["x^2+4x+4"], "math")[0].correct
        assert kill([*judge.worker_pids(), judge.server_pid()])

    def replica(self):
        assert kill(actors("TurntreeServer")[-1:])

    def replica_and_hub(self):
        assert kill(actors("TurnHub"))
        self.replica()

    def worker(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def trainer(self):
        assert kill(actors("WorkerDict"))
'''


class Killed:
    """A run that has ended."""

    def __init__(self, root: Path, status: int, reports: list[StepReport]) -> None:
        self.root, self.status, self.reports = root, status, reports
        self.ended = time.time()
        self.folder = RunFolder(root / "run")

    @property
    def log(self) -> str:
        return self.folder.log.read_text(errors="replace")

    def records(self, step: int) -> dict[tuple[int, int], Record]:
        """Episodes by task and sample; of those that were played twice the later."""
        records = read_records(self.folder.episodes(step))
        return {(record.labels["index"], record.labels["session"]): record for record in records}

    def complete(self, step: int) -> bool:
        first = (step - 1) * PROMPTS
        wanted = {(first + place, session) for place in range(PROMPTS) for session in range(SAMPLES)}
        return self.records(step).keys() == wanted


def run(model: Path, root: Path, steps: int, victims: dict[int, str], *overrides: str) -> Killed:
    (root / "deadly_env.py").write_text(DEADLY)
    reports: list[StepReport] = []
    patch = pytest.MonkeyPatch()
    patch.setenv("PYTHONPATH", str(root), prepend=":")
    patch.setenv("DEADLY", str(root))
    patch.setenv("VICTIMS", ",".join(victims.get(index, "") for index in range(steps * PROMPTS)))
    patch.syspath_prepend(root)
    try:
        status = train(
            "demo",
            [
                f"actor_rollout_ref.model.path={model}",
                f"turntree.run_dir={root / 'run'}",
                "turntree.env=deadly_env:Deadly",
                "turntree.env_kwargs={system_prompt: '', limits: {max_turns: 3, max_turn_tokens: 12}}",
                "turntree.val_env_kwargs={}",
                f"turntree.train_tasks={steps * PROMPTS}",
                "turntree.val_tasks=2",
                f"trainer.total_training_steps={steps}",
                f"data.train_batch_size={PROMPTS}",
                "data.max_prompt_length=64",
                f"actor_rollout_ref.rollout.n={SAMPLES}",
                "actor_rollout_ref.actor.optim.lr=0.01",
                "actor_rollout_ref.actor.optim.lr_warmup_steps=0",
                *overrides,
            ],
            on_step=reports.append,
        )
    finally:
        patch.undo()
    return Killed(root, status, reports)


@pytest.fixture(scope="module")
def killed(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Killed:
    """One replica: workers of tools and rewards in step 1, the engine in 2, the player of episodes in 3, the
    trainer in 4."""
    victims = {1: "tool", 2: "reward", 5: "replica", 9: "worker", 13: "trainer"}
    return run(tiny_model, tmp_path_factory.mktemp("killed"), 4, victims, "turntree.rewards={answer: 1, finished: 0.1}")


def test_training_goes_on_until_the_trainer_is_killed(killed: Killed) -> None:
    assert {path.name for path in killed.root.glob("*_*") if path.suffix == ""} == {
        *("1_tool", "2_reward", "5_replica", "9_worker", "13_trainer")
    }
    assert [report.step for report in killed.reports] == [1, 2, 3], killed.log[-3000:]


@pytest.mark.parametrize("step", [1, 2, 3])
def test_every_episode_is_played_to_its_end(killed: Killed, step: int) -> None:
    assert killed.complete(step)
    assert not any(record.episode.masked for record in killed.records(step).values())


def test_what_was_lost_is_counted_by_kind(killed: Killed) -> None:
    def lost(step: int) -> dict[str, float]:
        metrics = killed.reports[step - 1].metrics
        return {kind: metrics.get(f"turntree/lost_{kind}", 0) for kind in ("tool", "reward", "engine", "environment")}

    assert lost(1) == {"tool": 1, "reward": 0, "engine": 0, "environment": 0}
    assert lost(2)["engine"] >= 1
    assert lost(3) == {"tool": 0, "reward": 0, "engine": 0, "environment": 0}


def test_a_restarted_engine_samples_with_the_weights_of_its_step(killed: Killed, tiny_model: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    worst = {}
    for step in (1, 2, 3):
        model.load_state_dict(load_file(killed.folder.weights(2)), strict=False)
        model.tie_weights()
        turns = [turn for record in killed.records(step).values() for turn in record.episode.turns]
        worst[step] = 0.0
        for turn in turns:
            tokens = torch.tensor([[*turn.prompt_ids, *turn.completion.token_ids]])
            with torch.no_grad():
                logprobs = model(tokens).logits.log_softmax(-1)[0, len(turn.prompt_ids) - 1 : -1]
            chosen = logprobs.gather(1, torch.tensor(turn.completion.token_ids)[:, None])[:, 0]
            worst[step] = max(worst[step], float((chosen - torch.tensor(turn.completion.logprobs)).abs().max()))
    assert worst[2] < 1e-4
    # The control: the weights of other steps are told apart.
    assert min(worst[1], worst[3]) > 1e-3


def test_a_run_without_its_trainer_ends_soon_and_says_why(killed: Killed) -> None:
    assert killed.status != 0
    assert "ActorDiedError" in killed.log
    assert killed.ended - float((killed.root / "13_trainer").read_text()) < patience(600)


@pytest.fixture(scope="module")
def thinned(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Killed:
    """Two replicas, of which one is killed in step 2 together with the hub."""
    return run(
        tiny_model,
        tmp_path_factory.mktemp("thinned"),
        4,
        {5: "replica_and_hub"},
        "trainer.n_gpus_per_node=2",
        "ray_kwargs.ray_init.num_gpus=2",
        "actor_rollout_ref.rollout.engine_kwargs.turntree.exchange.homes=0",
    )


def test_training_goes_on_without_a_replica_and_the_hub(thinned: Killed) -> None:
    assert (thinned.root / "5_replica_and_hub").exists()
    assert thinned.status == 0, thinned.log[-3000:]
    assert [report.step for report in thinned.reports] == [1, 2, 3, 4]
    for step in (1, 2, 3, 4):
        assert thinned.complete(step)
        assert not any(record.episode.masked for record in thinned.records(step).values())


def test_replicas_give_each_other_their_turns(thinned: Killed) -> None:
    rows = [json.loads(line) for line in thinned.folder.engine.read_text().splitlines()]
    given, taken = ({row["step"]: row[name] for row in rows} for name in ("hub_given", "hub_taken"))
    assert given[1] > 0
    # With nobody dead, what the other replica said in a step is known before the next.
    assert taken[1] > 0
    assert taken[4] > 0
