"""Rows of verl's data set for the tasks of a turntree environment.

A row only names a task: the agent loop creates the environment again and resets it to that task. verl uses the row's
prompt only for its length filter and logs. ``turntree train`` writes the rows; to write a file yourself, run this
module.
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

AGENT_NAME = "turntree_env"  #: name of the agent loop that plays the rows
MOST_TASKS = {"train": 1024, "val": 32}  #: maximum rows of a split if the number of tasks is not set


def make_env(env_id: str, settings: Mapping[str, Any]) -> Env:
    """Create an environment from plain values; ``limits`` and ``simulated_user`` are mappings of fields.

    Raises:
        ConfigError: If a setting is invalid, or the environment's module cannot be imported.
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
    """Convert the lengths of verl's rows to an episode's limits in tokens."""
    return Limits(
        max_turns=None,
        max_turn_tokens=None,
        max_episode_tokens=int(response_length),
        max_context_tokens=int(prompt_length) + int(response_length),
    )


def rows(env_id: str, settings: Mapping[str, Any], *, count: int | None, split: str) -> Iterator[dict[str, Any]]:
    """Yield the first ``count`` tasks of an environment as rows; ``None`` takes up to ``MOST_TASKS``.

    Raises:
        ConfigError: If the environment's data are missing, the environment has fewer than ``count`` tasks, or one of
            its tools could read the tasks' answers from disk.
    """
    try:
        env = make_env(env_id, settings)
    except DataError as error:
        raise ConfigError(f"{error}: turntree.env_kwargs.data=FILE") from error
    for toolset in env.toolsets:
        if exposure := toolset.exposure():
            raise ConfigError(
                f"{env_id} has a tool that could read the answers of its own tasks from this machine's disk: "
                f"{exposure}. Allow user namespaces, give the tool another runner (DockerSandbox), or set "
                f"{VARIABLE}=process to train anyway"
            )
    available = env.num_tasks
    if count is None:
        count = MOST_TASKS[split] if available is None else min(available, MOST_TASKS[split])
    elif available is not None and count > available:
        raise ConfigError(
            f"{env_id} has only {available} tasks with {dict(settings)}, but {count} were requested; set "
            f"turntree.{split}_tasks={available}"
        )
    # Arrow would unify structs over all rows, so settings are stored as text.
    text = json.dumps(settings, sort_keys=True)
    for index in range(count):
        task = env.task(index)
        try:
            _, info = contain(partial(env.reset, seed=index, options={"index": index}))
        except Escape as error:
            raise ConfigError(f"{env_id} cannot start task {index}: reset() raised {error}") from error
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
    """Write ``rows`` to a Parquet file and return their number."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtra("writing rows for verl", "train") from error
    path.parent.mkdir(parents=True, exist_ok=True)
    # In a separate thread: the environment must not catch the exception that SIGTERM raises in the main thread.
    all_rows = WorkerPool(1).submit(lambda: list(rows(env_id, settings, count=count, split=split))).result()
    table = pyarrow.Table.from_pylist(all_rows)
    pyarrow.parquet.write_table(table, path)
    return int(table.num_rows)


def main(arguments: list[str] | None = None) -> None:
    """Run ``python -m turntree.agents.verl.episodes.dataset``; see its ``--help``."""
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
