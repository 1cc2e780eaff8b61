"""Rows of verl's data set for the tasks of a turntree environment.

A row names a task; the agent loop creates the environment and draws that task
again, so a row holds the prompt only for verl's length filter and logs.
The command line writes a file by hand; ``turntree train`` does it by itself.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from turntree.agents.errors import MissingExtra
from turntree.agents.loop.env_settings import made_settings
from turntree.agents.verl.config.checks import no_env
from turntree.agents.verl.config.sections import ConfigError
from turntree.envs import Env, Limits, WorkerPool, make
from turntree.envs.errors import DataError, Escape
from turntree.envs.running.containment import contain
from turntree.envs.sandbox.settings import VARIABLE

AGENT_NAME = "turntree_env"
"""Name of the agent loop that plays the rows."""
MOST_TASKS = {"train": 1024, "val": 32}
"""Rows of each split where their number is not given."""


def make_env(env_id: str, settings: Mapping[str, Any]) -> Env:
    """Create an environment from plain values.

    Args:
        settings: Keyword arguments; ``limits`` is a mapping of ``Limits`` fields, ``simulated_user`` one of
            ``ParticipantSettings``.

    Raises:
        ConfigError: If a limit or a setting of the customer is wrong, or the module of the environment cannot be
            imported.
        UnknownEnvironment: If there is no such environment.
    """
    try:
        kwargs = made_settings(settings)
    except ValueError as error:
        raise ConfigError(f"{env_id}: {error}") from error
    try:
        return make(env_id, **kwargs)
    except ModuleNotFoundError as error:
        if ":" not in env_id:
            raise
        raise no_env(env_id, error) from error


def token_bounds(prompt_length: int, response_length: int) -> Limits:
    """The lengths of verl's rows as limits of an episode, in tokens."""
    return Limits(
        max_turns=None,
        max_turn_tokens=None,
        max_episode_tokens=int(response_length),
        max_context_tokens=int(prompt_length) + int(response_length),
    )


def rows(env_id: str, settings: Mapping[str, Any], *, count: int | None, split: str) -> Iterator[dict[str, Any]]:
    """The first ``count`` tasks of an environment as rows.

    Args:
        count: ``None`` takes all, at most ``MOST_TASKS``.
        split: ``train`` or ``val``; only episodes of ``train`` are recorded.

    Raises:
        ConfigError: If the environment's data are not to be had, it has fewer tasks, or one of its tools could read
            their answers from disk.
    """
    try:
        env = make_env(env_id, settings)
    except DataError as error:
        raise ConfigError(f"{error}: turntree.env_kwargs.data=FILE") from error
    for toolset in env.toolsets:
        if exposure := toolset.exposure():
            raise ConfigError(
                f"{env_id} gives the policy a tool that could read the answers of its own tasks from this machine's "
                f"disk: {exposure}. Allow user namespaces, give the tool another runner (DockerSandbox), or set "
                f"{VARIABLE}=process to train nevertheless"
            )
    available = env.num_tasks
    if count is None:
        count = MOST_TASKS[split] if available is None else min(available, MOST_TASKS[split])
    elif available is not None and count > available:
        raise ConfigError(
            f"{env_id} has {available} tasks with {dict(settings)}, {count} were asked for: "
            f"turntree.{split}_tasks={available}"
        )
    # Arrow would unify structs over all rows, so settings are stored as text.
    text = json.dumps(settings, sort_keys=True)
    for index in range(count):
        task = env.task(index)
        try:
            _, info = contain(partial(env.reset, seed=index, options={"index": index}))
        except Escape as error:
            raise ConfigError(f"{env_id} cannot begin task {index}: reset() raised {error}") from error
        yield {
            "data_source": task.data_source or env_id,
            "prompt": [{"role": m["role"], "content": m["content"]} for m in info["messages"]],
            "reward_model": {"style": "rule", "ground_truth": task.answer},
            "extra_info": {"index": index, "split": split, "task_id": task.id},
            "agent_name": AGENT_NAME,
            "env_id": env_id,
            "env_kwargs": text,
        }
    env.close()


def write_rows(path: Path, env_id: str, settings: Mapping[str, Any], *, count: int | None, split: str) -> int:
    """Write ``rows`` to a Parquet file, and return how many there are.

    Raises:
        MissingExtra: If pyarrow is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtra("writing rows for verl", "train") from error
    path.parent.mkdir(parents=True, exist_ok=True)
    # In a thread of its own: the exception by which SIGTERM ends the main thread is not the environment's.
    listed = WorkerPool(1).submit(lambda: list(rows(env_id, settings, count=count, split=split))).result()
    table = pyarrow.Table.from_pylist(listed)
    pyarrow.parquet.write_table(table, path)
    return int(table.num_rows)


def main(arguments: list[str] | None = None) -> None:
    """``python -m turntree.agents.verl.episodes.dataset ENV_ID FILE -n COUNT [--env-kwargs JSON] [--split SPLIT]``."""
    parser = argparse.ArgumentParser(description="Write the tasks of an environment as rows for verl.")
    parser.add_argument("env_id", help="registered id, for example turntree/Arithmetic-v0")
    parser.add_argument("file", type=Path, help="Parquet file to write")
    parser.add_argument("-n", "--count", type=int, required=True, help="number of tasks")
    parser.add_argument("--env-kwargs", type=json.loads, default={}, help="settings as a JSON object")
    parser.add_argument("--split", choices=("train", "val"), default="train")
    options = parser.parse_args(arguments)
    write_rows(options.file, options.env_id, options.env_kwargs, count=options.count, split=options.split)


if __name__ == "__main__":
    main()
