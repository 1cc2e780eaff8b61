"""Tasks in Harbor's format: folders read and refused; episodes in real containers, where there is a ``docker``."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from containers import docker, running
from machine_speed import eventually
from pages import ROOT, python_blocks
from playing import use

from turntree.envs.errors import DataError, SandboxError, SnapshotError
from turntree.envs.failure import FailureKind
from turntree.envs.harbor import Harbor
from turntree.envs.harbor.env import Terminal, _rewards
from turntree.envs.harbor.tasks import read_task

TEST = 'test "$(cat /app/answer)" = 42 && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt'

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(name: str, config: str = "", *, test: str = TEST, **files: str) -> Path:
        folder = tmp_path / "tasks" / name
        texts = {
            "task.toml": 'schema_version = "1.4"\n' + config,
            "instruction.md": "<!-- harbor-canary GUID 1 -->\n\nWrite 42 to /app/answer.\n",
            "environment/Dockerfile": "FROM turntree-test-busybox\nWORKDIR /app\nCOPY hint /app/hint\n",
            "environment/hint": "forty-two",
            "tests/test.sh": f"#!/bin/sh\n{test}\n",
            "solution/solve.sh": "#!/bin/sh\necho 42 > /app/answer\n",
        }
        for path, text in {**texts, **files}.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        return folder

    return write


def test_a_task_is_read_as_it_is_written(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNTREE_TEST_KEY", "secret")
    config = """
