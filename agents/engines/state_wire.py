"""A dialogue state as plain data, sent with a request into an external engine.

vLLM takes it in ``SamplingParams.extra_args``, SGLang in ``custom_params``; both
under ``KEY``. Values are JSON values; the hash is text, since JSON readers may
round 64-bit numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turntree.spec_tree import DialogueState

KEY = "turntree_state"
"""Key of the state in the request."""


def to_wire(state: DialogueState) -> dict[str, str]:
    """The state as a flat mapping of texts.

    Example:
        >>> to_wire(DialogueState(exact=255, task="7"))
        {'exact': 'ff', 'task': '7', 'tools': '', 'env': ''}
    """
    return {"exact": f"{state.exact:x}", "task": state.task, "tools": state.tools, "env": state.env}


def from_wire(values: Mapping[str, Any]) -> DialogueState:
    """Read what ``to_wire`` wrote.

    Raises:
        ValueError: If it is not such a mapping.
    """
    try:
        texts = {name: values[name] for name in ("task", "tools", "env")}
        exact = int(values["exact"], 16)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{KEY} must be what turntree.agents.engines.state_wire.to_wire gives, a mapping of exact (hexadecimal), "
            f"task, tools and env, got {values!r}"
        ) from error
    if not all(isinstance(text, str) for text in texts.values()) or not 0 <= exact < 1 << 64:
        raise ValueError(f"{KEY} must hold texts and a 64-bit exact, got {values!r}")
    return DialogueState(exact=exact, **texts)
