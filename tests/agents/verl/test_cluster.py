import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from machine_speed import eventually, patience
from real_training import read_lines, run_training
from tables import table

pytestmark = [pytest.mark.slow, pytest.mark.release]


@pytest.fixture
def address() -> Iterator[str]:
    # A Ray whose processes know nothing of the tests.
    pytest.importorskip("ray")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    folder = tempfile.mkdtemp(prefix="tt-", dir="/tmp")  # paths of sockets are short
    dropped = ("TURNTREE_", "VERL_", "PYTHONPATH")
    variables = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    words = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--num-cpus=8", "--num-gpus=1"]
    words += [f"--port={address.partition(':')[2]}", f"--temp-dir={folder}"]
    words += ["--include-dashboard=false", "--object-store-memory=100000000", "--disable-usage-stats"]
    options = {"RAY_enable_worker_prestart": "0", "RAY_worker_niceness": "0", "RAY_AUTH_MODE": "disabled"}
    with Path(folder, "log").open("wb") as log:
        ray = subprocess.Popen(
            words, cwd=folder, env=variables | options, stdout=log, stderr=log, start_new_session=True
        )
    try:
        eventually(lambda: "Ray runtime started" in Path(folder, "log").read_text(), 60)
        yield address
    finally:
        os.killpg(ray.pid, signal.SIGTERM)
        try:
            ray.wait(patience(30))
        except subprocess.TimeoutExpired:
            os.killpg(ray.pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


def test_a_cluster_that_runs_trains_an_environment_of_the_callers_and_tells_that_its_episodes_are_lost(
    address: str, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "environments").mkdir()
    (tmp_path / "environments" / "lost_env.py").write_text(table(__file__, "loses_its_disk"))
    monkeypatch.syspath_prepend(tmp_path / "environments")
    monkeypatch.setenv("RAY_ADDRESS", address)  # this machine may have others
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # and a token for them
    trained = run_training(
        tiny_model,
        tmp_path,
        "",
        "turntree.env=lost_env:Lost",
        "ray_kwargs.ray_init.address=auto",
        "actor_rollout_ref.rollout.n=2",
        steps=1,
    )
    assert [row["step"] for row in read_lines(trained.folder.metrics)] == [1], trained.log[-3000:]
    assert trained.steps == [1], "on_step"
    failures = {record.episode.failure for record in trained.records(1).values()}
    assert all("the disk of this environment is full" in failure for failure in failures), "its own environment"
    assert trained.status == 1
    assert "every episode of step 1 failed because of the env" in caplog.text
