"""A stand-in for the ``docker`` command runs the code here; it tests the command line and the deadline."""

import sys
from pathlib import Path

import pytest
from machine_speed import patience
from tables import table

from turntree.envs.sandbox import CodeStatus, DockerSandbox, SandboxError, SandboxLimits


@pytest.fixture
def docker(tmp_path: Path) -> str:
    command = tmp_path / "docker"
    command.write_text(table(__file__, "docker").format(python=sys.executable))
    command.chmod(0o755)
    return str(command)


def test_the_container_has_no_network_no_privileges_and_bounds() -> None:
    command = DockerSandbox("img", limits=SandboxLimits(processes=5, memory_bytes=1000)).command("n")
    assert {"--network=none", "--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges"} <= set(command)
    assert {"--pids-limit=5", "--memory=1000", "--memory-swap=1000", "--pull=never"} <= set(command)


def test_ends_of_the_code_are_told_apart_and_a_docker_that_fails_is_no_verdict(docker: str) -> None:
    sandbox = DockerSandbox("img", docker=docker, limits=SandboxLimits(output_bytes=10))
    good = sandbox.run("import sys; print('x' * 30); print('oops', file=sys.stderr)")
    assert (good.status, good.stdout, good.stderr, good.dropped_bytes) == (CodeStatus.OK, "x" * 10, "oops\n", 21)
    assert sandbox.run("1/0").status is CodeStatus.ERROR
    with pytest.raises(SandboxError, match="No such image"):
        DockerSandbox("missing", docker=docker).run("1")
    with pytest.raises(SandboxError, match="install Docker"):
        DockerSandbox(docker="/no/such/docker").run("1")


def test_the_deadline_kills_the_container_by_name(docker: str) -> None:
    limits, start = SandboxLimits(seconds=0.1), patience(0.5)
    result = DockerSandbox("img", docker=docker, limits=limits, start_seconds=start).run("import time; time.sleep(1e6)")
    assert (result.status, result.error) == (CodeStatus.TIMEOUT, "stopped after 0.1 s")
