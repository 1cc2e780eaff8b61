import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from machine_speed import eventually, patience
from processes import heed_hangups
from real_training import LOOKING, OVERRIDES, PROMPTS, RAYS_SECONDS, SAMPLES, read_lines

from turntree.agents.episodes.record import read_records
from turntree.agents.verl.records.recording import RunFolder

pytestmark = [pytest.mark.slow, pytest.mark.release]

STEPS, KILLS = 24, 5
START, STEP = 9.0, 0.7  #: seconds of a training's start, and of a step
AGAIN = "trainer.v1.sampler.custom_sampler.name=LookingAgain"


class Launched:
    # A training by the command line with a checkpoint after each step.
    def __init__(self, model: Path, root: Path, mode: str) -> None:
        self.root, self.folder = root, RunFolder(root / "run")
        self.words = [
            *(sys.executable, "-m", "turntree.agents.cli", "train", "demo", f"mode={mode}"),
            f"actor_rollout_ref.model.path={model}",
            f"turntree.run_dir={self.folder.root}",
            "turntree.env=trained_envs:Forking",
            f"turntree.train_tasks={(STEPS + 1) * PROMPTS}",  # asynchronous: a batch is begun before its step
            f"data.train_batch_size={PROMPTS}",
            f"actor_rollout_ref.rollout.n={SAMPLES}",
            *OVERRIDES,
            f"trainer.total_training_steps={STEPS}",
            "trainer.save_freq=1",
            "trainer.resume_mode=auto",
            *(() if mode == "sync" else (LOOKING[0], AGAIN)),
        ]
        slow = {name: str(int(patience(seconds))) for name, seconds in RAYS_SECONDS.items()}
        self.environment = {**os.environ, **slow, "LOOKING": str(root / "batches.jsonl")}
        self.environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))

    def start(self) -> subprocess.Popen[str]:
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen(self.words, env=self.environment, preexec_fn=heed_hangups, **pipes)

    def living(self) -> list[psutil.Process]:
        found = []
        for one in psutil.process_iter():
            try:
                ours = one.environ().get("LOOKING") == self.environment["LOOKING"]
                if ours and one.status() != psutil.STATUS_ZOMBIE:
                    found.append(one)
            except psutil.Error:
                continue
        return found

    def rows(self) -> list[tuple[int, int]]:
        # Task and sample of the rows that the final policy was trained on.
        batches = self.root / "batches.jsonl"
        if batches.exists():  # of a step that was made again the last time counts
            by_step = {batch[0]["step"]: batch for batch in read_lines(batches)}
            return [(row["index"], row["session"]) for batch in by_step.values() for row in batch]
        records = [record for step in range(1, STEPS + 1) for record in read_records(self.folder.episodes(step))]
        return [(record.labels["index"], record.labels["session"]) for record in records]

    def steps_since(self, start: float) -> int:
        metrics = self.folder.metrics
        if not metrics.exists() or metrics.stat().st_mtime < start:
            return 0
        return metrics.read_text().count('"training/global_step"')


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGHUP, signal.SIGTERM], ids=lambda one: one.name)
@pytest.mark.parametrize("mode", ["sync", "colocate_async", "separate_async"])
def test_a_training_whose_launcher_is_killed_leaves_nothing_and_goes_on(
    mode: str, ending: signal.Signals, tiny_model: Path, tmp_path: Path
) -> None:
    chance = random.Random(f"{mode} {ending}")
    launched, said = Launched(tiny_model, tmp_path, mode), ""
    for _ in range(KILLS):
        began, steps = time.time(), chance.randrange(2)
        process = launched.start()
        eventually(lambda: launched.steps_since(began) >= steps or process.poll() is not None, 120)  # noqa: B023
        time.sleep(chance.uniform(0, STEP * 2 if steps else START))
        assert process.poll() is None, process.communicate()[0]
        process.send_signal(ending)
        said += process.communicate(timeout=patience(30))[0]
        eventually(lambda: not launched.living())
    for _ in range(2):  # to its end, and once more
        process = launched.start()
        said += process.communicate(timeout=patience(300))[0]
        assert process.returncode == 0, said
    lost = {*map(int, re.findall(r"step (\d+) has no row in", said))}
    metrics, engine = (
        [row["step"] for row in read_lines(file)] for file in (launched.folder.metrics, launched.folder.engine)
    )
    assert [step for step in metrics if step] == [step for step in range(1, STEPS + 1) if step not in lost]
    assert engine == sorted({*engine})
    assert {*engine} | lost == {*range(1, STEPS + 1)}
    assert len(launched.rows()) == len({*launched.rows()}) == STEPS * PROMPTS * SAMPLES
