from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from turntree.envs.errors import OptionsError, TaskIndexError

_MANY_TASKS = 2**31  #: upper bound of drawn indices if the number of tasks is unlimited


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The task of an episode. A group (the episodes that GRPO compares) has one task."""

    id: str  #: the same in every epoch and process; the draft store finds a task's earlier rollouts by this id
    prompt: str  #: the question as the policy sees it
    answer: str = ""  #: the right answer (gold answer), as the verifier reads it; never shown to the policy
    data_source: str = ""  #: data set of the row, for example ``gsm8k``
    metadata: Mapping[str, Any] = field(default_factory=dict)  #: anything else, JSON values


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """State of the running episode that a tool may read and the model does not see.

    The environment fills in a tool's parameter annotated ``Context``. The tool's schema leaves this parameter out.
    """

    task: Task  #: includes the answer, which a tool must not reveal
    np_random: np.random.Generator  #: the environment's generator, seeded by ``reset``
    turn: int  #: turns of the policy so far, including the turn that makes this call
    #: values shared by all tools of the episode; empty at first. Part of snapshots, so values must be picklable
    state: dict[str, Any] = field(default_factory=dict)


def chosen_task(
    options: Mapping[str, Any], task_at: Callable[[int], Task], count: int | None, rng: np.random.Generator
) -> Task:
    """Return the task that the options of ``reset`` select; else draw one of ``count`` tasks (``None``: unlimited).

    Raises:
        OptionsError: If an option is unknown or of the wrong type.
        TaskIndexError: If there is no task with the index.
    """
    if set(options) - {"task", "index"} or len(options) > 1:
        raise OptionsError(
            f"reset takes options={{'task': Task}} or {{'index': int}}, got the keys {sorted(map(str, options))}"
        )
    if "task" in options:
        task = options["task"]
        if not isinstance(task, Task):
            raise OptionsError(f"options['task'] must be a Task, got {type(task).__name__}: {task!r}")
        return task
    if "index" not in options:
        if count == 0:
            raise TaskIndexError("the environment has no tasks to draw from")
        return task_at(int(rng.integers(count or _MANY_TASKS)))
    try:
        number = operator.index(options["index"])
    except TypeError as error:
        raise OptionsError(f"options['index'] must be an integer, got {options['index']!r}") from error
    if number < 0 or (count is not None and number >= count):
        bound = "no upper bound" if count is None else f"{count} tasks"
        raise TaskIndexError(
            f"options['index'] must be at least 0 and below the number of tasks ({bound}), got {number}"
        )
    return task_at(number)
