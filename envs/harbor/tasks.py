"""Read a task in Harbor's format: a folder with ``task.toml``, ``instruction.md``, ``environment/`` and ``tests/``.

The format's version is 1.4 (Harbor 0.26). Unsupported features are refused by name.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from turntree.envs.errors import DataError

ARTIFACTS = "/logs/artifacts"  #: where a policy may leave files for the tests without being asked
_CANARY = re.compile(r"^(<!--.*canary.*-->|#.*canary.*)$", re.IGNORECASE)
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
_SIZES = {"G": 1024.0, "M": 1.0, "K": 1 / 1024}


@dataclass(frozen=True, kw_only=True)
class HarborTask:
    folder: Path
    instruction: str
    image: str | None  #: name of an existing image; None builds the image from environment/Dockerfile
    build_seconds: float
    test_seconds: float
    network: str  #: Docker's network: ``bridge`` or ``none``
    cpus: float | None
    memory_mb: int | None
    workdir: str | None  #: None keeps the image's working folder
    user: str | None  #: user that runs the policy's commands; None keeps the image's user
    test_user: str | None
    variables: Mapping[str, str] = field(default_factory=dict)
    test_variables: Mapping[str, str] = field(default_factory=dict)
    separate: bool = False  #: whether the tests run in a separate container that receives the policy's artifacts
    #: image of the tests; None builds tests/Dockerfile, or takes the task's image if there is none
    test_image: str | None = None
    artifacts: tuple[str, ...] = ()  #: paths in the policy's container
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.folder.name


def find_tasks(folder: str | Path) -> list[Path]:
    root = Path(folder).expanduser().resolve()
    found = [root] if (root / "task.toml").is_file() else sorted(path.parent for path in root.glob("*/task.toml"))
    if not found:
        raise DataError(
            f"no task in {root}: expected a folder with task.toml, instruction.md, environment/ and tests/test.sh, or "
            "a folder of such folders"
        )
    return found


def read_tasks(folder: str | Path, *, skip: bool = False) -> list[HarborTask]:
    tasks, refused = [], []
    for one in find_tasks(folder):
        try:
            tasks.append(read_task(one))
        except DataError as error:
            refused.append(str(error))
    if refused and (not tasks or not skip):
        more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
        raise DataError(f"{refused[0]}{more}; {'take them out' if not tasks else 'skip=True leaves such tasks out'}")
    return tasks


def read_task(folder: Path) -> HarborTask:
    """Read a task.

    Raises:
        DataError: If the task is malformed or needs an unsupported feature, which the message names.
    """
    try:
        config = tomllib.loads((folder / "task.toml").read_text(encoding="utf-8"))
        instruction = "" if config.get("steps") else (folder / "instruction.md").read_text(encoding="utf-8")
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read the task {folder}: {error}") from error
    parts = {name: config.get(name, {}) for name in ("environment", "agent", "verifier", "metadata")}
    wrong = next((name for name, part in parts.items() if not isinstance(part, dict)), None)
    if wrong:
        raise DataError(f"{folder / 'task.toml'}: [{wrong}] must be a table, got {parts[wrong]!r}")
    environment, agent, verifier = parts["environment"], parts["agent"], parts["verifier"]
    _refuse(folder, config, environment, agent, verifier)
    try:
        return HarborTask(
            folder=folder,
            instruction=_without_canary(instruction),
            image=environment.get("docker_image"),
            build_seconds=float(environment.get("build_timeout_sec", 600)),
            test_seconds=float(verifier.get("timeout_sec", 600)),
            network="none" if _mode(environment) == "no-network" else "bridge",
            cpus=None if environment.get("cpus") is None else float(environment["cpus"]),
            memory_mb=_memory(environment),
            workdir=environment.get("workdir"),
            user=_text(agent.get("user")),
            test_user=_text(verifier.get("user")),
            variables=_filled(environment.get("env", {})),
            test_variables=_filled(verifier.get("env", {})),
            metadata=parts["metadata"],
            separate=_separate(verifier),
            test_image=verifier.get("environment", {}).get("docker_image"),
            artifacts=tuple(dict.fromkeys([ARTIFACTS, *(_source(one) for one in config.get("artifacts", ()))])),
        )
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise DataError(f"{folder / 'task.toml'}: {error}") from error


def _refuse(folder: Path, config: Any, environment: Any, agent: Any, verifier: Any) -> None:
    compose = [
        name for name in ("docker-compose.yaml", "docker-compose.yml") if (folder / "environment" / name).exists()
    ]
    asked = {
        "[[steps]]": config.get("steps"),
        f"environment/{''.join(compose[:1])}": compose,
        "[environment] os": str(environment.get("os") or "linux").lower() != "linux",
        "[environment] gpus": environment.get("gpus"),
        "[environment] tpu": environment.get("tpu"),
        "[environment] healthcheck": environment.get("healthcheck"),
        "[[environment.mcp_servers]]": environment.get("mcp_servers"),
        "[verifier.environment] with more than docker_image": {*verifier.get("environment", {})} - {"docker_image"},
        "[[verifier.collect]]": verifier.get("collect"),
        "network_mode = 'allowlist'": "allowlist" in (_mode(environment), agent.get("network_mode")),
        "[agent] network_mode, another than the environment's": agent.get("network_mode", _mode(environment))
        != _mode(environment),
        "[verifier] network_mode, another than the environment's": verifier.get("network_mode", _mode(environment))
        != _mode(environment),
    }
    refused = [name for name, value in asked.items() if value]
    if refused:
        raise DataError(
            f"the task {folder} asks for {', '.join(refused)}, which turntree does not do; leave the task out"
        )
    if not (environment.get("docker_image") or (folder / "environment" / "Dockerfile").is_file()):
        raise DataError(f"the task {folder} has neither environment/Dockerfile nor docker_image in task.toml")
    if not (folder / "tests" / "test.sh").is_file():
        raise DataError(f"the task {folder} has no tests/test.sh")


def _mode(environment: Mapping[str, Any]) -> str:
    # Tasks in older versions of the format have the key allow_internet instead of network_mode.
    return str(
        environment.get("network_mode") or ("no-network" if environment.get("allow_internet") is False else "public")
    )


def _memory(environment: Mapping[str, Any]) -> int | None:
    if environment.get("memory_mb") is not None:
        return int(environment["memory_mb"])
    older = environment.get("memory")  # a text such as "2G", in older versions of the format
    return None if older is None else int(float(older[:-1]) * _SIZES[older[-1].upper()])


def _separate(verifier: Mapping[str, Any]) -> bool:
    mode = verifier.get("environment_mode") or ("separate" if verifier.get("environment") else "shared")
    if mode not in ("shared", "separate"):
        raise ValueError(f"[verifier] environment_mode must be 'shared' or 'separate', got {mode!r}")
    return bool(mode == "separate")


def _source(artifact: Any) -> str:
    path = artifact if isinstance(artifact, str) else artifact["source"]
    if (
        not path.startswith("/")
        or ".." in path.split("/")
        or (not isinstance(artifact, str) and {*artifact} - {"source"})
    ):
        raise ValueError(f"an artifact must be an absolute path without '..', and nothing more, got {artifact!r}")
    return str(path).rstrip("/") or "/"


def _text(user: Any) -> str | None:
    return None if user is None else str(user)


def _filled(variables: Mapping[str, Any]) -> dict[str, str]:
    # Replaces ${NAME} and ${NAME:-default} by variables of this process's environment.

    def value(mark: re.Match[str]) -> str:
        found = os.environ.get(mark[1], mark[2])
        if found is None:
            raise ValueError(f"the variable {mark[1]} is not set; export it")
        return found

    return {name: _VARIABLE.sub(value, str(text)) for name, text in variables.items()}


def _without_canary(text: str) -> str:
    # Benchmark files begin with canary lines, by which filters remove them from training data; the policy gets none.
    lines = text.split("\n")
    marked = next((at for at, line in enumerate(lines) if not _CANARY.match(line.strip())), len(lines))
    rest = "\n".join(lines[marked:])
    return (rest.lstrip("\n") if marked else rest).strip()