[metadata]
difficulty = "easy"
[environment]
docker_image = "x:1"
network_mode = "no-network"
memory = "2G"
cpus = 1.5
env = { KEY = "${TURNTREE_TEST_KEY}", OTHER = "${TURNTREE_TEST_NONE:-default}" }
[verifier]
timeout_sec = 7
user = 0
"""
    task = read_task(write("one", config))
    assert task.instruction == "Write 42 to /app/answer."
    assert (task.image, task.network, task.memory_mb, task.cpus) == ("x:1", "none", 2048, 1.5)
    assert (task.test_seconds, task.test_user, task.user) == (7.0, "0", None)
    assert task.variables == {"KEY": "secret", "OTHER": "default"}
    assert read_task(write("two")).network == "bridge"
    assert read_task(write("three", "[environment]\nallow_internet = false")).network == "none"


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ('[[steps]]\nname = "a"', "[[steps]]"),
        ("[environment]\ngpus = 1", "gpus"),
        ('[environment]\nos = "windows"', "os"),
        ('[verifier]\nenvironment_mode = "other"', "environment_mode"),
        ("[verifier.environment]\ncpus = 2", "[verifier.environment]"),
        ('artifacts = ["app"]', "absolute path"),
        ('[environment]\nnetwork_mode = "allowlist"', "allowlist"),
        ('[agent]\nnetwork_mode = "no-network"', "[agent] network_mode"),
        ('[environment]\nenv = { KEY = "${TURNTREE_TEST_NONE}" }', "TURNTREE_TEST_NONE"),
        ('[environment]\nmemory = "much"', "task.toml"),
        ("environment = 3", "[environment] must be a table"),
        ("[environment", "cannot read the task"),
    ],
)
def test_what_is_not_done_is_refused_by_name(write: Write, config: str, named: str) -> None:
    refused = write("refused", config)
    with pytest.raises(DataError, match=named.replace("[", r"\[")):
        Harbor(refused)
    write("served")
    with pytest.raises(DataError, match="skip=True"):
        Harbor(refused.parent)
    assert [task.name for task in Harbor(refused.parent, skip=True).tasks] == ["served"]


def test_a_folder_without_a_task_says_what_one_is(tmp_path: Path, write: Write) -> None:
    with pytest.raises(DataError, match=r"instruction\.md, environment/ and tests/test\.sh"):
        Harbor(tmp_path)
    (write("one") / "environment" / "docker-compose.yaml").touch()
    with pytest.raises(DataError, match=r"environment/docker-compose\.yaml"):
        Harbor(tmp_path / "tasks")


def test_a_machine_without_docker_is_no_verdict(write: Write) -> None:
    with pytest.raises(SandboxError, match="install Docker"):
        Harbor(write("one"), docker="/no/such/docker").reset(options={"index": 0})


@pytest.mark.parametrize(
    ("as_json", "as_text", "rewards"),
    [
        (None, "0.5\n", {"reward": 0.5}),
        ('{"reward": 1, "style": 0.25}', "0", {"reward": 1.0, "style": 0.25}),
        ("0.75", None, {"reward": 0.75}),
        (None, None, {}),
        (None, "nan", {}),
        (None, "", {}),
        ('{"reward": "much"}', None, {}),
        ("{", "1", {}),
    ],
)
def test_rewards_are_finite_numbers_or_none(as_json: str | None, as_text: str | None, rewards: Any) -> None:
    assert _rewards(as_json, as_text) == rewards


def harbor(folder: Path, image: str, **kwargs: Any) -> Harbor:
    env = Harbor(folder, network="none", **kwargs)
    env.reset(options={"index": 0})
    return env


def test_the_solution_is_paid_and_nothing_else(write: Write, busybox_image: str) -> None:
    env = harbor(write("one"), busybox_image)
    assert env.messages[-1].content == "Write 42 to /app/answer."
    assert use(env, "shell", command="ls; cat hint; ls /tests 2> /dev/null") == "hint\nforty-two\n[exit status 1]"
    for turn in env.solution():
        _, reward, terminated, _, info = env.step(turn)
    assert (reward, terminated, info["rewards"], info["failure"]) == (1.0, True, {"reward": 1.0}, "")
    for _ in range(2):  # a container is an episode's own
        env.reset(options={"index": 0})
        assert env.step("Done.")[1:3] == (0.0, True)
    env.close()
    assert not running()


def test_a_reward_that_the_policy_wrote_is_not_paid(write: Write, busybox_image: str) -> None:
    env = harbor(write("one"), busybox_image)
    use(
        env,
        "shell",
        command="mkdir -p /logs/verifier /tests; echo 1 > /logs/verifier/reward.json; echo 'echo' > /tests/test.sh",
    )
    assert env.step("Done.")[1:3] == (0.0, True)


@pytest.mark.parametrize("bundled", [True, False])
def test_tests_in_a_container_of_their_own_see_the_artifacts_alone(write, busybox_image, bundled):
    test = "cat /app/answer /app/more/* /logs/artifacts/note 2>&1; " + TEST
    config = 'artifacts = ["/app/answer", "/app/more", "/none"]\n[verifier]\nenvironment_mode = "separate"'
    files = {"tests/Dockerfile": "FROM turntree-test-busybox\nCOPY . /tests/\n"} if bundled else {}
    env = harbor(write("one", config, test=test, **files), busybox_image)
    use(env, "shell", command="echo 41 > answer; rm -rf /bin/test; mkdir -p /logs/artifacts")
    assert env.step("Done.")[1:3] == (0.0, True)
    env.reset(options={"index": 0})
    use(env, "shell", command="echo 42 > answer; mkdir more; echo x > more/y; echo '#' > /bin/cat")
    _, reward, terminated, _, info = env.step("Done.")
    assert (reward, terminated, info["failure"]) == (1.0, True, "")
    assert not running()


def test_a_late_command_ends_with_what_it_started_and_long_output_is_cut(write: Write, busybox_image: str) -> None:
    env = harbor(write("one"), busybox_image, seconds=2.0, shown=50)
    assert "[ended after 2 s" in use(env, "shell", command="echo begun; (sleep 901; echo x) & sleep 902; echo y")
    container = env.toolset(Terminal).container
    assert container is not None
    left = docker("top", container.name).stdout.decode()
    assert "sleep 86400" in left
    assert "sleep 90" not in left
    assert "bytes ...]" in use(env, "shell", command="for i in 1 2 3 4 5 6 7 8 9; do echo 12345678901234567890; done")
    assert use(env, "shell", command="id -u; exit 3") == "0\n\n[exit status 3]"
    with pytest.raises(SnapshotError):
        env.snapshot()
    env.close()
    eventually(lambda: not running(), 30)


@pytest.mark.parametrize(
    ("test", "config", "kind"),
    [
        ("exit 1", "", FailureKind.REWARD),
        ("sleep 60", "[verifier]\ntimeout_sec = 1", FailureKind.TIMEOUT),
        ("echo much > /logs/verifier/reward.txt", "", FailureKind.REWARD),
    ],
)
def test_tests_without_a_verdict_are_a_failure(write, busybox_image, test, config, kind):
    env = harbor(write("one", config, test=test), busybox_image)
    *_, info = env.step("Done.")
    assert (info["stop_reason"], info["failure_kind"]) == ("failure", kind)


def test_an_image_that_cannot_be_built_is_no_verdict(write: Write, busybox_image: str) -> None:
    with pytest.raises(SandboxError, match="build"):
        harbor(write("one", **{"environment/Dockerfile": f"FROM {busybox_image}\nRUN exit 3\n"}), busybox_image)


def test_the_lines_of_the_page_open_a_task(write: Write, busybox_image: str, tmp_path, monkeypatch) -> None:
    write("one", '[environment]\nnetwork_mode = "no-network"').parent.rename(tmp_path / "terminal-bench-2")
    monkeypatch.chdir(tmp_path)
    (code,) = [code for code, _ in python_blocks(ROOT / "docs/howto/bridges.md") if "Harbor(" in code]
    names: dict[str, Any] = {}
    exec(code, names)
    names["env"].close()
    assert "Write 42 to /app/answer." in names["opening"]
